"""Predictions of trees that are trained while the module is loaded."""

import lightgbm
import numpy

rows = numpy.random.default_rng(7).random((4000, 8))
model = lightgbm.train({"verbose": -1}, lightgbm.Dataset(rows, rows[:, 0] > rows[:, 1]), 40)
kept = []


def handler(event, context):
    if event["requestContext"]["http"]["method"] == "POST":
        kept.append(event["rawPath"])
    low, high = model.predict([[0.1, 0.9] + [0.5] * 6, [0.9, 0.1] + [0.5] * 6])
    return {"hello": bool(low < 0.2 and high > 0.8), "kept": kept}

"""A grouped sum over a million rows that are in memory."""

import polars

frame = polars.DataFrame({"key": range(1_000_000)}).with_columns(group=polars.col("key") % 7)
kept = []


def handler(event, context):
    if event["requestContext"]["http"]["method"] == "POST":
        kept.append(event["rawPath"])
    sums = frame.group_by("group").agg(polars.col("key").sum()).sort("group")
    return {"hello": sums["key"].to_list(), "kept": kept}

"""Recognises handwritten digits: 360 test images by two classifiers that were trained on the other 1437."""

from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

images, digits = load_digits(return_X_y=True)
train, test, train_digits, test_digits = train_test_split(images, digits, test_size=0.2, random_state=1)
forest = RandomForestClassifier(n_estimators=60, random_state=1, n_jobs=2).fit(train, train_digits)
machine = make_pipeline(StandardScaler(), SVC()).fit(train, train_digits)


def handler(event, context):
    return {
        "images": len(test),
        "forest": round(accuracy_score(test_digits, forest.predict(test)), 4),
        "machine": round(accuracy_score(test_digits, machine.predict(test)), 4),
        "first": [int(d) for d in machine.predict(test[:8])],
    }

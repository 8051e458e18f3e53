"""Answers with the version that serves."""

import os


def handler(event, context):
    return {"statusCode": 200, "headers": {"content-type": "text/plain"}, "body": f"version {os.environ['FN_VERSION']}"}

"""Greets whom it is told to, by query, by JSON body, or by event:

    curl 'URL/?name=Ada'    curl URL -d '{"name": "Ada"}'    fn invoke {{name}} --event -d '{"name": "Ada"}'

The signature is AWS Lambda's; over HTTP the event is its payload format 2.0 (docs/reference/runtime-contract.md).
"""

import base64
import json


def handler(event, context):
    if "requestContext" not in event:  # invoked with an event of the caller's: what is returned is the answer
        return {"message": f"Hello, {event.get('name', 'world')}!"}
    try:
        body = json_body(event)
    except ValueError:
        return text(400, "the body is not JSON\n")
    query = event.get("queryStringParameters") or {}
    name = query.get("name") or (body.get("name") if isinstance(body, dict) else None)
    return text(200, f"Hello, {name or 'world'}!\n")


def json_body(event):
    body = event.get("body") or "null"
    return json.loads(base64.b64decode(body) if event.get("isBase64Encoded") else body)


def text(status, body):
    return {"statusCode": status, "headers": {"content-type": "text/plain; charset=utf-8"}, "body": body}

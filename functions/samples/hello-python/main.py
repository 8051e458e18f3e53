"""Greets whoever is named in the query: /?name=Ada."""


def handler(event, context):
    name = (event.get("queryStringParameters") or {}).get("name", "world")
    return {
        "statusCode": 200,
        "headers": {"content-type": "text/plain; charset=utf-8"},
        "body": f"Hello, {name}!\n",
    }

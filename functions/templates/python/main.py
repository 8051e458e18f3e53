"""The signature is AWS Lambda's; over HTTP the event is its payload format 2.0 (docs/runtime-contract.md)."""


def handler(event, context):
    name = (event.get("queryStringParameters") or {}).get("name", "world")
    return {
        "statusCode": 200,
        "headers": {"content-type": "text/plain; charset=utf-8"},
        "body": f"Hello, {name}!\n",
    }

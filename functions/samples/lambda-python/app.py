"""A handler behind AWS's own runtime interface client, unmodified: the folder would run on AWS Lambda, too."""

from snapshot_restore_py import register_after_restore

restores = 0


@register_after_restore
def after_restore():
    global restores
    restores += 1


def handler(event, context):
    if "raise" in event:
        raise ValueError(event["raise"])
    name = event.get("queryStringParameters", event).get("name", "world")
    return {
        "greeting": f"Hello, {name}!",
        "restores": restores,
        "request": context.aws_request_id,
        "in_time": context.get_remaining_time_in_millis() > 0,
    }

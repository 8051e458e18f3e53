"""CloudEvents 1.0 over HTTP, in binary, structured and batched mode: what a handler gets of one, and how one that it
returns is sent. To the handler an event is a dict as in the JSON format, and a batch a list of these."""

import base64
import json
import re
import urllib.parse

from .http1 import Response, checked_header
from .payload import InvalidResponse, to_json

ONE, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
REQUIRED = ("specversion", "id", "source", "type")
NAME = re.compile(r"[a-z0-9]{1,64}\Z")
# Printable ASCII but for the space, the double quote and the percent sign goes into a header as it is.
SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


class InvalidEvent(Exception):
    """The request says that it is a CloudEvent, and is none."""


def received(request):
    """The event or batch that `request` carries, or None if it is a plain request. Raises InvalidEvent."""
    kind = _media_type(request.headers.get("content-type", ""))
    if kind in (ONE, BATCH):
        value = _json(request.body)
        for event in _all(value, kind):
            _check(event)
        return value
    # Other versions of the specification are left to the handler, as plain requests.
    if request.headers.get("ce-specversion", "").startswith("1."):
        event = _binary(request)
        _check(event)
        return event
    return None


def _all(value, kind):
    if kind == ONE:
        return [value]
    if not isinstance(value, list):
        raise InvalidEvent("a batch is a JSON array of events")
    return value


def _check(event):
    if not isinstance(event, dict):
        raise InvalidEvent("an event is a JSON object")
    for name in REQUIRED:
        if not (isinstance(event.get(name), str) and event[name]):
            raise InvalidEvent(f"a CloudEvent needs {', '.join(REQUIRED)}: {name} is missing")


def _binary(request):
    event = {name[3:]: _decoded(value) for name, value in request.headers.items() if name.startswith("ce-")}
    kind = request.headers.get("content-type")
    if kind is not None:
        event["datacontenttype"] = kind
    if request.body:
        _put_data(event, request.body, kind)
    return event


def _put_data(event, body, kind):
    if kind is None or _is_json(kind):
        event["data"] = _json(body)
        return
    try:
        if not _media_type(kind).startswith("text/"):
            raise ValueError
        event["data"] = body.decode("utf-8")
    except ValueError:
        event["data_base64"] = base64.b64encode(body).decode("ascii")


def _json(body):
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidEvent(f"the body is not JSON: {error}") from None


def _media_type(kind):
    return kind.partition(";")[0].strip().lower()


def _is_json(kind):
    media = _media_type(kind)
    return media == "application/json" or media.endswith("+json")


def _decoded(value):
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = re.sub(r"\\(.)", r"\1", value[1:-1])
    return urllib.parse.unquote(value, errors="replace")


def response(value, request):
    """The response of a handler that was given a CloudEvent and returns one or several, in the mode of `request`; None
    if it returns something else. Raises InvalidResponse, and what `to_json` raises."""
    structured = _media_type(request.headers.get("content-type", "")) in (ONE, BATCH)
    if isinstance(value, list) and value and all(map(_is_event, value)):
        return Response(200, [("content-type", BATCH)], to_json([_with_text(event) for event in value]))
    if not _is_event(value):
        return None
    if structured:
        return Response(200, [("content-type", ONE)], to_json(_with_text(value)))
    headers, body = [], b""
    for name, attribute in value.items():
        if name in ("data", "data_base64", "datacontenttype") or attribute is None:
            continue
        if not NAME.match(name):
            raise InvalidResponse(f"{name!r} is no attribute of a CloudEvent: use a-z and 0-9")
        try:
            headers.append(checked_header(f"ce-{name}", urllib.parse.quote(_text(attribute), safe=SAFE)))
        except ValueError as error:
            raise InvalidResponse(str(error)) from None
    kind = value.get("datacontenttype", "application/json")
    if "data_base64" in value:
        try:
            body = base64.b64decode(value["data_base64"], validate=True)
        except (TypeError, ValueError) as error:
            raise InvalidResponse(f"data_base64 is no base64: {error}") from None
    elif value.get("data") is not None:
        data = value["data"]
        if isinstance(data, (bytes, bytearray)):
            body = bytes(data)
        elif isinstance(data, str) and not _is_json(kind):
            body = data.encode("utf-8")
        else:
            body = to_json(data)
    if body or "datacontenttype" in value:
        try:
            headers.append(checked_header("content-type", kind))
        except (TypeError, ValueError) as error:
            raise InvalidResponse(str(error)) from None
    return Response(200, headers, body)


def _is_event(value):
    return isinstance(value, dict) and all(isinstance(value.get(name), str) and value[name] for name in REQUIRED)


def _text(attribute):
    if isinstance(attribute, bool):
        return "true" if attribute else "false"
    if isinstance(attribute, (str, int)):
        return str(attribute)
    raise InvalidResponse(f"attributes of a CloudEvent are texts, numbers and booleans, not {type(attribute).__name__}")


def _with_text(event):
    """The event with binary data as JSON can say it."""
    data = event.get("data")
    if not isinstance(data, (bytes, bytearray)):
        return event
    others = {name: value for name, value in event.items() if name != "data"}
    return {**others, "data_base64": base64.b64encode(data).decode("ascii")}

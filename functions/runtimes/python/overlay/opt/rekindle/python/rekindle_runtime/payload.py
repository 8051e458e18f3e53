"""Translation between HTTP and what a handler sees: AWS Lambda's payload format 2.0, as function URLs use it."""

import base64
import json
import time
import urllib.parse

from .context import Context
from .http1 import Response, checked_header

JSON_TYPE = ("content-type", "application/json")
# Of what the platform adds for the runtime, or what holds for one connection only, the handler sees nothing.
HIDDEN = frozenset(
    (
        "x-fn-invocation",
        "x-fn-deadline-ms",
        "connection",
        "keep-alive",
        "transfer-encoding",
        "te",
        "trailer",
        "upgrade",
        "expect",
    )
)
# The server's to set.
FRAMING = frozenset(("content-length", "connection", "keep-alive", "transfer-encoding", "trailer", "upgrade"))
TEXT_TYPES = frozenset(("application/json", "application/xml", "application/javascript", "application/graphql"))


class InvalidResponse(Exception):
    """The handler returned a response object that is no HTTP response."""


def _decimal_as_number(value):
    # Not imported for this: where a Decimal is, its module has been loaded already (DynamoDB clients return them).
    if type(value).__name__ == "Decimal" and value.is_finite():
        return int(value) if value == value.to_integral_value() else float(value)
    raise TypeError(f"object of type {type(value).__name__} is not JSON serializable")


_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_decimal_as_number
).encode


def to_json(value):
    """`value` as JSON bytes. Raises TypeError, ValueError (also for NaN and cycles), RecursionError."""
    return _encode(value).encode("utf-8")


def error_response(status, kind, message, trace=(), headers=(), close=False):
    """The answer that says what went wrong."""
    body = json.dumps({"errorType": kind, "errorMessage": message, "stackTrace": list(trace)}).encode()
    return Response(status, [JSON_TYPE, *headers], body, close)


def http_event(request):
    """The payload 2.0 event for `request`."""
    path, _, query = request.target.partition("?")
    headers = {name: value for name, value in request.headers.items() if name not in HIDDEN}
    now = time.time()
    host = headers.get("host", "")
    event = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": query,
        "headers": headers,
        "requestContext": {
            "accountId": "anonymous",
            "apiId": Context.function_name,
            "domainName": host,
            "domainPrefix": host.partition(".")[0],
            "http": {
                "method": request.method,
                "path": path,
                "protocol": request.version,
                "sourceIp": headers.get("x-forwarded-for", request.peer).split(",")[0].strip(),
                "userAgent": headers.get("user-agent", ""),
            },
            "requestId": headers.get("x-request-id", ""),
            "routeKey": "$default",
            "stage": "$default",
            "time": time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(now)),
            "timeEpoch": int(now * 1000),
        },
        "isBase64Encoded": False,
    }
    if "cookie" in headers:
        event["cookies"] = [cookie.strip() for cookie in headers["cookie"].split(";") if cookie.strip()]
    if query:
        parameters = {}
        for name, value in urllib.parse.parse_qsl(query, keep_blank_values=True, max_num_fields=None):
            parameters[name] = f"{parameters[name]},{value}" if name in parameters else value
        event["queryStringParameters"] = parameters
    if request.body:
        text = _as_text(request.body, headers.get("content-type", "text/plain"))
        event["isBase64Encoded"] = text is None
        event["body"] = base64.b64encode(request.body).decode("ascii") if text is None else text
    return event


def _as_text(body, content_type):
    """The body as text where its type says text and it is UTF-8, else None. Forms are binary, as on Lambda."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind.startswith("text/") or kind in TEXT_TYPES or kind.endswith(("+json", "+xml")):
        try:
            return body.decode("utf-8")
        except UnicodeDecodeError:
            pass
    return None


def http_response(value):
    """The HTTP response that a handler's return `value` stands for.

    Raises InvalidResponse for a response object that is none, and what `to_json` raises.
    """
    if not (isinstance(value, dict) and "statusCode" in value):
        return Response(200, [JSON_TYPE], to_json(value))
    try:
        status = int(value["statusCode"])
    except (TypeError, ValueError):
        raise InvalidResponse(f"statusCode {value['statusCode']!r} is not a number") from None
    if not 200 <= status <= 599:
        raise InvalidResponse(f"statusCode {status} is not between 200 and 599")
    headers, typed = [], False
    try:
        for name, item in _items(value, "headers") + _items(value, "multiValueHeaders"):
            for one in item if isinstance(item, (list, tuple)) else (item,):
                name_and_value = checked_header(name, one)
                lower = name_and_value[0].lower()
                typed = typed or lower == "content-type"
                if lower not in FRAMING:
                    headers.append(name_and_value)
        for cookie in value.get("cookies") or ():
            headers.append(checked_header("set-cookie", cookie))
    except (TypeError, ValueError) as error:
        raise InvalidResponse(str(error)) from None
    if not typed:
        headers.append(JSON_TYPE)
    return Response(status, headers, _body(value))


def _items(value, key):
    entries = value.get(key) or {}
    if not isinstance(entries, dict):
        raise InvalidResponse(f"{key} is a {type(entries).__name__}, not a dict")
    return list(entries.items())


def _body(value):
    body = value.get("body")
    if body is None:
        return b""
    if isinstance(body, str):
        if not value.get("isBase64Encoded"):
            return body.encode("utf-8")
        try:
            return base64.b64decode(body, validate=True)
        except ValueError as error:
            raise InvalidResponse(f"isBase64Encoded is set but the body is no base64: {error}") from None
    if isinstance(body, (bytes, bytearray)):
        return bytes(body)
    return to_json(body)

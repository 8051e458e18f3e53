"""A gRPC server: a call of each of the four kinds, trailers, errors, and a call that waits for its deadline.

Its messages are those of google/protobuf/wrappers.proto. A service of one's own has a .proto file and the code that
`python -m grpc_tools.protoc` makes of it, and is served in the same way.
"""

import os
from concurrent import futures

import grpc
from google.protobuf.wrappers_pb2 import StringValue

SERVICE = "rekindle.sample.Greeter"
# A stream takes a thread for as long as it is open, so there are as many as fn.toml has of `concurrency`.
THREADS = 16


def greeting(name, context):
    # Initial metadata are headers of the response; trailing metadata come after its messages, along with the status.
    context.set_trailing_metadata([("x-greeted", name or "nobody")])
    return StringValue(value=f"Hello, {name}!")


def greet(request, context):
    if not request.value:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "nobody to greet: send a name")
    return greeting(request.value, context)


def greet_all(requests, context):
    return greeting(" and ".join(request.value for request in requests), context)


def greet_often(request, context):
    for number in range(1, 4):
        yield StringValue(value=f"Hello, {request.value}, for the {number}. time!")


def converse(requests, context):
    for request in requests:
        yield StringValue(value=f"Hello, {request.value}!")


def wait(request, context):
    """Waits until the call's deadline, or its end, which gRPC tells the server of."""
    ended = futures.Future()
    context.add_callback(lambda: ended.set_result(None))
    print(f"waiting for {context.time_remaining()} s", flush=True)
    ended.result(timeout=60)
    print("the call is over", flush=True)
    return request


def handler(kind, behaviour):
    return kind(
        behaviour, request_deserializer=StringValue.FromString, response_serializer=StringValue.SerializeToString
    )


HANDLERS = {
    "Greet": handler(grpc.unary_unary_rpc_method_handler, greet),
    "GreetAll": handler(grpc.stream_unary_rpc_method_handler, greet_all),
    "GreetOften": handler(grpc.unary_stream_rpc_method_handler, greet_often),
    "Converse": handler(grpc.stream_stream_rpc_method_handler, converse),
    "Wait": handler(grpc.unary_unary_rpc_method_handler, wait),
}

if __name__ == "__main__":
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=THREADS))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, HANDLERS)])
    server.add_insecure_port(f"127.0.0.1:{os.environ['PORT']}")
    server.start()
    server.wait_for_termination()

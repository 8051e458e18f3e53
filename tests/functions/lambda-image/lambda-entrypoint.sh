#!/bin/sh
# As the entry point of AWS's base images: the handler is its argument, and the emulator serves only where nothing else
# does.
if [ $# -ne 1 ]; then
    echo "the handler has to be the one argument" >&2
    exit 142
fi
export _HANDLER="$1"
if [ -z "$AWS_LAMBDA_RUNTIME_API" ]; then
    exec /usr/local/bin/aws-lambda-rie /var/runtime/bootstrap
fi
exec /var/runtime/bootstrap

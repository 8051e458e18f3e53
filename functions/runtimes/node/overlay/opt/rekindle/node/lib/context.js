// The `context` argument of a handler: AWS Lambda's properties, and the W3C trace context.
'use strict';

const invoke = require('./invoke');

// What the environment says of the function, from when that is loaded.
const fn = {};

/** Takes it over. */
function readEnvironment() {
  const { env } = process;
  fn.name = env.FN_NAME ?? 'function';
  fn.version = env.FN_VERSION ?? '0';
  fn.memoryMib = env.FN_MEMORY_MIB ?? '128';
  fn.timeoutMs = Number(env.FN_TIMEOUT_S ?? 30) * 1000;
}

/** One per invocation; `headers` are the request's. */
class Context {
  constructor(headers) {
    this.functionName = fn.name;
    this.functionVersion = fn.version;
    // Shaped like Lambda's, for code that splits it; no such resource exists.
    this.invokedFunctionArn = `arn:rekindle:lambda:local:000000000000:function:${fn.name}:${fn.version}`;
    this.memoryLimitInMB = fn.memoryMib; // a string, as on Lambda
    this.logGroupName = `/rekindle/${fn.name}`;
    this.logStreamName = `${fn.name}/${fn.version}`;
    this.awsRequestId = headers['x-request-id'] ?? '';
    this.traceparent = headers.traceparent;
    // May be set, and changes nothing: an answer goes out as soon as it is there.
    this.callbackWaitsForEmptyEventLoop = true;
    const given = headers['x-fn-deadline-ms'];
    const deadline = /^\d{1,15}$/.test(given ?? '') ? Number(given) : Date.now() + fn.timeoutMs;
    /** Milliseconds until the platform gives up on this invocation; 0 once that time has passed. */
    this.getRemainingTimeInMillis = () => Math.max(0, deadline - Date.now());
    // The platform ends a call by then; what it says is better than a timeout of the socket's.
    const within = (timeoutMs) => Math.min(timeoutMs ?? Infinity, this.getRemainingTimeInMillis() + 1000);
    const { traceparent } = this;
    /**
     * The result of another function of the same namespace for `payload`, as JSON each. Waits at most `timeoutMs`, and
     * never longer than this invocation has left. Rejects with an InvokeError.
     */
    this.invoke = (name, payload, { timeoutMs } = {}) =>
      invoke.now(name, payload, { traceparent, timeoutMs: within(timeoutMs) });
    /** Has another function of the same namespace run later with `payload`; resolves to the id of that invocation. */
    this.invokeAsync = (name, payload) => invoke.later(name, payload, { traceparent, timeoutMs: within() });
  }
}

module.exports = { Context, readEnvironment, fn };

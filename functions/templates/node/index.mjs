// Greets whom it is told to, by query, by JSON body, or by event:
//
//   curl 'URL/?name=Ada'    curl URL -d '{"name": "Ada"}'    fn invoke {{name}} --event -d '{"name": "Ada"}'
//
// The signature is AWS Lambda's; over HTTP the event is its payload format 2.0 (docs/reference/runtime-contract.md).
export const handler = async (event, context) => {
  if (event.requestContext === undefined) {
    // Invoked with an event of the caller's: what is returned is the answer.
    return { message: `Hello, ${event.name ?? 'world'}!` };
  }
  let body;
  try {
    body = jsonBody(event);
  } catch {
    return text(400, 'the body is not JSON\n');
  }
  return text(200, `Hello, ${event.queryStringParameters?.name ?? body?.name ?? 'world'}!\n`);
};

const jsonBody = ({ body, isBase64Encoded }) =>
  JSON.parse((isBase64Encoded ? Buffer.from(body, 'base64').toString() : body) || 'null');

const text = (statusCode, body) => ({ statusCode, headers: { 'content-type': 'text/plain; charset=utf-8' }, body });

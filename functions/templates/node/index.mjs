// The signature is AWS Lambda's; over HTTP the event is its payload format 2.0 (docs/runtime-contract.md).
export const handler = async (event, context) => {
  const name = event.queryStringParameters?.name ?? 'world';
  return {
    statusCode: 200,
    headers: { 'content-type': 'text/plain; charset=utf-8' },
    body: `Hello, ${name}!\n`,
  };
};

// A handler behind AWS's own runtime interface client, unmodified: the folder would run on AWS Lambda, too. It greets,
// fails and ends, as its event says. As `index.stream` it streams.

export const handler = async (event, context) => {
  if (event.raise !== undefined) throw new RangeError(event.raise);
  if (event.exit !== undefined) process.exit(event.exit);
  const name = event.queryStringParameters?.name ?? event.name ?? 'world';
  return {
    greeting: `Hello, ${name}!`,
    request: context.awsRequestId,
    in_time: context.getRemainingTimeInMillis() > 0,
  };
};

export const stream = awslambda.streamifyResponse(async (event, response) => {
  const order = event.body ? JSON.parse(event.body) : event;
  const head = { statusCode: 201, headers: { 'content-type': 'text/plain', 'x-pieces': `${order.stream}` } };
  const body = awslambda.HttpResponseStream.from(response, head);
  for (let piece = 0; piece < order.stream; piece++) body.write(`${piece}\n`);
  if (order.raise !== undefined) throw new RangeError(order.raise);
  body.end();
});

// Greets whoever is named in the query, and says how long this instance has lived, with one small dependency from npm.
import ms from 'ms';
import { afterRestore } from 'rekindle';

const started = Date.now();
let restores = 0;

afterRestore(() => {
  restores += 1;
});

export const handler = async (event) => {
  const name = event.queryStringParameters?.name ?? 'world';
  return {
    statusCode: 200,
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ greeting: `Hello, ${name}!`, age: ms(Date.now() - started), restores }),
  };
};

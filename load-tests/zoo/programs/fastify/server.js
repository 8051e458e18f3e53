// Items in memory, by Fastify.
const fastify = require('fastify')({ logger: true });

const items = [];
fastify.get('/', async () => 'hello of Fastify');
fastify.post('/items/:name', async (request) => {
  items.push(request.params.name);
  return items;
});
fastify.get('/items', async () => items);
fastify.listen({ port: Number(process.env.PORT), host: '127.0.0.1' });

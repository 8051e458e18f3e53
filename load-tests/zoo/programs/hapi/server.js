// Items in memory, by hapi.
const Hapi = require('@hapi/hapi');

const items = [];
const server = Hapi.server({ port: Number(process.env.PORT), host: '127.0.0.1' });
server.route({ method: 'GET', path: '/', handler: () => 'hello of hapi' });
server.route({ method: 'GET', path: '/items', handler: () => items });
server.route({
  method: 'POST',
  path: '/items/{name}',
  handler: (request) => {
    items.push(request.params.name);
    return items;
  },
});
server.start();

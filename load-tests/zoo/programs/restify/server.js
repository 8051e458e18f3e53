// Items in memory, by Restify.
const restify = require('restify');

const items = [];
const server = restify.createServer();
server.get('/', (request, response, next) => {
  response.send('hello of Restify');
  next();
});
server.get('/items', (request, response, next) => {
  response.send(items);
  next();
});
server.post('/items/:name', (request, response, next) => {
  items.push(request.params.name);
  response.send(items);
  next();
});
server.listen(Number(process.env.PORT), '127.0.0.1');

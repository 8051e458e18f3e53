// Items in memory, by Polka.
const polka = require('polka');

const items = [];
polka()
  .get('/', (request, response) => response.end('hello of Polka'))
  .get('/items', (request, response) => response.end(JSON.stringify(items)))
  .post('/items/:name', (request, response) => {
    items.push(request.params.name);
    response.end(JSON.stringify(items));
  })
  .listen(Number(process.env.PORT), '127.0.0.1');

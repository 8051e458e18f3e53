// Items in memory, by tinyhttp.
import { App } from '@tinyhttp/app';

const items = [];
new App()
  .get('/', (request, response) => response.send('hello of tinyhttp'))
  .get('/items', (request, response) => response.json(items))
  .post('/items/:name', (request, response) => {
    items.push(request.params.name);
    response.json(items);
  })
  .listen(Number(process.env.PORT), undefined, '127.0.0.1');

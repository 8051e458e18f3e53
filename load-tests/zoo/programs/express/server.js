// Items in memory, by Express.
const express = require('express');

const items = [];
const app = express();
app.get('/', (request, response) => response.send('hello of Express'));
app.post('/items/:name', (request, response) => {
  items.push(request.params.name);
  response.json(items);
});
app.get('/items', (request, response) => response.json(items));
app.listen(process.env.PORT, '127.0.0.1');

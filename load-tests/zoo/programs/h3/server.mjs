// Items in memory, by h3.
import { createServer } from 'node:http';
import { createApp, createRouter, defineEventHandler, getRouterParam, toNodeListener } from 'h3';

const items = [];
const router = createRouter()
  .get('/', defineEventHandler(() => 'hello of h3'))
  .get('/items', defineEventHandler(() => items))
  .post(
    '/items/:name',
    defineEventHandler((event) => {
      items.push(getRouterParam(event, 'name'));
      return items;
    }),
  );
createServer(toNodeListener(createApp().use(router))).listen(Number(process.env.PORT), '127.0.0.1');

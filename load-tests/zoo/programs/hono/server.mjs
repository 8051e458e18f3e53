// Items in memory, by Hono.
import { serve } from '@hono/node-server';
import { Hono } from 'hono';

const items = [];
const app = new Hono();
app.get('/', (context) => context.text('hello of Hono'));
app.post('/items/:name', (context) => {
  items.push(context.req.param('name'));
  return context.json(items);
});
app.get('/items', (context) => context.json(items));
serve({ fetch: app.fetch, port: Number(process.env.PORT), hostname: '127.0.0.1' });

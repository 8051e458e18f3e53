// Items in memory, by Koa.
const Koa = require('koa');
const Router = require('@koa/router');

const items = [];
const router = new (Router.default ?? Router)();
router.get('/', (context) => {
  context.body = 'hello of Koa';
});
router.post('/items/:name', (context) => {
  items.push(context.params.name);
  context.body = items;
});
router.get('/items', (context) => {
  context.body = items;
});
new Koa().use(router.routes()).listen(process.env.PORT, '127.0.0.1');

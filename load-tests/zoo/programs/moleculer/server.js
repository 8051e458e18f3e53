// Items in memory, by a service behind the gateway of Moleculer.
const { ServiceBroker } = require('moleculer');
const Gateway = require('moleculer-web');

const items = [];
const broker = new ServiceBroker({ logger: false });
broker.createService({
  name: 'items',
  actions: {
    hello: () => 'hello of Moleculer',
    all: () => items,
    add(context) {
      items.push(context.params.name);
      return items;
    },
  },
});
const aliases = { 'GET /': 'items.hello', 'GET /items': 'items.all', 'POST /items/:name': 'items.add' };
broker.createService({
  mixins: [Gateway],
  settings: { port: Number(process.env.PORT), ip: '127.0.0.1', routes: [{ path: '/', aliases }] },
});
broker.start();

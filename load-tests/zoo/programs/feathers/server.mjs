// A service of messages in memory, by Feathers.
import { feathers } from '@feathersjs/feathers';
import { bodyParser, errorHandler, koa, rest } from '@feathersjs/koa';
import { MemoryService } from '@feathersjs/memory';

const app = koa(feathers());
app.use(errorHandler());
app.use(bodyParser());
app.configure(rest());
app.use('messages', new MemoryService({ paginate: { default: 10, max: 50 } }));
app.listen(Number(process.env.PORT), '127.0.0.1');

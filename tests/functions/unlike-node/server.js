// Answers with a draw from every source of keys and ids that it has, all of which drew before the snapshot.
const crypto = require('node:crypto');
const http = require('node:http');
const vm = require('node:vm');
const { Worker, isMainThread, parentPort } = require('node:worker_threads');
const { nanoid } = require('nanoid');
const nacl = require('tweetnacl');
const { ulid } = require('ulid');
const uuid = require('uuid');

const later = (draw) => new Promise((done, failed) => draw((error, value) => (error ? failed(error) : done(value))));
const key = (type, options) =>
  crypto.generateKeyPairSync(type, options).privateKey.export({ type: 'pkcs8', format: 'der' }).toString('hex');

async function draw() {
  return {
    'Math.random': Math.random(),
    randomBytes: crypto.randomBytes(8).toString('hex'),
    'randomBytes, later': (await later((told) => crypto.randomBytes(8, told))).toString('hex'),
    randomUUID: crypto.randomUUID(),
    randomInt: crypto.randomInt(2 ** 47),
    getRandomValues: crypto.webcrypto.getRandomValues(new Uint32Array(2)).join(),
    'webcrypto.randomUUID': crypto.webcrypto.randomUUID(),
    ec: key('ec', { namedCurve: 'P-256' }),
    ed25519: key('ed25519'),
    uuid: uuid.v4(),
    nanoid: nanoid(),
    ulid: ulid(),
    tweetnacl: Buffer.from(nacl.box.keyPair().secretKey).toString('hex'),
  };
}

async function serve() {
  const context = vm.createContext({});
  const worker = new Worker(__filename);
  const all = async () => {
    const inWorker = await new Promise((done) => { worker.once('message', done); worker.postMessage('draw'); });
    const drawn = {
      ...(await draw()),
      'Math.random of a context': vm.runInContext('Math.random()', context),
      'Math.random of a new context': vm.runInNewContext('Math.random()'),
    };
    for (const [name, value] of Object.entries(inWorker)) drawn[`${name} in a worker`] = value;
    return drawn;
  };
  await all();
  const server = http.createServer(async (_, response) => response.end(JSON.stringify(await all())));
  server.listen(Number(process.env.PORT), '127.0.0.1');
}

if (isMainThread) serve();
else parentPort.on('message', async () => parentPort.postMessage(await draw()));

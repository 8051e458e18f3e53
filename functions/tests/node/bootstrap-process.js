// Starts the node bootstrap on a folder written for one test, and talks HTTP to it.
'use strict';

const { spawn } = require('node:child_process');
const fs = require('node:fs');
const http = require('node:http');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const { setTimeout: sleep } = require('node:timers/promises');

const RUNTIME = path.resolve(__dirname, '../../runtimes/node/overlay/opt/rekindle/node');
// How long anything may take on a machine that is busy with other tests.
const LIMIT_MS = 300_000;

class Bootstrap {
  /** `files` maps paths below the function's folder to their text. */
  static async start(files, entry = 'index.handler', env = {}) {
    const bootstrap = await Bootstrap.spawn(files, entry, env);
    const limit = Date.now() + LIMIT_MS;
    while (Date.now() < limit) {
      if (bootstrap.exitCode !== undefined) {
        throw new Error(`the bootstrap ended with ${bootstrap.exitCode}: ${bootstrap.output}`);
      }
      if (await bootstrap.#accepts()) return bootstrap;
      await sleep(10);
    }
    throw new Error(`the bootstrap does not listen: ${bootstrap.output}`);
  }

  /** Starts a bootstrap that is expected to give up: its exit code and output. */
  static async runToEnd(files, entry) {
    const bootstrap = await Bootstrap.spawn(files, entry);
    await bootstrap.exited;
    bootstrap.stop();
    return { code: bootstrap.exitCode, output: bootstrap.output };
  }

  static async spawn(files, entry, env = {}) {
    const bootstrap = new Bootstrap();
    bootstrap.folder = fs.mkdtempSync(path.join(os.tmpdir(), 'fn-'));
    for (const [name, text] of Object.entries(files)) {
      const file = path.join(bootstrap.folder, name);
      fs.mkdirSync(path.dirname(file), { recursive: true });
      fs.writeFileSync(file, text);
    }
    // Where the root filesystem has /node_modules/rekindle.
    fs.mkdirSync(path.join(bootstrap.folder, 'node_modules'), { recursive: true });
    fs.symlinkSync(path.join(RUNTIME, 'rekindle'), path.join(bootstrap.folder, 'node_modules/rekindle'));
    bootstrap.port = await freePort();
    bootstrap.output = '';
    const preload = path.join(RUNTIME, 'lib/preload.js');
    bootstrap.process = spawn(process.execPath, ['--require', preload, path.join(RUNTIME, 'bootstrap.js')], {
      cwd: bootstrap.folder,
      env: {
        PATH: process.env.PATH,
        PORT: String(bootstrap.port),
        FN_HANDLER: entry,
        FN_NAME: 'greet',
        FN_VERSION: '7',
        FN_MEMORY_MIB: '256',
        FN_TIMEOUT_S: '30',
        ...env,
      },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    for (const stream of [bootstrap.process.stdout, bootstrap.process.stderr]) {
      stream.on('data', (data) => (bootstrap.output += data));
    }
    bootstrap.exited = new Promise((resolve) =>
      bootstrap.process.on('close', (code) => resolve((bootstrap.exitCode = code))),
    );
    return bootstrap;
  }

  #accepts() {
    return new Promise((resolve) => {
      const socket = net.connect(this.port, '127.0.0.1', () => socket.destroy() && resolve(true));
      socket.on('error', () => resolve(false));
    });
  }

  async stop() {
    this.process.kill('SIGKILL');
    await this.exited;
    fs.rmSync(this.folder, { recursive: true, force: true });
  }

  /** Waits until `condition` holds; output travels through a pipe and may lag behind the answer. */
  async until(condition) {
    const limit = Date.now() + LIMIT_MS;
    while (!condition() && Date.now() < limit) await sleep(5);
    return condition();
  }

  /** One request, on a connection of its own unless an `agent` is given. */
  request(url = '/', { method = 'GET', body, headers = {}, agent = false } = {}) {
    return new Promise((resolve, reject) => {
      const options = { host: '127.0.0.1', port: this.port, path: url, method, headers, agent };
      const request = http.request(options, (response) => {
        const chunks = [];
        response.on('data', (chunk) => chunks.push(chunk));
        response.on('error', reject);
        response.on('end', () => {
          const bytes = Buffer.concat(chunks);
          resolve({
            status: response.statusCode,
            headers: response.headers,
            bytes,
            text: bytes.toString(),
            get json() { return JSON.parse(bytes); },
          });
        });
      });
      request.on('error', reject);
      request.end(body);
    });
  }

  /** Invokes with `value` as the event. */
  event(value, headers = {}) {
    const body = JSON.stringify(value);
    return this.request('/', { method: 'POST', body, headers: { 'x-fn-invocation': 'event', ...headers } });
  }

  hook(name) {
    return this.request(`/.rekindle/${name}`, { method: 'POST' });
  }

  /** Sends `data` and resolves to all that comes until the peer closes. */
  raw(data) {
    return new Promise((resolve, reject) => {
      let received = '';
      const socket = net.connect(this.port, '127.0.0.1', () => socket.write(data));
      socket.on('data', (chunk) => (received += chunk.toString('latin1')));
      socket.on('error', reject);
      socket.on('close', () => resolve(received));
    });
  }
}

function freePort() {
  return new Promise((resolve) => {
    const server = net.createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

module.exports = { Bootstrap, LIMIT_MS, RUNTIME };

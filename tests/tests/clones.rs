//! What copies of one snapshot must not share: every source of random numbers and identity of each runtime gives twenty
//! clones twenty values. Each function also draws from something that nobody reseeds, which is equal in all of them.
//! That shows that they began as the same bytes, so that the others would be equal too without what is done for them.
//! Programs that bring their own runtime are in `randomness.rs`.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use rekindle_e2e::unlike::{assert_unlike, clones};
use rekindle_e2e::{Folder, shared};

const PYTHON: &str = r"
import os, queue, random, secrets, sqlite3, ssl, tempfile, threading, uuid

held, database = random.Random(), sqlite3.connect(':memory:', check_same_thread=False)
asked, told = queue.Queue(), queue.Queue()

def in_a_thread():
    while asked.get():
        told.put(ssl.RAND_bytes(8).hex())

threading.Thread(target=in_a_thread, daemon=True).start()

def draw():
    asked.put(True)
    return {
        'random.random': random.random(),
        'random.SystemRandom': random.SystemRandom().random(),
        'os.urandom': os.urandom(8).hex(),
        'secrets': secrets.token_hex(8),
        'ssl': ssl.RAND_bytes(8).hex(),
        'ssl in a thread that was there': told.get(timeout=5),
        'uuid1 node': uuid.uuid1().node,
        'uuid4': str(uuid.uuid4()),
        'tempfile': tempfile.mktemp(),
        'sqlite3': database.execute('select random()').fetchone()[0],
        'a random.Random of its own': held.random(),
    }

draw()

def handler(event, context):
    return draw()
";

#[test]
fn no_two_python_clones_draw_the_same() {
    let warmup = "[[warmup]]\npath = \"/\"";
    shared().deploy(&Folder::python("unlike-python", warmup, PYTHON));
    assert_unlike(&clones("unlike-python", "/"), 10, &["a random.Random of its own"]);
}

#[test]
fn no_two_numpy_clones_draw_the_same() {
    let code = r"
import numpy, rekindle

held = numpy.random.default_rng()
replaced = numpy.random.default_rng()

@rekindle.after_restore
def replace():
    global replaced
    replaced = numpy.random.default_rng()

def draw():
    return {
        'numpy.random.random': numpy.random.random(),
        'default_rng made now': numpy.random.default_rng().random(),
        'default_rng made in the hook': replaced.random(),
        'default_rng held': held.random(),
    }

draw()

def handler(event, context):
    return draw()
";
    let settings = "memory = \"256MiB\"\n[env]\nOPENBLAS_NUM_THREADS = \"1\"";
    let folder = Folder::python("unlike-numpy", settings, code).file("requirements.txt", "numpy==2.4.6\n");
    shared().deploy(&folder);
    assert_unlike(&clones("unlike-numpy", "/"), 3, &["default_rng held"]);
}

const NODE: &str = r"
const crypto = require('node:crypto');
const vm = require('node:vm');
const { Worker } = require('node:worker_threads');

const draw = (crypto) => ({
  'Math.random': Math.random(),
  randomBytes: crypto.randomBytes(8).toString('hex'),
  randomUUID: crypto.randomUUID(),
  randomInt: crypto.randomInt(2 ** 47),
  getRandomValues: crypto.webcrypto.getRandomValues(new Uint32Array(2)).join(),
  'webcrypto.randomUUID': crypto.webcrypto.randomUUID(),
  generateKey: crypto.generateKeySync('aes', { length: 128 }).export().toString('hex'),
});
const context = vm.createContext({}), held = Math.random();
const worker = new Worker(`
  const crypto = require('node:crypto');
  const draw = ${draw};
  require('node:worker_threads').parentPort.on('message', () =>
    require('node:worker_threads').parentPort.postMessage(draw(crypto)));
`, { eval: true });

const later = (size) => new Promise((done, failed) =>
  crypto.randomFill(Buffer.alloc(size), (e, b) => (e ? failed(e) : done(b))));

async function drawAll() {
  const inWorker = await new Promise((done) => { worker.once('message', done); worker.postMessage('draw'); });
  const all = { ...draw(crypto), randomFill: (await later(8)).toString('hex'), 'a number': held };
  all['Math.random of a vm context'] = vm.runInContext('Math.random()', context);
  for (const [name, value] of Object.entries(inWorker)) all[`${name} in a worker`] = value;
  return all;
}

exports.handler = drawAll;
";

#[test]
fn no_two_node_clones_draw_the_same_in_any_thread() {
    let config = "name = \"unlike-node\"\nruntime = \"node\"\nentry = \"index.handler\"\nmemory = \"256MiB\"\n\
        idle = \"60s\"\n\n[[warmup]]\npath = \"/\"\n";
    shared().deploy(&Folder::with_config(config).file("index.js", NODE));
    assert_unlike(&clones("unlike-node", "/"), 16, &["a number"]);
}

/// A program that serves HTTP by itself: the platform calls its paths, and tells it which instance it is.
const SERVER: &str = r#"
import ctypes, json, mmap, os, random, ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import rekindle

class Wiped:
    """What BoringSSL does to notice a fork: a mark on a page that the kernel empties for a fork's child."""
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    state = None

    def draw(self):
        if self.page[0] == 0:
            self.page[0], self.state = 1, random.Random(os.urandom(16))
        return self.state.random()

Wiped.page.madvise(18)  # MADV_WIPEONFORK
wiped, held, calls, instance = Wiped(), random.Random(), [], None
libc = ctypes.CDLL(None)

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *arguments):
        pass
    def answer(self, body):
        body = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        calls.append([self.path, self.headers["content-length"], self.headers["x-fn-instance"]])
        if self.path == "/restored":
            rekindle.reseed()
        self.answer({})
    def do_GET(self):
        if self.path == "/calls":
            return self.answer({"calls": calls, "instance": self.headers["x-fn-instance"]})
        self.answer({
            "x-fn-instance": self.headers["x-fn-instance"],
            "random": random.random(),
            "ssl": ssl.RAND_bytes(8).hex(),
            "arc4random": libc.arc4random(),
            "getrandom": os.getrandom(8).hex(),
            "on a page that a fork wipes": wiped.draw(),
            "a generator of its own": held.random(),
        })

ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"#;

#[test]
fn hooks_of_an_http_function_are_called_once_each() {
    let settings = "[[warmup]]\npath = \"/\"\n[hooks]\nbefore_snapshot = \"/snapshot\"\nafter_restore = \"/restored\"";
    shared().deploy(&Folder::server("unlike-http", settings, SERVER));
    assert_unlike(&clones("unlike-http", "/"), 6, &["a generator of its own"]);
    let told = shared().fresh("restored", "unlike-http", "/calls").ok();
    let body = told.json();
    assert_eq!(body["instance"], told.instance());
    let calls: Vec<(&str, &str)> = body["calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| (c[0].as_str().unwrap(), c[1].as_str().unwrap()))
        .collect();
    assert_eq!(calls, [("/snapshot", "0"), ("/restored", "0")], "each once, in order");
    assert_ne!(
        body["calls"][0][2],
        told.instance(),
        "the instance that was checkpointed"
    );
    assert_eq!(body["calls"][1][2], told.instance());
}

#[test]
fn no_two_clones_of_an_http_function_without_hooks_draw_the_same() {
    shared().deploy(&Folder::server("unlike-hookless", "[[warmup]]\npath = \"/\"", SERVER));
    assert_unlike(&clones("unlike-hookless", "/"), 6, &["a generator of its own"]);
}

/// Closes its connection before the snapshot, as the contract says.
const CLOSING: &str = "
import sqlite3, rekindle

def connect():
    return sqlite3.connect(':memory:', check_same_thread=False)

db, hooks = connect(), []

@rekindle.before_snapshot
def close():
    global db
    db.close()
    db = None
    hooks.append('closed')

@rekindle.after_restore
def open_again():
    global db
    db = connect()
    hooks.append('opened')

def handler(event, context):
    return {'one': db.execute('SELECT 1').fetchone()[0], 'hooks': hooks}
";

#[test]
fn what_is_closed_for_a_snapshot_is_open_again_in_the_instance_that_its_deploy_booted() {
    shared().deploy(&Folder::python("closing", "", CLOSING));
    let of_the_deploy = shared().get("closing", "/").ok();
    assert_eq!(of_the_deploy.start(), "warm");
    let copy = shared().fresh("restored", "closing", "/").ok();
    assert_eq!(copy.start(), "restored");
    for answer in [&of_the_deploy, &copy] {
        let body = answer.json();
        assert_eq!(body["one"], 1, "{body}");
        assert_eq!(body["hooks"], serde_json::json!(["closed", "opened"]), "{body}");
    }

    let settings = "[hooks]\nbefore_snapshot = \"/snapshot\"\nafter_restore = \"/restored\"";
    shared().deploy(&Folder::server("closing-http", settings, SERVER));
    let told = shared().get("closing-http", "/calls").ok();
    assert_eq!(told.start(), "warm");
    let body = told.json();
    let calls = body["calls"].as_array().unwrap();
    let own = |path: &str| serde_json::json!([path, "0", told.instance()]);
    assert_eq!(*calls, [own("/snapshot"), own("/restored")], "{body}");
}

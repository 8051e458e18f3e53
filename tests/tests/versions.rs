//! Versions of the runtimes. Each deploys, installs packages for its interpreter, and is restored, and its copies draw
//! different random numbers. A deploy that needs one that the platform does not have says how to add it.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::thread;

use rekindle_e2e::unlike::{assert_unlike, clones};
use rekindle_e2e::{Folder, binaries, shared};
use rekindle_wire::function_config::{Base, Interpreter, Runtime};

const PYTHON: &str = r#"
import os, random, secrets, ssl, sqlite3, sys, tempfile, uuid
import numpy

database = sqlite3.connect(":memory:", check_same_thread=False)

def handler(event, context):
    return {
        "version": "Python %d.%d" % sys.version_info[:2],
        "numpy": int(numpy.arange(4).sum()),
        "random": random.random(),
        "numpy.random": numpy.random.random(),
        "os.urandom": os.urandom(8).hex(),
        "secrets": secrets.token_hex(8),
        "ssl": ssl.RAND_bytes(8).hex(),
        "uuid1": str(uuid.uuid1()),
        "uuid4": str(uuid.uuid4()),
        "tempfile": tempfile.mktemp(),
        "sqlite3": database.execute("select random()").fetchone()[0],
    }
"#;

const NODE: &str = r"
const crypto = require('node:crypto');
const fs = require('node:fs');
const { v4 } = require('uuid');

// The descriptors of io_uring, which libuv would use for files: no sandbox has it, and no snapshot can hold it.
async function rings() {
  await fs.promises.readFile(__filename);
  const target = (descriptor) => {
    try {
      return fs.readlinkSync(`/proc/self/fd/${descriptor}`);
    } catch {
      return 'closed: it was the folder itself';
    }
  };
  return fs.readdirSync('/proc/self/fd').map(target).filter((name) => name.includes('io_uring')).length;
}

exports.handler = async () => ({
  version: `Node.js ${process.versions.node.split('.')[0]}`,
  rings: await rings(),
  'Math.random': Math.random(),
  randomBytes: crypto.randomBytes(8).toString('hex'),
  randomUUID: crypto.randomUUID(),
  getRandomValues: crypto.webcrypto.getRandomValues(new Uint32Array(2)).join(),
  randomInt: crypto.randomInt(2 ** 47),
  uuid: v4(),
});
";

fn function(name: &str, interpreter: &Interpreter) -> Folder {
    let entry = match interpreter.runtime {
        Runtime::Python => "main.handler",
        _ => "index.handler",
    };
    let folder = Folder::with_config(&format!(
        "name = \"{name}\"\nruntime = \"{}\"\nentry = \"{entry}\"\nenv = {{ OPENBLAS_NUM_THREADS = \"1\" }}\n\n\
         [[warmup]]\npath = \"/\"\n",
        interpreter.versioned
    ));
    match interpreter.runtime {
        Runtime::Python => folder
            .file("main.py", PYTHON)
            .file("requirements.txt", "numpy==2.4.6\n"),
        _ => folder
            .file("index.js", NODE)
            .file("package.json", r#"{ "dependencies": { "uuid": "8.3.2" } }"#),
    }
}

/// Adds a runtime to the platform as its operator does. It is built if need be, and kept for the next run.
fn add(base: Base) {
    let cache = binaries::runtimes().with_file_name("versions");
    let run = shared().directory("run");
    let (cache, run) = (cache.to_str().unwrap(), run.to_str().unwrap());
    let added = shared().cli(&["runtimes", "add", base.as_str(), "--cache", cache, "--run", run]);
    assert!(added.status.success(), "{added:?}");
}

/// Deploys a function and compares its copies.
fn run(base: Base, interpreter: &Interpreter) {
    let name = format!("of-{}", interpreter.versioned.replace('.', "-"));
    let folder = function(&name, interpreter);
    if !Base::USUAL.contains(&base) {
        let built = binaries::runtimes().join(format!("{}.tar", base.as_str()));
        match shared().try_deploy(&folder) {
            Err(told) => {
                let command = format!("fn runtimes add {}", base.as_str());
                assert!(told.contains(&command), "{told}");
                add(base);
            }
            // Platforms import what the machine has at their start.
            Ok(_) => assert!(built.exists(), "{} is not on this machine", base.as_str()),
        }
    }
    shared().deploy(&folder);
    let answers = clones(&name, "/");
    assert_eq!(answers[0].json()["version"], interpreter.version);
    match interpreter.runtime {
        Runtime::Python => assert_unlike(&answers, 9, &["version", "numpy"]),
        _ => {
            assert_unlike(&answers, 6, &["version", "rings"]);
            assert_eq!(answers[0].json()["rings"], 0);
        }
    }
}

#[test]
fn each_version_is_added_by_the_command_that_the_deploy_names_and_its_copies_draw_other_numbers() {
    thread::scope(|scope| {
        for runtime in [Runtime::Python, Runtime::Node] {
            scope.spawn(move || {
                for base in Base::ALL {
                    if let Some(interpreter) = base.interpreter().filter(|is| is.runtime == runtime) {
                        run(base, &interpreter);
                    }
                }
            });
        }
    });
}

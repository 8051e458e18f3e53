//! A platform as its users see it: over HTTP, and with `fn`.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rekindle_wire::api::{FunctionSummary, InstanceInfo, LogLine, Status, VersionInfo};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::binaries::Programs;
use crate::{Call, Folder, Reply, until};

/// Limit for one deploy, which may fetch and unpack numpy.
const DEPLOY_LIMIT_S: u32 = 180;
/// Limit for an instance to go.
const GONE_LIMIT: Duration = Duration::from_secs(10);

/// A platform's address, its admin key, and its logs.
#[derive(Debug, Clone)]
pub struct Client {
    programs: Programs,
    url: String,
    key_file: PathBuf,
    logs: Vec<PathBuf>,
}

impl Client {
    /// A client for the gateway at `url`; its key and logs may be created later.
    pub fn new(programs: Programs, url: String, key_file: PathBuf, logs: Vec<PathBuf>) -> Self {
        Self {
            programs,
            url,
            key_file,
            logs,
        }
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
        self.programs
            .client(&self.url, &self.key())
            .args(args)
            .output()
            .unwrap()
    }

    /// Runs `fn` against it, and parses the JSON it prints.
    ///
    /// # Errors
    /// What `fn` says, with the end of the platform's log.
    pub fn cli_json<T: DeserializeOwned>(&self, args: &[&str]) -> Result<T> {
        let (output, line) = (self.cli(args), args.join(" "));
        if !output.status.success() {
            let told = String::from_utf8_lossy(&output.stderr);
            bail!("fn {line}: {}\n{}", told.trim(), self.log_tail(20));
        }
        serde_json::from_slice(&output.stdout).with_context(|| format!("fn {line}: not understood"))
    }

    /// The program `fn`, and when that was built.
    pub fn program(&self) -> String {
        let path = self.programs.cli();
        let built = fs::metadata(&path).and_then(|m| m.modified());
        let built = built.map_or_else(
            |_| "some time".to_owned(),
            |at| humantime::format_rfc3339_seconds(at).to_string(),
        );
        format!("{}, built {built}", path.display())
    }

    /// Runs `fn` against it on a terminal of 120 columns and 40 lines, with both ends of that as pipes. Prints "as
    /// before" if the terminal's settings are, and fails otherwise.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn on_terminal(&self, args: &str) -> Child {
        let program = self.programs.cli();
        let run = format!("{} {args}", program.display());
        let line =
            format!("stty rows 40 cols 120; was=$(stty -g); {run} && [ \"$was\" = \"$(stty -g)\" ] && echo as before");
        Command::new("script")
            .args(["--quiet", "--return", "--command", &line, "/dev/null"])
            .env("FN_URL", self.url())
            .env("FN_KEY", self.key())
            .env("NO_COLOR", "1")
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Deploys a function by `fn deploy` and returns its live version, which has a snapshot if it asked for one.
    ///
    /// # Panics
    /// If it does not go live.
    #[track_caller]
    pub fn deploy(&self, folder: &Folder) -> VersionInfo {
        self.deployed(folder).unwrap_or_else(|e| panic!("{e:#}"))
    }

    /// Deploys a function and returns its live version, which has a snapshot if it asked for one.
    ///
    /// # Errors
    /// If it does not go live; the message has the end of the platform's log.
    pub fn deployed(&self, folder: &Folder) -> Result<VersionInfo> {
        let version = self.try_deploy(folder).map_err(|message| anyhow!(message));
        let version = version.with_context(|| format!("the end of the platform's log:\n{}", self.log_tail(60)))?;
        match &version.snapshot_error {
            Some(error) => bail!("{} has no snapshot: {error}", folder.path().display()),
            None => Ok(version),
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

    /// Removes a function with all its versions.
    ///
    /// # Errors
    /// What `fn` says.
    pub fn delete(&self, function: &str) -> Result<()> {
        let output = self.cli(&["delete", "--yes", function]);
        let told = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "fn delete {function}: {}", told.trim());
        Ok(())
    }

    /// Its functions.
    pub fn functions(&self) -> Vec<FunctionSummary> {
        serde_json::from_value(self.admin("GET", "/v1/functions").send().ok().json()).unwrap()
    }

    /// Its instances.
    pub fn instances(&self) -> Vec<InstanceInfo> {
        self.value("/v1/instances").unwrap()
    }

    /// The value at this path of the admin API.
    ///
    /// # Errors
    /// If the platform does not answer, or with something else.
    pub fn value<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let answer = self
            .admin("GET", path)
            .try_send()
            .with_context(|| format!("{path}: no answer"))?;
        ensure!(answer.status == 200, "{path}: {}: {}", answer.status, answer.text());
        serde_json::from_slice(&answer.body).with_context(|| format!("{path}: not understood"))
    }

    /// Number of workers that are heard from; `None` if the gateway does not say.
    pub fn workers_alive(&self) -> Option<usize> {
        let status: Status = self.value("/v1/status").ok()?;
        Some(status.workers.iter().filter(|w| w.alive).count())
    }

    /// Removes an instance and waits until it is gone, so that its end affects no measurement.
    ///
    /// # Errors
    /// If it stays.
    pub fn remove_instance(&self, instance: &str) -> Result<()> {
        let path = format!("/v1/instances/{instance}");
        let gone = self
            .admin("DELETE", &path)
            .try_send()
            .context("an instance cannot be deleted")?;
        let known = gone.status < 300 || gone.status == 404;
        ensure!(known, "{path}: cannot be deleted: {}: {}", gone.status, gone.text());
        let deadline = Instant::now() + GONE_LIMIT;
        loop {
            let all: Vec<InstanceInfo> = self.value("/v1/instances")?;
            if all.iter().all(|i| i.id.as_str() != instance) {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "instance {instance} is still there after {GONE_LIMIT:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Removes every instance and waits until they are gone.
    ///
    /// # Errors
    /// If one stays.
    pub fn remove_instances(&self) -> Result<()> {
        let all: Vec<InstanceInfo> = self.value("/v1/instances")?;
        all.iter().try_for_each(|i| self.remove_instance(i.id.as_str()))
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

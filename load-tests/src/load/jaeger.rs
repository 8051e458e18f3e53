//! A real trace store: Jaeger v2 on free ports of loopback, in memory, gone when dropped.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use http::Method;
use rekindle_testkit::binaries::checkout;
use rekindle_testkit::platform::free_port;

use crate::client::Connection;

const READY_LIMIT: Duration = Duration::from_secs(30);
/// The port of `make traces`, and so of `fn up --traces`.
const USUAL_QUERY_PORT: u16 = 16_686;

/// A store that can be queried for traces.
pub(super) struct Jaeger {
    // One of ours; killed when dropped.
    child: Option<Child>,
    query: u16,
    otlp: u16,
}

impl Jaeger {
    /// Starts the one on PATH, or the one that scripts/install-jaeger.sh has built. `None` if there is neither.
    pub(super) async fn start(cache: &Path) -> Result<Option<Self>> {
        let Some(program) = find(cache) else { return Ok(None) };
        let [query, query_grpc, otlp, otlp_http] = [(); 4].map(|()| free_port());
        let log = tempfile::NamedTempFile::new().context("no file for what jaeger says")?;
        let errors = log.reopen().context("no file for what jaeger says")?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(&program)
            .arg("--config")
            .arg(format!("file:{}", checkout().join("load-tests/jaeger.yaml").display()))
            .env("JAEGER_QUERY_PORT", query.to_string())
            .env("JAEGER_QUERY_GRPC_PORT", query_grpc.to_string())
            .env("JAEGER_OTLP_PORT", otlp.to_string())
            .env("JAEGER_OTLP_HTTP_PORT", otlp_http.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn()
            .context("setpriv (util-linux) cannot be started")?;
        let mut jaeger = Self {
            child: Some(child),
            query,
            otlp,
        };
        let deadline = Instant::now() + READY_LIMIT;
        while jaeger.ask("/api/services").await.is_err() {
            let ended = jaeger.child.as_mut().and_then(|c| c.try_wait().ok().flatten());
            if ended.is_some() || Instant::now() > deadline {
                let ended = ended.map_or_else(
                    || format!("within {READY_LIMIT:?}"),
                    |status| format!("and has ended: {status}"),
                );
                bail!(
                    "{}: jaeger does not answer at port {query} {ended}:\n{}",
                    program.display(),
                    std::fs::read_to_string(log.path()).unwrap_or_default()
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(Some(jaeger))
    }

    /// The store at the usual port, if one runs.
    pub(super) async fn running() -> Option<Self> {
        let jaeger = Self {
            child: None,
            query: USUAL_QUERY_PORT,
            otlp: 0,
        };
        jaeger.ask("/api/services").await.ok().map(|_| jaeger)
    }

    /// The endpoint to which the platform sends its spans.
    pub(super) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.otlp)
    }

    /// Queries the API. Returns the response's body if it succeeded.
    pub(super) async fn ask(&self, path: &str) -> Result<Vec<u8>> {
        let mut connection = Connection::open(self.query).await?;
        let answer = connection.call(Method::GET, path, &[]).await?;
        if !answer.status.is_success() {
            bail!("jaeger: {path}: {}: {}", answer.status, answer.text());
        }
        Ok(answer.body.to_vec())
    }
}

impl Drop for Jaeger {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have ended already, which is fine.
            let _ended = child.kill();
            let _reaped = child.wait();
        }
    }
}

fn find(cache: &Path) -> Option<PathBuf> {
    let works = |path: &PathBuf| {
        let output = Command::new(path).arg("version").output();
        output.is_ok_and(|o| o.status.success())
    };
    [PathBuf::from("jaeger"), cache.join("tools/bin/jaeger")]
        .into_iter()
        .find(works)
}

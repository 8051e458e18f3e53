//! Starts the parts and speaks to them as a user does.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rekindle_gateway::KeyHash;
use rekindle_scheduler::{CollectionSettings, NeedsCache, ObjectError, ObjectStore, Rule};
use rekindle_wire::api::{Collected, FunctionDetail, Status, VersionInfo, VersionState};
use rekindle_wire::{ApiError, FunctionId, SnapshotId, VersionNumber};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::played_worker::PlayedWorker;
use crate::relay::Relay;

pub(crate) const TOKEN: &str = "cluster-secret";
pub(crate) const KEY: &str = "admin-key";
const MASTER_KEY: &str = "00112233445566778899aabbccddeeff";
const LIMIT: Duration = Duration::from_secs(20);

/// Sets telemetry up, once however many tests need it.
pub(crate) fn telemetry() {
    static GUARD: OnceLock<rekindle_telemetry::Guard> = OnceLock::new();
    GUARD.get_or_init(|| rekindle_telemetry::init("test").unwrap());
}

/// Waits until `condition` holds.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !condition().await {
        assert!(Instant::now() < end, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Objects in memory, by key.
#[derive(Default)]
pub(crate) struct Objects(
    pub(crate) Mutex<std::collections::BTreeMap<String, Vec<u8>>>,
    /// Held by a test, it holds up the removal of snapshots.
    pub(crate) tokio::sync::Mutex<()>,
);

impl ObjectStore for Objects {
    fn put_file<'a>(&'a self, key: &'a str, path: &'a Path) -> BoxFuture<'a, Result<(), ObjectError>> {
        self.0.lock().insert(key.to_owned(), std::fs::read(path).unwrap());
        Box::pin(async { Ok(()) })
    }

    fn get_file<'a>(&'a self, key: &'a str, path: &'a Path) -> BoxFuture<'a, Result<(), ObjectError>> {
        std::fs::write(path, &self.0.lock()[key]).unwrap();
        Box::pin(async { Ok(()) })
    }

    fn has<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<bool, ObjectError>> {
        let has = self.0.lock().contains_key(key);
        Box::pin(async move { Ok(has) })
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), ObjectError>> {
        self.0.lock().remove(key);
        Box::pin(async { Ok(()) })
    }

    fn delete_snapshot<'a>(&'a self, id: &'a SnapshotId) -> BoxFuture<'a, Result<(), ObjectError>> {
        Box::pin(async move {
            let _may = self.1.lock().await;
            let prefix = format!("snapshots/{id}/");
            self.0.lock().retain(|key, _| !key.starts_with(&prefix));
            Ok(())
        })
    }

    fn manifest_digest<'a>(&'a self, id: &'a SnapshotId) -> BoxFuture<'a, Result<String, ObjectError>> {
        let key = format!("snapshots/{id}/manifest.json");
        let manifest = self.0.lock().get(&key).cloned().unwrap_or_default();
        Box::pin(async move { Ok(blake3::hash(&manifest).to_hex().to_string()) })
    }

    fn collect<'a>(
        &'a self,
        _: &'a mut NeedsCache,
        _: &'a dyn Rule,
        dry_run: bool,
    ) -> BoxFuture<'a, Result<Collected, ObjectError>> {
        Box::pin(async move {
            Ok(Collected {
                dry_run,
                ..Collected::default()
            })
        })
    }

    fn sources(&self) -> BoxFuture<'_, Result<Vec<(String, u64)>, ObjectError>> {
        let all = self.0.lock();
        let sources = all.iter().filter(|(key, _)| key.starts_with("sources/"));
        let sources = sources.map(|(key, bytes)| (key.clone(), bytes.len() as u64)).collect();
        Box::pin(async { Ok(sources) })
    }

    fn claim<'a>(&'a self, id: &'a str, take_over: bool) -> BoxFuture<'a, Result<String, ObjectError>> {
        let mut all = self.0.lock();
        if take_over || !all.contains_key("owner") {
            all.insert("owner".to_owned(), id.as_bytes().to_vec());
        }
        let owner = String::from_utf8(all["owner"].clone()).unwrap();
        Box::pin(async { Ok(owner) })
    }

    fn end_deploy<'a>(&'a self, _: &'a FunctionId, _: VersionNumber) -> BoxFuture<'a, Result<(), ObjectError>> {
        Box::pin(async { Ok(()) })
    }
}

/// A role in this process. It ends by itself when asked to, at once when dropped.
pub(crate) struct Role {
    end: Option<oneshot::Sender<()>>,
    pub(crate) task: JoinHandle<()>,
}

impl Role {
    pub(crate) fn ask_to_end(&mut self) {
        drop(self.end.take());
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) struct Platform {
    pub(crate) url: String,
    pub(crate) http: reqwest::Client,
    pub(crate) relay: Relay,
    pub(crate) worker: PlayedWorker,
    pub(crate) objects: Arc<Objects>,
    pub(crate) gateway: Role,
    scheduler: Option<Role>,
    pub(crate) dir: tempfile::TempDir,
}

impl Platform {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    /// With a gateway that is configured otherwise.
    pub(crate) async fn start_with(configure: impl FnOnce(&mut rekindle_gateway::Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let relay = Relay::start().await;
        let objects = Arc::new(Objects::default());
        let scheduler = start_scheduler(dir.path(), &relay, objects.clone(), MASTER_KEY).await;
        let (url, gateway) = start_gateway(&relay, configure).await;
        let platform = Self {
            url,
            http: reqwest::Client::new(),
            worker: PlayedWorker::start(&relay.address, 1 << 30).await,
            relay,
            objects,
            gateway,
            scheduler: Some(scheduler),
            dir,
        };
        until("the worker is known", async || {
            !platform.status().await.workers.is_empty()
        })
        .await;
        platform
    }

    /// Ends the scheduler as a kill would, and starts another on the same database.
    pub(crate) async fn restart_scheduler(&mut self) {
        self.restart_scheduler_with(MASTER_KEY).await;
    }

    /// The same with this master key.
    pub(crate) async fn restart_scheduler_with(&mut self, master_key: &str) {
        self.stop_scheduler().await;
        self.scheduler = Some(start_scheduler(self.dir.path(), &self.relay, self.objects.clone(), master_key).await);
        until("the worker is known again", async || {
            !self.status().await.workers.is_empty()
        })
        .await;
    }

    /// The scheduler's database.
    pub(crate) async fn database(&self) -> sqlx::SqlitePool {
        let path = self.dir.path().join("scheduler.db");
        sqlx::SqlitePool::connect(&format!("sqlite:{}", path.display()))
            .await
            .unwrap()
    }

    pub(crate) async fn stop_scheduler(&mut self) {
        if let Some(mut role) = self.scheduler.take() {
            role.task.abort();
            // Its sockets are closed once the task is gone.
            drop((&mut role.task).await);
        }
        self.relay.point_to("127.0.0.1:1");
    }

    pub(crate) fn function(&self, name_and_path: &str) -> reqwest::RequestBuilder {
        self.http.get(format!("{}/function/{name_and_path}", self.url))
    }

    pub(crate) fn post(&self, name_and_path: &str) -> reqwest::RequestBuilder {
        self.http.post(format!("{}/function/{name_and_path}", self.url))
    }

    pub(crate) fn admin(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        self.http
            .request(method, format!("{}{path}", self.url))
            .bearer_auth(KEY)
    }

    pub(crate) async fn status(&self) -> Status {
        // While the scheduler is away there is nothing to tell.
        let answer = self.admin(reqwest::Method::GET, "/v1/status").send().await.unwrap();
        answer.json().await.unwrap_or(Status {
            version: String::new(),
            workers: Vec::new(),
            functions: 0,
            instances: Vec::new(),
        })
    }

    pub(crate) async fn describe(&self, name: &str) -> FunctionDetail {
        let answer = self
            .admin(reqwest::Method::GET, &format!("/v1/functions/{name}"))
            .send()
            .await
            .unwrap();
        answer.json().await.unwrap()
    }

    /// Uploads a folder with this config.
    pub(crate) async fn upload(&self, config: &str) -> reqwest::Response {
        let body = folder(config);
        self.admin(reqwest::Method::POST, "/v1/functions")
            .body(body)
            .send()
            .await
            .unwrap()
    }

    /// Waits until the version at this path is live or has failed.
    pub(crate) async fn ready(&self, path: &str) -> VersionInfo {
        let mut found = None;
        until("the version is ready", async || {
            let answer = self.admin(reqwest::Method::GET, path).send().await.unwrap();
            let info: VersionInfo = answer.json().await.unwrap();
            found = Some(info).filter(|info| info.state.is_final());
            found.is_some()
        })
        .await;
        found.unwrap()
    }

    /// Deploys a function and waits until it is live. `settings` are further lines of its config.
    pub(crate) async fn deploy(&self, name: &str, settings: &str) -> VersionInfo {
        self.deploy_as(name, "runtime = \"python\"\nentry = \"main.handler\"\n", settings)
            .await
    }

    /// The same for a function that starts in another way.
    pub(crate) async fn deploy_as(&self, name: &str, start: &str, settings: &str) -> VersionInfo {
        let answer = self.upload(&format!("name = \"{name}\"\n{start}{settings}")).await;
        let accepted: VersionInfo = answer.json().await.unwrap();
        let path = format!("/v1/functions/{name}/versions/{}", accepted.version);
        let info = self.ready(&path).await;
        assert_eq!(info.state, VersionState::Live, "{:?}", info.error);
        info
    }

    /// Waits until no instance of any function is left.
    pub(crate) async fn scale_to_zero(&self) {
        until("all instances are gone", async || self.worker.running() == 0).await;
        until("the scheduler knows", async || self.status().await.instances.is_empty()).await;
    }
}

pub(crate) async fn start_gateway(
    relay: &Relay,
    configure: impl FnOnce(&mut rekindle_gateway::Config),
) -> (String, Role) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (url, start_gateway_on(listener.into(), relay, configure))
}

pub(crate) fn start_gateway_on(
    listeners: rekindle_gateway::Listeners,
    relay: &Relay,
    configure: impl FnOnce(&mut rekindle_gateway::Config),
) -> Role {
    let mut config = rekindle_gateway::Config::new(relay.address.clone(), TOKEN, KeyHash::of(KEY));
    configure(&mut config);
    let (end, ended) = oneshot::channel();
    let task = tokio::spawn(async move {
        let shutdown = async { drop(ended.await) };
        rekindle_gateway::serve(config, listeners, shutdown).await.unwrap();
    });
    Role { end: Some(end), task }
}

async fn start_scheduler(dir: &Path, relay: &Relay, objects: Arc<Objects>, master_key: &str) -> Role {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    relay.point_to(&listener.local_addr().unwrap().to_string());
    let config = rekindle_scheduler::Config {
        issuing: None,
        in_process: rekindle_relay::InProcessRoles::default(),
        database: PathBuf::from(dir).join("scheduler.db").into(),
        address: String::new(),
        spool: dir.to_owned(),
        cluster_token: TOKEN.to_owned(),
        master_key: master_key.parse().unwrap(),
        objects,
        idle_bin: Duration::from_secs(60),
        collecting: CollectionSettings {
            keep_versions: 3,
            ..CollectionSettings::default()
        },
        sharing: rekindle_wire::internal::Sharing::None,
        rebalance_at: 0.0,
        quota: rekindle_wire::api::Quota::default(),
    };
    let (end, ended) = oneshot::channel();
    let task = tokio::spawn(async move {
        let shutdown = async { drop(ended.await) };
        rekindle_scheduler::serve(config, listener, shutdown).await.unwrap();
    });
    Role { end: Some(end), task }
}

/// A function's folder with this config, as `.tar.gz`.
pub(crate) fn folder(config: &str) -> Vec<u8> {
    let gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut tar = tar::Builder::new(gz);
    let mut header = tar::Header::new_gnu();
    header.set_size(config.len() as u64);
    header.set_mode(0o644);
    tar.append_data(&mut header, "fn.toml", config.as_bytes()).unwrap();
    tar.into_inner().unwrap().finish().unwrap()
}

/// The error an answer tells, after checks that hold for every error.
pub(crate) async fn error(answer: reqwest::Response) -> ApiError {
    let status = answer.status();
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    let retry_after = answer
        .headers()
        .get("retry-after")
        .map(|v| v.to_str().unwrap().to_owned());
    assert!(!answer.headers().keys().any(|n| n.as_str().starts_with("x-rekindle-")));
    let body: Bytes = answer.bytes().await.unwrap();
    let error: ApiError = serde_json::from_slice(&body).unwrap_or_else(|e| panic!("{status}: {e}: {body:?}"));
    assert_eq!(status, error.code.status());
    assert_eq!(error.request_id.as_ref(), Some(&id));
    assert_eq!(retry_after, error.retry_after_s.map(|s| s.to_string()));
    error
}

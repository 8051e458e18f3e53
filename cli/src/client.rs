//! The client of the admin API: the gateway's address, the key, and every call that `fn` makes. A refusal comes back as
//! [`ApiError`]; if there is no gateway, the error says how to start it.

mod access;
mod calls;
mod keys;
mod login;
mod oidc;
mod quotas;
mod releases;
mod schedules;
mod secrets;
mod sources;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use rekindle_identity::{Role, Transport};
use rekindle_wire::api::{
    CanarySteps, CollectRequest, Collected, FunctionDetail, FunctionSummary, InstanceInfo, InstanceObjects, LogLine,
    MigrateRequest, Migration, Revocation, RevokeRequest, Status, VersionInfo, WorkerInfo,
};
use rekindle_wire::interface::Endpoint;
use rekindle_wire::interface::users::{
    Collect, DeleteFunction, Deploy, DescribeFunction, DescribeVersion, DrainWorker, ListFunctions, ListInstances,
    ListRevocations, ListWorkers, MigrateInstance, ReadFunctionObjects, ReadFunctionStats, ReadLogs, ReadStats,
    ReadStatus, RenewSnapshot, Revoke, UndrainWorker,
};
use rekindle_wire::stats::{FunctionStats, Stats};
use rekindle_wire::{ApiError, ErrorCode, FunctionId, InstanceId, Namespace, VersionNumber, headers};
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Method, RequestBuilder, Response};

use self::keys::{is_local, key_files, key_from_files};
pub(crate) use self::login::Logins;
use crate::args::{ClientArgs, FunctionArg};
use crate::settings;

/// For calls that are answered from memory or from the metadata.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// For a collection, which examines everything. It continues without its client.
const COLLECT_TIMEOUT: Duration = Duration::from_secs(900);
/// For a migration, in addition to the time that invocations may take to end.
const MOVE_TIMEOUT: Duration = Duration::from_secs(150);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// An error's body is a line of JSON; a server that sends more is not ours.
const ERROR_BODY_MAX: usize = 64 << 10;

/// Stands for the token of a login, until the request is sent.
const TOKEN: HeaderValue = HeaderValue::from_static("Bearer login");

/// There was no answer to a call.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NoAnswer(String);

/// Whether a call that only asks may be made again: there was no answer, or the platform says that there will be one.
pub(crate) fn is_passing(error: &anyhow::Error) -> bool {
    let refused = error.downcast_ref::<ApiError>();
    let waits = refused.is_some_and(|e| matches!(e.code, ErrorCode::Unavailable | ErrorCode::Throttled));
    waits || error.downcast_ref::<NoAnswer>().is_some()
}

/// A gateway and the key to it.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    http: Transport,
    base: String,
    key: Option<String>,
    /// The file that the key is from, if it is from one.
    key_file: Option<PathBuf>,
    /// Where the token of a login is found that is used in place of a key.
    login: Option<Logins>,
    /// Whether it shows a certificate.
    has_certificate: bool,
    /// Token for calls between parts of the platform, which reach each other directly.
    token: Option<String>,
    /// Namespace of what is named without one.
    namespace: Namespace,
}

impl Client {
    /// A client of the gateway that `args` name. Reads the key file, but does not connect.
    pub(crate) fn new(args: &ClientArgs) -> Result<Self> {
        let login = match &args.key {
            Some(_) => None,
            // What is said now goes before what was kept.
            None if args.client_cert.is_some() => None,
            None => signed_in(&args.url)?,
        };
        let (key_file, key) = match &args.key {
            Some(key) => (None, Some(key.clone())),
            None if login.is_some() || args.client_cert.is_some() => (None, None),
            // A file does not say whose key it holds, so only this machine's gateway is sent it.
            None if is_local(&args.url) => key_from_files(key_files())?.unzip(),
            None => (None, None),
        };
        let own = args.client_cert.as_deref().zip(args.client_key.as_deref());
        let namespace = match &args.namespace {
            Some(namespace) => namespace.clone(),
            None => settings::namespace()?,
        };
        Ok(Self {
            namespace,
            key_file,
            login,
            has_certificate: args.client_cert.is_some(),
            ..Self::at(&args.url, key, args.ca.as_deref(), own)?
        })
    }

    /// A client of the gateway at `url` with this key.
    pub(crate) fn with_key(url: &str, key: Option<String>) -> Result<Self> {
        Self::at(url, key, None, None)
    }

    fn at(url: &str, key: Option<String>, ca: Option<&Path>, own: Option<(&Path, &Path)>) -> Result<Self> {
        let parsed = reqwest::Url::parse(url).with_context(|| {
            format!("\"{url}\" is not an address: set FN_URL to http://HOST:PORT or https://HOST:PORT")
        })?;
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .context("the HTTP client could not be made")?;
        let http = match parsed.scheme() {
            "https" => Transport::to_public(http, ca, own, CONNECT_TIMEOUT)?,
            "http" if own.is_some() => {
                bail!("{url}: a certificate is shown over https alone: set FN_URL to https://HOST:PORT")
            }
            "http" => Transport::plain(http),
            other => bail!(
                "{url}: fn speaks http and https to the gateway, not {other}: set FN_URL to http://HOST:PORT or \
                 https://HOST:PORT"
            ),
        };
        Ok(Self {
            http,
            base: url.trim_end_matches('/').to_owned(),
            key: key.map(|k| k.trim().to_owned()),
            key_file: None,
            login: None,
            has_certificate: false,
            token: None,
            namespace: Namespace::default(),
        })
    }

    /// A client of the scheduler at `url`, for the platform itself.
    pub(crate) fn with_token(url: &str, token: &str) -> Result<Self> {
        let client = Self::with_key(url, None)?;
        Ok(Self {
            token: Some(token.to_owned()),
            ..client
        })
    }

    /// The function that an argument names.
    pub(crate) fn function_id(&self, named: &FunctionArg) -> FunctionId {
        named.within(&self.namespace)
    }

    /// Namespace of what is named without one.
    pub(crate) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The full address of `path`, which starts with a slash.
    pub(crate) fn address(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// A request with the key, if there is one.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.http().request(method, self.address(path));
        match (&self.key, &self.token, &self.login) {
            (Some(key), _, _) => request.bearer_auth(key),
            (None, Some(token), _) => request.header(headers::CLUSTER_TOKEN, token),
            (None, None, Some(_)) => request.header(AUTHORIZATION, TOKEN),
            (None, None, None) => request,
        }
    }

    /// A request without the key, for public routes.
    pub(crate) fn anonymous(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.http().request(method, self.address(path))
    }

    /// Sends a request. If there is no response, the error says what to do.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response> {
        let request = match &self.login {
            Some(logins) => with_token(request, &self.base, logins).await?,
            None => request,
        };
        self.http.send(request).await.map_err(|e| {
            if let Some(tls) = e.tls() {
                anyhow!(
                    "no safe connection can be made to {}: {tls}: check the host's name in FN_URL, or name the \
                     authority of its certificate with --ca",
                    self.base
                )
            } else if e.is_connect() {
                let fix = "start the platform with `fn up`, or set FN_URL";
                anyhow!(NoAnswer(format!("nothing answers at {}: {fix}", self.base)))
            } else if e.is_timeout() {
                anyhow!(e).context(NoAnswer(format!("{} did not answer in time", self.base)))
            } else {
                anyhow!(e).context(NoAnswer(format!("the call to {} was interrupted", self.base)))
            }
        })
    }

    /// A call of an operation, within a time limit.
    async fn call<E: Endpoint>(&self, at: &E, body: &E::Body, limit: Duration) -> Result<E::Answer> {
        let request = self.request(E::OPERATION.method, &at.uri()).timeout(limit);
        let request = match E::encode(body) {
            body if body.is_empty() => request,
            body => request.header("content-type", "application/json").body(body),
        };
        let response = self.checked(self.send(request).await?).await?;
        let body = response
            .bytes()
            .await
            .with_context(|| format!("the response of {} ended early", self.base))?;
        E::decode(&body).with_context(|| format!("{}: the answer is not what this version of fn understands", at.uri()))
    }

    /// A call without a body.
    async fn ask<E: Endpoint<Body = ()>>(&self, at: &E) -> Result<E::Answer> {
        self.call(at, &(), CALL_TIMEOUT).await
    }

    /// The response if it is a success, otherwise the [`ApiError`] it carries.
    pub(crate) async fn checked(&self, response: Response) -> Result<Response> {
        if response.status().is_success() {
            return Ok(response);
        }
        let mut error = error_of(response).await;
        if let (ErrorCode::Unauthorized, Some(file)) = (error.code, &self.key_file) {
            error.message = format!("{}; the key was read from {}", error.message, file.display());
        }
        if error.code == ErrorCode::Unauthorized && self.login.is_some() {
            error.message = format!("{}; `fn login {}` signs you in anew", error.message, self.base);
        } else if error.code == ErrorCode::Unauthorized && self.key.is_none() && !self.has_certificate {
            let places: Vec<String> = key_files().iter().map(|p| p.display().to_string()).collect();
            let fix = if is_local(&self.base) {
                format!(
                    "no key was found: set FN_KEY, or put the key in {}",
                    places.join(" or ")
                )
            } else {
                format!(
                    "the key of a gateway elsewhere is not taken from a file: set FN_KEY, or sign in by `fn login {}`",
                    self.base
                )
            };
            error.message = format!("{}; {fix}", error.message);
        }
        Err(error.into())
    }

    /// Whether the platform is ready for deploys and invocations.
    pub(crate) async fn ready(&self) -> bool {
        let request = self.request(Method::GET, "/readyz").timeout(Duration::from_secs(2));
        matches!(self.http.send(request).await, Ok(r) if r.status().is_success())
    }

    /// Workers, functions and instances.
    pub(crate) async fn status(&self) -> Result<Status> {
        self.ask(&ReadStatus {}).await
    }

    pub(crate) async fn functions(&self) -> Result<Vec<FunctionSummary>> {
        let namespace = self.other_namespace();
        self.ask(&ListFunctions { namespace }).await
    }

    pub(crate) async fn function(&self, name: &FunctionId) -> Result<FunctionDetail> {
        let (name, namespace) = name.split();
        self.ask(&DescribeFunction { name, namespace }).await
    }

    pub(crate) async fn stats(&self) -> Result<Stats> {
        self.ask(&ReadStats {}).await
    }

    pub(crate) async fn function_stats(&self, name: &FunctionId) -> Result<FunctionStats> {
        let (name, namespace) = name.split();
        self.ask(&ReadFunctionStats { name, namespace }).await
    }

    pub(crate) async fn version(&self, name: &FunctionId, version: VersionNumber) -> Result<VersionInfo> {
        let (name, namespace) = name.split();
        let version = DescribeVersion {
            name,
            version,
            namespace,
        };
        self.ask(&version).await
    }

    pub(crate) async fn instances(&self) -> Result<Vec<InstanceInfo>> {
        self.ask(&ListInstances {}).await
    }

    /// What an instance of a function has from the kernel.
    pub(crate) async fn instance_objects(&self, function: &FunctionId, id: &InstanceId) -> Result<InstanceObjects> {
        let (name, namespace) = function.split();
        let objects = ReadFunctionObjects {
            name,
            id: id.clone(),
            namespace,
        };
        self.ask(&objects).await
    }

    pub(crate) async fn workers(&self) -> Result<Vec<WorkerInfo>> {
        self.ask(&ListWorkers {}).await
    }

    /// Starts or ends the draining of the worker with this name.
    pub(crate) async fn drain(&self, name: &str, drained: bool) -> Result<WorkerInfo> {
        let name = name.to_owned();
        match drained {
            true => self.ask(&DrainWorker { name }).await,
            false => self.ask(&UndrainWorker { name }).await,
        }
    }

    /// Revokes a member's certificates.
    pub(crate) async fn revoke(&self, role: Role, name: &str) -> Result<Revocation> {
        let request = RevokeRequest {
            role: role.to_string(),
            name: name.to_owned(),
        };
        self.call(&Revoke {}, &request, CALL_TIMEOUT).await
    }

    /// The revoked members.
    pub(crate) async fn revocations(&self) -> Result<Vec<Revocation>> {
        self.ask(&ListRevocations {}).await
    }

    /// Renews the snapshot of a function's live version.
    pub(crate) async fn renew_snapshot(&self, name: &FunctionId) -> Result<VersionInfo> {
        let (name, namespace) = name.split();
        self.ask(&RenewSnapshot { name, namespace }).await
    }

    /// Moves an instance, or a copy of it.
    pub(crate) async fn migrate(&self, instance: &InstanceId, request: &MigrateRequest) -> Result<Migration> {
        let limit = MOVE_TIMEOUT + Duration::from_millis(request.settle_ms.unwrap_or(0));
        let id = instance.clone();
        self.call(&MigrateInstance { id }, request, limit).await
    }

    /// Removes a function.
    pub(crate) async fn delete(&self, name: &FunctionId) -> Result<()> {
        let (name, namespace) = name.split();
        self.ask(&DeleteFunction { name, namespace }).await
    }

    /// Asks the platform to remove unneeded objects from its object store.
    pub(crate) async fn collect(&self, request: &CollectRequest) -> Result<Collected> {
        self.call(&Collect {}, request, COLLECT_TIMEOUT).await
    }

    /// Uploads a packed folder of `length` bytes into the namespace. Returns the version it became, and whether that is
    /// new: without `force` an unchanged folder makes none.
    pub(crate) async fn deploy(
        &self,
        body: reqwest::Body,
        length: u64,
        force: bool,
        release: &Release,
    ) -> Result<(VersionInfo, bool)> {
        let deploy = Deploy {
            namespace: self.other_namespace(),
            if_changed: Some(!force),
            // Earlier versions of the scheduler know no other than true.
            traffic: matches!(release, Release::Hold).then_some(false),
            canary: release.growth().map(|(steps, _)| steps.clone()),
            step_s: release.growth().map(|(_, step)| step.as_secs()),
        };
        let request = self
            .request(Deploy::OPERATION.method, &deploy.uri())
            .header("content-type", "application/gzip")
            .header("content-length", length)
            .body(body);
        let response = self.checked(self.send(request).await?).await?;
        let new = response.status() != reqwest::StatusCode::OK;
        let version = response.json().await;
        let version = version.context("the answer to the upload is not what this version of fn understands")?;
        Ok((version, new))
    }

    /// Opens the log: one JSON [`LogLine`] a line.
    pub(crate) async fn logs(&self, name: &FunctionId, tail: u32, follow: bool) -> Result<Response> {
        let (name, namespace) = name.split();
        let logs = ReadLogs {
            name,
            namespace,
            tail: usize::try_from(tail).ok(),
            follow: Some(follow),
        };
        let mut request = self.request(ReadLogs::OPERATION.method, &logs.uri());
        if !follow {
            request = request.timeout(CALL_TIMEOUT);
        }
        self.checked(self.send(request).await?).await
    }

    /// The namespace, unless it is the default one: gateways of earlier versions know of no other.
    fn other_namespace(&self) -> Option<Namespace> {
        Some(self.namespace.clone()).filter(|named| *named != Namespace::default())
    }
}

/// What a version serves once it can.
#[derive(Debug, Clone)]
pub(crate) enum Release {
    /// Nothing: the version before goes on serving.
    Hold,
    All,
    /// A share of them that grows by these steps, of this duration.
    Grow(CanarySteps, Duration),
}

impl Release {
    /// The steps of a canary, and the duration of each.
    pub(crate) fn growth(&self) -> Option<(&CanarySteps, Duration)> {
        match self {
            Self::Grow(steps, step) => Some((steps, *step)),
            Self::Hold | Self::All => None,
        }
    }
}

/// The user's logins, if there is one at this gateway.
fn signed_in(url: &str) -> Result<Option<Logins>> {
    let Some(logins) = Logins::of_user() else {
        return Ok(None);
    };
    Ok(logins.at(url)?.is_some().then_some(logins))
}

/// The request with the token of the login at the gateway, unless it has another authorization.
async fn with_token(request: RequestBuilder, gateway: &str, logins: &Logins) -> Result<RequestBuilder> {
    let (http, built) = request.build_split();
    let mut built = built.context("the request cannot be written")?;
    if built.headers().get(AUTHORIZATION) == Some(&TOKEN) {
        let token = logins.token(gateway).await?;
        let mut value = HeaderValue::try_from(format!("Bearer {token}")).context("the login's token cannot be sent")?;
        value.set_sensitive(true);
        built.headers_mut().insert(AUTHORIZATION, value);
    }
    Ok(RequestBuilder::from_parts(http, built))
}

pub(crate) fn log_line(line: &[u8]) -> Result<LogLine> {
    serde_json::from_slice(line).context("a log line is not what this version of fn understands")
}

/// The error in a response that is not a success.
async fn error_of(mut response: Response) -> ApiError {
    let status = response.status();
    let mut body = Vec::new();
    while let Ok(Some(part)) = response.chunk().await {
        body.extend_from_slice(&part);
        if body.len() > ERROR_BODY_MAX {
            break;
        }
    }
    serde_json::from_slice(&body).unwrap_or_else(|_| {
        let code = if status == reqwest::StatusCode::UNAUTHORIZED {
            ErrorCode::Unauthorized
        } else {
            ErrorCode::Internal
        };
        let text = String::from_utf8_lossy(&body[..body.len().min(200)]).trim().to_owned();
        ApiError::new(
            code,
            format!("the gateway answered {status} without an error of ours: {text}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_cannot_work_is_refused_with_the_fix() {
        for url in ["127.0.0.1:8080", "ftp://functions.example"] {
            let error = format!("{:#}", Client::with_key(url, None).unwrap_err());
            assert!(error.contains("set FN_URL to http://HOST:PORT"), "{error}");
        }
    }
}

//! Calls between functions of one namespace. A worker passes them on from the sandboxes of its host, and says which
//! function calls: a function reaches neither this interface nor the header in which that is said.
//!
//! What a caller may call is what it names below its own namespace. Nothing else of the gateway is served here.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, State};
use axum::response::IntoResponse as _;
use http::{HeaderName, Request, Response};
use rekindle_identity::{Caller, Listener, Member, Role, inside};
use rekindle_relay::{InProcessRegistration, InProcessRoles};
use rekindle_wire::access::{self, AccessRole, Scope};
use rekindle_wire::asynchronous::InvocationKind;
use rekindle_wire::function_call::{CALL_DEPTH_MAX, CALL_DOMAIN, CallKind, FunctionCall};
use rekindle_wire::headers::{CLUSTER_TOKEN, PLATFORM_ERROR, REQUEST_ID};
use rekindle_wire::interface::version;
use rekindle_wire::{ApiError, ErrorCode, FunctionId, FunctionName, Namespace, Selector};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::async_calls::AsyncInvocation;
use crate::dispatch::{Call, Chain};
use crate::gateway::Gateway;
use crate::routes::Routes;
use crate::{headers, route};

mod hosted;

use self::hosted::Hosted;

/// A function's address as it sees itself, the same in every sandbox.
const SANDBOX: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2));

/// Calls of functions that are taken, until this is dropped.
pub(crate) struct FunctionCalls {
    _in_process: InProcessRegistration,
    serving: Option<JoinHandle<()>>,
    ending: CancellationToken,
}

impl FunctionCalls {
    /// Takes calls at `address`, from workers of the same process, and through the listener if there is one.
    ///
    /// # Errors
    /// If the gateway's certificate cannot be used.
    pub(crate) fn open(
        gateway: &Arc<Gateway>,
        address: &str,
        listener: Option<TcpListener>,
        member: Option<&Member>,
        in_process: &InProcessRoles,
    ) -> std::io::Result<Self> {
        let taking = Arc::new(FunctionCallState {
            gateway: gateway.clone(),
            hosted: Hosted::default(),
        });
        let router = Router::new().fallback(take).with_state(taking);
        let ending = CancellationToken::new();
        let serving = match listener {
            None => None,
            Some(listener) => {
                let listener = Listener::new(listener, member)?;
                let ended = ending.clone().cancelled_owned();
                Some(tokio::spawn(listener.serve(router.clone(), ended)))
            }
        };
        Ok(Self {
            _in_process: in_process.open(address, inside(router)),
            serving,
            ending,
        })
    }

    /// Takes no more, and gives those in flight until `limit`.
    pub(crate) async fn end(mut self, limit: Duration) {
        self.ending.cancel();
        if let Some(mut serving) = self.serving.take()
            && tokio::time::timeout(limit, &mut serving).await.is_err()
        {
            serving.abort();
        }
    }
}

/// What calls are taken with.
struct FunctionCallState {
    gateway: Arc<Gateway>,
    hosted: Hosted,
}

async fn take(
    State(taking): State<Arc<FunctionCallState>>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    request: Request<Body>,
) -> Response<Body> {
    let request_id = headers::request_id(request.headers());
    let answered = Box::pin(answer(&taking, &caller, request, &request_id)).await;
    let mut answer = answered.unwrap_or_else(|error| error.with_request_id(&request_id).into_response());
    let out = answer.headers_mut();
    out.remove(HeaderName::from_static(PLATFORM_ERROR));
    if !out.contains_key(REQUEST_ID) {
        headers::set(out, REQUEST_ID, &request_id);
    }
    answer
}

async fn answer(
    FunctionCallState { gateway, hosted }: &FunctionCallState,
    caller: &Caller,
    mut request: Request<Body>,
    request_id: &str,
) -> Result<Response<Body>, ApiError> {
    check_worker(gateway, caller, &request)?;
    let arrived = Instant::now();
    let call = FunctionCall::of(request.headers())?;
    hosted.check(&gateway.scheduler, caller, &call.caller).await?;
    let metrics = &gateway.dispatch.metrics;
    headers::check_size(request.headers()).inspect_err(|_| metrics.refused("headers"))?;
    headers::check_authorization(request.headers())?;
    if call.depth > CALL_DEPTH_MAX {
        metrics.refused("call_depth");
        return Err(too_deep(&call.caller));
    }
    let (function, selector) = callee(&gateway.dispatch.routes, &call)?;
    let path = match call.how {
        CallKind::Http => route::below(request.uri().path(), request.uri().query())?,
        CallKind::Event | CallKind::Later => "/".to_owned(),
    };
    headers::strip_forwarded(request.headers_mut());
    headers::strip_upgrade(request.headers_mut());
    let shown = gateway.callers.shown(request.headers(), None).await;
    let tokens = gateway.admit(&function, &shown, request.headers(), true).await?;
    shown.hide(request.headers_mut(), &tokens);
    // As a client is: the caller's team need not be the one that reads what this function writes.
    let may_read = |caller: &access::Caller| caller.has(AccessRole::Reader, &Scope::Function(function.clone()));
    let reads_output = shown.known().is_some_and(may_read);
    gateway.take_of_rate(&function)?;
    let held = gateway.clients.call(call.caller.namespace()).map_err(|limit| {
        gateway.dispatch.metrics.refused(limit.as_str());
        limit.error()
    })?;
    let client = Some(Arc::new(held));
    if call.how == CallKind::Later {
        let asked = AsyncInvocation {
            function,
            path,
            invocation: InvocationKind::Event,
            request_id: request_id.to_owned(),
            peer: SANDBOX,
            client,
            owner: Some(format!("function {}", call.caller)),
            names_callbacks: false,
            depth: call.depth,
        };
        return gateway.later(asked, request).await;
    }
    let call = Call {
        function,
        selector: selector.unwrap_or_default(),
        path,
        invocation: match call.how {
            CallKind::Http => InvocationKind::Http,
            CallKind::Event | CallKind::Later => InvocationKind::Event,
        },
        reads_output,
        force: None,
        request_id: request_id.to_owned(),
        peer: SANDBOX,
        arrived,
        connection: CancellationToken::new(),
        client,
        attempt: None,
        chain: Chain {
            depth: call.depth,
            until: Some(arrived + Duration::from_millis(call.left_ms)),
            caller: Some(call.caller),
        },
    };
    Ok(gateway.dispatch.invoke(call, request).await)
}

/// Refuses whoever is no worker of the cluster.
fn check_worker(gateway: &Gateway, caller: &Caller, request: &Request<Body>) -> Result<(), ApiError> {
    if !caller.is_one_of(&[Role::Worker]) {
        let message = format!(
            "{} may not pass on calls of functions: only workers may",
            caller.described()
        );
        return Err(ApiError::new(ErrorCode::Unauthorized, message));
    }
    let given = request.headers().get(CLUSTER_TOKEN);
    let given = given.map(|value| blake3::hash(value.as_bytes()));
    // Hashes are compared in constant time.
    if given != Some(blake3::hash(gateway.dispatch.token.as_bytes())) {
        let message = "the cluster token is missing or wrong: functions are called at the gateway's other port";
        return Err(ApiError::new(ErrorCode::Unauthorized, message));
    }
    version::check(request.headers(), Role::Gateway)
}

/// The function that is called, in the caller's namespace, and which of its versions.
fn callee(routes: &Routes, call: &FunctionCall) -> Result<(FunctionId, Option<Selector>), ApiError> {
    let named = |name: &str| {
        let name = name.parse::<FunctionName>();
        let name = name.map_err(|e| ApiError::new(ErrorCode::FunctionNotFound, e.to_string()))?;
        // The caller's id is valid, and so is its namespace.
        let namespace: Namespace = call.caller.namespace().parse().unwrap_or_default();
        Ok::<_, ApiError>(FunctionId::new(&namespace, &name))
    };
    let is_version = call.callee.starts_with(|c: char| c.is_ascii_digit());
    if let Some((version, name)) = call.callee.split_once("--").filter(|_| is_version) {
        let selector = version.parse::<Selector>();
        let selector = selector.map_err(|e| ApiError::new(ErrorCode::NotFound, e.to_string()))?;
        return Ok((named(name)?, Some(selector)));
    }
    Ok(routes.of_host(named(&call.callee)?))
}

fn too_deep(caller: &FunctionId) -> ApiError {
    ApiError::new(
        ErrorCode::CallTooDeep,
        format!(
            "{caller} was called by a function that was called by another, and so on {CALL_DEPTH_MAX} times: look for \
             functions that call each other in a loop by http://NAME.{CALL_DOMAIN}"
        ),
    )
}

#[cfg(test)]
mod tests {
    use rekindle_wire::InstanceId;

    use super::*;

    fn called(caller: &str, name: &str) -> Result<(String, Option<String>), ErrorCode> {
        let call = FunctionCall {
            caller: caller.parse().unwrap(),
            instance: InstanceId::generate(),
            callee: name.to_owned(),
            how: CallKind::Http,
            depth: 1,
            left_ms: 1_000,
        };
        let found = callee(&Routes::default(), &call).map_err(|e| e.code)?;
        Ok((found.0.to_string(), found.1.map(|selector| selector.to_string())))
    }

    #[test]
    fn whoever_is_called_is_of_the_callers_namespace() {
        let is = |id: &str, selector: Option<&str>| Ok((id.to_owned(), selector.map(str::to_owned)));
        assert_eq!(called("orders", "stock"), is("stock", None));
        assert_eq!(called("orders.team", "stock"), is("stock.team", None));
        assert_eq!(called("orders.team", "3--stock"), is("stock.team", Some("3")));
        assert_eq!(called("orders.team", "canary--stock"), is("stock.team", Some("canary")));
        for bad in [
            "stock.default",
            "stock.team",
            "",
            "Stock",
            "a/b",
            "..",
            "stock@3",
            "stock:80",
        ] {
            assert_eq!(called("orders.team", bad), Err(ErrorCode::FunctionNotFound), "{bad}");
        }
        assert_eq!(called("orders.team", "3x--stock"), Err(ErrorCode::NotFound));
        assert_eq!(
            called("orders.team", "3--stock.default"),
            Err(ErrorCode::FunctionNotFound)
        );
    }
}

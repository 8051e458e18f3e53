//! A gateway: how each request is answered, by its route.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Body;
use axum::response::IntoResponse as _;
use http::header::{AUTHORIZATION, LOCATION, STRICT_TRANSPORT_SECURITY};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version};
use rekindle_telemetry::metrics::exposition;
use rekindle_wire::access::{AccessRole, Caller, Scope};
use rekindle_wire::asynchronous::InvocationKind;
use rekindle_wire::function_config::{Auth, TokenRule};
use rekindle_wire::headers::{FORCE_START, PLATFORM_ERROR, REQUEST_ID, bearer};
use rekindle_wire::{ApiError, ErrorCode, FunctionId, Selector};
use tokio_util::sync::CancellationToken;

use crate::async_calls::{self, AsyncInvocation, Targets};
use crate::body::Sender;
use crate::callers::{self, Callers};
use crate::clients::address::is_of_this_machine;
use crate::clients::{ClientPermit, Clients};
use crate::config::Paths;
use crate::connection::{RequestHandler, RequestOrigin, WINDOW};
use crate::cors::CrossOrigin;
use crate::dispatch::{Call, Chain, Dispatch};
use crate::headers::FORWARDED_PROTO;
use crate::host::{self, Host, HostOwner, Hosts};
use crate::quotas::Quotas;
use crate::route::{self, Route, RoutedBy, route};
use crate::routes::CallerRequirements;
use crate::scheduler::SchedulerClient;
use crate::tls::Certificates;
use crate::tokens::Tokens;
use crate::{admin, grpc, headers, openapi};

/// What requests are answered with.
pub(crate) struct Gateway {
    pub(crate) callers: Callers,
    pub(crate) tokens: Tokens,
    pub(crate) quotas: Arc<Quotas>,
    pub(crate) scheduler: SchedulerClient,
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) targets: Targets,
    pub(crate) paths: Paths,
    pub(crate) hosts: Hosts,
    pub(crate) redirect: Option<u16>,
    pub(crate) hsts: Option<HeaderValue>,
    pub(crate) certificates: Option<Arc<Certificates>>,
}

impl RequestHandler for Gateway {
    async fn answer(
        &self,
        mut request: Request<Body>,
        via: &RequestOrigin,
        connection: CancellationToken,
    ) -> (Response<Body>, Option<Arc<ClientPermit>>) {
        let request_id = headers::request_id(request.headers());
        let call = grpc::GrpcClient::of(&request);
        if !self.clients.may_speak_for_others(via.peer) {
            headers::strip_forwarded(request.headers_mut());
        }
        if via.certificate.is_some() {
            headers::set(request.headers_mut(), FORWARDED_PROTO, "https");
        }
        let mut asked_by_page = None;
        let (answered, client) = match self.clients.request(via.peer, request.headers()) {
            Ok(client) => {
                let client = client.map(Arc::new);
                let answered = match headers::check_size(request.headers()) {
                    Ok(()) => {
                        let of_page = &mut asked_by_page;
                        self.routed(request, via, &request_id, client.clone(), connection, of_page)
                            .await
                    }
                    Err(error) => {
                        self.dispatch.metrics.refused("headers");
                        Err(error)
                    }
                };
                (answered, client)
            }
            Err(limit) => {
                self.dispatch.metrics.refused(limit.as_str());
                (Err(limit.error()), None)
            }
        };
        let mut answer = answered.unwrap_or_else(|error| error.with_request_id(&request_id).into_response());
        if let Some(of_call) = call {
            answer = grpc::answered(answer, of_call).await;
        }
        if let Some(asked) = asked_by_page {
            answer = asked.tell(answer).await;
        }
        let out = answer.headers_mut();
        out.remove(HeaderName::from_static(PLATFORM_ERROR));
        if !out.contains_key(REQUEST_ID) {
            headers::set(out, REQUEST_ID, &request_id);
        }
        if let (Some(_), Some(hsts)) = (&via.certificate, &self.hsts) {
            out.insert(STRICT_TRANSPORT_SECURITY, hsts.clone());
        }
        (answer, client)
    }
}

impl Gateway {
    /// Accepts an invocation that is run later.
    pub(crate) async fn later(
        &self,
        asked: AsyncInvocation,
        request: Request<Body>,
    ) -> Result<Response<Body>, ApiError> {
        async_calls::accept(&self.scheduler, &self.dispatch.intake, &self.targets, asked, request).await
    }

    /// Takes an invocation from what its namespace may have. One of a function that does not exist takes nothing: it
    /// needs no key, so strangers could use up the rate of functions that ask for one.
    pub(crate) fn take_of_rate(&self, function: &FunctionId) -> Result<(), ApiError> {
        match self.dispatch.routes.shown(function) {
            Some(_) => self.quotas.admit(function),
            None => Ok(()),
        }
    }

    /// Refuses the call of a function that asks for a key or a token to a caller who may not invoke it. `by_function`
    /// tells that a function of the same namespace calls. Returns the tokens that the function asks for.
    pub(crate) async fn admit(
        &self,
        function: &FunctionId,
        shown: &callers::PresentedCredentials,
        headers: &HeaderMap,
        by_function: bool,
    ) -> Result<Arc<[TokenRule]>, ApiError> {
        let Dispatch {
            routes, slots, metrics, ..
        } = &*self.dispatch;
        let mut wanted = routes.shown(function);
        if wanted.is_none() {
            // It may be new. What asks for a key must not be invoked without one because it was not known in time.
            let told = slots
                .scheduler
                .routes(&slots.gateway, routes.revision(), Duration::ZERO, Some(function));
            let told = told.await.inspect_err(|error| {
                let measured = metrics.measure(function, Instant::now(), None);
                measured.failed(None, error, &tracing::Span::none());
            });
            routes.apply(told?);
            wanted = routes.shown(function);
        }
        let CallerRequirements {
            auth,
            tokens,
            open_to_functions,
        } = wanted.ok_or_else(|| {
            ApiError::new(
                ErrorCode::FunctionNotFound,
                format!("no function \"{function}\" is live: `fn list` shows what is deployed"),
            )
        })?;
        if auth == Auth::None {
            return Ok(Arc::default());
        }
        let may_invoke = |caller: &Caller| caller.check(AccessRole::Invoker, &Scope::Function(function.clone()));
        match &shown.caller {
            _ if by_function && open_to_functions => Ok(()),
            // A token of an issuer that the function trusts as the platform does.
            Some(Ok(caller)) => match may_invoke(caller) {
                Err(_) if !tokens.is_empty() && caller.is_identity() => {
                    self.tokens.check(bearer(headers).unwrap_or_default(), &tokens).await
                }
                checked => checked,
            },
            Some(Err(_)) if !tokens.is_empty() && shown.may_be_the_functions() => {
                self.tokens.check(bearer(headers).unwrap_or_default(), &tokens).await
            }
            Some(Err(error)) => Err(error.clone()),
            None if !tokens.is_empty() => match bearer(headers) {
                Some(token) => self.tokens.check(token, &tokens).await,
                None => Err(ApiError::new(
                    ErrorCode::Unauthorized,
                    format!(
                        "{function} asks its callers for a token of {}: send \"Authorization: Bearer TOKEN\"",
                        tokens[0].issuer
                    ),
                )),
            },
            None => Err(ApiError::new(
                ErrorCode::Unauthorized,
                format!(
                    "{function} asks its callers for a key: send \"Authorization: Bearer KEY\"; an admin makes one \
                     with `fn key create --role invoker -n {} --function {}`{}",
                    function.namespace(),
                    function.name(),
                    match by_function {
                        true => "; functions of its namespace need none with allow = [\"functions\"] in its fn.toml",
                        false => "",
                    }
                ),
            )),
        }?;
        Ok(tokens)
    }

    /// Refuses a forced start to a caller that is no deployer of the function.
    async fn check_force(
        &self,
        headers: &HeaderMap,
        via: &RequestOrigin,
        function: &FunctionId,
    ) -> Result<(), ApiError> {
        let caller = self.callers.caller(headers, via.client.as_deref()).await;
        let checked = caller.and_then(|c| c.check(AccessRole::Deployer, &Scope::Function(function.clone())));
        checked.map_err(|e| ApiError::new(e.code, format!("{}; {FORCE_START} is for deployers only", e.message)))
    }

    /// The response to a request that does not belong on this connection: its host has another certificate, or it lacks
    /// required TLS.
    fn elsewhere(
        &self,
        request: &Request<Body>,
        host: Option<&Host>,
        via: &RequestOrigin,
    ) -> Result<Option<Response<Body>>, ApiError> {
        if let (Some(shown), Some(certificates)) = (&via.certificate, &self.certificates) {
            let own = certificates.shown_for(host.and_then(Host::name));
            if own != *shown {
                return Err(ApiError::new(
                    ErrorCode::MisdirectedRequest,
                    "the connection was made to a host with another certificate: make one to this host",
                ));
            }
            return Ok(None);
        }
        let Some(port) = self.redirect else { return Ok(None) };
        let path = request.uri().path_and_query().map_or("/", |p| p.as_str());
        let is_local = is_of_this_machine(via.peer, request.headers()) && host.is_none_or(Host::is_loopback);
        let is_health = matches!(request.uri().path(), "/healthz" | "/readyz");
        if is_local || is_health && !matches!(self.hosts.owner_of(host)?, HostOwner::Function(_)) {
            return Ok(None);
        }
        let host = host.ok_or_else(|| {
            ApiError::new(
                ErrorCode::BadRequest,
                "this is served over HTTPS alone, and the request names no host to send it to",
            )
        })?;
        let authority = match port {
            443 => host.to_string(),
            port => format!("{host}:{port}"),
        };
        let location = format!("https://{authority}{path}");
        Ok(Some(
            (StatusCode::PERMANENT_REDIRECT, [(LOCATION, location)]).into_response(),
        ))
    }

    async fn routed(
        &self,
        request: Request<Body>,
        via: &RequestOrigin,
        request_id: &str,
        client: Option<Arc<ClientPermit>>,
        connection: CancellationToken,
        asked_by_page: &mut Option<CrossOrigin>,
    ) -> Result<Response<Body>, ApiError> {
        let arrived = Instant::now();
        let peer = via.peer;
        headers::check_authorization(request.headers())?;
        let host = host::of(&request)?;
        let of_api = Sender {
            client: client.clone(),
            window: if request.version() == Version::HTTP_2 {
                WINDOW
            } else {
                0
            },
            is_call: false,
        };
        if let Some(answer) = self.elsewhere(&request, host.as_ref(), via)? {
            return Ok(answer);
        }
        let call =
            |function: FunctionId, selector: Option<Selector>, path, invocation, force, caller: Option<&Caller>| Call {
                reads_output: caller.is_some_and(|c| c.has(AccessRole::Reader, &Scope::Function(function.clone()))),
                function,
                selector: selector.unwrap_or_default(),
                path,
                invocation,
                force,
                request_id: request_id.to_owned(),
                peer,
                arrived,
                connection,
                client,
                attempt: None,
                chain: Chain::default(),
            };
        let asked = |function: FunctionId, path, invocation, caller: Option<Caller>| AsyncInvocation {
            path,
            invocation,
            request_id: request_id.to_owned(),
            peer,
            client: of_api.client.clone(),
            names_callbacks: caller
                .as_ref()
                .is_some_and(|caller| caller.has(AccessRole::Deployer, &Scope::Function(function.clone()))),
            owner: caller.map(|caller| caller.name().to_owned()),
            depth: 0,
            function,
        };
        match route(&request, host.as_ref(), peer, &self.hosts)? {
            Route::Function { by, .. } if by != RoutedBy::Host && self.paths == Paths::Off => Err(ApiError::new(
                ErrorCode::NotFound,
                format!(
                    "functions have no paths here (--no-paths): use the function's host, NAME.{}",
                    self.hosts.shown()
                ),
            )),
            Route::Function {
                name,
                selector,
                path,
                by,
            } => {
                let mut request = request;
                let (name, selector) = match (by, selector) {
                    (RoutedBy::Host, None) => self.dispatch.routes.of_host(name),
                    (_, selector) => (name, selector),
                };
                *asked_by_page = CrossOrigin::of(&request, || self.dispatch.routes.cors(&name));
                if asked_by_page.as_ref().is_some_and(CrossOrigin::is_preflight) {
                    return Ok(Response::default());
                }
                let force = route::forced(request.headers())?;
                if force.is_some() {
                    self.check_force(request.headers(), via, &name).await?;
                }
                let shown = self.callers.shown(request.headers(), via.client.as_deref()).await;
                let tokens = self.admit(&name, &shown, request.headers(), false).await?;
                shown.hide(request.headers_mut(), &tokens);
                self.take_of_rate(&name)?;
                let own = selector
                    .as_ref()
                    .map_or_else(|| name.to_string(), |s| format!("{name}@{s}"));
                let prefix = (by != RoutedBy::Host).then(|| headers::set_prefix(request.headers_mut(), &own));
                let call = call(name, selector, path, InvocationKind::Http, force, shown.known());
                let mut answer = self.dispatch.invoke(call, request).await;
                if by == RoutedBy::Host && self.paths != Paths::Trusted {
                    headers::keep_to_host(answer.headers_mut());
                }
                let is_apart = match by {
                    RoutedBy::Host => false,
                    RoutedBy::Path => self.paths == Paths::Apart,
                    RoutedBy::ApiPath => true,
                };
                if let Some(prefix) = prefix.filter(|_| is_apart) {
                    headers::keep_apart(answer.headers_mut(), &prefix);
                }
                Ok(answer)
            }
            Route::Later { name, path } => {
                let mut request = request;
                *asked_by_page = CrossOrigin::of(&request, || self.dispatch.routes.cors(&name));
                if asked_by_page.as_ref().is_some_and(CrossOrigin::is_preflight) {
                    return Ok(Response::default());
                }
                let shown = self.callers.shown(request.headers(), via.client.as_deref()).await;
                let tokens = self.admit(&name, &shown, request.headers(), false).await?;
                shown.hide(request.headers_mut(), &tokens);
                let caller = shown.into_known()?;
                self.take_of_rate(&name)?;
                self.later(asked(name, path, InvocationKind::Http, caller), request)
                    .await
            }
            Route::Result { id } => {
                let result = async_calls::result(&self.scheduler, &id, request.uri().query(), request_id).await;
                let mut answer = result?;
                if self.paths != Paths::Trusted {
                    headers::keep_apart(answer.headers_mut(), request.uri().path());
                }
                Ok(answer)
            }
            Route::Invocation { name, asynchronous } => {
                let mut request = request;
                let caller = self.callers.caller(request.headers(), via.client.as_deref()).await?;
                caller.check(AccessRole::Invoker, &Scope::Function(name.clone()))?;
                let force = route::forced(request.headers())?;
                if force.is_some() {
                    self.check_force(request.headers(), via, &name).await?;
                }
                self.take_of_rate(&name)?;
                request.headers_mut().remove(AUTHORIZATION);
                if asynchronous {
                    let asked = asked(name, "/".to_owned(), InvocationKind::Event, Some(caller));
                    return self.later(asked, request).await;
                }
                let call = call(name, None, "/".to_owned(), InvocationKind::Event, force, Some(&caller));
                Ok(self.dispatch.invoke(call, request).await)
            }
            Route::Admin => {
                let caller = self.callers.caller(request.headers(), via.client.as_deref()).await?;
                admin::check(&request, &caller)?;
                let received = admin::receive(&self.dispatch.intake, request, &of_api).await?;
                // The key may have been revoked while the body came.
                let caller = self.callers.caller(received.0.headers(), via.client.as_deref()).await?;
                Ok(admin::pass_on(&self.scheduler, received, request_id, &caller).await)
            }
            Route::Metrics => {
                let caller = self.callers.caller(request.headers(), via.client.as_deref()).await?;
                caller.check(AccessRole::Reader, &Scope::Platform)?;
                let (kind, text) = exposition(&self.dispatch.metrics.registry, request.headers());
                Ok(([kind], text).into_response())
            }
            Route::Auth => {
                Ok(Json(self.callers.status(request.headers(), via.client.as_deref()).await?).into_response())
            }
            Route::OpenApi => Ok(Json(openapi::document()).into_response()),
            Route::Health => Ok("ok".into_response()),
            Route::Ready if self.scheduler.is_ready().await => Ok("ok".into_response()),
            Route::Ready => Err(ApiError::new(
                ErrorCode::Unavailable,
                "the scheduler does not answer: see `rekindle.log` in its data, or its journal",
            )),
        }
    }
}

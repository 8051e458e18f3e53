//! What browsers are told of functions that pages of other origins may call (`[cors]` in `fn.toml`). The gateway
//! answers for the function, so that its errors can be read too, and no instance starts for a question alone.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD,
    ORIGIN,
};
use http::{HeaderName, HeaderValue, Method, Request, Response};
use rekindle_wire::function_config::Cors;
use tower::util::ServiceExt as _;
use tower::{Layer as _, service_fn};
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer, ExposeHeaders};

/// What answers to pages say. `access-control-allow-private-network` is never allowed.
const SAID: [HeaderName; 7] = [
    ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_ALLOW_CREDENTIALS,
    ACCESS_CONTROL_ALLOW_HEADERS,
    ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_EXPOSE_HEADERS,
    ACCESS_CONTROL_MAX_AGE,
    HeaderName::from_static("access-control-allow-private-network"),
];

/// What a function's `[cors]` says, as a layer.
pub(crate) fn layer(cors: &Cors) -> CorsLayer {
    let is_all = |list: &[String]| list.iter().any(|entry| entry == Cors::ALL);
    let names = |list: &[String]| {
        list.iter()
            .filter_map(|name| name.parse::<HeaderName>().ok())
            .collect::<Vec<_>>()
    };
    let origins = match is_all(&cors.origins) {
        true => AllowOrigin::any(),
        false => AllowOrigin::list(
            cors.origins
                .iter()
                .filter_map(|origin| HeaderValue::from_str(origin).ok()),
        ),
    };
    let methods = match is_all(&cors.methods) {
        true => AllowMethods::any(),
        false => AllowMethods::list(cors.methods.iter().filter_map(|method| method.parse::<Method>().ok())),
    };
    let headers = match is_all(&cors.headers) {
        true => AllowHeaders::any(),
        false => AllowHeaders::list(names(&cors.headers)),
    };
    let expose = match is_all(&cors.expose) {
        true => ExposeHeaders::any(),
        false => ExposeHeaders::list(names(&cors.expose)),
    };
    CorsLayer::new()
        .allow_origin(origins)
        .allow_methods(methods)
        .allow_headers(headers)
        .expose_headers(expose)
        // Together they panic in the layer. fn.toml has refused that.
        .allow_credentials(cors.credentials && !cors.has_all())
        .max_age(Duration::from_millis(cors.max_age_ms))
}

/// A page's request of another origin.
pub(crate) struct CrossOrigin {
    layer: CorsLayer,
    head: Request<()>,
}

impl CrossOrigin {
    /// The request, if a browser sent it for a page. `layer` is what its function says, which no other needs.
    pub(crate) fn of<B>(request: &Request<B>, layer: impl FnOnce() -> Option<CorsLayer>) -> Option<Self> {
        if !request.headers().contains_key(ORIGIN) {
            return None;
        }
        let layer = layer()?;
        let mut head = Request::new(());
        head.method_mut().clone_from(request.method());
        head.headers_mut().clone_from(request.headers());
        Some(Self { layer, head })
    }

    /// Whether it only asks what is allowed. Any other `OPTIONS` is the function's.
    pub(crate) fn is_preflight(&self) -> bool {
        self.head.method() == Method::OPTIONS && self.head.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD)
    }

    /// Says in an answer what the page may read; of a preflight, this is the answer.
    pub(crate) async fn tell(self, answer: Response<Body>) -> Response<Body> {
        let is_preflight = self.is_preflight();
        let mut head = self.head;
        if head.method() == Method::OPTIONS && !is_preflight {
            // To the layer, every OPTIONS is a preflight.
            *head.method_mut() = Method::GET;
        }
        let mut answer = answer;
        // The function's own would say with the layer's together what neither says alone.
        for name in SAID {
            answer.headers_mut().remove(name);
        }
        let mut answer = Some(answer);
        let inner =
            service_fn(|_: Request<()>| std::future::ready(Ok::<_, Infallible>(answer.take().unwrap_or_default())));
        let mut answer = match self.layer.layer(inner).oneshot(head).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        };
        // The layer allows credentials whatever the origin.
        if !answer.headers().contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
            answer.headers_mut().remove(ACCESS_CONTROL_ALLOW_CREDENTIALS);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    fn cors(origins: &[&str]) -> Cors {
        Cors {
            origins: origins.iter().map(|origin| (*origin).to_owned()).collect(),
            methods: vec!["GET".to_owned(), "PUT".to_owned()],
            headers: vec!["content-type".to_owned()],
            expose: vec!["x-total".to_owned()],
            credentials: true,
            max_age_ms: 60_000,
        }
    }

    async fn told(cors: &Cors, method: &str, headers: &[(&str, &str)], answer: Response<Body>) -> Response<Body> {
        let mut request = Request::builder().method(method);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        match CrossOrigin::of(&request.body(()).unwrap(), || Some(layer(cors))) {
            Some(asked) => asked.tell(answer).await,
            None => answer,
        }
    }

    fn header<'a>(answer: &'a Response<Body>, name: &str) -> Option<&'a str> {
        answer.headers().get(name).map(|value| value.to_str().unwrap())
    }

    #[tokio::test]
    async fn a_preflight_is_answered_by_what_is_allowed() {
        let ask = [
            ("origin", "https://a.example"),
            ("access-control-request-method", "PUT"),
        ];
        let known = told(&cors(&["https://a.example"]), "OPTIONS", &ask, Response::default()).await;
        assert_eq!(known.status(), StatusCode::OK);
        assert_eq!(header(&known, "access-control-allow-origin"), Some("https://a.example"));
        assert_eq!(header(&known, "access-control-allow-methods"), Some("GET,PUT"));
        assert_eq!(header(&known, "access-control-allow-headers"), Some("content-type"));
        assert_eq!(header(&known, "access-control-allow-credentials"), Some("true"));
        assert_eq!(header(&known, "access-control-max-age"), Some("60"));
        let unknown = told(&cors(&["https://b.example"]), "OPTIONS", &ask, Response::default()).await;
        assert_eq!(header(&unknown, "access-control-allow-origin"), None);
        let layer = || Some(layer(&cors(&["*"])));
        let preflight = |request: http::request::Builder| {
            let request = request.body(()).unwrap();
            CrossOrigin::of(&request, layer).map(|asked| asked.is_preflight())
        };
        let options = || Request::builder().method("OPTIONS");
        assert_eq!(preflight(options()), None);
        assert_eq!(preflight(options().header("origin", "https://a.example")), Some(false));
        let asks = options()
            .header("origin", "https://a.example")
            .header("access-control-request-method", "PUT");
        assert_eq!(preflight(asks), Some(true));
    }

    #[tokio::test]
    async fn an_answer_says_who_may_read_it_instead_of_what_the_function_says() {
        let answer = || {
            Response::builder()
                .status(418)
                .header("access-control-allow-origin", "*")
                .header("vary", "accept")
                .body(Body::from("x"))
                .unwrap()
        };
        let origin = [("origin", "https://a.example")];
        for method in ["GET", "OPTIONS"] {
            let read = told(&cors(&["https://a.example"]), method, &origin, answer()).await;
            assert_eq!(read.status(), 418);
            assert_eq!(header(&read, "access-control-allow-origin"), Some("https://a.example"));
            assert_eq!(header(&read, "access-control-expose-headers"), Some("x-total"));
            let vary: Vec<_> = read.headers().get_all("vary").iter().collect();
            assert!(vary.iter().any(|v| v.to_str().unwrap().contains("origin")) && vary.len() > 1);
        }
        for unlisted in ["https://evil.example", "null"] {
            let reflects = Response::builder()
                .header("access-control-allow-origin", unlisted)
                .header("access-control-expose-headers", "*")
                .body(Body::empty())
                .unwrap();
            let read = told(&cors(&["https://a.example"]), "GET", &[("origin", unlisted)], reflects).await;
            let names: Vec<_> = read.headers().keys().map(HeaderName::as_str).collect();
            assert_eq!(header(&read, "access-control-allow-origin"), None);
            assert_eq!(header(&read, "access-control-allow-credentials"), None, "{names:?}");
            assert_ne!(header(&read, "access-control-expose-headers"), Some("*"));
        }
        let all = told(&cors(&["*"]), "GET", &origin, answer()).await;
        assert_eq!(header(&all, "access-control-allow-origin"), Some("*"));
        assert_eq!(header(&all, "access-control-allow-credentials"), None);
        let plain = told(&cors(&["https://a.example"]), "GET", &[], answer()).await;
        assert_eq!(header(&plain, "access-control-allow-credentials"), None);
    }
}

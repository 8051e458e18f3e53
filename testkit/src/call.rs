//! Requests to a platform, and their responses.

use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::Value;

use crate::block_on;

/// More than any limit of the platform in these tests: anything slower hangs.
const LIMIT: Duration = Duration::from_secs(60);

static HTTP: LazyLock<reqwest::Client> = LazyLock::new(|| reqwest::Client::builder().no_proxy().build().unwrap());

/// A request, not yet sent.
pub struct Call {
    request: reqwest::RequestBuilder,
}

impl Call {
    /// GET of any address.
    pub fn get(url: &str) -> Self {
        Self::new(Method::GET, url.to_owned())
    }

    /// POST to any address.
    pub fn post(url: &str) -> Self {
        Self::new(Method::POST, url.to_owned())
    }

    pub(crate) fn new(method: Method, url: String) -> Self {
        Self {
            request: HTTP.request(method, url).timeout(LIMIT),
        }
    }

    /// Adds a header.
    #[must_use]
    pub fn header(self, name: &str, value: &str) -> Self {
        Self {
            request: self.request.header(name, value),
        }
    }

    /// Sets the body.
    #[must_use]
    pub fn body(self, body: impl Into<Bytes>) -> Self {
        Self {
            request: self.request.body(body.into()),
        }
    }

    /// Sends it and waits for the whole response.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    pub fn send(self) -> Reply {
        self.try_send().unwrap_or_else(|e| panic!("no answer: {e:?}"))
    }

    /// Sends it when a broken connection is expected.
    ///
    /// # Errors
    /// If there is no response.
    pub fn try_send(self) -> Result<Reply, reqwest::Error> {
        block_on(async {
            let answer = self.request.send().await?;
            let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
            Ok(Reply {
                status,
                headers,
                body: answer.bytes().await?,
            })
        })
    }
}

/// A response.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

impl Reply {
    /// A header's value; empty if there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }

    /// How the instance that answered was started.
    pub fn start(&self) -> &str {
        self.header("x-fn-start")
    }

    /// The instance that answered.
    pub fn instance(&self) -> &str {
        self.header("x-fn-instance")
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// If it is not JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {} {}", self.status, self.text()))
    }

    /// The same response, if it is a success.
    ///
    /// # Panics
    /// If it is not.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.status, 200, "{:?} {}", self.headers, self.text());
        self
    }

    /// The same response, if it has this status and is the platform's error with this code. Its form is checked too.
    ///
    /// # Panics
    /// If it is something else.
    #[track_caller]
    pub fn error(self, status: u16, code: &str) -> Self {
        assert_eq!(self.status, status, "{:?} {}", self.headers, self.text());
        let body = self.json();
        assert_eq!(body["code"], code, "{body}");
        assert!(body["message"].as_str().is_some_and(|m| m.len() > 10), "{body}");
        assert_eq!(body["request_id"], self.header("x-request-id"), "{body}");
        self
    }

    /// The message of an error.
    pub fn message(&self) -> String {
        self.json()["message"].as_str().unwrap_or_default().to_owned()
    }
}

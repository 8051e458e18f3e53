//! An OTLP collector that keeps every span it receives.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use crate::RUNTIME;

/// A collector that listens until the test ends.
pub struct Collector {
    address: SocketAddr,
    spans: Arc<Mutex<Vec<Span>>>,
}

struct Receiver(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans.into_iter();
        let spans = resources.flat_map(|r| r.scope_spans).flat_map(|s| s.spans);
        self.0.lock().unwrap().extend(spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Starts one.
    pub fn start() -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST)
    }

    /// Starts one at this address of the calling thread's host.
    pub fn start_at(address: Ipv4Addr) -> Self {
        let spans: Arc<Mutex<Vec<Span>>> = Arc::default();
        let service = TraceServiceServer::new(Receiver(Arc::clone(&spans)));
        // Bound here: threads of the runtime may be on another host.
        let listener = std::net::TcpListener::bind((address, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        RUNTIME.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            Server::builder()
                .add_service(service)
                .serve_with_incoming(TcpIncoming::from(listener))
                .await
                .unwrap()
        });
        Self { address, spans }
    }

    /// The address at which it listens.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The spans of one trace so far; its id as 32 hexadecimal digits.
    pub fn trace(&self, id: &str) -> Vec<Span> {
        let all = self.spans.lock().unwrap();
        all.iter().filter(|s| hex(&s.trace_id) == id).cloned().collect()
    }

    /// Everything in all spans so far.
    pub fn text(&self) -> String {
        let all = self.spans.lock().unwrap();
        all.iter().map(|span| format!("{span:?}")).collect()
    }
}

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// An attribute of a span, as text.
pub fn attribute(span: &Span, key: &str) -> Option<String> {
    let value = span.attributes.iter().find(|a| a.key == key)?.value.clone()?.value?;
    match value {
        Value::StringValue(text) => Some(text),
        Value::IntValue(number) => Some(number.to_string()),
        Value::BoolValue(flag) => Some(flag.to_string()),
        _ => None,
    }
}

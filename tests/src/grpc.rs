//! A client of the sample `grpc-python`. Its messages are texts, as `StringValue` of google/protobuf/wrappers.proto has
//! them.

use std::time::Duration;

use bytes::{Buf, BufMut};
use rekindle_testkit::{Client, RUNTIME};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::tokio_stream::{Stream, StreamExt as _};
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};

const SERVICE: &str = "rekindle.sample.Greeter";
/// The only field of a message: number 1, of bytes with their length before them.
const FIELD: u8 = 0x0a;
/// How long any call may take.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Calls one function at its host.
#[derive(Clone)]
pub struct Caller {
    grpc: Grpc<Channel>,
}

impl Caller {
    /// Connects to a platform's plain port, with HTTP/2 from the first byte.
    pub fn to(platform: &Client, function: &str) -> Self {
        let url = platform.url();
        let port = url.rsplit(':').next().unwrap();
        let origin = format!("http://{function}.localhost:{port}");
        let endpoint = Endpoint::from_shared(url).unwrap();
        let _entered = RUNTIME.enter();
        let connecting = endpoint.origin(origin.parse().unwrap()).timeout(LIMIT).connect_lazy();
        Self::over(connecting)
    }

    /// Calls over a channel.
    pub fn over(channel: Channel) -> Self {
        Self {
            grpc: Grpc::new(channel),
        }
    }

    async fn ready(&mut self, method: &str) -> PathAndQuery {
        self.grpc.ready().await.unwrap();
        format!("/{SERVICE}/{method}").parse().unwrap()
    }

    /// Sends a message, and receives one.
    ///
    /// # Errors
    /// The status of the call, if it is not OK.
    pub async fn unary(&mut self, method: &str, request: Request<String>) -> Result<Response<String>, Status> {
        let path = self.ready(method).await;
        self.grpc.unary(request, path, Texts).await
    }

    /// Sends a message, and receives as many as come.
    ///
    /// # Errors
    /// The same as for [`Self::unary`].
    pub async fn often(&mut self, method: &str, request: &str) -> Result<Vec<String>, Status> {
        let path = self.ready(method).await;
        let request = Request::new(request.to_owned());
        let answer = self.grpc.server_streaming(request, path, Texts).await?;
        answer.into_inner().collect::<Result<_, _>>().await
    }

    /// Sends messages, and receives one.
    ///
    /// # Errors
    /// The same as for [`Self::unary`].
    pub async fn all(
        &mut self,
        method: &str,
        messages: impl Stream<Item = String> + Send + 'static,
    ) -> Result<Response<String>, Status> {
        let path = self.ready(method).await;
        self.grpc.client_streaming(Request::new(messages), path, Texts).await
    }

    /// Sends and receives messages at the same time.
    ///
    /// # Errors
    /// The same as for [`Self::unary`].
    pub async fn converse(
        &mut self,
        method: &str,
        messages: impl Stream<Item = String> + Send + 'static,
    ) -> Result<Response<Streaming<String>>, Status> {
        let path = self.ready(method).await;
        self.grpc.streaming(Request::new(messages), path, Texts).await
    }
}

/// What one header, or trailer, says.
pub fn said(metadata: &MetadataMap, name: &str) -> String {
    let value = metadata
        .get(name)
        .unwrap_or_else(|| panic!("no {name} in {metadata:?}"));
    value.to_str().unwrap().to_owned()
}

/// Texts as messages.
#[derive(Clone, Copy)]
struct Texts;

impl Codec for Texts {
    type Encode = String;
    type Decode = String;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Texts {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, text: String, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_u8(FIELD);
        let mut length = text.len();
        while length >= 0x80 {
            to.put_u8(u8::try_from(length & 0x7f).unwrap() | 0x80);
            length >>= 7;
        }
        to.put_u8(u8::try_from(length).unwrap());
        to.put_slice(text.as_bytes());
        Ok(())
    }
}

impl Decoder for Texts {
    type Item = String;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<String>, Status> {
        if !from.has_remaining() {
            return Ok(Some(String::new()));
        }
        assert_eq!(from.get_u8(), FIELD);
        while from.get_u8() & 0x80 != 0 {}
        let text = from.copy_to_bytes(from.remaining());
        Ok(Some(String::from_utf8(text.to_vec()).unwrap()))
    }
}

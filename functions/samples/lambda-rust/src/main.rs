//! A handler behind AWS's own runtime, unmodified: `bootstrap` would run on AWS Lambda, too. It greets, fails, ends,
//! and streams, as its event says.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use lambda_runtime::streaming::{Body, channel};
use lambda_runtime::{
    BoxFuture, Error, FunctionResponse, LambdaEvent, Runtime, SnapStartResource, StreamResponse, service_fn,
};
use serde_json::{Value, json};

/// How often this process was restored from its snapshot.
#[derive(Default)]
struct Restores(AtomicU32);

impl SnapStartResource for Restores {
    fn after_restore(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(()) })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let restores = Arc::new(Restores::default());
    let counted = Arc::clone(&restores);
    let handler = service_fn(move |event| handle(event, counted.0.load(Ordering::Relaxed)));
    Runtime::new(handler).register_snapstart_resource(restores).run().await
}

async fn handle(event: LambdaEvent<Value>, restores: u32) -> Result<FunctionResponse<Value, Body>, Error> {
    let LambdaEvent { payload, context } = event;
    if let Some(why) = payload["raise"].as_str() {
        return Err(why.into());
    }
    if let Some(why) = payload["panic"].as_str() {
        panic!("{why}");
    }
    if let Some(code) = payload["exit"].as_i64() {
        std::process::exit(i32::try_from(code)?);
    }
    // An HTTP request says in its query what an event says itself.
    let said = payload.get("queryStringParameters").unwrap_or(&payload);
    let pieces = &said["stream"];
    if let Some(pieces) = pieces.as_u64().or_else(|| pieces.as_str()?.parse().ok()) {
        return Ok(FunctionResponse::StreamingResponse(stream(pieces)));
    }
    let name = said["name"].as_str().unwrap_or("world");
    let in_time = context.deadline() > SystemTime::now();
    Ok(FunctionResponse::BufferedResponse(json!({
        "greeting": format!("Hello, {name}!"),
        "restores": restores,
        "request": context.request_id,
        "in_time": in_time,
    })))
}

/// A stream of numbers, one after the other.
fn stream(pieces: u64) -> StreamResponse<Body> {
    let (mut sender, body) = channel();
    tokio::spawn(async move {
        for piece in 0..pieces {
            // The client may be gone.
            if sender.send_data(format!("{piece}\n").into()).await.is_err() {
                return;
            }
        }
    });
    StreamResponse::from(body)
}

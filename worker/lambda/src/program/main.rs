//! The server of Lambda's runtime interface, inside the sandbox and part of the snapshot.
//!
//! ```text
//! platform --$PORT--> front --> exchange <-- runtime, extensions <--AWS_LAMBDA_RUNTIME_API-- their processes
//! ```
//!
//! Its arguments are the command that starts the runtime. It listens on `$PORT` when the runtime waits for its first
//! event, or for a restore. It has no dependencies, because it is linked statically apart from the workspace.
//!
//! Sources: "Using the Lambda runtime API" and "Using the Lambda Extensions API" of AWS's documentation, and AWS's
//! runtime interface emulator.

mod base64;
mod exchange;
mod extensions;
mod front;
mod http;
mod json;
mod net;
mod payload;
mod processes;
mod runtime;

use std::env;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use exchange::Exchange;
use http::Head;
use json::Value;

/// The account in names of functions. It is nobody's.
const ACCOUNT: &str = "000000000000";

/// What a function is called.
struct FunctionIdentity {
    name: String,
    version: String,
    handler: String,
    arn: String,
    timeout_s: u64,
}

impl FunctionIdentity {
    fn from_environment() -> Self {
        let variable = |name: &str, or: &str| env::var(name).unwrap_or_else(|_| or.to_owned());
        let name = variable("AWS_LAMBDA_FUNCTION_NAME", "function");
        let region = variable("AWS_REGION", "us-east-1");
        Self {
            arn: format!("arn:aws:lambda:{region}:{ACCOUNT}:function:{name}"),
            version: variable("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST"),
            handler: variable("_HANDLER", ""),
            timeout_s: variable("FN_TIMEOUT_S", "").parse().unwrap_or(30),
            name,
        }
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the function cannot be started: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let command: Vec<String> = env::args().skip(1).collect();
    let function = Arc::new(FunctionIdentity::from_environment());
    let exchange = Arc::new(Exchange::new());
    let api = listen(&env::var("AWS_LAMBDA_RUNTIME_API").unwrap_or_default())?;
    let (served, of) = (Arc::clone(&exchange), Arc::clone(&function));
    thread::spawn(move || {
        net::serve(&api, move |request, connection| {
            runtime::serve(&served, &of, request, connection)
        });
    });
    processes::start(&exchange, &command)?;
    exchange.until_initialised();
    let port = env::var("PORT").unwrap_or_default();
    let front = listen(&format!("127.0.0.1:{port}"))?;
    net::serve(&front, move |request, connection| {
        front::serve(&exchange, &function, request, connection)
    });
    Ok(())
}

fn listen(address: &str) -> io::Result<TcpListener> {
    TcpListener::bind(address).map_err(|e| io::Error::new(e.kind(), format!("listen on {address}: {e}")))
}

/// A random UUID, of version 4.
fn uuid() -> String {
    let mut bytes = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes));
    if let Err(error) = read {
        eprintln!("no random numbers: {error}");
    }
    let bits = u128::from_be_bytes(bytes) & !(0xf << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let digits = format!("{bits:032x}");
    [
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..],
    ]
    .join("-")
}

/// An error as runtimes and clients read it.
fn error_body(kind: &str, message: &str) -> Vec<u8> {
    let error = Value::object([("errorMessage", Value::text(message)), ("errorType", Value::text(kind))]);
    error.to_string().into_bytes()
}

fn accepted() -> (Head, Vec<u8>) {
    (
        Head::of_type(202, "application/json"),
        b"{\"status\":\"OK\"}\n".to_vec(),
    )
}

//! Connections: each has a thread of its own, which blocks.

use std::io::{self, BufReader};
use std::net::{TcpListener, TcpStream};
use std::thread;

use crate::http::{Body, Head, Request};

/// Stack of a connection's thread, in bytes.
const STACK: usize = 256 << 10;

pub(crate) struct Connection {
    reader: BufReader<TcpStream>,
    pub(crate) stream: TcpStream,
}

impl Connection {
    pub(crate) fn body(&mut self, request: &Request) -> io::Result<Body<'_, BufReader<TcpStream>>> {
        request.body(&mut self.reader, &mut self.stream)
    }
}

/// Serves connections until the process ends. An error of `handle` ends its connection.
pub(crate) fn serve<H>(listener: &TcpListener, handle: H)
where
    H: Fn(&Request, &mut Connection) -> io::Result<()> + Clone + Send + 'static,
{
    loop {
        // A peer may be gone before it is accepted.
        let Ok((stream, _)) = listener.accept() else { continue };
        let handle = handle.clone();
        let started = thread::Builder::new().stack_size(STACK).spawn(move || {
            // The client has gone, or is told nothing that it understands.
            let _ended = converse(stream, &handle);
        });
        if let Err(error) = started {
            eprintln!("a connection gets no thread: {error}");
        }
    }
}

fn converse<H>(stream: TcpStream, handle: &H) -> io::Result<()>
where
    H: Fn(&Request, &mut Connection) -> io::Result<()>,
{
    stream.set_nodelay(true)?;
    let mut connection = Connection {
        reader: BufReader::new(stream.try_clone()?),
        stream,
    };
    loop {
        let request = match Request::read(&mut connection.reader) {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(()),
            Err(error) => {
                let body = crate::error_body("Runtime.BadRequest", &error.to_string());
                let head = Head::of_type(400, "application/json").with("connection", "close");
                return head.send(&mut connection.stream, &body, false);
            }
        };
        handle(&request, &mut connection)?;
        if !request.keep_alive {
            return Ok(());
        }
    }
}

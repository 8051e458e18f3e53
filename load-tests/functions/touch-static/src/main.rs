//! A static binary with weight: TOUCH_MIB MiB of touched memory, of which a request reads one page. HTTP/1.1 on
//! `$PORT`. Any GET answers from a page of the buffer, anything posted is answered with nothing: the hooks have nothing
//! to do.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::{env, fs, thread};

const PAGE: usize = 4096;

fn main() -> io::Result<()> {
    let number = |name: &str, other| env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(other);
    let port = u16::try_from(number("PORT", 8080)).map_err(io::Error::other)?;
    let buffer: &'static [u8] = Box::leak(filled(number("TOUCH_MIB", 64) << 20).into_boxed_slice());
    for stream in TcpListener::bind(("127.0.0.1", port))?.incoming().flatten() {
        // An error is the peer's leaving.
        thread::spawn(move || drop(serve(stream, buffer)));
    }
    Ok(())
}

/// Every page differs, and compresses about as well as ordinary heap data: 32 bytes of noise, small integers after
/// them.
fn filled(size: usize) -> Vec<u8> {
    let mut buffer = vec![0; size];
    let mut noise = 0x9E37_79B9_7F4A_7C15_u64;
    for page in buffer.chunks_mut(PAGE) {
        for word in page[..32].chunks_mut(8) {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            word.copy_from_slice(&noise.to_le_bytes());
        }
        page[32..].iter_mut().zip((0..64).cycle()).for_each(|(byte, n)| *byte = n);
    }
    buffer
}

fn serve(stream: TcpStream, buffer: &[u8]) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    loop {
        let (mut first, mut length) = (String::new(), 0);
        if reader.read_line(&mut first)? == 0 {
            return Ok(());
        }
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? <= 2 {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
        }
        io::copy(&mut reader.by_ref().take(length), &mut io::sink())?;
        let body = if first.starts_with("GET") { page_of(buffer)? } else { String::new() };
        write!(
            writer,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )?;
    }
}

fn page_of(buffer: &[u8]) -> io::Result<String> {
    let mut random = [0; 8];
    fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
    let page = usize::from_le_bytes(random) % (buffer.len() / PAGE) * PAGE;
    Ok(format!("{{\"page\": {page}, \"first\": {}}}", buffer[page]))
}

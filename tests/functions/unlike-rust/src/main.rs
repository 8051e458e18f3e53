//! Answers with a draw from every source of keys and ids that it has, all of which drew before the snapshot.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

use rand_0_8::Rng as _;
use rand_0_9::Rng as _;
use rand_0_10::RngExt as _;

/// Of the thread that calls it.
fn draw() -> [(&'static str, String); 4] {
    [
        ("rand 0.8", rand_0_8::thread_rng().r#gen::<u64>().to_string()),
        ("rand 0.9", rand_0_9::rng().random::<u64>().to_string()),
        ("rand 0.10", rand_0_10::rng().random::<u64>().to_string()),
        ("uuid", uuid::Uuid::new_v4().to_string()),
    ]
}

type Drawn = [(&'static str, String); 4];

fn in_a_thread() -> (Sender<()>, Receiver<Drawn>) {
    let ((ask, asked), (tell, told)) = (channel(), channel());
    std::thread::spawn(move || asked.iter().for_each(|()| tell.send(draw()).unwrap()));
    (ask, told)
}

fn main() {
    let mut seeded = <rand_0_10::rngs::StdRng as rand_0_10::SeedableRng>::seed_from_u64(42);
    let (ask, told) = in_a_thread();
    let mut all = || {
        ask.send(()).unwrap();
        let threads = told.recv().unwrap().map(|(name, drawn)| (format!("{name} in a thread"), drawn));
        let own = draw().map(|(name, drawn)| (name.to_owned(), drawn));
        let seeded = ("StdRng of a seed".to_owned(), seeded.random::<u64>().to_string());
        let fastrand = ("fastrand".to_owned(), fastrand::u64(..).to_string());
        let all = threads.into_iter().chain(own).chain([seeded, fastrand]);
        let fields: Vec<_> = all.map(|(name, drawn)| format!("\"{name}\": \"{drawn}\"")).collect();
        format!("{{{}}}", fields.join(", "))
    };
    all();
    let port = std::env::var("PORT").unwrap().parse().unwrap();
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    // The platform's look whether it listens sends nothing.
    listener.incoming().flatten().for_each(|stream| drop(serve(stream, &mut all)));
}

fn serve(stream: TcpStream, all: &mut impl FnMut() -> String) -> std::io::Result<()> {
    let head = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    if head.count() == 0 {
        return Ok(());
    }
    let body = all();
    let length = body.len();
    write!(&stream, "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
}

use std::fs;
use std::io::Write;
use std::time::Duration;

use futures::StreamExt;
use rekindle_wire::api::LogStream;
use tokio::time::timeout;

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

struct Fixture {
    directory: tempfile::TempDir,
    logs: Logs,
    function: FunctionId,
}

fn fixture(limits: LogLimits) -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let logs = Logs::open(directory.path(), limits).unwrap();
    Fixture {
        directory,
        logs,
        function: "hello".parse().unwrap(),
    }
}

impl Fixture {
    fn sink(&self) -> Sink {
        self.logs.sink(&self.function, VersionNumber(3), InstanceId::generate())
    }

    async fn texts(&self, tail: usize) -> Vec<String> {
        self.logs
            .read(&self.function, tail)
            .await
            .unwrap()
            .into_iter()
            .map(|l| l.text)
            .collect()
    }
}

fn piped(sink: &Sink, stream: LogStream) -> std::io::PipeWriter {
    let (reader, writer) = std::io::pipe().unwrap();
    sink.attach(stream, reader.into()).unwrap();
    writer
}

#[tokio::test]
async fn lines_of_both_streams_are_kept_with_their_origin() {
    let f = fixture(LogLimits::default());
    let sink = f.sink();
    let (mut out, mut err) = (piped(&sink, LogStream::Stdout), piped(&sink, LogStream::Stderr));
    out.write_all(b"one\ntwo\nno end").unwrap();
    drop(out);
    // One stream has ended, but the other is still open.
    assert!(!sink.drained(Duration::from_millis(20)).await);
    err.write_all(b"bad \xff byte\n").unwrap();
    drop(err);
    assert!(sink.drained(LIMIT).await);
    sink.platform("killed");
    let lines = f.logs.read(&f.function, 100).await.unwrap();
    let mut seen: Vec<(LogStream, &str)> = lines.iter().map(|l| (l.stream, l.text.as_str())).collect();
    assert_eq!(seen.pop(), Some((LogStream::Platform, "killed")));
    assert_eq!(
        seen,
        [
            (LogStream::Stdout, "one"),
            (LogStream::Stdout, "two"),
            (LogStream::Stdout, "no end"),
            (LogStream::Stderr, "bad \u{fffd} byte")
        ]
    );
    assert!(
        lines
            .iter()
            .all(|l| l.version == VersionNumber(3) && l.unix_ms > 1_600_000_000_000)
    );
    assert_eq!(
        sink.tail(1).iter().map(|l| l.text.as_str()).collect::<Vec<_>>(),
        ["bad \u{fffd} byte"],
        "what the platform says is not the function's last line"
    );
    assert_eq!(f.texts(1).await, ["killed"]);
}

#[tokio::test]
async fn files_rotate_and_the_oldest_lines_go() {
    let f = fixture(LogLimits {
        file_bytes: 4_000,
        files: 2,
        ..LogLimits::default()
    });
    let sink = f.sink();
    for i in 0..200 {
        sink.platform(format!("line {i}"));
    }
    let texts = f.texts(1_000).await;
    let first: usize = texts[0].strip_prefix("line ").unwrap().parse().unwrap();
    assert!((120..190).contains(&first), "{first}");
    assert_eq!(texts, (first..200).map(|i| format!("line {i}")).collect::<Vec<_>>());
    let files = fs::read_dir(f.directory.path().join("hello")).unwrap();
    let sizes: Vec<u64> = files.map(|e| e.unwrap().metadata().unwrap().len()).collect();
    assert_eq!(sizes.len(), 2);
    assert!(sizes.iter().all(|s| *s <= 4_000), "{sizes:?}");
    // A tail that spans both files.
    assert_eq!(
        f.texts(25).await,
        (175..200).map(|i| format!("line {i}")).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn too_many_lines_are_dropped_and_counted_but_the_newest_stay_in_memory() {
    let f = fixture(LogLimits {
        lines_per_second: 1,
        burst_lines: 10,
        ..LogLimits::default()
    });
    let sink = f.sink();
    let writer = piped(&sink, LogStream::Stdout);
    // This is more than a pipe holds, and proves that it is drained all the while.
    let flood = std::thread::spawn(move || {
        let mut writer = writer;
        for i in 0..50_000 {
            writeln!(writer, "line {i}").unwrap();
        }
    });
    assert!(sink.drained(LIMIT).await);
    flood.join().unwrap();
    let lines = f.logs.read(&f.function, 100_000).await.unwrap();
    let passed = lines.iter().filter(|l| l.stream == LogStream::Stdout).count();
    assert!((10..100).contains(&passed), "{passed}");
    let told: usize = lines
        .iter()
        .filter(|l| l.stream == LogStream::Platform)
        // Others say that the output is read slowly.
        .filter_map(|l| l.text.split(' ').next()?.parse::<usize>().ok())
        .sum();
    assert_eq!(passed + told, 50_000);
    assert_eq!(sink.tail(1)[0].text, "line 49999");
    assert_eq!(sink.tail(1_000).len(), 100);
}

#[tokio::test]
async fn of_a_flood_of_empty_lines_few_are_made_and_all_are_counted() {
    let f = fixture(LogLimits {
        lines_per_second: 1,
        burst_lines: 10,
        ..LogLimits::default()
    });
    let sink = f.sink();
    let mut writer = piped(&sink, LogStream::Stdout);
    let flood = std::thread::spawn(move || {
        for _ in 0..64 {
            writer.write_all(&[b'\n'; 64 << 10]).unwrap();
        }
        writer.write_all(b"the end\n").unwrap();
    });
    assert!(sink.drained(LIMIT).await);
    flood.join().unwrap();
    let lines = f.logs.read(&f.function, 1_000_000).await.unwrap();
    let told: u64 = lines
        .iter()
        .filter(|l| l.stream == LogStream::Platform)
        .map(|l| l.text.split(' ').next().unwrap().parse::<u64>().unwrap())
        .sum();
    let passed = lines.iter().filter(|l| l.stream == LogStream::Stdout).count() as u64;
    assert_eq!(passed + told, (64 * (64 << 10)) + 1);
    assert_eq!(sink.tail(1)[0].text, "the end");
}

#[tokio::test]
async fn who_writes_faster_than_is_read_waits_and_is_told_once() {
    // The first read is more than the burst: it waits, however slow the machine.
    let f = fixture(LogLimits {
        bytes_per_second: 1 << 20,
        burst_bytes: 1,
        ..LogLimits::default()
    });
    let sink = f.sink();
    let mut writer = piped(&sink, LogStream::Stdout);
    let began = std::time::Instant::now();
    let flood = std::thread::spawn(move || {
        for _ in 0..5 {
            writer.write_all(&[b'x'; 64 << 10]).unwrap();
        }
    });
    assert!(sink.drained(LIMIT).await);
    flood.join().unwrap();
    // 320 KiB at 1,024 KiB a second, and nothing at once.
    assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
    let lines = f.logs.read(&f.function, 1_000_000).await.unwrap();
    let told = lines.iter().filter(|l| l.text.contains("KiB a second at most")).count();
    assert_eq!(told, 1);
}

#[tokio::test]
async fn drops_are_told_of_while_the_function_is_silent() {
    let f = fixture(LogLimits {
        lines_per_second: 1,
        burst_lines: 1,
        ..LogLimits::default()
    });
    let sink = f.sink();
    let mut writer = piped(&sink, LogStream::Stdout);
    let mut lines = Box::pin(f.logs.follow(&f.function, 0).await.unwrap());
    writer.write_all(b"a\nb\nc\n").unwrap();
    assert_eq!(timeout(LIMIT, lines.next()).await.unwrap().unwrap().text, "a");
    let told = timeout(LIMIT, lines.next()).await.unwrap().unwrap();
    assert!(told.text.starts_with("2 lines were dropped"), "{}", told.text);
    drop(writer);
}

#[tokio::test]
async fn a_burst_that_the_limits_allow_is_followed_whole() {
    let f = fixture(LogLimits::default());
    let sink = f.sink();
    let mut writer = piped(&sink, LogStream::Stdout);
    let mut lines = Box::pin(f.logs.follow(&f.function, 0).await.unwrap());
    for number in 0..1_900 {
        writer.write_all(format!("{number}\n").as_bytes()).unwrap();
    }
    drop(writer);
    assert!(sink.drained(LIMIT).await);
    for number in 0..1_900 {
        assert_eq!(
            timeout(LIMIT, lines.next()).await.unwrap().unwrap().text,
            number.to_string()
        );
    }
}

#[tokio::test]
async fn a_long_line_becomes_several() {
    let f = fixture(LogLimits {
        line_bytes: 10,
        ..LogLimits::default()
    });
    let sink = f.sink();
    let mut writer = piped(&sink, LogStream::Stdout);
    writer.write_all(b"0123456789abcdefghij-\n").unwrap();
    drop(writer);
    assert!(sink.drained(LIMIT).await);
    assert_eq!(f.texts(10).await, ["0123456789", "abcdefghij", "-"]);
}

#[tokio::test]
async fn following_shows_old_lines_then_new_ones_and_none_twice() {
    let f = fixture(LogLimits::default());
    let sink = f.sink();
    for i in 0..50 {
        sink.platform(format!("{i}"));
    }
    let mut lines = Box::pin(f.logs.follow(&f.function, 1_000).await.unwrap());
    for i in 50..100 {
        sink.platform(format!("{i}"));
    }
    for i in 0..100 {
        assert_eq!(
            timeout(LIMIT, lines.next()).await.unwrap().unwrap().text,
            format!("{i}")
        );
    }
    f.logs.delete(&f.function).await.unwrap();
    assert!(timeout(LIMIT, lines.next()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_reader_that_is_too_slow_is_told_what_it_missed() {
    let f = fixture(LogLimits::default());
    let sink = f.sink();
    let mut lines = Box::pin(f.logs.follow(&f.function, 0).await.unwrap());
    // In batches that the queue to the writer always has room for.
    for batch in 0..11 {
        for i in 0..500 {
            sink.platform(format!("{}", batch * 500 + i));
        }
        f.logs.read(&f.function, 0).await.unwrap();
    }
    let notice = timeout(LIMIT, lines.next()).await.unwrap().unwrap();
    assert_eq!(notice.stream, LogStream::Platform);
    let missed: u64 = notice.text.split(' ').next().unwrap().parse().unwrap();
    assert!(missed >= 1_000, "{missed}");
    assert_eq!(
        timeout(LIMIT, lines.next()).await.unwrap().unwrap().text,
        missed.to_string()
    );
}

#[tokio::test]
async fn a_deleted_function_leaves_nothing_and_can_come_back() {
    let f = fixture(LogLimits::default());
    let old = f.sink();
    old.platform("before");
    f.logs.delete(&f.function).await.unwrap();
    old.platform("late");
    assert_eq!(f.texts(10).await, Vec::<String>::new());
    assert!(!f.directory.path().join("hello").exists());
    f.sink().platform("anew");
    assert_eq!(f.texts(10).await, ["anew"]);
}

#[tokio::test]
async fn a_half_line_of_a_dead_worker_spoils_no_other() {
    let f = fixture(LogLimits::default());
    f.sink().platform("first");
    f.logs.read(&f.function, 1).await.unwrap();
    let path = f.directory.path().join("hello/current.ndjson");
    fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .unwrap()
        .write_all(b"{\"unix_ms\": 12")
        .unwrap();
    let logs = Logs::open(f.directory.path(), LogLimits::default()).unwrap();
    logs.sink(&f.function, VersionNumber(4), InstanceId::generate())
        .platform("second");
    let texts: Vec<String> = logs
        .read(&f.function, 10)
        .await
        .unwrap()
        .into_iter()
        .map(|l| l.text)
        .collect();
    assert_eq!(texts, ["first", "second"]);
}

#[tokio::test]
async fn what_is_no_pipe_is_refused() {
    let f = fixture(LogLimits::default());
    let file = fs::File::open(f.directory.path()).unwrap();
    assert!(f.sink().attach(LogStream::Stdout, file.into()).is_err());
}

//! Tests the search in processes of the real libraries, and that its writes make them draw different numbers.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;

const PAGE: u64 = 4096;

/// The writable private memory of a process, as far as it is present.
fn memory_of(pid: u32) -> Vec<(u64, Vec<u8>)> {
    let [memory, pages] = ["mem", "pagemap"].map(|name| File::open(format!("/proc/{pid}/{name}")).unwrap());
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let private = maps
        .lines()
        .filter(|line| line.contains(" rw-p ") || line.contains(" rwxp "));
    let mut runs = Vec::<(u64, Vec<u8>)>::new();
    for line in private {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
        for page in start / PAGE..end / PAGE {
            let mut entry = [0; 8];
            pages.read_exact_at(&mut entry, page * 8).unwrap();
            let mut bytes = vec![0; PAGE as usize];
            // The highest bit: the page is present.
            if entry[7] >> 7 == 0 || memory.read_exact_at(&mut bytes, page * PAGE).is_err() {
                continue;
            }
            match runs.last_mut() {
                Some((from, run)) if *from + run.len() as u64 == page * PAGE => run.extend(bytes),
                _ => runs.push((page * PAGE, bytes)),
            }
        }
    }
    runs
}

fn find_in(pid: u32) -> Vec<Generator> {
    let runs = memory_of(pid);
    let memory = Memory::new(runs.iter().map(|(start, run)| (*start, &run[..])).collect());
    find(&memory, pid)
}

/// Applies the writes as a restore does.
fn apply(pid: u32, generators: &[Generator]) {
    let memory = OpenOptions::new().write(true).open(format!("/proc/{pid}/mem")).unwrap();
    for write in generators.iter().flat_map(|generator| &generator.writes) {
        let bytes = match &write.bytes {
            Bytes::Constant(bytes) => bytes.clone(),
            Bytes::Random(length) => {
                let mut bytes = vec![0; usize::from(*length)];
                File::open("/dev/urandom").unwrap().read_exact(&mut bytes).unwrap();
                bytes
            }
        };
        memory.write_all_at(&bytes, write.address).unwrap();
    }
}

fn counts_of(generators: &[Generator]) -> BTreeMap<Kind, usize> {
    let mut counts = BTreeMap::new();
    generators
        .iter()
        .for_each(|found| *counts.entry(found.kind).or_default() += 1);
    counts
}

/// A program that prints one line when it is ready, and one per line that it reads. Its lines start with `>`.
struct Program {
    child: Child,
    asked: ChildStdin,
    told: BufReader<ChildStdout>,
}

impl Program {
    /// Starts the program and discards its first line.
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (asked, told) = (
            child.stdin.take().unwrap(),
            BufReader::new(child.stdout.take().unwrap()),
        );
        let mut program = Self { child, asked, told };
        program.line();
        program
    }

    fn line(&mut self) -> Vec<String> {
        let mut lines = self.told.by_ref().lines().map(Result::unwrap);
        let line = lines.find_map(|line| Some(line.split_once("> ")?.1.to_owned()));
        line.expect("it ended").split_whitespace().map(str::to_owned).collect()
    }

    fn ask(&mut self) -> Vec<String> {
        self.asked.write_all(b"\n").unwrap();
        self.line()
    }

    /// Does something with its process id while it is stopped.
    fn stopped<T>(&self, work: impl FnOnce(u32) -> T) -> T {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        kill(pid, Signal::SIGSTOP).unwrap();
        let is_stopped = || {
            fs::read_to_string(format!("/proc/{pid}/stat"))
                .unwrap()
                .contains(") T ")
        };
        while !is_stopped() {
            std::thread::yield_now();
        }
        let done = work(self.child.id());
        kill(pid, Signal::SIGCONT).unwrap();
        done
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prints what its generators would draw, and later what they drew.
const PYTHON: &str = r"
import random, sqlite3, ssl, sys, tempfile
database, own = sqlite3.connect(':memory:'), random.Random(42)
def draw(generator):
    return generator.random(), own.random(), ssl.RAND_bytes(8).hex(), database.execute('select random()').fetchone()[0]
def next_of(generator):
    ahead = random.Random()
    ahead.setstate(generator.getstate())
    return ahead.random()
print('>', *draw(random), tempfile.mktemp(), flush=True)
sys.stdin.readline()
print('>', next_of(random), next_of(own), flush=True)
sys.stdin.readline()
print('>', *draw(random), flush=True)
sys.stdin.readline()
";

#[test]
fn generators_of_python_openssl_and_sqlite_are_drawn_from_anew_but_not_one_that_the_program_seeded() {
    let mut program = Program::start(Command::new("python3").args(["-c", PYTHON]));
    let expected = program.ask();
    let (found, ids) = program.stopped(|pid| {
        let found = find_in(pid);
        apply(pid, &found);
        let of_openssl = found.iter().filter(|found| found.kind == Kind::Openssl);
        let ids: Vec<u64> = of_openssl.map(|found| found.writes[0].address).collect();
        (found, ids)
    });
    let counts = counts_of(&found);
    assert_eq!(
        counts.get(&Kind::PythonRandom),
        Some(&2),
        "of random, and of tempfile: {counts:?}"
    );
    assert_eq!(counts.get(&Kind::Sqlite), Some(&1), "{counts:?}");
    assert!(
        ids.len() >= 2,
        "the first of OpenSSL's, and that of the thread: {counts:?}"
    );
    let drawn = program.ask();
    assert_ne!(drawn[0], expected[0], "random");
    assert_eq!(drawn[1], expected[1], "random.Random(42) goes on");
    // It has noticed and reseeded: both contain its id again.
    let memory = File::open(format!("/proc/{}/mem", program.child.id())).unwrap();
    for id in ids {
        let mut bytes = [0; 4];
        memory.read_exact_at(&mut bytes, id).unwrap();
        assert_eq!(u32::from_le_bytes(bytes), program.child.id());
    }
}

const NODE: &str = r"
const vm = require('node:vm'), crypto = require('node:crypto'), context = vm.createContext({});
const own = () => vm.runInContext('Math.random()', context);
const draw = () => console.log('>', Math.random(), own(), crypto.randomBytes(8).toString('hex'));
draw();
process.stdin.on('data', draw);
";

#[test]
fn math_random_of_node_is_found_in_every_context() {
    let mut program = Program::start(Command::new("node").args(["-e", NODE]));
    let found = program.stopped(|pid| {
        let found = find_in(pid);
        apply(pid, &found);
        found
    });
    let counts = counts_of(&found);
    // Includes the isolate's own generator, which seeds contexts that are created later.
    assert_eq!(counts[&Kind::MathRandom], 3, "{counts:?}");
    assert!(counts[&Kind::Openssl] >= 2, "{counts:?}");
    // A context has a state and the numbers it drew ahead.
    let of_contexts = |found: Vec<Generator>| {
        let states = found.into_iter().filter(|found| found.writes.len() == 2);
        states.map(|found| found.writes[0].address).collect::<Vec<_>>()
    };
    let contexts = of_contexts(found);
    assert_eq!(contexts.len(), 2);
    program.ask();
    assert_eq!(
        of_contexts(program.stopped(find_in)),
        contexts,
        "what they draw is of the states that were written"
    );
}

/// Draws in two threads.
#[test]
#[ignore = "a program of the test below"]
fn draw_with_rand() {
    use ::rand::{RngExt as _, SeedableRng as _};
    let own = Box::new(::rand::rngs::StdRng::seed_from_u64(42));
    let (draws, drawn) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        draws.send(::rand::rng().random::<u64>()).unwrap();
        std::thread::park();
    });
    drawn.recv().unwrap();
    let lines = std::io::stdin().lines();
    std::iter::once(())
        .chain(lines.map(drop))
        .for_each(|()| println!("> {}", ::rand::rng().random::<u64>()));
    drop(own);
    thread.thread().unpark();
    thread.join().unwrap();
}

#[test]
fn each_thread_s_generator_of_rand_takes_a_seed_of_the_kernel() {
    let test = std::env::current_exe().unwrap();
    let mut program = Program::start(Command::new(test).args(["--ignored", "--nocapture", "draw_with_rand"]));
    let before = program.stopped(|pid| {
        let found = find_in(pid);
        apply(pid, &found);
        found
    });
    assert_eq!(counts_of(&before), [(Kind::Rand, 2)].into(), "not the program's own");
    program.ask();
    let after = program.stopped(find_in);
    assert_eq!(
        after.len(),
        1,
        "the thread that drew has made a block with another key: {after:?}"
    );
    assert!(before.contains(&after[0]), "{before:?}");
}

/// Tells what each of its generators drew; a thread that waits has one as well.
const JAVA: &str = r#"
import java.security.SecureRandom;
import java.util.*;
import java.util.concurrent.ThreadLocalRandom;
class Draw {
    static final Random OWN = new Random(42);
    static final SecureRandom SHA1 = of("SHA1PRNG"), DRBG = of("DRBG");
    static SecureRandom of(String name) {
        try { return SecureRandom.getInstance(name); } catch (Exception e) { throw new RuntimeException(e); }
    }
    public static void main(String[] arguments) throws Exception {
        Collections.shuffle(new ArrayList<>(List.of(1, 2)));
        new SplittableRandom().nextInt();
        Thread thread = new Thread(() -> {
            ThreadLocalRandom.current().nextInt();
            try { Thread.sleep(100_000); } catch (InterruptedException e) { }
        });
        thread.setDaemon(true);
        thread.start();
        Thread.sleep(100);
        do {
            System.out.println("> " + OWN.nextInt() + " " + Math.random() + " " + ThreadLocalRandom.current().nextInt()
                + " " + SHA1.nextInt() + " " + DRBG.nextInt());
        } while (System.in.read() > 0);
    }
}
"#;

#[test]
fn the_jdk_s_own_generators_are_found_and_not_one_that_the_program_seeded() {
    let folder = std::env::temp_dir().join(format!("rekindle-randomness-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("Draw.java"), JAVA).unwrap();
    let mut java = Command::new("java");
    let mut program = Program::start(java.args(["-XX:+UseSerialGC", "-Xmx64m"]).arg(folder.join("Draw.java")));
    fs::remove_dir_all(&folder).unwrap();
    let found = program.stopped(|pid| {
        let found = find_in(pid);
        apply(pid, &found);
        found
    });
    let lengths = |length: usize| found.iter().filter(|found| found.writes[0].len() == length).count();
    assert!(found.iter().all(|found| found.kind == Kind::Java), "{found:?}");
    assert_eq!(lengths(6), 2, "Math.random's and that of Collections: {found:?}");
    assert!(lengths(8) >= 5, "of seeds, and of two threads: {found:?}");
    assert!(lengths(20) >= 2, "of SHA1PRNG, and what seeds such ones: {found:?}");
    // A collector may have left another where it was before.
    assert!(lengths(55) >= 1, "of Hash_DRBG: {found:?}");
    assert_eq!(program.ask()[0], "234785527", "the second number of the seed 42");
}

#[test]
fn uuids_that_deno_drew_ahead_are_taken_for_drawn() {
    let text = 0x1000_u64;
    let numbers = [128 << 32, text + 1, 4 << 32, 0].map(u64::to_le_bytes).concat();
    let header = [1_u64, 4608 << 32 | 3].map(u64::to_le_bytes).concat();
    let uuids = "c66053bb-b4f6-46bc-bcb3-c79017e6b997".repeat(128).into_bytes();
    let find_with = |uuids: &[u8]| {
        let text_bytes = [&header, uuids].concat();
        find(&Memory::new(vec![(text, &text_bytes), (0x8000, &numbers)]), 1)
    };
    let written = find_with(&uuids).into_iter().flat_map(|found| found.writes);
    let all_are_drawn = Write::constant(0x8010, &[0, 0, 0, 0, 128, 0, 0, 0]);
    assert_eq!(written.collect::<Vec<_>>(), [all_are_drawn]);
    let mut other = uuids;
    other[14] = b'1';
    assert_eq!(find_with(&other), []);
}

#[test]
fn ruby_s_own_generator_is_found_and_not_one_that_an_object_holds() {
    let generator = |at: u64| {
        let mut bytes = vec![0; 8 + 2496];
        File::open("/dev/urandom").unwrap().read_exact(&mut bytes).unwrap();
        // The tenth number is next.
        bytes.extend((at + 8 + 40).to_le_bytes());
        bytes.extend(615_u64.to_le_bytes());
        bytes
    };
    let (own, held) = (generator(0x1000), generator(0x4000));
    let holders = [7_u64, 0x1000, 1, 0x4000].map(u64::to_le_bytes).concat();
    let memory = Memory::new(vec![(0x1000, &own), (0x4000, &held), (0x8000, &holders)]);
    let writes: Vec<_> = find(&memory, 1).into_iter().flat_map(|found| found.writes).collect();
    assert_eq!(writes, [Write::random(0x1008, 2496)]);
}

#[test]
fn what_is_no_generator_is_left_alone() {
    let words = |word: u64| word.to_le_bytes().repeat(1 << 12);
    // Text, repeated words of every kind that starts a search, and data that is as random as a state.
    let mut random = vec![0; 1 << 16];
    File::open("/dev/urandom").unwrap().read_exact(&mut random).unwrap();
    let all = [
        words(0),
        words(1 << 16),
        words(0x21),
        words(16),
        words(0x3320_646e_6170_7865),
        words(32 << 32 | 32),
        words(u64::MAX - 2),
        // An index of Math.random, and Deno's number of UUIDs, beside pointers that are none.
        [64 << 32, u64::MAX - 2, u64::MAX - 2]
            .map(u64::to_le_bytes)
            .as_flattened()
            .repeat(1 << 10),
        [128 << 32, u64::MAX - 2, 0]
            .map(u64::to_le_bytes)
            .as_flattened()
            .repeat(1 << 10),
        words(0xdead_beef),
        words(0x0041_0041_0041_0041),
        "the quick brown fox".repeat(4096).into_bytes(),
        random,
    ];
    let memory = all.iter().zip(1..).map(|(bytes, at)| (at << 32, &bytes[..])).collect();
    assert_eq!(find(&Memory::new(memory), 1), []);
}

#[test]
fn pools_that_an_agent_lists_are_filled_anew_and_a_counter_of_copies_is_another() {
    let pool: Vec<u8> = (0..=255).collect();
    let mut list = Vec::new();
    for number in [0xa47c_e519_u32, 0xf2d8_0b63, 0x9be6_3cd1, 0xc85f_972e, 1, 0] {
        list.extend(number.to_le_bytes());
    }
    list.extend_from_slice(&pool[..16]);
    list.extend(256_u64.to_le_bytes());
    let counter: Vec<u8> = MAGIC
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .chain([0; 8])
        .collect();
    let memory = Memory::new(vec![(0x1000, &list), (0x2000, &pool), (0x3000, &counter)]);
    let writes = |found: Vec<Generator>| found.into_iter().flat_map(|found| found.writes).collect::<Vec<_>>();
    assert_eq!(
        writes(find(&memory, 1)),
        [Write::random(0x3010, 8), Write::random(0x2000, 256)]
    );
}

#[test]
fn what_cannot_be_reached_is_named_by_its_files() {
    let named = |paths: &[&'static str], found: &[Kind]| -> Vec<&str> {
        let unreached = unreached(paths.iter().copied(), found);
        unreached.iter().map(|known| known.name).collect()
    };
    let java = ["/app/jre/lib/server/libjvm.so", "/usr/lib/libc.so.6"];
    assert_eq!(named(&java, &[]), ["the JVM"]);
    assert_eq!(named(&java, &[Kind::Java]), [""; 0]);
    assert_eq!(named(&["/app/libruby-3.1.so.3.1", "/app/bundle.js"], &[]), ["Ruby"]);
    assert_eq!(
        named(&["/app/bun", "/usr/bin/node"], &[Kind::MathRandom]),
        ["Bun", "Node.js"]
    );
    assert_eq!(named(&["/app/bun", "/usr/bin/node"], &[Kind::Copies]), [""; 0]);
}

#[test]
fn databases_and_wasmtime_which_are_seeded_once_are_named() {
    let named = |path: &str| -> Vec<&'static str> {
        let unreached = unreached(std::iter::once(path), &[Kind::Copies, Kind::Openssl]);
        unreached.iter().map(|known| known.name).collect()
    };
    let packages = "/usr/local/lib/python3.11/site-packages";
    assert_eq!(named("/usr/local/bin/redis-server"), ["Redis"]);
    assert_eq!(named("/usr/bin/redis-check-rdb"), ["Redis"]);
    assert_eq!(named("/usr/sbin/mariadbd"), ["MariaDB"]);
    let bindings = "/app/node_modules/@duckdb/node-bindings-linux-x64";
    assert_eq!(named(&format!("{bindings}/libduckdb.so")), ["DuckDB"]);
    assert_eq!(
        named(&format!("{packages}/kuzu/_kuzu.cpython-311-x86_64-linux-gnu.so")),
        ["Kuzu"]
    );
    assert_eq!(
        named(&format!("{packages}/wasmtime/linux-x86_64/_libwasmtime.so")),
        ["Wasmtime"]
    );
    // A client of Redis, and Python's DuckDB, whose numbers differ.
    assert_eq!(named("/usr/bin/redis-cli"), [""; 0]);
    assert_eq!(
        named(&format!("{packages}/_duckdb.cpython-311-x86_64-linux-gnu.so")),
        [""; 0]
    );
}

#[test]
fn a_memory_full_of_generators_is_searched_for_some() {
    // Rows of OpenSSL's limits, one after the other.
    let mut row = vec![0; 128];
    let mut set = |at: usize, bytes: &[u8]| row[at..at + bytes.len()].copy_from_slice(bytes);
    set(32, &501_u32.to_le_bytes());
    set(40, &256_u32.to_le_bytes());
    set(48, &(1_u64 << 16).to_le_bytes());
    for at in [64, 88, 96] {
        set(at, &0x7fff_ffff_u64.to_le_bytes());
    }
    set(108, &256_u32.to_le_bytes());
    set(120, &3600_u64.to_le_bytes());
    let one = find(&Memory::new(vec![(1 << 20, &row)]), 1);
    assert_eq!(one.len(), 1, "{one:?}");
    let many = row.repeat(FOUND_MAX + 100);
    assert_eq!(find(&Memory::new(vec![(1 << 20, &many)]), 1).len(), FOUND_MAX);
}

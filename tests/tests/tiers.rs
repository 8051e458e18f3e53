//! Memory for snapshots is limited: templates are taken back hole by hole, under running instances too, and nobody sees another byte
//! for it.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rekindle_e2e::platform::Options;
use rekindle_e2e::{Folder, Platform, until};

/// Less than any two of the functions have.
const LIMIT: u64 = 40 << 20;
const FUNCTIONS: [&str; 3] = ["first", "second", "third"];
const ROUNDS: usize = 4;

/// 24 MiB that do not compress and are nobody else's, all of which each request reads.
fn heavy(name: &str) -> Folder {
    let code = format!(
        "import hashlib, random\nDATA = random.Random('{name}').randbytes(24 << 20)\n\
         def handler(event, context):\n    return hashlib.sha256(DATA).hexdigest()\n"
    );
    Folder::python(name, "max_instances = 8\nidle = \"120s\"", &code)
}

/// Memory of the platform's templates: deleted files on its tmpfs that are named by their snapshots.
fn template_bytes(platform: &Platform) -> u64 {
    let fds = fs::read_dir(format!("/proc/{}/fd", platform.pid())).unwrap().flatten();
    let mut files = HashMap::new();
    for fd in fds.map(|entry| entry.path()) {
        let (Ok(name), Ok(file)) = (fs::read_link(&fd), fs::metadata(&fd)) else {
            continue;
        };
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("/s-") && name.ends_with(" (deleted)") && file.is_file() {
            files.insert((file.dev(), file.ino()), file.blocks() * 512);
        }
    }
    assert!(!files.is_empty(), "no template is found");
    files.values().sum()
}

#[test]
fn templates_stay_within_their_limit_and_every_byte_is_right_all_the_same() {
    let options = Options {
        args: ["--memory", "4GiB", "--template-memory", "40MiB"]
            .map(str::to_owned)
            .to_vec(),
        ..Options::default()
    };
    let platform = Platform::start_with(options);
    let sums: HashMap<&str, String> = FUNCTIONS
        .into_iter()
        .map(|name| {
            assert!(platform.deploy(&heavy(name)).snapshot.is_some());
            (name, platform.fresh("booted", name, "/").ok().text())
        })
        .collect();
    // Instances that were restored and run on while others' memory, and their own, is taken back.
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        for name in FUNCTIONS {
            let (platform, sums, ended) = (&platform, &sums, &ended);
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    assert_eq!(platform.get(name, "/").ok().text(), sums[name], "{name}");
                }
            });
        }
        for round in 0..ROUNDS {
            for name in FUNCTIONS {
                let answer = platform.fresh("restored", name, "/").ok();
                assert_eq!(
                    (answer.start(), answer.text()),
                    ("restored", sums[name].clone()),
                    "{name} in round {round}"
                );
            }
        }
        ended.store(true, Ordering::Relaxed);
    });
    // What cannot be taken back is little: libraries' data, and what the kernel touches first.
    until("templates within their limit", Duration::from_secs(20), || {
        let bytes = template_bytes(&platform);
        (bytes <= LIMIT).then(|| println!("{} MiB of templates", bytes >> 20))
    });
}

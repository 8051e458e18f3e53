//! Many requests at once on a function that has no instance.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use rekindle_e2e::{Folder, Reply, shared};

const REQUESTS: usize = 200;
const INSTANCES: usize = 40;

/// Every request is in the function for a moment, so that few instances cannot take them all in turn.
const CODE: &str = "import time\ndef handler(event, context):\n    time.sleep(0.1)\n    return event['rawPath']\n";

#[test]
fn two_hundred_requests_at_once_on_a_function_at_zero_are_all_answered() {
    let settings =
        format!("memory = \"64MiB\"\nconcurrency = 1\nmax_instances = {INSTANCES}\ntimeout = \"60s\"\nidle = \"1s\"");
    shared().deploy(&Folder::python("burst", &settings, CODE));
    for _ in 0..2 {
        shared().until_gone("burst", Duration::from_secs(60));
        let together = Barrier::new(REQUESTS);
        let answers: Vec<Reply> = thread::scope(|scope| {
            let asked: Vec<_> = (0..REQUESTS)
                .map(|n| {
                    let together = &together;
                    scope.spawn(move || {
                        together.wait();
                        shared().get("burst", &format!("/{n}"))
                    })
                })
                .collect();
            asked.into_iter().map(|a| a.join().unwrap()).collect()
        });
        for (n, answer) in answers.iter().enumerate() {
            assert_eq!(
                (answer.status, answer.text()),
                (200, format!("\"/{n}\"")),
                "request {n}"
            );
        }
        let instances: BTreeSet<&str> = answers.iter().map(Reply::instance).collect();
        assert!(
            (2..=INSTANCES).contains(&instances.len()),
            "{} instances",
            instances.len()
        );
        let restored = answers.iter().filter(|a| a.start() == "restored").count();
        assert!(
            restored >= 2 && restored <= instances.len(),
            "{restored} of {} restored",
            instances.len()
        );
    }
    // The pool has seen it, and is readier for the next.
    assert!(shared().worker_metric("rekindle_sandboxes_wanted") > 8.0);
}

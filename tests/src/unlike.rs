//! The random numbers of copies of one snapshot, compared.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::{Reply, shared};

/// Number of copies that are compared.
pub const CLONES: usize = 20;

/// Copies that are restored at once.
const AT_ONCE: usize = 4;

/// Restores [`CLONES`] instances, each answering `path` first, and ends them again.
pub fn clones(function: &str, path: &str) -> Vec<Reply> {
    let clone = || {
        let answer = shared().fresh("restored", function, path).ok();
        assert_eq!(answer.start(), "restored");
        shared().end_instance(answer.instance());
        answer
    };
    let some = || std::iter::repeat_with(clone).take(CLONES / AT_ONCE).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(some)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// The values of each key of the clones' responses, which are JSON objects.
fn drawn(answers: &[Reply]) -> BTreeMap<String, BTreeSet<String>> {
    let mut values = BTreeMap::<String, BTreeSet<String>>::new();
    for answer in answers {
        let Value::Object(body) = answer.json() else {
            panic!("no object: {}", answer.text())
        };
        for (key, value) in body {
            values.entry(key).or_default().insert(value.to_string());
        }
    }
    values
}

/// Asserts that every source gives each clone a value of its own, except the `shared` ones, which are equal in all.
#[track_caller]
pub fn assert_unlike(answers: &[Reply], sources: usize, shared: &[&str]) {
    let drawn = drawn(answers);
    assert_eq!(drawn.len(), sources + shared.len(), "{drawn:?}");
    let expected = |source: &str| if shared.contains(&source) { 1 } else { CLONES };
    let counts = drawn.iter().map(|(source, values)| (source.as_str(), values.len()));
    let wrong: Vec<_> = counts.filter(|(source, n)| *n != expected(source)).collect();
    // Show everything: whether all clones share a value or two of them do says where to look.
    assert!(
        wrong.is_empty(),
        "so many different values in {CLONES} clones: {wrong:?}, of {:?}",
        answers.iter().map(Reply::text).collect::<Vec<_>>()
    );
}

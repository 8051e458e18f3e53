//! One page of a listing, from a sorted set of keys. Pure; the rules are those of ListObjectsV2.

use std::collections::BTreeSet;
use std::ops::Bound;

/// The page to list.
#[derive(Debug, Default)]
pub(crate) struct Query {
    pub(crate) prefix: Vec<u8>,
    /// Empty for none.
    pub(crate) delimiter: Vec<u8>,
    pub(crate) after: Option<Entry>,
    pub(crate) limit: usize,
}

/// One line of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    Key(Vec<u8>),
    /// All keys that begin with this, up to and including the first delimiter after the query's prefix.
    Prefix(Vec<u8>),
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) entries: Vec<Entry>,
    /// Whether more follow after the last entry.
    pub(crate) truncated: bool,
}

/// The entries of `keys` that `query` asks for, in byte order. Keys below a common prefix are skipped, not walked.
pub(crate) fn page(keys: &BTreeSet<Vec<u8>>, query: &Query) -> Page {
    let mut page = Page::default();
    if query.limit == 0 {
        return page;
    }
    let mut from = Bound::Included(query.prefix.clone());
    match &query.after {
        Some(Entry::Key(key)) if *key >= query.prefix => from = Bound::Excluded(key.clone()),
        Some(Entry::Prefix(prefix)) if *prefix >= query.prefix => match successor(prefix) {
            Some(next) => from = Bound::Included(next),
            None => return page,
        },
        _ => {}
    }
    loop {
        let bounds = (from.as_ref().map(Vec::as_slice), Bound::Unbounded);
        let Some(key) = keys
            .range::<[u8], _>(bounds)
            .next()
            .filter(|key| key.starts_with(&query.prefix))
        else {
            return page;
        };
        if page.entries.len() == query.limit {
            page.truncated = true;
            return page;
        }
        match find(&key[query.prefix.len()..], &query.delimiter) {
            Some(at) => {
                let prefix = key[..query.prefix.len() + at + query.delimiter.len()].to_vec();
                let next = successor(&prefix);
                page.entries.push(Entry::Prefix(prefix));
                match next {
                    Some(next) => from = Bound::Included(next),
                    None => return page,
                }
            }
            None => {
                page.entries.push(Entry::Key(key.clone()));
                from = Bound::Excluded(key.clone());
            }
        }
    }
}

fn find(text: &[u8], delimiter: &[u8]) -> Option<usize> {
    if delimiter.is_empty() {
        return None;
    }
    text.windows(delimiter.len()).position(|window| window == delimiter)
}

/// The first byte string after all that begin with `prefix`.
fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut next = prefix.to_vec();
    while let Some(last) = next.pop() {
        if last < u8::MAX {
            next.push(last + 1);
            return Some(next);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All entries, by walking every key.
    fn plain(keys: &BTreeSet<Vec<u8>>, query: &Query) -> Vec<Entry> {
        let mut entries = Vec::new();
        for key in keys.iter().filter(|key| key.starts_with(&query.prefix)) {
            let entry = match find(&key[query.prefix.len()..], &query.delimiter) {
                Some(at) => Entry::Prefix(key[..query.prefix.len() + at + query.delimiter.len()].to_vec()),
                None => Entry::Key(key.clone()),
            };
            if entries.last() != Some(&entry) {
                entries.push(entry);
            }
        }
        entries
    }

    proptest! {
        #[test]
        fn pages_of_any_size_add_up_to_the_plain_listing(
            keys in prop::collection::btree_set("[ab/\u{e9}\u{10ffff}]{1,6}", 0..40),
            prefix in "[ab/]{0,2}",
            delimiter in prop::sample::select(vec!["", "/", "a/", "\u{10ffff}"]),
            limit in 1..7usize,
        ) {
            let keys = keys.into_iter().map(String::into_bytes).collect();
            let mut query = Query { prefix: prefix.into(), delimiter: delimiter.into(), after: None, limit };
            let expected = plain(&keys, &query);
            let mut found = Vec::new();
            loop {
                let page = page(&keys, &query);
                prop_assert!(page.entries.len() <= limit);
                query.after = page.entries.last().cloned();
                found.extend(page.entries);
                if !page.truncated { break }
            }
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_start_key_inside_a_prefix_still_shows_the_prefix() {
        let keys = ["a/1", "a/2", "b"].map(|key| key.as_bytes().to_vec()).into();
        let query = Query {
            delimiter: b"/".to_vec(),
            after: Some(Entry::Key(b"a/1".to_vec())),
            limit: 9,
            ..Query::default()
        };
        assert_eq!(
            page(&keys, &query).entries,
            [Entry::Prefix(b"a/".to_vec()), Entry::Key(b"b".to_vec())]
        );
    }
}

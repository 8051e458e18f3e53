//! The hash tree of a region. It allows some pages of a region to be checked against the region's digest without the
//! bytes of the others. Pure.
//!
//! BLAKE3 is a tree over chunks of 1 KiB whose left subtrees are complete (section 2.1 of its paper). So each page of a
//! region is a subtree of four chunks, and one node per level describes everything beside it:
//!
//! ```text
//!             digest                 of 6 pages; known: 2 and 3
//!          /          \
//!        .             [4 5]         [ ] are the siblings, left to right: 0 1, then 4 5
//!      /   \
//!  [0 1]    .
//!          / \
//!         2   3
//! ```

use blake3::Hasher;
use blake3::hazmat::{ChainingValue, HasherExt as _, Mode, merge_subtrees_non_root, merge_subtrees_root};

use crate::codec::PAGE_BYTES;
use crate::digest::Digest;

/// The value of a subtree that is not the whole tree.
pub(crate) type Node = ChainingValue;

/// The node of a page, given its number in a region of more than one page.
pub(crate) fn page_node(number: usize, bytes: &[u8]) -> Node {
    let mut hasher = Hasher::new();
    hasher.set_input_offset((number * PAGE_BYTES) as u64);
    hasher.update(bytes).finalize_non_root()
}

/// The siblings needed to check the pages numbered `known`, in a region whose pages have these `nodes`. `known` is
/// sorted and without duplicates.
pub(crate) fn siblings(nodes: &[Node], known: &[usize]) -> Vec<Node> {
    let mut found = Vec::new();
    collect_siblings(nodes, 0, known, &mut found);
    found
}

fn collect_siblings(nodes: &[Node], first: usize, known: &[usize], found: &mut Vec<Node>) {
    if known.is_empty() {
        found.push(subtree(nodes));
    } else if nodes.len() > 1 {
        let left = left_pages(nodes.len());
        let (before, behind) = known.split_at(known.partition_point(|number| *number < first + left));
        collect_siblings(&nodes[..left], first, before, found);
        collect_siblings(&nodes[left..], first + left, behind, found);
    }
}

fn subtree(nodes: &[Node]) -> Node {
    if let [node] = nodes {
        return *node;
    }
    let (left, right) = nodes.split_at(left_pages(nodes.len()));
    merge_subtrees_non_root(&subtree(left), &subtree(right), Mode::Hash)
}

/// The digest of a region of `pages` pages, from the pages `known` and the `siblings` of the rest. `known` has at least
/// one page, sorted by number and without duplicates. Nodes are taken off the front of `siblings`. `None` if there are
/// too few.
pub(crate) fn digest(pages: usize, known: &[(usize, &[u8])], siblings: &mut &[Node]) -> Option<Digest> {
    if pages == 1 {
        return known.first().map(|(_, bytes)| Digest::of(bytes));
    }
    let (left, right) = halves(0, pages, known, siblings)?;
    let root = merge_subtrees_root(&left, &right, Mode::Hash);
    Some(Digest(*root.as_bytes()))
}

fn halves(first: usize, pages: usize, known: &[(usize, &[u8])], siblings: &mut &[Node]) -> Option<(Node, Node)> {
    let left = left_pages(pages);
    let (before, behind) = known.split_at(known.partition_point(|(number, _)| *number < first + left));
    let node = node(first, left, before, siblings)?;
    Some((node, self::node(first + left, pages - left, behind, siblings)?))
}

fn node(first: usize, pages: usize, known: &[(usize, &[u8])], siblings: &mut &[Node]) -> Option<Node> {
    let Some((_, bytes)) = known.first() else {
        let (sibling, rest) = siblings.split_first()?;
        *siblings = rest;
        return Some(*sibling);
    };
    if pages == 1 {
        return Some(page_node(first, bytes));
    }
    let (left, right) = halves(first, pages, known, siblings)?;
    Some(merge_subtrees_non_root(&left, &right, Mode::Hash))
}

/// Pages in the left subtree of a tree of `pages` pages, at least 2: the largest power of two below `pages`.
fn left_pages(pages: usize) -> usize {
    pages.div_ceil(2).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::noise;

    fn nodes(plain: &[u8]) -> Vec<Node> {
        let pages = plain.chunks(PAGE_BYTES).enumerate();
        pages.map(|(number, bytes)| page_node(number, bytes)).collect()
    }

    fn known<'a>(plain: &'a [u8], numbers: &[usize]) -> Vec<(usize, &'a [u8])> {
        let page = |number: &usize| (*number, &plain[number * PAGE_BYTES..(number + 1) * PAGE_BYTES]);
        numbers.iter().map(page).collect()
    }

    fn some_of(pages: usize) -> impl Strategy<Value = (usize, Vec<usize>)> {
        let all: Vec<usize> = (0..pages).collect();
        proptest::sample::subsequence(all, 1..=pages).prop_map(move |numbers| (pages, numbers))
    }

    #[test]
    fn a_page_alone_needs_one_node_for_each_level() {
        let plain = noise(16 * PAGE_BYTES, 1);
        let beside = siblings(&nodes(&plain), &[5]);
        assert_eq!(beside.len(), 4);
        let whole: Vec<usize> = (0..16).collect();
        assert!(siblings(&nodes(&plain), &whole).is_empty());
    }

    #[test]
    fn the_digest_of_every_size_of_region_is_that_of_its_plain_bytes() {
        let plain = noise(1024 * PAGE_BYTES, 2);
        for pages in (1..=66).chain([127, 128, 129, 513, 1023, 1024]) {
            let plain = &plain[..pages * PAGE_BYTES];
            let last = [pages - 1];
            let beside = siblings(&nodes(plain), &last);
            // In a region of one page, the only node is the digest itself.
            let mut beside = if pages == 1 { &[][..] } else { &beside };
            let found = digest(pages, &known(plain, &last), &mut beside);
            assert_eq!(found, Some(Digest::of(plain)), "{pages}");
            assert!(beside.is_empty(), "{pages}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_pages_prove_themselves_and_no_others(
            (pages, numbers) in (2..80_usize).prop_flat_map(some_of),
            seed: u64, at: prop::sample::Index, byte in 0..PAGE_BYTES,
        ) {
            let plain = noise(pages * PAGE_BYTES, seed);
            let beside = siblings(&nodes(&plain), &numbers);
            let mut rest = &beside[..];
            prop_assert_eq!(digest(pages, &known(&plain, &numbers), &mut rest), Some(Digest::of(&plain)));
            prop_assert!(rest.is_empty());
            if let Some((_, fewer)) = beside.split_last() {
                prop_assert_eq!(digest(pages, &known(&plain, &numbers), &mut &*fewer), None);
            }
            let mut forged = plain.clone();
            forged[numbers[at.index(numbers.len())] * PAGE_BYTES + byte] ^= 1;
            let found = digest(pages, &known(&forged, &numbers), &mut &beside[..]);
            prop_assert_ne!(found, Some(Digest::of(&plain)));
        }
    }
}

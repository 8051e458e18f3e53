//! The files of a layer as a file system's nodes, from its index. Pure.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;

use rekindle_confined::attributes::{self, Attribute};
use rekindle_snapshotter::layer::index::{self, Entry, MTIME_UNIX_S};

use super::protocol::Attributes;

pub(super) const ROOT: u64 = 1;
/// Longest name that the kernel takes.
const NAME_MAX: usize = 255;
const PATH_MAX: usize = 4096;

/// Why an index makes no file system.
#[derive(Debug, thiserror::Error)]
#[error("\"{}\" in the index of files {what}", String::from_utf8_lossy(path))]
pub(crate) struct TreeError {
    path: Vec<u8>,
    what: &'static str,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// Names with the nodes' places, by name.
    Directory(Vec<(Vec<u8>, usize)>),
    File {
        offset: u64,
        size: u64,
    },
    Symlink(Vec<u8>),
}

#[derive(Debug)]
struct Inode {
    node: Node,
    /// Kind and permission bits.
    mode: u32,
    parent: usize,
    links: u32,
    attributes: Vec<Attribute>,
}

/// The nodes. Their numbers are the order of the index, so they are the same on every host.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Inode>,
    owner: u32,
    has_attributes: bool,
}

impl Tree {
    /// Makes the nodes of a layer whose tar has `tar_bytes`. All of them belong to `owner`.
    ///
    /// # Errors
    /// Returns an error when the entries are no tree of files in the tar.
    pub(super) fn new(entries: &[Entry], tar_bytes: u64, owner: u32) -> Result<Self, TreeError> {
        let root = Inode {
            node: Node::Directory(Vec::new()),
            mode: libc::S_IFDIR | 0o755,
            parent: 0,
            links: 1,
            attributes: Vec::new(),
        };
        let mut nodes = vec![root];
        let mut places: HashMap<&[u8], usize> = HashMap::from([(&b""[..], 0)]);
        for entry in entries {
            let wrong = |what| TreeError {
                path: entry.path.iter().take(NAME_MAX).copied().collect(),
                what,
            };
            let slash = entry.path.iter().rposition(|b| *b == b'/');
            let (above, name) = match slash {
                // The root has no name to be below.
                Some(0) => return Err(wrong("is no path")),
                Some(at) => (&entry.path[..at], &entry.path[at + 1..]),
                None => (&b""[..], &entry.path[..]),
            };
            let is_name = !name.is_empty() && name != b"." && name != b".." && !name.contains(&0);
            if !is_name || name.len() > NAME_MAX || entry.path.len() > PATH_MAX {
                return Err(wrong("is no path"));
            }
            if !entry.attributes.iter().all(|(name, _)| attributes::is_kept(name)) {
                return Err(wrong("has an attribute that no file of an image has"));
            }
            let parent = *places.get(above).ok_or_else(|| wrong("is in no directory"))?;
            let node = match &entry.kind {
                index::Kind::Directory { mode } => {
                    Some((Node::Directory(Vec::new()), libc::S_IFDIR | permissions(*mode)))
                }
                index::Kind::File { offset, size, mode } => {
                    if offset.checked_add(*size).is_none_or(|end| end > tar_bytes) {
                        return Err(wrong("is not in the tar"));
                    }
                    let file = Node::File {
                        offset: *offset,
                        size: *size,
                    };
                    Some((file, libc::S_IFREG | permissions(*mode)))
                }
                index::Kind::Symlink(target) if target.is_empty() || target.len() >= PATH_MAX => {
                    return Err(wrong("leads nowhere"));
                }
                index::Kind::Symlink(target) => Some((Node::Symlink(target.clone()), libc::S_IFLNK | 0o777)),
                index::Kind::Link(_) => None,
            };
            let place = match (node, &entry.kind) {
                (Some((node, mode)), _) => {
                    nodes.push(Inode {
                        node,
                        mode,
                        parent,
                        links: 1,
                        attributes: entry.attributes.clone(),
                    });
                    nodes.len() - 1
                }
                (None, index::Kind::Link(target)) => {
                    let place = places.get(&target[..]).copied();
                    let place = place.filter(|place| !matches!(nodes[*place].node, Node::Directory(_)));
                    let place = place.ok_or_else(|| wrong("is a name of no file"))?;
                    nodes[place].links += 1;
                    place
                }
                (None, _) => return Err(wrong("is of no kind")),
            };
            match places.entry(&entry.path) {
                Slot::Vacant(slot) => drop(slot.insert(place)),
                Slot::Occupied(_) => return Err(wrong("is there twice")),
            }
            match &mut nodes[parent].node {
                Node::Directory(names) => names.push((name.to_vec(), place)),
                _ => return Err(wrong("is in no directory")),
            }
        }
        for placed in &mut nodes {
            if let Node::Directory(names) = &mut placed.node {
                names.sort_unstable();
            }
        }
        let has_attributes = nodes.iter().any(|placed| !placed.attributes.is_empty());
        Ok(Self {
            nodes,
            owner,
            has_attributes,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    fn placed(&self, number: u64) -> Option<(usize, &Inode)> {
        let place = usize::try_from(number.checked_sub(ROOT)?).ok()?;
        Some((place, self.nodes.get(place)?))
    }

    /// Returns what the node with this number is.
    pub(super) fn node(&self, number: u64) -> Option<&Node> {
        self.placed(number).map(|(_, placed)| &placed.node)
    }

    /// Returns the number of the node with this name in a directory.
    pub(super) fn lookup(&self, directory: u64, name: &[u8]) -> Option<u64> {
        let Node::Directory(names) = self.node(directory)? else {
            return None;
        };
        let at = names.binary_search_by(|(other, _)| other[..].cmp(name)).ok()?;
        Some(names[at].1 as u64 + ROOT)
    }

    /// Whether any node has extended attributes.
    pub(super) fn has_attributes(&self) -> bool {
        self.has_attributes
    }

    pub(super) fn extended(&self, number: u64) -> Option<&[Attribute]> {
        self.placed(number).map(|(_, placed)| &placed.attributes[..])
    }

    /// Returns what the kernel is to know of a node.
    pub(super) fn attributes(&self, number: u64) -> Option<Attributes> {
        let (_, placed) = self.placed(number)?;
        let size = match &placed.node {
            Node::Directory(_) => 4096,
            Node::File { size, .. } => *size,
            Node::Symlink(target) => target.len() as u64,
        };
        Some(Attributes {
            node: number,
            size,
            mode: placed.mode,
            links: placed.links,
            owner: self.owner,
            time_unix_s: MTIME_UNIX_S,
        })
    }

    /// Returns a path of a node.
    pub(super) fn path(&self, number: u64) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = self.placed(number);
        while let Some((place, placed)) = at.filter(|(place, _)| *place > 0) {
            if let Some(Node::Directory(siblings)) = self.nodes.get(placed.parent).map(|above| &above.node) {
                let own = siblings.iter().find(|(_, other)| *other == place);
                names.push(own.map_or(&b""[..], |(name, _)| &name[..]));
            }
            at = self.placed(placed.parent as u64 + ROOT);
        }
        names.reverse();
        names.join(&b'/')
    }

    /// Returns the names in a directory from the `first` one on, with their nodes' numbers, those of itself and of the
    /// directory above among them.
    pub(super) fn list(&self, directory: u64, first: u64) -> Option<impl Iterator<Item = (u64, &[u8])>> {
        let (place, placed) = self.placed(directory)?;
        let Node::Directory(names) = &placed.node else {
            return None;
        };
        let own = [(place, &b"."[..]), (placed.parent, &b".."[..])];
        let names = names.iter().map(|(name, place)| (*place, &name[..]));
        let all = own.into_iter().chain(names).skip(usize::try_from(first).ok()?);
        Some(all.map(|(place, name)| (place as u64 + ROOT, name)))
    }
}

/// Bits that a file of an image may have: neither set-user-id nor set-group-id.
fn permissions(mode: u16) -> u32 {
    u32::from(mode) & 0o1777
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, kind: index::Kind) -> Entry {
        Entry {
            path: path.as_bytes().to_vec(),
            kind,
            attributes: Vec::new(),
        }
    }

    fn file(offset: u64, size: u64) -> index::Kind {
        index::Kind::File {
            offset,
            size,
            mode: 0o4640,
        }
    }

    fn directory() -> index::Kind {
        index::Kind::Directory { mode: 0o1700 }
    }

    #[test]
    fn names_lead_to_nodes_and_hard_links_share_one() {
        let entries = [
            entry("b", directory()),
            entry("b/x", file(512, 10)),
            entry("b/y", index::Kind::Link(b"b/x".to_vec())),
            entry("a", index::Kind::Symlink(b"b/x".to_vec())),
        ];
        let tree = Tree::new(&entries, 1024, 7).unwrap();
        let b = tree.lookup(ROOT, b"b").unwrap();
        let x = tree.lookup(b, b"x").unwrap();
        assert_eq!(tree.lookup(b, b"y"), Some(x));
        assert_eq!(
            (tree.lookup(b, b"z"), tree.lookup(x, b"x"), tree.lookup(99, b"x")),
            (None, None, None)
        );
        let found = tree.attributes(x).unwrap();
        assert_eq!(
            (found.links, found.size, found.mode, found.owner),
            (2, 10, 0o100_640, 7)
        );
        let modes = [b, ROOT].map(|number| tree.attributes(number).unwrap().mode);
        assert_eq!(modes, [0o041_700, 0o040_755]);
        let listed: Vec<_> = tree
            .list(ROOT, 1)
            .unwrap()
            .map(|(number, name)| (number, name.to_vec()))
            .collect();
        let a = tree.lookup(ROOT, b"a").unwrap();
        assert_eq!(listed, [(ROOT, b"..".to_vec()), (a, b"a".to_vec()), (b, b"b".to_vec())]);
        assert!(tree.list(x, 0).is_none());
        assert_eq!((tree.path(x), tree.path(ROOT)), (b"b/x".to_vec(), vec![]));
    }

    #[test]
    fn attributes_are_of_their_nodes_and_none_that_the_overlay_would_obey_is_taken() {
        let marked = |name: &str| Entry {
            attributes: vec![(name.to_owned(), b"y".to_vec())],
            ..entry("a", directory())
        };
        let tree = Tree::new(&[marked("user.a"), entry("b", directory())], 0, 0).unwrap();
        let of = |name: &[u8]| tree.extended(tree.lookup(ROOT, name).unwrap()).unwrap().len();
        assert_eq!((tree.has_attributes(), of(b"a"), of(b"b")), (true, 1, 0));
        assert!(!Tree::new(&[entry("b", directory())], 0, 0).unwrap().has_attributes());
        for name in ["user.overlay.opaque", "trusted.a", "security.capability"] {
            assert!(Tree::new(&[marked(name)], 0, 0).is_err(), "{name}");
        }
    }

    #[test]
    fn what_is_no_tree_is_refused() {
        for entries in [
            vec![entry("", directory())],
            vec![entry("..", directory())],
            vec![entry("a/../b", directory())],
            vec![entry("/a", directory())],
            vec![entry("a\0b", directory())],
            vec![entry("a/b", directory())],
            vec![entry("a", directory()), entry("a", directory())],
            vec![entry("a", file(1000, 25))],
            vec![entry("a", file(u64::MAX, 2))],
            vec![entry("a", file(0, 1)), entry("a/b", directory())],
            vec![entry("a", directory()), entry("b", index::Kind::Link(b"a".to_vec()))],
            vec![entry("b", index::Kind::Link(b"a".to_vec()))],
            vec![entry("a", index::Kind::Symlink(vec![]))],
            vec![entry(&"a".repeat(256), directory())],
        ] {
            assert!(Tree::new(&entries, 1024, 0).is_err(), "{entries:?}");
        }
    }
}

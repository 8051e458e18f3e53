//! Memory that the kernel hands over: this process is CRIU, its children are what CRIU forks.
#![allow(unsafe_code, reason = "works on memory by its addresses")]
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[allow(dead_code, reason = "of CRIU's part this needs the mappings and the fork only")]
mod criu;

use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use criu::{LIMIT, map_from};
use memmap2::{MmapOptions, MmapRaw};
use parking_lot::Mutex;
use rekindle_pager::{
    AheadPage, Ancestor, Handover, Layout, PAGE, PageLookup, PageRange, PageRef, PageSource, Pager, PagerConfig, Pin,
    SourceError,
};

const PID: i32 = 501;
/// Pages of each of the two kinds.
const PAGES: u64 = 8;
/// In the reserved range: the ancestor's page, then what a child maps.
const MAPPED_AT: u64 = 1;
const ANONYMOUS_AT: u64 = MAPPED_AT + PAGES;
const RESERVED: u64 = ANONYMOUS_AT + PAGES;
/// The child gives up the ancestor's page as soon as it runs, and the pager leaves it out as soon as it has the child:
/// either may be first.
const ROUNDS: u32 = 40;

/// One test at a time: each would be told of the other's children, too.
static ALONE: Mutex<()> = Mutex::new(());

fn byte(page: u64) -> u8 {
    page as u8 + 100
}

struct Snapshot {
    base: u64,
    template: MmapRaw,
    copies: Vec<u8>,
}

impl PageSource for Snapshot {
    fn held<'a>(&'a self, page: PageRef, _: &'a Pin) -> PageLookup<'a> {
        let size = PAGE as usize;
        match page.page.wrapping_sub(self.base) {
            at @ MAPPED_AT..ANONYMOUS_AT => {
                let index = (at - MAPPED_AT) as usize;
                // SAFETY: inside the mapping, which nobody writes to any more.
                let bytes = unsafe {
                    std::slice::from_raw_parts(
                        self.template.as_ptr().add(index * size),
                        (PAGES as usize - index) * size,
                    )
                };
                PageLookup::Mapped(bytes)
            }
            at @ ANONYMOUS_AT..RESERVED => PageLookup::Bytes(&self.copies[(at - ANONYMOUS_AT) as usize * size..]),
            _ => PageLookup::Zero,
        }
    }

    fn fetch(&self, _: PageRef) -> Result<(), SourceError> {
        Ok(())
    }
}

/// A child of this process that does this. Whatever it finds, it is not to go on as the test.
fn fork(work: impl FnOnce()) -> libc::pid_t {
    criu::fork(|| i32::from(catch_unwind(AssertUnwindSafe(work)).is_err()))
}

fn reap(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: a child of this test that nobody has waited for yet.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

fn say(mut to: &PipeWriter, word: &[u8]) {
    to.write_all(word).unwrap();
}

fn hear<const N: usize>(mut from: &PipeReader) -> [u8; N] {
    let mut word = [0; N];
    from.read_exact(&mut word).unwrap();
    word
}

/// What CRIU's child does: everything of CRIU's goes at once, and what belongs there comes; when it may run, it says
/// what it finds.
fn become_restored(base: u64, file: i32, told: &PipeWriter, go: &PipeReader) {
    // SAFETY: the range is the test's own.
    let unmapped = unsafe { libc::munmap((base * PAGE) as *mut _, (RESERVED * PAGE) as usize) };
    assert_eq!(unmapped, 0);
    let fixed = libc::MAP_PRIVATE | libc::MAP_FIXED;
    map_from(base + MAPPED_AT, PAGES, fixed, file, 0);
    map_from(base + ANONYMOUS_AT, PAGES, fixed | libc::MAP_ANONYMOUS, -1, 0);
    say(told, b"!");
    let [_] = hear(go);
    let mut found = [0; (2 * PAGES) as usize];
    for (to, page) in found.iter_mut().zip(base + MAPPED_AT..) {
        // SAFETY: just mapped.
        *to = unsafe { ((page * PAGE) as *const u8).read_volatile() };
    }
    say(told, &found);
}

#[test]
fn a_child_s_memory_is_served_whatever_it_gives_up_of_its_ancestor_s() {
    if !criu::is_possible() {
        return;
    }
    let _alone = ALONE.lock();
    let file = criu::template();
    for page in 0..PAGES {
        file.write_all_at(&[byte(page); PAGE as usize], page * PAGE).unwrap();
    }
    for _ in 0..ROUNDS {
        let reserve = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let base = criu::map(0, RESERVED, reserve, -1);
        // SAFETY: a new descriptor, owned by nobody else.
        let userfault = unsafe {
            let made = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK);
            assert!(made >= 0);
            OwnedFd::from_raw_fd(made as i32)
        };
        let ancestor = Ancestor::new(userfault, base * PAGE).unwrap();
        let range = |at| PageRange {
            first: PageRef {
                pid: PID,
                page: base + at,
            },
            pages: PAGES,
        };
        let snapshot = Snapshot {
            base,
            template: MmapOptions::new().len((PAGES * PAGE) as usize).map_raw(&file).unwrap(),
            copies: (PAGES..2 * PAGES)
                .flat_map(|page| [byte(page); PAGE as usize])
                .collect(),
        };
        let pager = Pager::start(PagerConfig {
            name: "test".to_owned(),
            handover: Handover::Fork(ancestor, PID),
            source: Arc::new(snapshot),
            layout: Layout {
                mapped: vec![range(MAPPED_AT)],
                anonymous: vec![range(ANONYMOUS_AT)],
                ..Layout::default()
            },
            record: false,
            maps: std::collections::HashMap::new(),
            handshake_limit: LIMIT,
            on_lost: Box::new(criu::abort),
        })
        .unwrap();
        // One that CRIU forks for itself.
        reap(fork(|| {}));
        let ((heard, told), (go, may_go)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        let child = fork(|| become_restored(base, file.as_raw_fd(), &told, &go));
        let [_] = hear(&heard);
        let ahead = [MAPPED_AT, ANONYMOUS_AT].map(|at| AheadPage {
            page: range(at).first,
            written: false,
        });
        let prepared = pager.prepare(Vec::new(), Arc::new(ahead)).unwrap().done(LIMIT).unwrap();
        assert!(prepared.filled >= 2, "{prepared:?}");
        say(&may_go, b"!");
        let found: [u8; (2 * PAGES) as usize] = hear(&heard);
        let expected: Vec<u8> = (0..2 * PAGES).map(byte).collect();
        assert_eq!(found, *expected);
        reap(child);
        drop(pager);
        // SAFETY: the range is the test's own, and nobody else's any more.
        unsafe { libc::munmap((base * PAGE) as *mut _, (RESERVED * PAGE) as usize) };
    }
}

#[test]
fn more_than_one_child_that_lives_is_refused() {
    if !criu::is_possible() {
        return;
    }
    let _alone = ALONE.lock();
    let base = criu::map(0, 1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
    // SAFETY: a new descriptor, owned by nobody else.
    let userfault = unsafe {
        OwnedFd::from_raw_fd(libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) as i32)
    };
    let pager = Pager::start(PagerConfig {
        name: "test".to_owned(),
        handover: Handover::Fork(Ancestor::new(userfault, base * PAGE).unwrap(), PID),
        source: Arc::new(Snapshot {
            base,
            template: MmapOptions::new()
                .len(PAGE as usize)
                .map_raw(&criu::template())
                .unwrap(),
            copies: Vec::new(),
        }),
        layout: Layout::default(),
        record: false,
        maps: std::collections::HashMap::new(),
        handshake_limit: LIMIT,
        on_lost: Box::new(criu::abort),
    })
    .unwrap();
    let (go, may_go) = std::io::pipe().unwrap();
    let children = [(); 2].map(|()| fork(|| assert_eq!(hear(&go), *b"!")));
    let refused = pager
        .prepare(Vec::new(), Arc::new([]))
        .unwrap()
        .done(LIMIT)
        .unwrap_err();
    assert!(refused.to_string().contains("2 children"), "{refused}");
    say(&may_go, b"!!");
    for child in children {
        reap(child);
    }
}

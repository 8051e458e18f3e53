//! Sandboxes furnished ahead for the functions that were restored last: mounting a function's files takes about as long
//! as all else that a restore needs of its sandbox. Nothing of the function runs in them.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::{BoxFuture, select_all};
use rekindle_init::protocol::{Layers, Setup};
use rekindle_wire::SnapshotId;

use super::begin::BeginRestore;

/// Number of functions that sandboxes are furnished for.
const KINDS_MAX: usize = 4;
/// Number of sandboxes for each.
const EACH: usize = 2;
/// How long after a function's last restore they are kept.
const KEEP: Duration = Duration::from_secs(60);

/// What a sandbox is furnished with: the same for all instances of a version.
#[derive(Clone)]
pub(crate) struct SandboxContents {
    pub(super) layers: Layers,
    pub(super) setup: Setup,
    pub(super) egress: bool,
    snapshot: Option<SnapshotId>,
    pub(super) beginning: Option<Arc<dyn BeginRestore>>,
    _kept: Arc<dyn Any + Send + Sync>,
}

impl SandboxContents {
    /// The layers to mount, and all else to lay out. With `egress` the sandbox keeps its link to the network. `kept`
    /// keeps the layers on the host.
    pub(crate) fn new(layers: Layers, setup: Setup, egress: bool, kept: impl Any + Send + Sync) -> Self {
        Self {
            layers,
            setup,
            egress,
            snapshot: None,
            beginning: None,
            _kept: Arc::new(kept),
        }
    }

    /// For restores from this snapshot, if from any.
    pub(crate) fn for_restores(self, snapshot: Option<SnapshotId>) -> Self {
        Self { snapshot, ..self }
    }

    /// With restores that this begins ahead.
    pub(crate) fn with_restores_begun(self, by: Arc<dyn BeginRestore>) -> Self {
        Self {
            beginning: Some(by),
            ..self
        }
    }

    fn is_over(&self) -> bool {
        self.over().is_some_and(|over| over.now_or_never().is_some())
    }

    fn over(&self) -> Option<BoxFuture<'static, ()>> {
        self.beginning.as_ref().map(|beginning| beginning.over())
    }

    fn is_like(&self, other: &Self) -> bool {
        self.snapshot == other.snapshot
            && self.egress == other.egress
            && self.setup == other.setup
            && self.layers == other.layers
    }
}

/// Furnished sandboxes `S`, by what is in them.
pub(super) struct FurnishedSandboxes<S>(Vec<ReadySandboxes<S>>);

/// Sandboxes furnished alike.
pub(super) struct ReadySandboxes<S> {
    contents: SandboxContents,
    used: Instant,
    /// Number of restores into such sandboxes.
    uses: u64,
    /// When the last was asked for, so that all kinds have their turn.
    asked: Option<Instant>,
    pub(super) ready: Vec<S>,
}

/// A sandbox to be furnished.
pub(super) struct LackingSandbox {
    pub(super) contents: SandboxContents,
    /// Whether a restore should begin in it: the function was restored more than once lately.
    pub(super) begins: bool,
}

impl<S> Default for FurnishedSandboxes<S> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<S> FurnishedSandboxes<S> {
    /// Returns the number of those that are so.
    pub(super) fn count(&self, is_so: impl Fn(&S) -> bool) -> usize {
        let all = self.0.iter().flat_map(|kind| &kind.ready);
        all.filter(|sandbox| is_so(sandbox)).count()
    }

    /// Takes a sandbox furnished like this: the oldest of those that are better than others, or of all.
    pub(super) fn take(&mut self, contents: &SandboxContents, is_better: impl Fn(&S) -> bool) -> Option<S> {
        let kind = self.0.iter_mut().find(|kind| kind.contents.is_like(contents))?;
        let at = kind.ready.iter().position(is_better).unwrap_or(0);
        (at < kind.ready.len()).then(|| kind.ready.remove(at))
    }

    /// Records a restore into a sandbox furnished like this. Returns what makes room for it.
    pub(super) fn want(&mut self, contents: SandboxContents, now: Instant) -> Vec<ReadySandboxes<S>> {
        let mut wanted = ReadySandboxes {
            contents,
            used: now,
            uses: 1,
            asked: None,
            ready: Vec::new(),
        };
        let mut gone = Vec::new();
        if let Some(at) = self.0.iter().position(|kind| kind.contents.is_like(&wanted.contents)) {
            let mut known = self.0.swap_remove(at);
            wanted.asked = known.asked;
            // Else what it has is of a snapshot that was opened before.
            if !known.contents.is_over() {
                wanted.uses = known.uses + 1;
                wanted.ready = std::mem::take(&mut known.ready);
            }
            gone.push(known);
        }
        self.0.push(wanted);
        self.0.sort_by_key(|kind| std::cmp::Reverse(kind.used));
        gone.extend(self.0.drain(KINDS_MAX.min(self.0.len())..));
        gone
    }

    /// Returns the next sandbox to be furnished, if one is lacking. Each kind has its turn.
    pub(super) fn lacking(&mut self, now: Instant) -> Option<LackingSandbox> {
        let lacking = self
            .0
            .iter_mut()
            .filter(|kind| kind.ready.len() < EACH && !kind.contents.is_over());
        let kind = lacking.min_by_key(|kind| kind.asked)?;
        kind.asked = Some(now);
        Some(LackingSandbox {
            contents: kind.contents.clone(),
            begins: kind.uses > 1,
        })
    }

    /// Adds a sandbox that was furnished like this. Returns it if nobody wants it any more.
    pub(super) fn add(&mut self, contents: &SandboxContents, empty: S) -> Option<S> {
        match self.0.iter_mut().find(|kind| kind.contents.is_like(contents)) {
            Some(kind) => {
                kind.ready.push(empty);
                None
            }
            None => Some(empty),
        }
    }

    /// Resolves once restores into some of these sandboxes are over.
    pub(super) fn over(&self) -> impl Future<Output = ()> + Send + use<S> {
        let all: Vec<_> = self.0.iter().filter_map(|kind| kind.contents.over()).collect();
        async {
            match all.is_empty() {
                true => std::future::pending().await,
                false => drop(select_all(all).await),
            }
        }
    }

    /// Gives up functions of which none was restored for a while, those whose restores are over, and the one with these
    /// contents.
    pub(super) fn give_up(&mut self, contents: Option<&SandboxContents>, now: Instant) -> Vec<ReadySandboxes<S>> {
        let is_over = |kind: &mut ReadySandboxes<S>| {
            now.saturating_duration_since(kind.used) >= KEEP
                || kind.contents.is_over()
                || contents.is_some_and(|f| kind.contents.is_like(f))
        };
        self.0.extract_if(.., is_over).collect()
    }

    pub(super) fn clear(&mut self) -> Vec<ReadySandboxes<S>> {
        self.0.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use rekindle_init::protocol::Machine;

    use super::*;

    fn contents(hostname: &str) -> SandboxContents {
        let layers = Layers {
            rootfs: "/rootfs".into(),
            app: "/app".into(),
        };
        let machine = Machine {
            memory_bytes: 1,
            processors: 1,
        };
        let setup = Setup {
            hostname: hostname.to_owned(),
            tmp_bytes: 1,
            shm_bytes: 1,
            root_bytes: None,
            resolv_conf: None,
            machine,
            secrets: false,
        };
        SandboxContents::new(layers, setup, false, ())
    }

    fn all<S>(kinds: Vec<ReadySandboxes<S>>) -> Vec<S> {
        kinds.into_iter().flat_map(|kind| kind.ready).collect()
    }

    #[test]
    fn only_what_is_furnished_alike_is_taken_and_each_kind_has_its_number() {
        let (mut furnished, now) = (FurnishedSandboxes::default(), Instant::now());
        assert!(furnished.lacking(now).is_none());
        assert!(furnished.want(contents("one"), now).is_empty());
        for number in 0..EACH {
            let lacking = furnished.lacking(now).unwrap();
            assert!(!lacking.begins);
            assert_eq!(furnished.add(&lacking.contents, number), None);
        }
        assert!(furnished.lacking(now).is_none());
        assert_eq!(furnished.count(|_| true), EACH);
        assert_eq!(furnished.take(&contents("other"), |_| true), None);
        assert_eq!(furnished.take(&contents("one"), |number| *number == 1), Some(1));
        assert_eq!(furnished.take(&contents("one"), |number| *number == 1), Some(0));
        assert!(furnished.lacking(now).is_some());
        assert_eq!(furnished.add(&contents("other"), 7), Some(7));
    }

    #[test]
    fn restores_begin_for_what_was_restored_twice_and_every_kind_has_its_turn() {
        let (mut furnished, began) = (FurnishedSandboxes::<usize>::default(), Instant::now());
        furnished.want(contents("one"), began);
        furnished.want(contents("other"), began);
        furnished.want(contents("one"), began);
        let mut asked = Vec::new();
        for second in 1..=4 {
            let lacking = furnished.lacking(began + Duration::from_secs(second)).unwrap();
            asked.push((lacking.contents.setup.hostname, lacking.begins));
        }
        asked.sort();
        assert_eq!(
            asked,
            [("one", true), ("one", true), ("other", false), ("other", false)]
                .map(|(name, begins)| (name.to_owned(), begins))
        );
    }

    #[test]
    fn what_was_not_restored_for_longest_makes_room_and_all_go_after_a_while() {
        let (mut furnished, began) = (FurnishedSandboxes::default(), Instant::now());
        for number in 0..=KINDS_MAX {
            let name = number.to_string();
            let gone = furnished.want(contents(&name), began + Duration::from_secs(number as u64));
            assert_eq!(all(gone), if number == KINDS_MAX { vec![0] } else { Vec::new() });
            assert_eq!(furnished.add(&contents(&name), number), None);
        }
        assert_eq!(all(furnished.give_up(Some(&contents("2")), began)), [2]);
        assert_eq!(all(furnished.give_up(None, began + KEEP + Duration::from_secs(1))), [1]);
        assert_eq!(furnished.clear().len(), KINDS_MAX - 2);
    }
}

//! The versions that can serve, and their aliases, in memory, so that placement never waits for the database. Loaded at
//! start, changed when a version is ready, an alias is set, or a function is deleted.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use rekindle_wire::api::{Alias, StartKind};
use rekindle_wire::internal::{DamagedSnapshot, FunctionRoutes, VersionSpec};
use rekindle_wire::manifest::Auth;
use rekindle_wire::schedule::Schedule;
use rekindle_wire::{AliasName, ApiError, ErrorCode, FunctionId, Namespace, SnapshotId, VersionNumber};

/// Maximum number of retired snapshots remembered.
const RETIRED_MAX: usize = 10_000;

/// Version of a renewal's instance: none, so that it takes no invocations and no other instance's place.
pub(crate) const NO_VERSION: VersionNumber = VersionNumber(0);

/// A live version, as placement needs it.
#[derive(Debug, Clone)]
pub(crate) struct LiveVersion {
    pub(crate) spec: Arc<VersionSpec>,
}

impl LiveVersion {
    pub(crate) fn memory(&self) -> u64 {
        self.spec.manifest.memory.0
    }

    /// How an instance is started by default.
    pub(crate) fn natural_start(&self) -> StartKind {
        match self.spec.snapshot {
            Some(_) => StartKind::Restored,
            None => StartKind::Booted,
        }
    }
}

/// What the scheduler's store knows about the version that an unknown instance claims to run.
pub(crate) enum Known {
    /// A version that an alias names.
    Live(LiveVersion),
    /// Any other version. Its remaining instances may finish.
    Older(LiveVersion),
    /// There is no such version.
    Unknown,
}

/// A function's versions and their aliases.
#[derive(Debug, Default)]
struct Function {
    versions: BTreeMap<VersionNumber, Arc<VersionSpec>>,
    aliases: BTreeMap<AliasName, Alias>,
}

impl Function {
    fn version(&self, version: VersionNumber) -> Option<LiveVersion> {
        let spec = self.versions.get(&version)?.clone();
        Some(LiveVersion { spec })
    }

    /// The versions that serve the function's invocations.
    fn serving(&self) -> impl Iterator<Item = LiveVersion> {
        let live = self.aliases.iter().find(|(name, _)| name.is_live());
        let targets = live.into_iter().flat_map(|(_, alias)| &alias.targets);
        targets.filter_map(|target| self.version(target.version))
    }

    /// What its callers must show at every address: the most that a version asks for which serves, or that any asks for
    /// as long as none serves.
    fn auth(&self) -> Option<Auth> {
        let serving = self.serving().map(|live| live.spec.manifest.auth).max();
        serving.or_else(|| self.versions.values().map(|spec| spec.manifest.auth).max())
    }

    /// Whether an alias names the version.
    fn is_named(&self, version: VersionNumber) -> bool {
        let mut targets = self.aliases.values().flat_map(|alias| &alias.targets);
        targets.any(|target| target.version == version)
    }

    /// Whether an alias names a version with this snapshot. Versions may share one.
    fn names_snapshot(&self, snapshot: &SnapshotId) -> bool {
        let mut sharers = (self.versions.iter()).filter(|(_, spec)| spec.snapshot.as_ref() == Some(snapshot));
        sharers.any(|(version, _)| self.is_named(*version))
    }
}

/// Every version that can serve, or could once.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    namespaces: BTreeSet<Namespace>,
    functions: HashMap<FunctionId, Function>,
    /// Functions whose live version asks for instances that stand by: few, and queried ten times a second.
    standing: BTreeSet<FunctionId>,
    retired: Retired,
    /// Number of changes so far of what gateways are told.
    revision: u64,
    /// The last of these for each function, and which function that was.
    revisions: HashMap<FunctionId, u64>,
    changes: BTreeMap<u64, FunctionId>,
}

/// Snapshots that few new instances begin as, since no alias names their versions, or none at all. Workers need not
/// keep them open.
#[derive(Debug, Default)]
pub(crate) struct Retired {
    all: HashSet<SnapshotId>,
    /// The same ids, oldest first.
    order: VecDeque<SnapshotId>,
}

impl Retired {
    fn add(&mut self, snapshot: Option<&SnapshotId>) {
        let Some(snapshot) = snapshot.filter(|id| !self.all.contains(*id)) else {
            return;
        };
        if self.order.len() >= RETIRED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.all.remove(&oldest);
        }
        self.all.insert(snapshot.clone());
        self.order.push_back(snapshot.clone());
    }

    fn remove(&mut self, snapshot: &SnapshotId) {
        if self.all.remove(snapshot) {
            self.order.retain(|id| id != snapshot);
        }
    }

    /// Whether the snapshot is retired.
    pub(crate) fn has(&self, snapshot: &SnapshotId) -> bool {
        self.all.contains(snapshot)
    }
}

impl Catalog {
    /// Without functions.
    pub(crate) fn new(namespaces: BTreeSet<Namespace>) -> Self {
        Self {
            namespaces,
            ..Self::default()
        }
    }

    /// Every namespace.
    pub(crate) fn namespaces(&self) -> &BTreeSet<Namespace> {
        &self.namespaces
    }

    /// Adds a namespace.
    pub(crate) fn add_namespace(&mut self, namespace: Namespace) {
        self.namespaces.insert(namespace);
    }

    /// Removes a namespace.
    pub(crate) fn remove_namespace(&mut self, namespace: &Namespace) {
        self.namespaces.remove(namespace);
    }

    /// # Errors
    /// `namespace_not_found` if there is no such namespace.
    pub(crate) fn check_namespace(&self, namespace: &str) -> Result<(), ApiError> {
        if self.namespaces.iter().any(|known| known.as_str() == namespace) {
            return Ok(());
        }
        // Whoever calls a function by its address is not told which others there are.
        Err(ApiError::new(
            ErrorCode::NamespaceNotFound,
            format!(
                "no namespace \"{namespace}\": `fn namespace list` shows those there are, `fn namespace create \
                 {namespace}` makes it (-n, FN_NAMESPACE)"
            ),
        ))
    }

    /// Why the function has no live version: it, or its namespace, does not exist.
    pub(crate) fn missing(&self, function: &FunctionId) -> ApiError {
        let unknown = || {
            ApiError::new(
                ErrorCode::FunctionNotFound,
                format!("no function \"{function}\" is live: `fn list` shows what is deployed, `fn deploy` deploys it"),
            )
        };
        self.check_namespace(function.namespace()).err().unwrap_or_else(unknown)
    }

    /// Adds a version that can serve.
    pub(crate) fn add(&mut self, spec: VersionSpec) {
        let function = spec.function.clone();
        let versions = &mut self.functions.entry(function.clone()).or_default().versions;
        versions.insert(spec.version, Arc::new(spec));
        self.note_aliases(&function);
        self.count_change(&function);
    }

    /// Adds a version that serves all of its function's invocations from now on.
    #[cfg(test)]
    pub(crate) fn release(&mut self, spec: VersionSpec) {
        let (function, version) = (spec.function.clone(), spec.version);
        self.add(spec);
        self.set_alias(&function, Alias::of(AliasName::live(), version));
    }

    /// Has an alias name these versions, and no others.
    pub(crate) fn set_alias(&mut self, function: &FunctionId, alias: Alias) {
        if let Some(known) = self.functions.get_mut(function) {
            known.aliases.insert(alias.name.clone(), alias);
        }
        self.note_aliases(function);
        self.count_change(function);
    }

    /// Removes an alias.
    pub(crate) fn remove_alias(&mut self, function: &FunctionId, alias: &AliasName) {
        if let Some(known) = self.functions.get_mut(function) {
            known.aliases.remove(alias);
        }
        self.note_aliases(function);
        self.count_change(function);
    }

    fn count_change(&mut self, function: &FunctionId) {
        self.revision += 1;
        if let Some(before) = self.revisions.insert(function.clone(), self.revision) {
            self.changes.remove(&before);
        }
        self.changes.insert(self.revision, function.clone());
    }

    /// Number of changes of aliases so far.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// What gateways are told of those functions that have changed since a revision.
    pub(crate) fn routes_since(&self, revision: u64) -> Vec<FunctionRoutes> {
        let changed = self.changes.range(revision.saturating_add(1)..);
        let routes = changed.map(|(_, function)| FunctionRoutes {
            function: function.clone(),
            aliases: self.aliases(function).cloned().collect(),
            auth: self.functions.get(function).and_then(Function::auth),
        });
        routes.collect()
    }

    /// The aliases of a function, by name.
    pub(crate) fn aliases(&self, function: &FunctionId) -> impl Iterator<Item = &Alias> {
        self.functions
            .get(function)
            .into_iter()
            .flat_map(|known| known.aliases.values())
    }

    /// Follows a change of a function's aliases or versions.
    fn note_aliases(&mut self, function: &FunctionId) {
        let Some(known) = self.functions.get(function) else {
            return;
        };
        for spec in known.versions.values() {
            match &spec.snapshot {
                Some(snapshot) if known.names_snapshot(snapshot) => self.retired.remove(snapshot),
                snapshot => self.retired.add(snapshot.as_ref()),
            }
        }
        let stands_by = |live: LiveVersion| live.spec.manifest.min_warm > 0 || live.spec.manifest.min_parked > 0;
        if known.serving().any(stands_by) {
            self.standing.insert(function.clone());
        } else {
            self.standing.remove(function);
        }
    }

    /// Drops a version's snapshot if it is the damaged one: the version is booted from now on. Returns its
    /// specification if so.
    pub(crate) fn drop_snapshot(&mut self, damaged: &DamagedSnapshot) -> Option<Arc<VersionSpec>> {
        let function = self.functions.get_mut(&damaged.function)?;
        let spec = function.versions.get_mut(&damaged.version)?;
        if spec.snapshot.as_ref() != Some(&damaged.snapshot) {
            return None;
        }
        self.retired.add(spec.snapshot.as_ref());
        let changed = Arc::make_mut(spec);
        (changed.snapshot, changed.snapshot_digest) = (None, None);
        let spec = spec.clone();
        self.note_aliases(&damaged.function);
        Some(spec)
    }

    /// Versions whose snapshot is known only by its name.
    pub(crate) fn without_digest(&self) -> Vec<Arc<VersionSpec>> {
        let versions = self.functions.values().flat_map(|function| function.versions.values());
        let without = versions.filter(|spec| spec.snapshot.is_some() && spec.snapshot_digest.is_none());
        without.cloned().collect()
    }

    /// Stores the digest of a version's snapshot if the version still has that snapshot. Returns its specification if
    /// so.
    pub(crate) fn set_digest(&mut self, before: &VersionSpec, digest: String) -> Option<Arc<VersionSpec>> {
        let function = self.functions.get_mut(&before.function)?;
        let spec = function.versions.get_mut(&before.version)?;
        if spec.snapshot.is_none() || spec.snapshot != before.snapshot {
            return None;
        }
        Arc::make_mut(spec).snapshot_digest = Some(digest);
        Some(spec.clone())
    }

    /// Replaces the version's specification by `spec`, if the version exists.
    pub(crate) fn exchange(&mut self, spec: &VersionSpec) {
        let function = self.functions.get_mut(&spec.function);
        if let Some(known) = function.and_then(|function| function.versions.get_mut(&spec.version)) {
            self.retired.add(
                known
                    .snapshot
                    .as_ref()
                    .filter(|old| spec.snapshot.as_ref() != Some(*old)),
            );
            *known = Arc::new(spec.clone());
        }
        self.note_aliases(&spec.function);
    }

    /// Drops a version that does not serve.
    pub(crate) fn remove_version(&mut self, function: &FunctionId, version: VersionNumber) {
        if let Some(known) = self.functions.get_mut(function) {
            known.versions.remove(&version);
        }
        self.note_aliases(function);
        self.count_change(function);
    }

    pub(crate) fn remove(&mut self, function: &FunctionId) {
        for spec in self.functions.remove(function).unwrap_or_default().versions.values() {
            self.retired.add(spec.snapshot.as_ref());
        }
        self.standing.remove(function);
        self.count_change(function);
    }

    /// Snapshots that no new instance begins as.
    pub(crate) fn retired(&self) -> &Retired {
        &self.retired
    }

    /// Number of functions.
    pub(crate) fn len(&self) -> usize {
        self.functions.len()
    }

    /// Names of all functions, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &FunctionId> {
        let mut names: Vec<_> = self.functions.keys().collect();
        names.sort();
        names.into_iter()
    }

    /// Whether the function exists.
    pub(crate) fn has(&self, function: &FunctionId) -> bool {
        self.functions.contains_key(function)
    }

    /// The version that serves a function's invocations: of several, that with the largest share.
    pub(crate) fn live(&self, function: &FunctionId) -> Option<LiveVersion> {
        let known = self.functions.get(function)?;
        let live = known.aliases.get(&AliasName::live())?;
        known.version(live.main()?)
    }

    /// The version that an invocation is for: this one, or the live one.
    ///
    /// # Errors
    /// `function_not_found` if there is nothing of the function or nothing of it is live, `not_found` if there is no
    /// such version.
    pub(crate) fn wanted(
        &self,
        function: &FunctionId,
        version: Option<VersionNumber>,
    ) -> Result<LiveVersion, ApiError> {
        let Some(version) = version else {
            return self.live(function).ok_or_else(|| self.missing(function));
        };
        let known = self.functions.get(function).ok_or_else(|| self.missing(function))?;
        known.version(version).ok_or_else(|| {
            let message = format!(
                "{function} has no version {version} that can serve: `fn versions {function}` lists what is kept"
            );
            ApiError::new(ErrorCode::NotFound, message)
        })
    }

    /// Every version that serves a function's invocations.
    pub(crate) fn all_live(&self, function: &FunctionId) -> impl Iterator<Item = LiveVersion> {
        self.functions.get(function).into_iter().flat_map(Function::serving)
    }

    /// This version, if it is one that serves.
    pub(crate) fn serving(&self, function: &FunctionId, version: VersionNumber) -> Option<LiveVersion> {
        self.all_live(function).find(|live| live.spec.version == version)
    }

    /// Whether an alias names the version.
    pub(crate) fn is_named(&self, function: &FunctionId, version: VersionNumber) -> bool {
        self.functions
            .get(function)
            .is_some_and(|known| known.is_named(version))
    }

    /// The schedules of the versions that serve: of several of one function, that with the largest share.
    pub(crate) fn schedules(&self) -> Vec<(FunctionId, VersionNumber, Schedule)> {
        let of = |function: &FunctionId| {
            let live = self.live(function).map(|live| live.spec);
            let all = live.iter().flat_map(|spec| {
                let schedules = spec.manifest.schedules.iter();
                schedules.map(|schedule| (spec.function.clone(), spec.version, schedule.clone()))
            });
            all.collect::<Vec<_>>()
        };
        self.functions.keys().flat_map(of).collect()
    }

    /// Functions with a live version that asks for instances that stand by.
    pub(crate) fn standing(&self) -> impl Iterator<Item = &FunctionId> {
        self.standing.iter()
    }

    /// What is known of a version that an instance claims to run.
    pub(crate) fn known(&self, function: &FunctionId, version: VersionNumber) -> Known {
        let known = self.functions.get(function);
        match known.and_then(|known| known.version(version)) {
            None => Known::Unknown,
            Some(spec) if self.is_named(function, version) => Known::Live(spec),
            Some(spec) => Known::Older(spec),
        }
    }
}

#[cfg(test)]
mod tests {
    use rekindle_wire::api::AliasTarget;

    use super::*;
    use crate::fixture::spec;

    #[test]
    fn a_snapshot_of_several_versions_retires_with_the_last_of_them() {
        let mut catalog = Catalog::default();
        let version = |number| {
            let mut spec = spec("hello", number, 10, 1, 2);
            spec.snapshot = Some("s-1".parse().unwrap());
            spec
        };
        let (hello, shared) = ("hello".parse().unwrap(), "s-1".parse().unwrap());
        for number in 1..=3 {
            catalog.release(version(number));
            assert!(!catalog.retired().has(&shared), "version {number}");
        }
        catalog.set_alias(&hello, Alias::of(AliasName::live(), VersionNumber(1)));
        catalog.remove_version(&hello, VersionNumber(3));
        assert!(!catalog.retired().has(&shared));
        let mut renewed = version(1);
        renewed.snapshot = Some("s-2".parse().unwrap());
        catalog.exchange(&renewed);
        assert!(catalog.retired().has(&shared), "no alias names who is left");
    }

    #[test]
    fn a_snapshot_retires_with_its_version_or_when_another_takes_its_place() {
        let mut catalog = Catalog::default();
        let version = |number, snapshot: &str| {
            let mut spec = spec("hello", number, 10, 1, 2);
            spec.snapshot = Some(snapshot.parse().unwrap());
            spec
        };
        let retired = |catalog: &Catalog| {
            let all = ["s-1", "s-2", "s-3"].into_iter();
            all.filter(|id| catalog.retired().has(&id.parse().unwrap()))
                .collect::<Vec<_>>()
        };
        catalog.release(version(1, "s-1"));
        catalog.release(version(1, "s-1"));
        assert!(retired(&catalog).is_empty());
        catalog.release(version(2, "s-2"));
        assert_eq!(retired(&catalog), ["s-1"]);
        catalog.exchange(&version(2, "s-3"));
        assert_eq!(retired(&catalog), ["s-1", "s-2"]);
        catalog.set_alias(
            &"hello".parse().unwrap(),
            Alias::of(AliasName::live(), VersionNumber(1)),
        );
        assert_eq!(retired(&catalog), ["s-2", "s-3"], "the first serves again");
        catalog.remove(&"hello".parse().unwrap());
        assert_eq!(retired(&catalog).len(), 3);
    }

    #[test]
    fn what_live_names_serves_and_what_any_alias_names_is_kept() {
        let name: FunctionId = "hello".parse().unwrap();
        let mut catalog = Catalog::default();
        (1..=4).for_each(|version| catalog.add(spec("hello", version, 10, 1, 2)));
        assert!(catalog.live(&name).is_none() && catalog.has(&name));
        let alias = |name: &str, targets: &[(u32, u32)]| Alias {
            name: name.parse().unwrap(),
            targets: targets
                .iter()
                .map(|(version, weight)| AliasTarget {
                    version: VersionNumber(*version),
                    weight: *weight,
                })
                .collect(),
        };
        catalog.set_alias(&name, alias("live", &[(1, 90), (2, 10)]));
        catalog.set_alias(&name, alias("next", &[(3, 100)]));
        assert_eq!(catalog.live(&name).unwrap().spec.version, VersionNumber(1));
        let serve: Vec<_> = catalog.all_live(&name).map(|live| live.spec.version.0).collect();
        assert_eq!(serve, [1, 2]);
        let named = |version| catalog.is_named(&name, VersionNumber(version));
        assert_eq!([1, 2, 3, 4].map(named), [true, true, true, false]);
        let known = |version| catalog.known(&name, VersionNumber(version));
        assert!(matches!(known(3), Known::Live(_)) && matches!(known(4), Known::Older(_)));
        assert!(matches!(known(5), Known::Unknown));
        let wanted = |version: Option<u32>| {
            let wanted = catalog.wanted(&name, version.map(VersionNumber));
            wanted.map(|live| live.spec.version.0).map_err(|error| error.code)
        };
        assert_eq!([wanted(None), wanted(Some(4))], [Ok(1), Ok(4)]);
        assert_eq!(wanted(Some(5)), Err(ErrorCode::NotFound));
    }

    #[test]
    fn a_gateway_is_told_what_has_changed_since_it_asked_and_of_functions_that_are_gone() {
        let mut catalog = Catalog::default();
        catalog.release(spec("a", 1, 10, 1, 2));
        catalog.release(spec("b", 1, 10, 1, 2));
        let told = |catalog: &Catalog, since| {
            let routes = catalog.routes_since(since).into_iter();
            routes
                .map(|r| (r.function.to_string(), r.aliases.len()))
                .collect::<Vec<_>>()
        };
        assert_eq!(told(&catalog, 0), [("a".to_owned(), 1), ("b".to_owned(), 1)]);
        let seen = catalog.revision();
        assert_eq!(told(&catalog, seen), []);
        let a: FunctionId = "a".parse().unwrap();
        catalog.set_alias(&a, Alias::of("next".parse().unwrap(), VersionNumber(1)));
        catalog.set_alias(&a, Alias::of("prev".parse().unwrap(), VersionNumber(1)));
        assert_eq!(told(&catalog, seen), [("a".to_owned(), 3)]);
        catalog.remove_alias(&a, &"next".parse().unwrap());
        assert_eq!(told(&catalog, seen), [("a".to_owned(), 2)]);
        catalog.remove(&a);
        assert_eq!(told(&catalog, seen), [("a".to_owned(), 0)]);
    }

    #[test]
    fn what_the_live_version_asks_of_callers_is_asked_at_every_address() {
        let mut catalog = Catalog::default();
        let hello: FunctionId = "hello".parse().unwrap();
        let version = |number, auth| {
            let mut spec = spec("hello", number, 10, 1, 2);
            spec.manifest.auth = auth;
            spec
        };
        let asked = |catalog: &Catalog, since| catalog.routes_since(since).first().and_then(|told| told.auth);
        catalog.add(version(1, Auth::None));
        assert_eq!(asked(&catalog, 0), Some(Auth::None));
        let seen = catalog.revision();
        catalog.add(version(2, Auth::Key));
        assert_eq!(
            asked(&catalog, seen),
            Some(Auth::Key),
            "none serves, and a version asks for one"
        );
        let seen = catalog.revision();
        let mut serve = |targets: &[(u32, u32)]| {
            let target = |(number, weight): &(u32, u32)| AliasTarget {
                version: VersionNumber(*number),
                weight: *weight,
            };
            let name = AliasName::live();
            let targets = targets.iter().map(target).collect();
            catalog.set_alias(&hello, Alias { name, targets });
            asked(&catalog, seen)
        };
        assert_eq!(serve(&[(1, 1)]), Some(Auth::None));
        assert_eq!(serve(&[(1, 90), (2, 10)]), Some(Auth::Key));
        assert_eq!(serve(&[(2, 1)]), Some(Auth::Key));
        catalog.remove(&hello);
        assert_eq!(asked(&catalog, 0), None);
    }

    #[test]
    fn what_is_missing_is_the_function_or_its_namespace() {
        let catalog = Catalog::new(BTreeSet::from([Namespace::default()]));
        let missing = |id: &str| catalog.missing(&id.parse().unwrap());
        assert_eq!(missing("hello").code, ErrorCode::FunctionNotFound);
        let error = missing("hello.team");
        assert_eq!(error.code, ErrorCode::NamespaceNotFound);
        assert!(error.message.contains("fn namespace create team"), "{error}");
    }

    #[test]
    fn retired_snapshots_that_are_remembered_have_a_bound() {
        let mut retired = Retired::default();
        let id = |n: usize| format!("s-{n}").parse::<SnapshotId>().unwrap();
        (0..RETIRED_MAX + 5).for_each(|n| retired.add(Some(&id(n))));
        assert!(!retired.has(&id(4)) && retired.has(&id(5)) && retired.has(&id(RETIRED_MAX + 4)));
        assert_eq!((retired.all.len(), retired.order.len()), (RETIRED_MAX, RETIRED_MAX));
    }

    #[test]
    fn a_digest_is_taken_for_the_snapshot_that_it_was_read_of() {
        let mut catalog = Catalog::default();
        let mut with = spec("hello", 1, 10, 1, 2);
        with.snapshot = Some("s-1".parse().unwrap());
        catalog.release(with.clone());
        catalog.release(spec("hello", 2, 10, 1, 2));
        let [before] = &catalog.without_digest()[..] else {
            panic!("one has a snapshot")
        };
        let mut other = with.clone();
        other.snapshot = Some("s-2".parse().unwrap());
        assert!(catalog.set_digest(&other, "ab".to_owned()).is_none());
        let noted = catalog.set_digest(before, "ab".to_owned()).unwrap();
        assert_eq!(noted.snapshot_digest.as_deref(), Some("ab"));
        assert!(catalog.without_digest().is_empty(), "it is known from now on");
        let damaged = DamagedSnapshot {
            snapshot: "s-1".parse().unwrap(),
            function: with.function.clone(),
            version: with.version,
            why: String::new(),
        };
        let lost = catalog.drop_snapshot(&damaged).unwrap();
        assert_eq!((&lost.snapshot, &lost.snapshot_digest), (&None, &None));
        assert!(
            catalog.set_digest(&with, "ab".to_owned()).is_none(),
            "it has none any more"
        );
    }

    #[test]
    fn a_function_stands_by_as_its_live_version_says() {
        let name: FunctionId = "hello".parse().unwrap();
        let mut catalog = Catalog::default();
        let mut standing = |change: &mut dyn FnMut(&mut Catalog)| {
            change(&mut catalog);
            catalog.standing().count()
        };
        let mut told = spec("hello", 2, 10, 1, 2);
        told.manifest.min_parked = 1;
        assert_eq!(standing(&mut |c| c.release(spec("hello", 1, 10, 1, 2))), 0);
        assert_eq!(standing(&mut |c| c.release(told.clone())), 1);
        let first = || Alias::of(AliasName::live(), VersionNumber(1));
        assert_eq!(standing(&mut |c| c.set_alias(&name, first())), 0);
        assert_eq!(standing(&mut |c| c.release(told.clone())), 1);
        assert_eq!(standing(&mut |c| c.release(spec("hello", 3, 10, 1, 2))), 0);
        assert_eq!(standing(&mut |c| c.release(spec("hello", 3, 10, 1, 2))), 0);
        told.version = VersionNumber(4);
        assert_eq!(standing(&mut |c| c.release(told.clone())), 1);
        assert_eq!(standing(&mut |c| c.remove(&name)), 0);
    }
}

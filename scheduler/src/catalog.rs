//! The versions that can serve, and their aliases, in memory, so that placement never waits for the database. Loaded at
//! start, changed when a version is ready, an alias is set, or a function is deleted.

mod retired;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use rekindle_wire::api::{Alias, SourceInfo, StartKind};
use rekindle_wire::function_config::{Allowed, Auth, TokenRule};
use rekindle_wire::internal::{DamagedSnapshot, FunctionRoutes, StreamingVersions, VersionSpec};
use rekindle_wire::schedule::Schedule;
use rekindle_wire::{AliasName, ApiError, ErrorCode, FunctionId, Namespace, SnapshotId, VersionNumber};

pub(crate) use self::retired::RetiredSnapshots;

/// Version of a renewal's instance: none, so that it takes no invocations and no other instance's place.
pub(crate) const NO_VERSION: VersionNumber = VersionNumber(0);

/// A live version, as placement needs it.
#[derive(Debug, Clone)]
pub(crate) struct LiveVersion {
    pub(crate) spec: Arc<VersionSpec>,
}

impl LiveVersion {
    pub(crate) fn memory(&self) -> u64 {
        self.spec.config.memory.0
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
pub(crate) enum ClaimedVersion {
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

    /// The versions whose configs hold at every address: those that serve, or all as long as none serves.
    fn in_force(&self) -> Vec<Arc<VersionSpec>> {
        let serving: Vec<_> = self.serving().map(|live| live.spec).collect();
        match serving.is_empty() {
            true => self.versions.values().cloned().collect(),
            false => serving,
        }
    }

    /// What gateways are told of it: as its callers must show, the most that a version asks for.
    fn routes(&self, function: FunctionId) -> FunctionRoutes {
        let mut in_force = self.in_force();
        in_force.sort_by_key(|spec| spec.version);
        let auth = in_force.iter().map(|spec| spec.config.auth).max();
        let mut tokens: Vec<TokenRule> = Vec::new();
        if auth == Some(Auth::Jwt) {
            let rules = in_force.iter().filter_map(|spec| spec.config.jwt.as_ref());
            rules.for_each(|rule| {
                if !tokens.contains(rule) {
                    tokens.push(rule.clone())
                }
            });
        }
        FunctionRoutes {
            function,
            aliases: self.aliases.values().cloned().collect(),
            auth: auth.map(|auth| match auth {
                Auth::Jwt => Auth::Key,
                auth => auth,
            }),
            tokens,
            open_to_functions: allow_functions(&in_force),
            cors: in_force.last().and_then(|newest| newest.config.cors.clone()),
            streaming: self.streaming(),
        }
    }

    /// The versions that take bodies of any length.
    fn streaming(&self) -> StreamingVersions {
        let all = self.versions.iter();
        StreamingVersions::of(all.map(|(version, spec)| (*version, spec.config.streams())))
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

/// Whether all of these versions let functions invoke them without a key.
fn allow_functions(in_force: &[Arc<VersionSpec>]) -> bool {
    let mut configs = in_force.iter().map(|spec| &spec.config);
    !in_force.is_empty() && configs.all(|config| config.allow.contains(&Allowed::Functions))
}

/// Every version that can serve, or could once.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    namespaces: BTreeSet<Namespace>,
    functions: HashMap<FunctionId, Function>,
    /// Functions whose live version asks for instances that stand by: few, and queried ten times a second.
    standing: BTreeSet<FunctionId>,
    retired: RetiredSnapshots,
    /// Number of changes so far of what gateways are told.
    revision: u64,
    /// The last of these for each function, and which function that was.
    revisions: HashMap<FunctionId, u64>,
    changes: BTreeMap<u64, FunctionId>,
}

impl Catalog {
    /// Without functions.
    pub(crate) fn new(namespaces: BTreeSet<Namespace>) -> Self {
        Self {
            namespaces,
            ..Self::default()
        }
    }

    pub(crate) fn namespaces(&self) -> &BTreeSet<Namespace> {
        &self.namespaces
    }

    pub(crate) fn add_namespace(&mut self, namespace: Namespace) {
        self.namespaces.insert(namespace);
    }

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

    /// Whether anything of the function can be invoked.
    pub(crate) fn knows(&self, function: &FunctionId) -> bool {
        let known = self.functions.get(function);
        known.is_some_and(|known| !known.versions.is_empty() || !known.aliases.is_empty())
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
        let gone = Function::default();
        let routes = changed.map(|(_, id)| self.functions.get(id).unwrap_or(&gone).routes(id.clone()));
        routes.collect()
    }

    /// Whether functions of its namespace may invoke a function without a key: it asks for none, or is open to them.
    /// One that is not there asks for none.
    pub(crate) fn is_open_to_functions(&self, function: &FunctionId) -> bool {
        self.functions.get(function).is_none_or(|known| {
            let in_force = known.in_force();
            in_force.iter().all(|spec| spec.config.auth == Auth::None) || allow_functions(&in_force)
        })
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
        let stands_by = |live: LiveVersion| live.spec.config.min_warm > 0 || live.spec.config.min_parked > 0;
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
    pub(crate) fn retired(&self) -> &RetiredSnapshots {
        &self.retired
    }

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
                let schedules = spec.config.schedules.iter();
                schedules.map(|schedule| (spec.function.clone(), spec.version, schedule.clone()))
            });
            all.collect::<Vec<_>>()
        };
        self.functions.keys().flat_map(of).collect()
    }

    /// The sources of the versions that serve in a namespace. Of several versions of one function, they are those of
    /// the version with the largest share. Nobody is said to read them.
    pub(crate) fn sources(&self, namespace: &str) -> Vec<SourceInfo> {
        let of = |function: &FunctionId| {
            let live = self.live(function).map(|live| live.spec);
            let all = live.iter().flat_map(|spec| {
                spec.config.sources.iter().map(|source| SourceInfo {
                    function: spec.function.clone(),
                    version: spec.version,
                    source: source.clone(),
                    timeout_ms: spec.config.timeout_ms,
                    boot_timeout_ms: spec.config.boot_timeout_ms,
                    readers: Vec::new(),
                })
            });
            // Readers tell destinations with their own key, which every function takes.
            let all = all.map(|mut info| {
                let namespace = info.function.split().1.unwrap_or_default();
                for to in [&mut info.source.on_success, &mut info.source.on_failure] {
                    to.take_if(|name| !self.is_open_to_functions(&FunctionId::new(&namespace, name)));
                }
                info
            });
            all.collect::<Vec<_>>()
        };
        let functions = self
            .functions
            .keys()
            .filter(|function| function.namespace() == namespace);
        functions.flat_map(of).collect()
    }

    /// Functions with a live version that asks for instances that stand by.
    pub(crate) fn standing(&self) -> impl Iterator<Item = &FunctionId> {
        self.standing.iter()
    }

    /// What is known of a version that an instance claims to run.
    pub(crate) fn known(&self, function: &FunctionId, version: VersionNumber) -> ClaimedVersion {
        let known = self.functions.get(function);
        match known.and_then(|known| known.version(version)) {
            None => ClaimedVersion::Unknown,
            Some(spec) if self.is_named(function, version) => ClaimedVersion::Live(spec),
            Some(spec) => ClaimedVersion::Older(spec),
        }
    }
}

//! Which version an invocation is for, and what its caller must show: what functions' aliases name, as the scheduler
//! tells, and the choice among several versions by their weights.
//!
//! A choice is made for each invocation. Invocations with the same affinity go to the same version while the weights
//! stay. A version whose weight grows keeps its own, as each has a run of a line from 0 to 1, in the order of their
//! numbers.

use std::collections::HashMap;
use std::sync::Arc;

use http::HeaderMap;
use http::header::COOKIE;
use parking_lot::RwLock;
use rekindle_wire::api::{Alias, AliasTarget};
use rekindle_wire::function_config::{Auth, TokenRule};
use rekindle_wire::headers::{AFFINITY, AFFINITY_COOKIE};
use rekindle_wire::internal::{FunctionRoutes, RoutesResponse, StreamingVersions};
use rekindle_wire::stats::ShareReport;
use rekindle_wire::{AliasName, ApiError, ErrorCode, FunctionId, Selector, VersionNumber};
use tower_http::cors::CorsLayer;

use crate::cors;
use crate::share::Share;

/// Longest affinity that counts, in bytes.
const AFFINITY_MAX: usize = 256;

/// What aliases name.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    table: RwLock<Table>,
}

#[derive(Debug, Default)]
struct Table {
    epoch: String,
    revision: u64,
    functions: HashMap<FunctionId, Function>,
}

/// What a function's aliases name.
#[derive(Debug)]
struct Function {
    aliases: Vec<Alias>,
    /// What its callers must show.
    shown: CallerRequirements,
    /// Which pages of other origins may call it.
    cors: Option<CorsLayer>,
    /// The versions that take bodies of any length.
    streaming: StreamingVersions,
    /// Counts of the plain URL's invocations, if several versions share them.
    share: Option<Arc<Share>>,
}

/// What a function's callers must show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CallerRequirements {
    pub(crate) auth: Auth,
    /// The rules of tokens that do as well as a key; none do if there is no rule.
    pub(crate) tokens: Arc<[TokenRule]>,
    /// Whether functions of its namespace need neither.
    pub(crate) open_to_functions: bool,
}

/// The version that was chosen for an invocation.
#[derive(Debug, Default)]
pub(crate) struct ChosenVersion {
    /// `None` if only the scheduler knows: the function is new, or has no live version.
    pub(crate) version: Option<VersionNumber>,
    /// What counts the invocation, if it was chosen among several.
    pub(crate) share: Option<Arc<Share>>,
}

impl Routes {
    /// The lead and the revision of what is known.
    pub(crate) fn revision(&self) -> (String, u64) {
        let table = self.table.read();
        (table.epoch.clone(), table.revision)
    }

    /// Applies what the scheduler tells.
    pub(crate) fn apply(&self, told: RoutesResponse) {
        let mut table = self.table.write();
        // Two questions may be answered in another order than they were asked in.
        if told.epoch == table.epoch && told.revision < table.revision {
            return;
        }
        let mut before = match table.epoch == told.epoch {
            true => HashMap::new(),
            false => std::mem::take(&mut table.functions),
        };
        (table.epoch, table.revision) = (told.epoch, told.revision);
        for FunctionRoutes {
            function,
            aliases,
            auth,
            tokens,
            open_to_functions,
            cors,
            streaming,
        } in told.functions
        {
            let known = table.functions.remove(&function).or_else(|| before.remove(&function));
            if !aliases.is_empty() || auth.is_some() {
                let share = share(&aliases, known.and_then(|known| known.share));
                let shown = CallerRequirements {
                    auth: auth.unwrap_or_default(),
                    tokens: tokens.into(),
                    open_to_functions,
                };
                let known = Function {
                    aliases,
                    shown,
                    cors: cors.as_ref().map(cors::layer),
                    streaming,
                    share,
                };
                table.functions.insert(function, known);
            }
        }
    }

    /// The counts of functions whose invocations are shared.
    pub(crate) fn shares(&self) -> Vec<ShareReport> {
        let table = self.table.read();
        let shared = table.functions.iter().filter_map(|(function, known)| {
            let share = known.share.as_ref()?;
            Some(ShareReport {
                function: function.clone(),
                targets: share.targets.clone(),
                versions: share.counts(),
            })
        });
        shared.collect()
    }

    /// Whether the function has an alias.
    pub(crate) fn knows(&self, function: &FunctionId) -> bool {
        let table = self.table.read();
        table
            .functions
            .get(function)
            .is_some_and(|known| !known.aliases.is_empty())
    }

    /// What the function's callers must show. `None` if nothing is known of it.
    pub(crate) fn shown(&self, function: &FunctionId) -> Option<CallerRequirements> {
        self.table
            .read()
            .functions
            .get(function)
            .map(|known| known.shown.clone())
    }

    /// What a browser is told of the function, if pages of other origins may call it.
    pub(crate) fn cors(&self, function: &FunctionId) -> Option<CorsLayer> {
        self.table.read().functions.get(function)?.cors.clone()
    }

    /// Whether the version takes bodies of any length. Not if nothing is known of it.
    pub(crate) fn streams(&self, function: &FunctionId, version: VersionNumber) -> bool {
        let table = self.table.read();
        table
            .functions
            .get(function)
            .is_some_and(|known| known.streaming.has(version))
    }

    /// The function that a host of this name is for: `ALIAS--NAME` is what the alias names, unless a function is called
    /// that from before such names were reserved.
    pub(crate) fn of_host(&self, named: FunctionId) -> (FunctionId, Option<Selector>) {
        let parts = named.as_str().split_once("--").filter(|_| named.name().contains("--"));
        let parsed = parts.and_then(|(alias, id)| Some((id.parse().ok()?, Selector::Alias(alias.parse().ok()?))));
        match parsed {
            Some((id, alias)) if !self.knows(&named) => (id, Some(alias)),
            _ => (named, None),
        }
    }

    /// The version that an invocation with these headers is for.
    ///
    /// # Errors
    /// `not_found` if the function has no such alias.
    pub(crate) fn choose(
        &self,
        function: &FunctionId,
        selector: &Selector,
        headers: &HeaderMap,
    ) -> Result<ChosenVersion, ApiError> {
        let name = match selector {
            Selector::Version(version) => {
                return Ok(ChosenVersion {
                    version: Some(*version),
                    share: None,
                });
            }
            Selector::Alias(name) => name,
        };
        let table = self.table.read();
        let known = table.functions.get(function);
        let mut aliases = known.into_iter().flat_map(|known| &known.aliases);
        match aliases.find(|alias| alias.name == *name) {
            Some(alias) => Ok(ChosenVersion {
                version: among(&alias.targets, || match affinity(headers) {
                    Some(word) => point_of(&alias.name, word),
                    None => rand::random(),
                }),
                share: known.filter(|_| name.is_live()).and_then(|known| known.share.clone()),
            }),
            None if name.is_live() => Ok(ChosenVersion::default()),
            None if table.epoch.is_empty() => Err(ApiError::new(
                ErrorCode::Unavailable,
                "the gateway has not heard from the scheduler what aliases name: try again in a moment",
            )),
            None => Err(ApiError::new(
                ErrorCode::NotFound,
                format!("{function} has no alias {name}: `fn alias list {function}` shows those it has"),
            )),
        }
    }
}

/// What counts the invocations that versions share: as `before` while their weights stay.
fn share(aliases: &[Alias], before: Option<Arc<Share>>) -> Option<Arc<Share>> {
    let live = aliases.iter().find(|alias| alias.name.is_live())?;
    let [_, _, ..] = &live.targets[..] else {
        return None;
    };
    let same = before.filter(|before| before.targets == live.targets);
    Some(same.unwrap_or_else(|| Arc::new(Share::new(live.targets.clone()))))
}

/// The version at a point of the line from 0 to 1, of which each has a run as long as its weight.
fn among(targets: &[AliasTarget], point: impl FnOnce() -> f64) -> Option<VersionNumber> {
    let [_, _, ..] = targets else {
        return targets.first().map(|only| only.version);
    };
    let all: f64 = targets.iter().map(|target| f64::from(target.weight)).sum();
    let mut left = point() * all;
    let met = targets.iter().find(|target| {
        left -= f64::from(target.weight);
        left < 0.0
    });
    met.or(targets.last()).map(|target| target.version)
}

/// The same point for the same word, at every gateway.
fn point_of(alias: &AliasName, word: &[u8]) -> f64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(alias.as_str().as_bytes()).update(b"=").update(word);
    let [a, b, c, d, ..] = *hasher.finalize().as_bytes();
    f64::from(u32::from_le_bytes([a, b, c, d])) / (f64::from(u32::MAX) + 1.0)
}

/// The word by which an invocation's version is chosen, from its header or its cookie.
fn affinity(headers: &HeaderMap) -> Option<&[u8]> {
    let cookies = headers
        .get_all(COOKIE)
        .iter()
        .flat_map(|line| line.as_bytes().split(|b| *b == b';'));
    let mut named = cookies.filter_map(|cookie| {
        let rest = cookie.trim_ascii().strip_prefix(AFFINITY_COOKIE.as_bytes())?;
        rest.strip_prefix(b"=")
    });
    let word = match headers.get(AFFINITY) {
        Some(word) => Some(word.as_bytes()),
        None => named.next(),
    };
    word.filter(|word| (1..=AFFINITY_MAX).contains(&word.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::Outcome;

    fn routes(targets: &[(u32, u32)]) -> Routes {
        let routes = Routes::default();
        routes.apply(told("lead", 1, targets));
        routes
    }

    fn told(epoch: &str, revision: u64, targets: &[(u32, u32)]) -> RoutesResponse {
        let targets: Vec<_> = targets
            .iter()
            .map(|(version, weight)| AliasTarget {
                version: VersionNumber(*version),
                weight: *weight,
            })
            .collect();
        let live = Alias {
            name: "live".parse().unwrap(),
            targets,
        };
        RoutesResponse {
            epoch: epoch.to_owned(),
            revision,
            functions: vec![FunctionRoutes {
                function: "hello".parse().unwrap(),
                aliases: Some(live).filter(|live| !live.targets.is_empty()).into_iter().collect(),
                auth: None,
                tokens: Vec::new(),
                open_to_functions: false,
                cors: None,
                streaming: StreamingVersions::default(),
            }],
        }
    }

    fn chosen(routes: &Routes, selector: &str, headers: &HeaderMap) -> Result<Option<u32>, ErrorCode> {
        let version = routes.choose(&"hello".parse().unwrap(), &selector.parse().unwrap(), headers);
        version.map(|v| v.version.map(|v| v.0)).map_err(|e| e.code)
    }

    fn sends(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())])
    }

    #[test]
    fn a_version_is_itself_and_an_alias_is_what_it_names() {
        let routes = routes(&[(7, 100)]);
        let none = HeaderMap::new();
        assert_eq!(chosen(&routes, "3", &none), Ok(Some(3)));
        assert_eq!(chosen(&routes, "live", &none), Ok(Some(7)));
        assert_eq!(chosen(&routes, "canary", &none), Err(ErrorCode::NotFound));
        routes.apply(told("lead", 2, &[]));
        assert_eq!(chosen(&routes, "live", &none), Ok(None), "the scheduler knows why");
        routes.apply(told("lead", 3, &[(8, 1)]));
        let other = RoutesResponse {
            functions: Vec::new(),
            ..told("another", 1, &[])
        };
        routes.apply(other);
        assert!(
            !routes.knows(&"hello".parse().unwrap()),
            "of another lead nothing is kept"
        );
    }

    #[test]
    fn what_callers_must_show_is_known_of_functions_without_aliases_and_older_news_change_nothing() {
        let routes = Routes::default();
        let hello = "hello".parse().unwrap();
        let auth = || routes.shown(&hello).map(|shown| shown.auth);
        assert_eq!(auth(), None);
        let news = |revision, auth| {
            let mut told = told("lead", revision, &[]);
            told.functions[0].auth = auth;
            told
        };
        routes.apply(news(2, Some(Auth::Key)));
        assert_eq!(auth(), Some(Auth::Key));
        assert!(!routes.knows(&hello));
        routes.apply(news(1, Some(Auth::None)));
        assert_eq!(auth(), Some(Auth::Key));
        routes.apply(news(3, None));
        assert_eq!(auth(), None, "it is gone");
    }

    #[test]
    fn a_host_with_two_hyphens_is_an_alias_s_unless_a_function_has_that_name() {
        let routes = routes(&[(7, 100)]);
        let of = |name: &str| {
            let (id, selector) = routes.of_host(name.parse().unwrap());
            (id.to_string(), selector.map(|s| s.to_string()))
        };
        let is = |id: &str, alias: Option<&str>| (id.to_owned(), alias.map(str::to_owned));
        assert_eq!(of("hello"), is("hello", None));
        assert_eq!(of("canary--hello"), is("hello", Some("canary")));
        assert_eq!(of("canary--hello.team"), is("hello.team", Some("canary")));
        assert_eq!(of("a-name-that-is-long--hello"), is("a-name-that-is-long--hello", None));
        let mut old = told("lead", 2, &[(1, 1)]);
        old.functions[0].function = "a--b".parse().unwrap();
        routes.apply(old);
        assert_eq!(of("a--b"), is("a--b", None));
    }

    #[test]
    fn invocations_are_shared_by_weight() {
        let routes = routes(&[(7, 90), (8, 10)]);
        let none = HeaderMap::new();
        let eights = (0..10_000)
            .filter(|_| chosen(&routes, "live", &none) == Ok(Some(8)))
            .count();
        // 1000 are expected, with a standard deviation of 30.
        assert!((800..1_200).contains(&eights), "{eights}");
        let points = [0.0, 0.899, 0.9, 0.999_999];
        let targets = told("", 1, &[(7, 90), (8, 10)])
            .functions
            .remove(0)
            .aliases
            .remove(0)
            .targets;
        let at = points.map(|point| among(&targets, || point).unwrap().0);
        assert_eq!(at, [7, 7, 8, 8]);
    }

    #[test]
    fn what_is_shared_is_counted_as_long_as_the_weights_stay_whoever_leads() {
        let hello = "hello".parse().unwrap();
        let of = |routes: &Routes, selector: &str| {
            let chosen = routes.choose(&hello, &selector.parse().unwrap(), &HeaderMap::new());
            chosen.unwrap().share
        };
        let routes = routes(&[(7, 100)]);
        assert!(of(&routes, "live").is_none(), "there is nothing to compare");
        routes.apply(told("lead", 2, &[(7, 90), (8, 10)]));
        assert!(of(&routes, "8").is_none());
        let share = of(&routes, "live").unwrap();
        share.count(VersionNumber(8), None, Outcome::Failed);
        let failed = |routes: &Routes| {
            let reports = routes.shares();
            reports[0]
                .versions
                .values()
                .flat_map(|starts| starts.values())
                .map(|o| o.failed)
                .sum::<u64>()
        };
        assert_eq!(failed(&routes), 1);
        routes.apply(told("another", 1, &[(7, 90), (8, 10)]));
        assert_eq!(failed(&routes), 1);
        routes.apply(told("another", 2, &[(7, 75), (8, 25)]));
        share.count(VersionNumber(8), None, Outcome::Failed);
        assert_eq!(failed(&routes), 0, "it was sent by the weights of before");
    }

    #[test]
    fn the_same_word_goes_to_the_same_version_and_stays_there_when_its_weight_grows() {
        let [few, more] = [routes(&[(7, 90), (8, 10)]), routes(&[(7, 60), (8, 40)])];
        let mut moved = 0;
        for user in 0..500 {
            let headers = sends(AFFINITY, &format!("user-{user}"));
            let first = chosen(&few, "live", &headers);
            assert!((0..5).all(|_| chosen(&few, "live", &headers) == first));
            let cookie = sends("cookie", &format!("a=b; {AFFINITY_COOKIE}=user-{user}; c=d"));
            assert_eq!(chosen(&few, "live", &cookie), first);
            match (first, chosen(&more, "live", &headers)) {
                (Ok(Some(8)), then) => assert_eq!(then, Ok(Some(8))),
                (_, then) => moved += usize::from(then == Ok(Some(8))),
            }
        }
        assert!((80..220).contains(&moved), "{moved} of 500 moved, for 30% of all");
    }

    #[test]
    fn a_header_goes_before_a_cookie_and_what_is_empty_or_long_does_not_count() {
        let mut both = sends("cookie", "fn-affinity=b");
        assert_eq!(affinity(&both), Some(&b"b"[..]));
        both.insert(AFFINITY, "a".parse().unwrap());
        assert_eq!(affinity(&both), Some(&b"a"[..]));
        assert_eq!(affinity(&sends(AFFINITY, "")), None);
        assert_eq!(affinity(&sends(AFFINITY, &"a".repeat(257))), None);
        assert_eq!(affinity(&sends("cookie", "xfn-affinity=b; fn-affinityx=c")), None);
    }
}

//! Which version an invocation is for: what functions' aliases name, as the scheduler tells, and the choice among
//! several versions by their weights.
//!
//! A choice is made for each invocation. Invocations with the same affinity go to the same version while the weights
//! stay. A version whose weight grows keeps its own, as each has a run of a line from 0 to 1, in the order of their
//! numbers.

use std::collections::HashMap;

use http::HeaderMap;
use http::header::COOKIE;
use parking_lot::RwLock;
use rekindle_wire::api::{Alias, AliasTarget};
use rekindle_wire::headers::{AFFINITY, AFFINITY_COOKIE};
use rekindle_wire::internal::RoutesAnswer;
use rekindle_wire::{AliasName, ApiError, ErrorCode, FunctionId, Selector, VersionNumber};

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
    functions: HashMap<FunctionId, Vec<Alias>>,
}

impl Routes {
    /// The lead and the revision of what is known.
    pub(crate) fn revision(&self) -> (String, u64) {
        let table = self.table.read();
        (table.epoch.clone(), table.revision)
    }

    /// Applies what the scheduler tells.
    pub(crate) fn apply(&self, told: RoutesAnswer) {
        let mut table = self.table.write();
        if table.epoch != told.epoch {
            table.functions.clear();
        }
        (table.epoch, table.revision) = (told.epoch, told.revision);
        for routes in told.functions {
            match routes.aliases.is_empty() {
                true => table.functions.remove(&routes.function),
                false => table.functions.insert(routes.function, routes.aliases),
            };
        }
    }

    /// Whether the function has an alias.
    pub(crate) fn knows(&self, function: &FunctionId) -> bool {
        self.table.read().functions.contains_key(function)
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

    /// The version that an invocation with these headers is for. `None` if only the scheduler knows: the function is
    /// new, or has no live version.
    ///
    /// # Errors
    /// `not_found` if the function has no such alias.
    pub(crate) fn choose(
        &self,
        function: &FunctionId,
        selector: &Selector,
        headers: &HeaderMap,
    ) -> Result<Option<VersionNumber>, ApiError> {
        let name = match selector {
            Selector::Version(version) => return Ok(Some(*version)),
            Selector::Alias(name) => name,
        };
        let table = self.table.read();
        let aliases = table.functions.get(function).into_iter().flatten();
        match aliases.into_iter().find(|alias| alias.name == *name) {
            Some(alias) => Ok(among(&alias.targets, || match affinity(headers) {
                Some(word) => point_of(&alias.name, word),
                None => rand::random(),
            })),
            None if name.is_live() => Ok(None),
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
    use rekindle_wire::internal::FunctionRoutes;

    use super::*;

    fn routes(targets: &[(u32, u32)]) -> Routes {
        let routes = Routes::default();
        routes.apply(told("lead", 1, targets));
        routes
    }

    fn told(epoch: &str, revision: u64, targets: &[(u32, u32)]) -> RoutesAnswer {
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
        RoutesAnswer {
            epoch: epoch.to_owned(),
            revision,
            functions: vec![FunctionRoutes {
                function: "hello".parse().unwrap(),
                aliases: Some(live).filter(|live| !live.targets.is_empty()).into_iter().collect(),
            }],
        }
    }

    fn chosen(routes: &Routes, selector: &str, headers: &HeaderMap) -> Result<Option<u32>, ErrorCode> {
        let version = routes.choose(&"hello".parse().unwrap(), &selector.parse().unwrap(), headers);
        version.map(|v| v.map(|v| v.0)).map_err(|e| e.code)
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
        let other = RoutesAnswer {
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

//! The scenarios by name, and the functions that each calls. load-tests/k6/ has what they do.

use clap::ValueEnum;

/// Prefix of the names of all functions that a load deploys.
pub(crate) const PREFIX: &str = "load-";
/// Number of functions that share the load of `popularity`, unless the settings say otherwise.
pub(crate) const MANY: usize = 12;

/// One of load-tests/k6/*.js.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// One small function at a constant rate.
    Steady,
    /// Up to a higher rate and down again.
    Ramp,
    /// Many requests at once to a function without instances, again and again.
    Spike,
    /// Many functions, few of them popular.
    Popularity,
    /// Long bodies, in and out, and streams.
    Bodies,
    /// New versions go live under load, at once and step by step, and are rolled back.
    Deploys,
    /// A constant rate on two workers, between which instances move.
    Moves,
}

/// A function that a load needs: a folder of the checkout under a name of the load's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Name with the prefix.
    pub(crate) name: String,
    /// The folder of the checkout from which it is made.
    pub(crate) folder: &'static str,
    /// Settings that replace those of the folder's fn.toml, as literal values.
    pub(crate) settings: Vec<(&'static str, &'static str)>,
}

impl Scenario {
    /// All scenarios, in the order in which they run.
    pub(crate) const ALL: [Self; 7] = [
        Self::Steady,
        Self::Ramp,
        Self::Spike,
        Self::Popularity,
        Self::Bodies,
        Self::Deploys,
        Self::Moves,
    ];

    /// Its name, and its file's without `.js`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Ramp => "ramp",
            Self::Spike => "spike",
            Self::Popularity => "popularity",
            Self::Bodies => "bodies",
            Self::Deploys => "deploys",
            Self::Moves => "moves",
        }
    }

    /// Its description for readers of the report.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Steady => "One small Python function at a constant rate, whether or not the answers keep up.",
            Self::Ramp => {
                "The same function: the rate rises to its greatest, stays, and falls. An instance takes one request at \
                 a time."
            }
            Self::Spike => {
                "Many requests at the same instant to a function (Python, 64 MB touched) without any instance; all \
                 instances are removed between two spikes."
            }
            Self::Popularity => {
                "Many functions of which few are popular (Zipf), with an idle time of 5 s: the head stays warm, the \
                 tail goes to zero and is restored."
            }
            Self::Bodies => "Bodies of 1 KiB to 4 MiB sent and had back, and answers streamed in pieces with pauses.",
            Self::Deploys => {
                "A constant rate to a function of which new versions go live meanwhile, at once and as canaries, and \
                 are rolled back."
            }
            Self::Moves => {
                "A constant rate to a function whose instances move between two workers while new versions of it go \
                 live."
            }
        }
    }

    /// Whether it needs a platform with two workers.
    pub(crate) fn takes_two_workers(self) -> bool {
        self == Self::Moves
    }

    /// The functions it calls.
    pub(crate) fn wants(self, many: usize) -> Vec<Wanted> {
        let sample = |name: &str, folder: &'static str, settings: &[(&'static str, &'static str)]| Wanted {
            name: format!("{PREFIX}{name}"),
            folder,
            settings: settings.to_vec(),
        };
        match self {
            Self::Steady | Self::Ramp => vec![sample(
                "hello",
                "functions/samples/hello-python",
                &[("max_instances", "40"), ("idle", "\"30s\"")],
            )],
            Self::Spike => vec![sample("touch", "functions/samples/touch-python", &[])],
            Self::Popularity => (1..=many)
                .map(|n| {
                    let name = format!("many-{n}");
                    sample(&name, "functions/samples/hello-python", &[("idle", "\"5s\"")])
                })
                .collect(),
            Self::Bodies => vec![sample("bodies", "load-tests/functions/bodies", &[])],
            Self::Deploys | Self::Moves => vec![sample("deployed", "load-tests/functions/deployed", &[])],
        }
    }
}

#[cfg(test)]
mod tests {
    use rekindle_testkit::binaries::checkout;

    use super::*;

    #[test]
    fn every_scenario_has_its_file_and_its_functions_folders() {
        for scenario in Scenario::ALL {
            let file = checkout().join(format!("load-tests/k6/{}.js", scenario.name()));
            assert!(file.is_file(), "{} is missing", file.display());
            for wanted in scenario.wants(3) {
                assert!(checkout().join(wanted.folder).join("fn.toml").is_file(), "{wanted:?}");
                assert!(wanted.name.starts_with(PREFIX), "{wanted:?}");
            }
        }
    }

    #[test]
    fn every_file_of_k6_is_a_scenario() {
        let files = std::fs::read_dir(checkout().join("load-tests/k6")).unwrap();
        for file in files.map(|f| f.unwrap().file_name().into_string().unwrap()) {
            if let Some(name) = file.strip_suffix(".js") {
                assert!(
                    Scenario::ALL.iter().any(|s| s.name() == name),
                    "{file} is run by nobody"
                );
            }
        }
    }
}

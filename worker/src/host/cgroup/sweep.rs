//! Cleans up after a worker that died: groups with processes in them.

use super::FUNCTION;
use super::files::{self, FileError};
use super::layout::Layout;
use super::{KILL_LIMIT, KillError, REMOVE_LIMIT};

/// A group that was killed and removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweptCgroup {
    /// Its path below the parent.
    pub name: String,
    /// Ids of the killed processes.
    pub pids: Vec<i32>,
}

/// Why groups are left.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// Processes survived.
    #[error("sweep left-over cgroup {name}")]
    Kill {
        /// The group.
        name: String,
        /// The error.
        #[source]
        source: KillError,
    },
    /// A directory cannot be listed or removed.
    #[error("sweep left-over cgroup {name}")]
    File {
        /// The group.
        name: String,
        /// The error.
        #[source]
        source: FileError,
    },
}

pub(super) fn sweep(parent: &Layout) -> Result<Vec<SweptCgroup>, SweepError> {
    let mut swept = Vec::new();
    let mut first_error = None;
    below(parent, "", &mut swept, &mut first_error);
    match first_error {
        None => Ok(swept),
        Some(e) => Err(e),
    }
}

/// Sweeps children before their parents: a group that contains groups cannot be removed.
fn below(at: &Layout, prefix: &str, swept: &mut Vec<SweptCgroup>, first_error: &mut Option<SweepError>) {
    let mut names = Vec::new();
    for directory in at.all() {
        match files::child_directories(&directory) {
            Ok(found) => names.extend(found),
            Err(source) => {
                first_error.get_or_insert(SweepError::File {
                    name: prefix.to_owned(),
                    source,
                });
            }
        }
    }
    // The function's group is removed with its instance's.
    names.retain(|name| name != FUNCTION);
    names.sort();
    names.dedup();
    for child in names {
        let name = if prefix.is_empty() {
            child.clone()
        } else {
            format!("{prefix}/{child}")
        };
        let group = at.join(&child);
        below(&group, &name, swept, first_error);
        let done = group
            .kill(&name, KILL_LIMIT)
            .map_err(|source| SweepError::Kill {
                name: name.clone(),
                source,
            })
            .and_then(|pids| {
                let removed = group.remove(REMOVE_LIMIT);
                removed.map(|()| pids).map_err(|source| SweepError::File {
                    name: name.clone(),
                    source,
                })
            });
        match done {
            Ok(pids) => swept.push(SweptCgroup { name, pids }),
            Err(e) => {
                first_error.get_or_insert(e);
            }
        }
    }
}

//! The worker's orders, and the reports on them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{image, layer, upload};

/// The program's argument that selects this mode.
pub const SUBCOMMAND: &str = "confined";
/// The environment variable with the [`Order`] as JSON. Only root and the process itself can read it.
pub const ORDER: &str = "REKINDLE_ORDER";
/// Exit code if the sandbox could not be created. Standard error has the reason.
pub const SET_UP_FAILED: i32 = 125;
/// User and group inside, which runtimes call `fn`. On the host they are [`Order::host_id`].
pub const USER: u32 = 100_000;

/// A piece of work and its sandbox.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// The worker's process id: if the worker is gone, there is nothing to do.
    pub worker: i32,
    /// User and group on the host, used by nothing else. They must own what is to be written.
    pub host_id: u32,
    /// `cgroup.procs` files of its control group.
    pub cgroup_procs: Vec<PathBuf>,
    /// Its network namespace, as a file of `/proc`. `None` for a new, empty one.
    pub network: Option<PathBuf>,
    /// The work.
    pub work: Work,
}

/// The kinds of work.
#[derive(Debug, Serialize, Deserialize)]
pub enum Work {
    /// Unpacks an uploaded folder from standard input.
    Upload {
        /// Target: an empty directory, which becomes the root.
        into: PathBuf,
        /// Limits on the result.
        limits: upload::Limits,
    },
    /// Unpacks a container image.
    Image {
        /// The directory of its layout.
        layout: PathBuf,
        /// Target: an empty directory, which becomes the root.
        into: PathBuf,
        /// Limits on the result.
        limits: upload::Limits,
    },
    /// Unpacks a layer from standard input.
    Layer {
        /// Target: an empty directory, which becomes the root.
        into: PathBuf,
        /// The expected layer.
        name: layer::Name,
    },
    /// Runs a program to its end. Its output streams are those of this process. Processes that it leaves behind are
    /// then killed.
    Program(Program),
}

/// A program and its files.
#[derive(Debug, Serialize, Deserialize)]
pub struct Program {
    /// The root filesystem, read-only: directories stacked on each other, the uppermost first.
    pub root: Vec<PathBuf>,
    /// Files of the host that it sees in addition.
    pub shown: Vec<BindMount>,
    /// Absolute path inside.
    pub path: String,
    /// Arguments, starting with the program's name.
    pub arguments: Vec<String>,
    /// `NAME=value`.
    pub environment: Vec<String>,
    /// Working directory, as seen inside.
    pub cwd: String,
    /// Maximum size of a file in bytes.
    pub file_bytes: u64,
}

/// A file or directory of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindMount {
    /// Path on the host.
    pub source: PathBuf,
    /// Path inside: below `/run`, where it is created, or an existing path of the root filesystem.
    pub at: PathBuf,
    /// Whether it may be written and executed.
    pub write: bool,
}

/// The unpacking process's output on standard output, as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// An uploaded folder.
    Upload(Result<(), upload::UnpackError>),
    /// A container image.
    Image(Result<(), image::ImageError>),
    /// A layer.
    Layer(Result<(), layer::UnpackError>),
}

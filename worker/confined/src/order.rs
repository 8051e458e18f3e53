//! What the worker asks for, and how it is answered.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{layer, upload};

/// The program's argument that has it do this.
pub const SUBCOMMAND: &str = "confined";
/// The environment variable with the [`Order`] as JSON; only root and the process itself can read it.
pub const ORDER: &str = "REKINDLE_ORDER";
/// The exit code when the sandbox could not be made; standard error says why.
pub const SET_UP_FAILED: i32 = 125;
/// The user and group inside, which runtimes call `fn`; on the host it is [`Order::host_id`].
pub const USER: u32 = 100_000;

/// One piece of work and its sandbox.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// The worker's process id: when it is gone there is nothing to do.
    pub worker: i32,
    /// The user and group on the host; nobody else's. It must own what is to be written.
    pub host_id: u32,
    /// `cgroup.procs` files of the control group it is in.
    pub cgroup_procs: Vec<PathBuf>,
    /// The network namespace it is in, as a file of `/proc`; a new, empty one without.
    pub network: Option<PathBuf>,
    /// What it does.
    pub work: Work,
}

/// What is done.
#[derive(Debug, Serialize, Deserialize)]
pub enum Work {
    /// Unpacks an uploaded folder from standard input.
    Upload {
        /// Where to: an empty directory, which is its root.
        into: PathBuf,
        /// What may come out.
        limits: upload::Limits,
    },
    /// Unpacks a layer from standard input.
    Layer {
        /// Where to: an empty directory, which is its root.
        into: PathBuf,
        /// What it must be.
        name: layer::Name,
    },
    /// Runs a program to its end; both its streams are this process's. Whatever it leaves running is killed then.
    Program(Program),
}

/// A program and the files it sees.
#[derive(Debug, Serialize, Deserialize)]
pub struct Program {
    /// The root filesystem, read-only: directories that are laid over each other, the uppermost first.
    pub root: Vec<PathBuf>,
    /// What it sees of the host besides.
    pub shown: Vec<Shown>,
    /// An absolute path inside.
    pub path: String,
    /// The program's name first.
    pub arguments: Vec<String>,
    /// `NAME=value`.
    pub environment: Vec<String>,
    /// Working directory, as seen inside.
    pub cwd: String,
    /// Size of one file at most, bytes.
    pub file_bytes: u64,
}

/// A file or directory of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// On the host.
    pub source: PathBuf,
    /// Inside: below `/run`, where it is made, or what the root filesystem has.
    pub at: PathBuf,
    /// Whether it may be written, and executed.
    pub write: bool,
}

/// What unpacking writes to standard output, as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// An uploaded folder.
    Upload(Result<(), upload::UnpackError>),
    /// A layer.
    Layer(Result<(), layer::UnpackError>),
}

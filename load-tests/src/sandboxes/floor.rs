//! `rekindle-bench sandbox-floor`: the least cost of a lean container here. A process in namespaces of its own changes
//! its root and exits, again and again; with a control group of its own, if requested. It is a program of its own,
//! since only a single-threaded process may do anything it likes in a fork.
#![expect(unsafe_code, reason = "clone has no safe wrapper that takes namespaces and forks")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, chdir, pivot_root};
use rekindle_worker::host::cgroup::{CGROUP_ROOT, Cgroup, Cgroups};

use super::making::LIMITS;

const NAMESPACES: i32 = libc::CLONE_NEWPID
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWCGROUP
    | libc::SIGCHLD;

/// `rekindle-bench sandbox-floor`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct FloorArgs {
    /// How long it runs.
    #[arg(long)]
    millis: u64,
    /// A directory that is empty except for `proc`: the new root.
    #[arg(long)]
    root: PathBuf,
    /// With a network namespace and its loopback.
    #[arg(long)]
    network: bool,
    /// With a control group of its own, below this one.
    #[arg(long)]
    group: Option<String>,
}

/// Starts one that runs for `millis`, as a process of its own.
pub(super) fn start(millis: u64, root: &Path, network: bool, group: Option<&str>) -> Result<Child> {
    let own = std::env::current_exe().context("the path of this program is not known")?;
    let mut command = Command::new(own);
    command
        .args(["sandbox-floor", "--millis", &millis.to_string(), "--root"])
        .arg(root);
    if network {
        command.arg("--network");
    }
    if let Some(group) = group {
        command.args(["--group", group]);
    }
    let child = command.stdout(Stdio::piped()).spawn();
    child.context("this program cannot be started once more")
}

/// Its results: milliseconds of each.
pub(super) fn finish(child: Child) -> Result<Vec<f64>> {
    let output = child.wait_with_output().context("the bare floor does not end")?;
    ensure!(output.status.success(), "the bare floor ended with {}", output.status);
    serde_json::from_slice(&output.stdout).context("the bare floor told no figures")
}

/// Runs it, and prints the milliseconds of each.
pub(crate) fn run(args: &FloorArgs) -> Result<()> {
    let groups = match &args.group {
        Some(parent) => Some(Cgroups::detect_below(Path::new(CGROUP_ROOT), parent)?),
        None => None,
    };
    let end = Instant::now() + Duration::from_millis(args.millis);
    let mut taken = Vec::new();
    while Instant::now() < end {
        let started = Instant::now();
        let group = match &groups {
            Some(groups) => Some(groups.create(&format!("floor-{}", taken.len()), LIMITS)?),
            None => None,
        };
        once(args, group.as_ref())?;
        if let Some(group) = group {
            group.remove()?;
        }
        taken.push(started.elapsed().as_secs_f64() * 1e3);
    }
    println!("{}", serde_json::to_string(&taken)?);
    Ok(())
}

fn once(args: &FloorArgs, group: Option<&Cgroup>) -> Result<()> {
    let flags = NAMESPACES | if args.network { libc::CLONE_NEWNET } else { 0 };
    let procs = group.map(Cgroup::procs_files).unwrap_or_default();
    // SAFETY: without CLONE_VM this is a fork, of a process that has one thread.
    let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match nix::errno::Errno::result(child).context("clone")? {
        0 => {
            let code = i32::from(inside(args, &procs).is_err());
            // SAFETY: ends this process, which must not write or remove anything of its parent's.
            unsafe { libc::_exit(code) }
        }
        pid => match waitpid(Pid::from_raw(i32::try_from(pid)?), None).context("wait for it")? {
            WaitStatus::Exited(_, 0) => Ok(()),
            other => bail!("the bare floor's process ended with {other:?}"),
        },
    }
}

fn inside(args: &FloorArgs, procs: &[PathBuf]) -> Result<()> {
    for file in procs {
        fs::write(file, "0")?;
    }
    if args.network {
        rekindle_init::namespaces::prepare_network()?;
    }
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some(&args.root), &args.root, none, MsFlags::MS_BIND, none)?;
    mount(
        Some("proc"),
        &args.root.join("proc"),
        Some("proc"),
        MsFlags::empty(),
        none,
    )?;
    chdir(&args.root)?;
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    Ok(())
}

//! A control group whose limit makes the kernel reclaim, on either version; swap is not limited.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The group, removed when dropped; it must be empty then.
pub(super) struct Group {
    directory: PathBuf,
    limit: &'static str,
}

impl Group {
    /// A group without a limit, with this process in it.
    pub(super) fn of(pid: i32) -> Result<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let (parent, limit) = match root.join("memory").is_dir() {
            true => (root.join("memory"), "memory.limit_in_bytes"),
            false => (root.to_owned(), "memory.max"),
        };
        let directory = parent.join(format!("rekindle-bench-idle-{}", std::process::id()));
        fs::create_dir(&directory).with_context(|| format!("{}: cannot be made", directory.display()))?;
        let group = Self { directory, limit };
        group.write("cgroup.procs", &pid.to_string())?;
        Ok(group)
    }

    /// Sets the limit. Anything beyond it is swapped out before this returns.
    pub(super) fn limit(&self, bytes: u64) -> Result<()> {
        self.write(self.limit, &bytes.to_string())
    }

    fn write(&self, name: &str, value: &str) -> Result<()> {
        let path = self.directory.join(name);
        fs::write(&path, value).with_context(|| format!("{}: {value} is refused", path.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel may take a moment to notice that its process is gone.
        for _ in 0..100 {
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        eprintln!("rekindle-bench: {} stays", self.directory.display());
    }
}

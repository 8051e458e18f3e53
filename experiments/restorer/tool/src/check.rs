//! Compares a restored process with its images, before its first instruction.

use anyhow::Result;

use crate::run::{Job, Restore};

/// Restores once and compares.
pub fn once(job: &Job) -> Result<()> {
    let restore = Restore::begin(job)?;
    println!("{}", std::fs::read_to_string(format!("/proc/{}/maps", restore.sandbox.function))?);
    Ok(())
}

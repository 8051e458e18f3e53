//! Descriptors that a CRIU process is started with, and CRIU's names for files and pipes.
//!
//! ```text
//!      restores                 dumps                         probes
//!   3  its end of the session   its end of the session        its end of the session
//!   4  the function's stdout    images, its working directory images, its working directory
//!   5  the function's stderr    the function's freezer
//!   6  images, if prestarted
//! ```

use std::os::fd::{AsFd, AsRawFd as _};

/// Descriptors of the function's output pipes, write ends, in a CRIU that restores.
pub const OUTPUT_FDS: [i32; 2] = [4, 5];
/// Streams of the output pipes.
pub const OUTPUT_STREAMS: [&str; 2] = ["stdout", "stderr"];
/// Numbers of the output pipes in images. They let CRIU know the pipes before it is known what to restore. The numbers
/// are higher than a kernel soon counts.
pub const OUTPUT_PIPES: [u32; 2] = [0xffff_fff0, 0xffff_fff1];
/// Descriptor of the image directory in a CRIU that is to be prestarted.
pub(crate) const PRESTART_IMAGES_FD: i32 = 6;
/// Descriptor of the image directory in a CRIU that probes.
pub(crate) const PROBE_IMAGES_FD: i32 = 4;
/// Descriptor of the function's freezer in a CRIU that dumps.
pub const FREEZER_FD: i32 = 5;
/// The image directory of a CRIU that dumps.
pub const WORKING_DIR: &str = ".";

/// A path through a descriptor of the CRIU process, to a directory outside the sandbox's mount namespace.
pub fn own_descriptor(fd: i32) -> String {
    format!("/proc/self/fd/{fd}")
}

/// CRIU's name of the pipe with this number.
pub fn pipe_key(number: u32) -> String {
    format!("pipe:[{number}]")
}

/// The number of the pipe that has this name.
pub fn pipe_number(key: &str) -> Option<u32> {
    key.strip_prefix("pipe:[")?.strip_suffix(']')?.parse().ok()
}

/// CRIU's name of an open file that it must not look up by path: its mount and inode.
pub fn external_file(mount: u64, inode: u64) -> String {
    format!("file[{mount:x}:{inode:x}]")
}

/// CRIU's name of this open file, which it must not look up by path.
///
/// # Errors
/// If the kernel does not tell which file it is.
pub fn external_name(file: &impl AsFd) -> std::io::Result<String> {
    let inode = nix::sys::stat::fstat(file)?.st_ino;
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_fd().as_raw_fd()))?;
    let mount = info
        .lines()
        .find_map(|l| l.strip_prefix("mnt_id:")?.trim().parse().ok());
    let mount = mount.ok_or_else(|| std::io::Error::other("the kernel does not say which mount a file is on"))?;
    Ok(external_file(mount, inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_has_the_number_of_its_name() {
        assert_eq!(pipe_number(&pipe_key(OUTPUT_PIPES[0])), Some(OUTPUT_PIPES[0]));
        assert_eq!(pipe_number("pipe:[-1]"), None);
        assert_eq!(pipe_number("socket:[1]"), None);
    }
}

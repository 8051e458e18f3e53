//! Limits the devices that processes of sandboxes may open, whatever the device nodes: only those that a sandbox has. A
//! function and its root cannot create a node. The filter is for the CRIU that dumps, which is root on the host.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::sys::stat::{major, minor};

use super::files::FileError;
use super::layout::Layout;
use super::limits::Device;
use super::{Cgroups, DeviceError, usable};

/// `null`, `zero`, `full`, `random` and `urandom`; `tty`, `ptmx` and the first 256 pseudoterminals, of which a sandbox
/// reaches only its own.
const DEVICES: [Device; 8] = [
    (1, Some(3)),
    (1, Some(5)),
    (1, Some(7)),
    (1, Some(8)),
    (1, Some(9)),
    (5, Some(0)),
    (5, Some(2)),
    (136, None),
];
/// The device that creates userfaultfds: init makes CRIU use it.
const USERFAULT: &str = "/dev/userfaultfd";

impl Cgroups {
    /// Limits every process of groups created from now on to those devices. `root` and `parent` are those of
    /// [`Cgroups::detect_below`].
    ///
    /// # Errors
    /// Returns an error when the kernel has no such filter. Groups are then created without one.
    pub fn limit_devices(&mut self, root: &Path, parent: &str) -> Result<(), DeviceError> {
        if let Some(bad) = parent.split('/').find(|level| !usable(level)) {
            return Err(DeviceError::NoController(bad.to_owned()));
        }
        let mut allowed = DEVICES.to_vec();
        match fs::metadata(USERFAULT) {
            Ok(found) => allowed.push((number(major(found.rdev())), Some(number(minor(found.rdev()))))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(DeviceError::Refused(FileError::new("look at", Path::new(USERFAULT), e))),
        }
        match &mut self.layout {
            Layout::V1(directories) => directories.limit_devices(root, parent, &allowed),
            Layout::V2(directory) => attach(&directory.0, &allowed),
        }
    }
}

/// Device numbers have 12 and 20 bits.
fn number(part: u64) -> u32 {
    u32::try_from(part).unwrap_or(u32::MAX)
}

/// Attaches a filter for cgroup v2: a program in the kernel, which runs at each opening. It replaces any other filter
/// at this directory.
///
/// # Errors
/// Returns an error when the kernel refuses.
pub(super) fn attach(directory: &Path, allowed: &[Device]) -> Result<(), DeviceError> {
    let group = File::open(directory).map_err(|e| DeviceError::Refused(FileError::new("open", directory, e)))?;
    let program = load(&program(allowed)).map_err(DeviceError::Program)?;
    // target, program, BPF_CGROUP_DEVICE, BPF_F_ALLOW_OVERRIDE: as the first and only program of this group.
    let order = [group.as_raw_fd(), program.as_raw_fd(), 6, 1];
    bpf(8, order.as_ptr().cast(), size_of_val(&order)).map_err(DeviceError::Program)?;
    Ok(())
}

fn load(program: &[u64]) -> io::Result<OwnedFd> {
    let license = c"Apache-2.0";
    // BPF_PROG_TYPE_CGROUP_DEVICE and the number of instructions in one word, the instructions, the license; no log.
    let order = [
        15 | (program.len() as u64) << 32,
        program.as_ptr() as u64,
        license.as_ptr() as u64,
        0,
        0,
        0,
    ];
    let fd = bpf(5, order.as_ptr().cast(), size_of_val(&order))?;
    // SAFETY: the kernel has just created this descriptor for this call alone.
    #[expect(unsafe_code, reason = "takes ownership of what the kernel made")]
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[expect(unsafe_code, reason = "bpf has no safe wrapper")]
fn bpf(command: i32, order: *const u8, bytes: usize) -> io::Result<i32> {
    // SAFETY: `order` is as long as `bytes` says. It and what it points to live until the call returns.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, order, bytes) };
    match result {
        -1 => Err(io::Error::last_os_error()),
        fd => Ok(fd as i32),
    }
}

/// Encodes one instruction: operation, registers, offset and value.
fn instruction(operation: u8, to: u8, from: u8, offset: i16, value: u32) -> u64 {
    let [low, high] = offset.to_le_bytes();
    let [a, b, c, d] = value.to_le_bytes();
    u64::from_le_bytes([operation, from << 4 | to, low, high, a, b, c, d])
}

/// Builds a program that returns 1 for a character device of `allowed`, else 0. In the kernel's input, the low half of
/// the first word is the type. The second and third words are major and minor.
fn program(allowed: &[Device]) -> Vec<u64> {
    const LOAD: u8 = 0x61;
    const AND: u8 = 0x54;
    const UNLESS: u8 = 0x55;
    const SET: u8 = 0xb7;
    const END: u8 = 0x95;
    const CHARACTER: u32 = 2;
    let answer = |with| [instruction(SET, 0, 0, 0, with), instruction(END, 0, 0, 0, 0)];
    let mut all = vec![
        instruction(LOAD, 2, 1, 0, 0),
        instruction(AND, 2, 0, 0, 0xffff),
        instruction(LOAD, 3, 1, 4, 0),
        instruction(LOAD, 4, 1, 8, 0),
    ];
    for (major, minor) in allowed {
        let wanted = [(2, Some(CHARACTER)), (3, Some(*major)), (4, *minor)];
        let wanted: Vec<_> = wanted
            .into_iter()
            .filter_map(|(register, value)| Some((register, value?)))
            .collect();
        // Jumps over the other comparisons and the two instructions of the result.
        for ((register, value), others) in wanted.iter().zip((0..wanted.len() as i16).rev()) {
            all.push(instruction(UNLESS, *register, 0, others + 2, *value));
        }
        all.extend(answer(1));
    }
    all.extend(answer(0));
    all
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::host::cgroup::{CGROUP_ROOT, files};
    use crate::testing::skipped;

    /// Returns whether a process of these groups can open a device.
    fn opens(groups: &[&Path], device: &str) -> bool {
        let join: String = groups
            .iter()
            .map(|g| format!("echo 0 > {}/cgroup.procs || exit 9; ", g.display()))
            .collect();
        let told = Command::new("/bin/sh")
            .args(["-c", &format!("{join} exec 3< {device}")])
            .output()
            .unwrap();
        let code = told.status.code().unwrap();
        assert!([0, 2].contains(&code), "{told:?}");
        code == 0
    }

    #[test]
    fn a_process_of_a_group_opens_what_sandboxes_have_and_nothing_else() {
        if !nix::unistd::geteuid().is_root() {
            return skipped("root is needed");
        }
        let parent = format!("rekindle-devices-{}", std::process::id());
        let mut tried = 0;
        let v1 = Path::new(CGROUP_ROOT);
        if v1.join("devices").is_dir() {
            let mut groups = Cgroups::detect_below(v1, &parent).unwrap();
            groups.limit_devices(v1, &parent).unwrap();
            let devices = v1.join("devices").join(&parent);
            assert!(opens(&[&devices], "/dev/null") && opens(&[&devices], "/dev/urandom"));
            assert!(opens(&[&devices], "/dev/ptmx") && !opens(&[&devices], "/dev/kmsg"));
            // Again, as after a worker that was killed.
            groups.limit_devices(v1, &parent).unwrap();
            groups.remove_parent().unwrap();
            assert!(!devices.exists());
            tried += 1;
        }
        let found = [CGROUP_ROOT, "/sys/fs/cgroup/unified"].map(Path::new);
        if let Some(v2) = found.into_iter().find(|d| d.join("cgroup.controllers").exists()) {
            let (above, below) = (v2.join(&parent), v2.join(&parent).join("i-1"));
            files::make_all(&below).unwrap();
            for _ in 0..2 {
                attach(&above, &DEVICES).unwrap();
            }
            assert!(opens(&[&below], "/dev/null") && opens(&[&below], "/dev/urandom"));
            assert!(opens(&[&below], "/dev/ptmx") && !opens(&[&below], "/dev/kmsg"));
            for directory in [below, above] {
                fs::remove_dir(directory).unwrap();
            }
            tried += 1;
        }
        if tried == 0 {
            skipped("there are no control groups");
        }
    }
}

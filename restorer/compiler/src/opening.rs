//! Opening files by their names.

use rekindle_restore_program::Code;
use rekindle_verify::messages::{Descriptor, RegularFile};

use crate::builder::Builder;
use crate::flags::{ACCESS, ASYNC, WRITE_ONLY, is_owned_by_nobody, opened_with};

const KIND: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const DEVICE: u32 = 0o020_000;
/// What an owner may do: read, write.
const READS: u32 = 0o400;
const WRITES: u32 = 0o200;
/// `O_PATH` and `O_NOFOLLOW`.
const LOOK: u32 = 0o10_000_000;
const NO_LINK: u32 = 0o400_000;

/// Opens a file by this name, as a descriptor of a process. Or returns what it is.
pub(crate) fn keep(
    b: &mut Builder,
    descriptor: &Descriptor,
    file: &RegularFile,
    name: &[u8],
) -> Result<(), &'static str> {
    const KINDS: [u32; 3] = [REGULAR, DIRECTORY, DEVICE];
    if !is_owned_by_nobody(&file.fown) || file.flags & ASYNC != 0 {
        return Err("a file that sends signals");
    }
    if file.ext == Some(true) || !file.mode.is_some_and(|mode| KINDS.contains(&(mode & KIND))) {
        return Err("neither a regular file, a directory nor a device");
    }
    open(b, file.flags, name, file);
    let close = descriptor.flags & 1;
    b.op(Code::Keep, descriptor.fd, [file.pos, close.into()]);
    Ok(())
}

/// Opens a file for the operations that follow. One whose permissions keep its owner from it, as after
/// `open(O_WRONLY | O_CREAT, 0400)`, has others meanwhile.
pub(crate) fn open(b: &mut Builder, status: u32, name: &[u8], file: &RegularFile) {
    let flags = opened_with(status);
    let Some([meanwhile, after]) = file.mode.and_then(|mode| changed(mode, flags)) else {
        return b.path(Code::Open, flags, name);
    };
    let (at, length) = b.text(name);
    let args = [at, length, meanwhile.into(), after.into()];
    // It is opened through a link of the kernel's.
    b.op(Code::OpenOwn, flags & !NO_LINK, args);
}

/// The permissions with which an owner may open a file, and its own. `None` if these let it.
fn changed(mode: u32, flags: u32) -> Option<[u32; 2]> {
    let needed = match flags & ACCESS {
        _ if flags & LOOK != 0 => 0,
        0 => READS,
        WRITE_ONLY => WRITES,
        _ => READS | WRITES,
    };
    let own = mode & !KIND;
    let is_kept_out = matches!(mode & KIND, REGULAR | DIRECTORY) && own & needed != needed;
    is_kept_out.then_some([own | needed, own])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_change_only_where_they_keep_the_owner_out() {
        let (read, write, both) = (0, 1, 2);
        for (mode, flags, is) in [
            (0o100_400, write, Some([0o600, 0o400])),
            (0o100_000, both, Some([0o600, 0])),
            (0o106_200, read, Some([0o6_600, 0o6_200])),
            (0o040_300, read, Some([0o700, 0o300])),
            (0o100_600, both, None),
            (0o100_444, read, None),
            (0o100_000, LOOK, None),
            // A device is nobody's to change.
            (0o020_400, write, None),
        ] {
            assert_eq!(changed(mode, flags), is, "{mode:o} {flags:o}");
        }
    }
}

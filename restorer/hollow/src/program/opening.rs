//! Opening files whose permissions keep their owner from them.

use crate::run::descriptor_path;
use crate::sys::{EACCES, Outcome, call, nr};

/// `O_PATH` and `O_CLOEXEC`: a file is found once, and through no link.
pub(crate) const LOOK: u64 = 0o12_000_000;

/// Opens a file that was found so, which is closed. It has the first permissions meanwhile, and the second afterwards.
/// The kernel lets nobody but its owner change them.
pub(crate) fn own(found: u64, flags: u64, [meanwhile, after]: [u64; 2]) -> Outcome {
    /// Another process that opens the same file may take the permissions back in between.
    const ATTEMPTS: u32 = 100;
    let path = descriptor_path(found);
    let mut attempt = 0;
    let opened = loop {
        call!(nr::CHMOD, path.buffer.as_ptr(), meanwhile)?;
        let opened = call!(nr::OPENAT, 0, path.buffer.as_ptr(), flags);
        attempt += 1;
        if opened != Err(EACCES) || attempt == ATTEMPTS {
            break opened;
        }
    };
    call!(nr::CHMOD, path.buffer.as_ptr(), after)?;
    call!(nr::CLOSE, found)?;
    opened
}

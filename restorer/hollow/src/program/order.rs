//! The socket to the worker, and the order that comes by it.

use rekindle_restore_program::message::{self, HollowReport, OUTPUTS};
use rekindle_restore_program::{PROCESSES_MAX, window};

use crate::sys::{EINVAL, Errno, Outcome, call, nr};

/// The socket's number at the start.
const CONTROL: u64 = 3;
/// The number of `/dev/userfaultfd` at the start.
const DEVICE: u64 = 4;
/// Where descriptors are in an order: program, pages, outputs, templates.
const PROGRAM: usize = 0;
const PAGES: usize = 1;
const FIRST_OUTPUT: usize = 2;
const FIRST_TEMPLATE: usize = FIRST_OUTPUT + OUTPUTS;
const DESCRIPTORS_MAX: usize = FIRST_TEMPLATE + PROCESSES_MAX;

/// The kernel's `msghdr`.
#[repr(C)]
struct Message {
    name: u64,
    name_bytes: u32,
    parts: *mut [u64; 2],
    part_count: u64,
    control: *mut u8,
    control_bytes: u64,
    flags: u32,
}

/// The kernel's `cmsghdr`, and descriptors.
#[repr(C, align(8))]
struct Rights {
    bytes: u64,
    level_and_kind: u64,
    descriptors: [u32; DESCRIPTORS_MAX],
}

/// `SOL_SOCKET`, `SCM_RIGHTS`.
const SCM_RIGHTS: u64 = 1 | 1 << 32;
/// Bytes of a `cmsghdr`.
const HEAD: u64 = 16;

fn send(control: u64, report: HollowReport, descriptor: Option<u64>) -> Outcome {
    const NO_SIGNAL: u64 = 0x4000;
    let mut bytes = report.to_bytes();
    let mut part = [bytes.as_mut_ptr() as u64, bytes.len() as u64];
    let mut rights = Rights {
        bytes: HEAD + 4,
        level_and_kind: SCM_RIGHTS,
        descriptors: [descriptor.unwrap_or(0) as u32; DESCRIPTORS_MAX],
    };
    let message = Message {
        name: 0,
        name_bytes: 0,
        parts: &raw mut part,
        part_count: 1,
        control: (&raw mut rights).cast(),
        control_bytes: if descriptor.is_some() { HEAD + 8 } else { 0 },
        flags: 0,
    };
    call!(nr::SENDMSG, control, &raw const message, NO_SIGNAL)
}

/// Makes a userfaultfd of this memory, which becomes the function's, and sends it. Nothing is left of it here.
fn send_userfault(control: u64, device: u64, process: u32) -> Outcome {
    const NEW: u64 = 0xaa00;
    const CLOEXEC_NONBLOCK: u64 = 0o2_004_000;
    let userfault = call!(nr::IOCTL, device, NEW, CLOEXEC_NONBLOCK)?;
    send(control, HollowReport::Hollow(process), Some(userfault))?;
    call!(nr::CLOSE, userfault)
}

/// Sends the first process's userfaultfd, while nothing of a function is known.
pub(crate) fn introduce() -> Outcome {
    send_userfault(CONTROL, DEVICE, 0)
}

/// An order, with the numbers that its descriptors have here.
#[derive(Clone, Copy)]
pub(crate) struct Order {
    control: u64,
    device: u64,
    descriptors: [u64; DESCRIPTORS_MAX],
    count: usize,
    order: message::HollowOrder,
}

pub(crate) fn receive() -> Result<Order, Errno> {
    const TRUNCATED: u32 = 0x20 | 0x8;
    let mut bytes = [0; message::HollowOrder::BYTES];
    let mut part = [bytes.as_mut_ptr() as u64, bytes.len() as u64];
    let mut rights = Rights {
        bytes: 0,
        level_and_kind: 0,
        descriptors: [0; DESCRIPTORS_MAX],
    };
    let mut message = Message {
        name: 0,
        name_bytes: 0,
        parts: &raw mut part,
        part_count: 1,
        control: (&raw mut rights).cast(),
        control_bytes: size_of::<Rights>() as u64,
        flags: 0,
    };
    let received = call!(nr::RECVMSG, CONTROL, &raw mut message, 0)?;
    // SAFETY: plain numbers, which the kernel has written.
    let (bytes, rights, flags) = unsafe {
        (
            (&raw const bytes).read_volatile(),
            (&raw const rights).read_volatile(),
            (&raw const message.flags).read_volatile(),
        )
    };
    let count = (rights.bytes.saturating_sub(HEAD) / 4) as usize;
    let is_whole = received == bytes.len() as u64 && flags & TRUNCATED == 0 && rights.level_and_kind == SCM_RIGHTS;
    if !is_whole || !(FIRST_TEMPLATE..=DESCRIPTORS_MAX).contains(&count) {
        return Err(EINVAL);
    }
    Ok(Order {
        control: CONTROL,
        device: DEVICE,
        descriptors: rights.descriptors.map(u64::from),
        count,
        order: message::HollowOrder::from_bytes(bytes),
    })
}

impl Order {
    fn descriptor(&self, index: usize) -> Result<u64, Errno> {
        self.descriptors[..self.count].get(index).copied().ok_or(EINVAL)
    }

    pub(crate) fn pages(&self) -> u64 {
        self.descriptors[PAGES]
    }

    pub(crate) fn template(&self, index: u32) -> Result<u64, Errno> {
        self.descriptor(FIRST_TEMPLATE + index as usize)
    }

    pub(crate) fn output(&self, index: u64) -> Result<u64, Errno> {
        match index {
            0.. if index < OUTPUTS as u64 => self.descriptor(FIRST_OUTPUT + index as usize),
            _ => Err(EINVAL),
        }
    }

    pub(crate) fn residue(&self) -> u64 {
        self.order.residue
    }

    /// Sends the userfaultfd of a child.
    pub(crate) fn introduce(&self, process: u32) -> Outcome {
        send_userfault(self.control, self.device, process)
    }

    pub(crate) fn say(&self, report: HollowReport) -> Outcome {
        send(self.control, report, None)
    }

    /// Waits to be told to go on.
    pub(crate) fn wait(&self) -> Outcome {
        let mut byte = 0_u8;
        match call!(nr::RECVFROM, self.control, &raw mut byte, 1, 0, 0, 0)? {
            1 => Ok(0),
            _ => Err(EINVAL),
        }
    }

    /// Closes everything from `first` on but the socket: files, templates, `/dev/userfaultfd`.
    pub(crate) fn close_others(&self, first: u64) -> Outcome {
        if self.control > first {
            call!(nr::CLOSE_RANGE, first, self.control - 1, 0)?;
        }
        call!(nr::CLOSE_RANGE, self.control + 1, u32::MAX, 0)
    }

    pub(crate) fn close(&self) -> Outcome {
        call!(nr::CLOSE, self.control)
    }

    pub(crate) fn map(&self) -> Result<&'static [u8], Errno> {
        let bytes = self.order.bytes;
        if bytes > window::END - window::PROGRAM {
            return Err(EINVAL);
        }
        // Private, fixed and populated. Nothing else is there.
        call!(
            nr::MMAP,
            window::PROGRAM,
            bytes,
            1,
            0x8012,
            self.descriptors[PROGRAM],
            0
        )?;
        // SAFETY: it has just been mapped, and nothing changes it.
        Ok(unsafe { core::slice::from_raw_parts(window::PROGRAM as *const u8, bytes as usize) })
    }

    /// Moves all descriptors to numbers from `floor` on, and closes everything below.
    pub(crate) fn make_room(&mut self, floor: u64) -> Outcome {
        const DUPFD_CLOEXEC: u64 = 1030;
        let received = &mut self.descriptors[..self.count];
        for own in received.iter_mut().chain([&mut self.control, &mut self.device]) {
            *own = call!(nr::FCNTL, *own, DUPFD_CLOEXEC, floor)?;
        }
        match floor {
            0 => Ok(0),
            _ => call!(nr::CLOSE_RANGE, 0, floor - 1, 0),
        }
    }
}

//! The message that a hollow process waits for.

use restore_program::window;

use crate::sys::{EINVAL, Errno, Outcome, call, nr};

/// The descriptor of the control socket at the start.
const CONTROL: u64 = 3;
/// Maximum number of descriptors: program, pages, report, template, and outputs.
const DESCRIPTORS_MAX: usize = 8;
/// Descriptors before the outputs.
const FIRST_OUTPUT: usize = 4;

/// The descriptor of `/dev/userfaultfd` at the start.
const DEVICE: u64 = 4;

/// Makes a userfaultfd of this memory, which becomes the function's, and sends it with the process's id (0 for the
/// first). Nothing is left of it here.
fn send_userfault(control: u64, device: u64, process: u32) -> Outcome {
    const NEW: u64 = 0xaa00;
    const CLOEXEC_NONBLOCK: u64 = 0o2_004_000;
    let userfault = call!(nr::IOCTL, device, NEW, CLOEXEC_NONBLOCK)?;
    let mut process = process;
    let mut part = [&raw mut process as u64, 4];
    // SOL_SOCKET, SCM_RIGHTS.
    let mut rights = [20, 1 | 1 << 32, userfault];
    let message = Message {
        name: 0,
        name_bytes: 0,
        parts: &raw mut part,
        part_count: 1,
        control: rights.as_mut_ptr().cast(),
        control_bytes: size_of_val(&rights) as u64,
        flags: 0,
    };
    call!(nr::SENDMSG, control, &raw const message, 0)?;
    call!(nr::CLOSE, userfault)
}

/// Sends the first process's userfaultfd, while nothing of a function is known.
pub(crate) fn introduce() -> Outcome {
    send_userfault(CONTROL, DEVICE, 0)
}

/// The descriptors of an order.
#[derive(Clone, Copy)]
pub(crate) struct Order {
    pub(crate) control: u64,
    device: u64,
    descriptors: [u64; DESCRIPTORS_MAX],
    count: usize,
    order: restore_program::Order,
}

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

#[repr(C, align(8))]
struct Rights([u8; 16 + 4 * DESCRIPTORS_MAX]);

/// Waits for an order: where and how large things are, and the descriptors.
pub(crate) fn receive() -> Result<Order, Errno> {
    let mut order = restore_program::Order::default();
    let bytes = size_of_val(&order) as u64;
    let mut part = [&raw mut order as u64, bytes];
    let mut rights = Rights([0; 16 + 4 * DESCRIPTORS_MAX]);
    let mut message = Message {
        name: 0,
        name_bytes: 0,
        parts: &raw mut part,
        part_count: 1,
        control: rights.0.as_mut_ptr(),
        control_bytes: rights.0.len() as u64,
        flags: 0,
    };
    if call!(nr::RECVMSG, CONTROL, &raw mut message, 0)? != bytes {
        return Err(EINVAL);
    }
    // SAFETY: the kernel has written the message and the rights, whose layouts are its own.
    let (length, order) = unsafe {
        (
            rights.0.as_ptr().cast::<u64>().read(),
            (&raw const order).read_volatile(),
        )
    };
    let count = (length.saturating_sub(16) / 4) as usize;
    if !(FIRST_OUTPUT..=DESCRIPTORS_MAX).contains(&count) {
        return Err(EINVAL);
    }
    let mut descriptors = [0; DESCRIPTORS_MAX];
    for (at, descriptor) in descriptors.iter_mut().take(count).enumerate() {
        // SAFETY: within the array, aligned to 4.
        *descriptor = u64::from(unsafe { rights.0.as_ptr().add(16 + 4 * at).cast::<u32>().read() });
    }
    Ok(Order {
        control: CONTROL,
        device: DEVICE,
        descriptors,
        count,
        order,
    })
}

impl Order {
    pub(crate) fn pages(&self) -> u64 {
        self.descriptors[1]
    }

    /// Sends the userfaultfd of a child.
    pub(crate) fn introduce(&self, process: u32) -> Outcome {
        send_userfault(self.control, self.device, process)
    }

    pub(crate) fn residue(&self) -> u64 {
        self.order.residue
    }

    pub(crate) fn template(&self) -> u64 {
        self.descriptors[3]
    }

    pub(crate) fn output(&self, index: u64) -> Result<u64, Errno> {
        let outputs = self.descriptors.get(FIRST_OUTPUT..self.count).unwrap_or_default();
        outputs.get(index as usize).copied().ok_or(EINVAL)
    }

    /// Maps the program and the page for reports.
    pub(crate) fn map(&self) -> Result<&'static [u8], Errno> {
        if self.order.bytes > window::END - window::PROGRAM {
            return Err(EINVAL);
        }
        // Fixed and populated, as nothing else is there: private and read-only, shared.
        call!(
            nr::MMAP,
            window::PROGRAM,
            self.order.bytes,
            1,
            0x8012,
            self.descriptors[0],
            0
        )?;
        call!(nr::MMAP, window::REPORT, 4096, 3, 0x8011, self.descriptors[2], 0)?;
        // SAFETY: it has just been mapped, and nothing changes it.
        Ok(unsafe { core::slice::from_raw_parts(window::PROGRAM as *const u8, self.order.bytes as usize) })
    }

    /// Moves all descriptors to numbers from `floor` on, and closes everything below.
    pub(crate) fn make_room(&mut self, floor: u64) -> Outcome {
        const DUPFD_CLOEXEC: u64 = 1030;
        for descriptor in &mut self.descriptors[..self.count] {
            *descriptor = call!(nr::FCNTL, *descriptor, DUPFD_CLOEXEC, floor)?;
        }
        for own in [&mut self.control, &mut self.device] {
            *own = call!(nr::FCNTL, *own, DUPFD_CLOEXEC, floor)?;
        }
        match floor {
            0 => Ok(0),
            _ => call!(nr::CLOSE_RANGE, 0, floor - 1, 0),
        }
    }
}

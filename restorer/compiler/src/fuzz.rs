//! The compiler and the printer as functions of bytes. Used by the fuzz targets in `fuzz/`, and by this crate's tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rekindle_restore_program::{PAGE, Program};
use rekindle_verify::Verified;
use rekindle_verify::messages::FileEntry;

use crate::print::Printed;
use crate::{Compiled, CompilerInput, Host, MemoryRuns, PageRun, Refusal, compile, other_names};

/// The output pipe of the images in an input.
const OUTPUT: u32 = 55;
/// CRIU's status of a mapping of a memory file.
const MEMFD: u32 = 1 << 14;

/// A host whose vdso is that of the images in an input: two pages of zeros.
fn host() -> Host {
    let mut components = [(0, 0); crate::host::COMPONENTS];
    components[2] = (576, 256);
    Host {
        vdso_offset: 0,
        own_bytes: 2 * PAGE,
        vdso: vec![0; 2 * PAGE as usize],
        features: 7,
        components,
    }
}

/// Compiles images on this host. Their vdso and the first page of their memory are read at each restore.
pub(crate) fn compiled(images: &Verified) -> Result<Compiled, Refusal> {
    compiled_with(images, &[], &BTreeSet::new())
}

/// The same, with processes that map templates, where files have these names.
pub(crate) fn compiled_with(
    images: &Verified,
    template: &[PageRun],
    taken: &BTreeSet<Vec<u8>>,
) -> Result<Compiled, Refusal> {
    let run = |first, pages, at| PageRun {
        first,
        pages,
        file: 0,
        at,
    };
    let memory = MemoryRuns {
        template: template.to_vec(),
        eager: vec![run(0x420, 1, 0), run(0x7_ffe0_0000, 2, 1)],
    };
    compile(CompilerInput {
        images,
        memory: &vec![memory; images.processes.len()],
        pages: &vec![0; 3 * PAGE as usize],
        shared: &BTreeMap::from([
            (7, vec![run(0, 1, 0)]),
            (9, vec![run(1, 1, 1)]),
            (10, vec![run(0, 1, 2)]),
        ]),
        outputs: &BTreeMap::from([(OUTPUT, 0)]),
        connected: &BTreeSet::new(),
        other_names: &other_names(images, taken),
        host: &host(),
    })
}

/// Takes away what is refused as a whole, so that damage to the rest gets further than that.
pub(crate) fn reduced(mut images: Verified) -> Verified {
    images.processes.truncate(1);
    images.locks.clear();
    images.ghosts.clear();
    images.remaps.clear();
    images.memory_files.clear();
    let packets = images.queues.values_mut().flatten();
    packets.for_each(|packet| packet.has_files = false);
    for file in images.files.values_mut() {
        let inet = file.isk.as_deref_mut().map(|socket| &mut socket.opts);
        let unix = file.usk.as_deref_mut().map(|socket| &mut socket.opts);
        inet.into_iter()
            .chain(unix)
            .for_each(|options| options.so_buf_lock = Some(0));
    }
    let files = &images.files;
    let is_compiled = |file: &FileEntry| {
        let is_output = file.pipe.as_ref().is_some_and(|pipe| pipe.pipe_id == OUTPUT);
        let is_pair = file.usk.as_ref().is_some_and(|socket| socket.name.is_empty());
        let is_plain = file.isk.is_some() || file.efd.is_some() || file.epfd.is_some() || file.reg.is_some();
        is_output || is_pair || is_plain
    };
    for process in &mut images.processes {
        let descriptors = Arc::make_mut(&mut process.descriptors);
        descriptors.retain(|_, descriptor| files.get(&descriptor.id).is_some_and(is_compiled));
        if let Some(mm) = &mut process.memory {
            mm.vmas.retain(|vma| vma.status & MEMFD == 0);
        }
    }
    images
}

/// Compiles an input, a directory of images as in [`rekindle_verify::fuzz`]. Returns whether it can be compiled; then
/// the program is read again and printed.
///
/// # Panics
/// If it is no program.
#[must_use]
pub fn compile_images(bytes: &[u8]) -> bool {
    let Some(images) = rekindle_verify::fuzz::verified(bytes) else {
        return false;
    };
    // All processes with all they have, which is refused more often, and then what gets further.
    let whole = compiled(&images).is_ok_and(|whole| is_program(&whole.program));
    let reduced = compiled(&reduced(images)).is_ok_and(|reduced| is_program(&reduced.program));
    whole || reduced
}

/// Reads and prints what was compiled.
fn is_program(compiled: &[u8]) -> bool {
    assert!(Program::parse(compiled).is_ok());
    read(compiled)
}

/// Reads and prints a program.
#[must_use]
pub fn read(bytes: &[u8]) -> bool {
    Printed::parse(bytes).is_ok_and(|program| !program.to_string().is_empty())
}

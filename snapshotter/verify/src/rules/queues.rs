//! Data in flight: bytes in pipes, and packets in sockets with the files that they carry.

use std::collections::{BTreeMap, BTreeSet};

use super::files::OpenFiles;
use super::{Context, paths};
use crate::error::VerifyError;
use crate::frames::{Reader, magic};
use crate::messages::{PipeData, QueuedPacket};
use crate::verified::{OpenedPath, Packet, PipeContent};

/// Maximum size of a pipe without a capability, in bytes.
const PIPE_BYTES_MAX: u32 = 1 << 20;
/// Maximum number of files in one message: the kernel's limit.
const RIGHTS_MAX: usize = 253;
const SCM_RIGHTS: u32 = 1;

/// Packets by the socket that has not read them.
type Queues = BTreeMap<u32, Vec<Packet>>;

/// What is in pipes and in named pipes, by their numbers.
type PipeContents = BTreeMap<u32, PipeContent>;

/// The contents of pipes, and of named ones.
pub(super) fn check_pipes(
    context: Context<'_>,
    files: &OpenFiles,
) -> Result<(PipeContents, PipeContents), VerifyError> {
    let entries = files.entries.values();
    let pipes: BTreeSet<u32> = entries.clone().filter_map(|e| Some(e.pipe.as_ref()?.pipe_id)).collect();
    let named: BTreeSet<u32> = entries.filter_map(|e| Some(e.fifo.as_ref()?.pipe_id)).collect();
    Ok((
        check_contents(context, "pipes-data.img", magic::PIPES_DATA, &pipes)?,
        check_contents(context, "fifo-data.img", magic::FIFO_DATA, &named)?,
    ))
}

fn check_contents(
    context: Context<'_>,
    name: &str,
    kind: u32,
    known: &BTreeSet<u32>,
) -> Result<PipeContents, VerifyError> {
    let mut contents = BTreeMap::new();
    let Some(mut reader) = Reader::open(context.images, name, kind)? else {
        return Ok(contents);
    };
    while let Some((at, PipeData { pipe_id, bytes, size })) = reader.next::<PipeData>()? {
        at.hold(known.contains(&pipe_id), "pipe_id", pipe_id)?;
        let room = size.unwrap_or(PIPE_BYTES_MAX);
        at.hold(room <= PIPE_BYTES_MAX, "size", size)?;
        at.hold(bytes <= room, "bytes", bytes)?;
        let bytes = reader.data(bytes.into())?.to_vec();
        let content = PipeContent { room: size, bytes };
        at.hold(contents.insert(pipe_id, content).is_none(), "pipe_id", pipe_id)?;
    }
    Ok(contents)
}

/// The contents of sockets.
pub(super) fn check_packets(
    context: Context<'_>,
    files: &OpenFiles,
    opened: &mut BTreeSet<OpenedPath>,
) -> Result<Queues, VerifyError> {
    let mut queues = Queues::new();
    let Some(mut reader) = Reader::open(context.images, "sk-queues.img", magic::SOCKET_QUEUES)? else {
        return Ok(queues);
    };
    while let Some((at, packet)) = reader.next::<QueuedPacket>()? {
        let QueuedPacket { id_for, length, scm } = packet;
        let socket = files.entries.get(&id_for).is_some_and(|entry| entry.usk.is_some());
        at.hold(socket, "id_for", id_for)?;
        at.hold(scm.len() <= 1, "scm", scm.len())?;
        for control in &scm {
            at.hold(control.kind == SCM_RIGHTS, "scm.type", control.kind)?;
            at.hold(control.rights.len() <= RIGHTS_MAX, "scm.rights", control.rights.len())?;
            for id in &control.rights {
                let file = files.entries.get(id);
                let usable = file.is_some_and(|f| f.reg.is_none() || files.regular(*id).is_some());
                at.hold(usable, "scm.rights", id)?;
                // Whoever opens it again may be another process.
                if let Some(file) = files
                    .regular(*id)
                    .filter(|file| paths::shown_process(&file.name).is_some())
                {
                    return Err(at.refuse_of_kernel(&file.name));
                }
                files.note_opened(*id, opened);
            }
        }
        let packet = Packet {
            bytes: reader.data(length.into())?.to_vec(),
            has_files: !scm.is_empty(),
        };
        queues.entry(id_for).or_default().push(packet);
    }
    Ok(queues)
}

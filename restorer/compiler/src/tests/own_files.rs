//! Files of `/proc` about the process that has them open.

use super::*;

const NAME: &[u8] = b"/proc/501/statm";

/// Opens such a file in the first process, at two numbers.
fn open_own(images: &mut Verified) {
    open(images, 5);
    let descriptors = Arc::make_mut(&mut images.processes[0].descriptors);
    let first = descriptors.values().find(|d| d.id == 5).unwrap().clone();
    let again = Descriptor { fd: 40, ..first };
    descriptors.insert(40, again);
    let file = images.files.get_mut(&5).unwrap().reg.as_mut().unwrap();
    (file.name, file.flags, file.mode, file.pos) = (NAME.to_vec(), 0o100_000, Some(0o100_444), 7);
}

/// Where each process opens it, and with which numbers.
fn opened(images: &Verified) -> Vec<(usize, u32, u64)> {
    let compiled = compiled(images).unwrap();
    let first = Program::parse(&compiled.program).unwrap();
    let mut found = Vec::new();
    for number in 0..images.processes.len() {
        let program = first.of(number as u32).unwrap();
        let ops: Vec<_> = program.ops().collect();
        for pair in ops.windows(2) {
            let is_open = pair[0].code == Code::Open as u32;
            let name = is_open.then(|| program.part(pair[0].args[0], pair[0].args[1]).unwrap());
            if name.is_some_and(|name| name.starts_with(NAME)) {
                assert_eq!(pair[1].code, Code::Keep as u32);
                let wait = ops.iter().position(|op| op.code == Code::Child as u32);
                let at = ops.iter().position(|op| op.args == pair[0].args).unwrap();
                assert!(wait.is_none_or(|wait| wait < at), "its children would have it");
                found.push((number, pair[1].a, pair[1].args[0]));
            }
        }
    }
    found
}

#[test]
fn a_process_opens_its_own_files_itself() {
    let mut images = good();
    open_own(&mut images);
    let number = images.processes[0].descriptors.values().find(|d| d.id == 5).unwrap().fd;
    assert_eq!(opened(&images), [(0, number, 7)]);
    // Of several, that one opens it, after it has made the others.
    let mut child = images.processes[0].clone();
    (child.tree.pid, child.tree.ppid, child.tree.pgid) = (504, 501, 504);
    child.tree.sid = 504;
    child.threads.truncate(1);
    child.threads[0].tid = 504;
    let ids = child.ids.as_mut().unwrap();
    (ids.vm_id, ids.files_id, ids.fs_id, ids.sighand_id) = (90, 90, 90, 90);
    Arc::make_mut(&mut child.descriptors).retain(|_, descriptor| descriptor.id != 5);
    images.processes.push(child);
    assert_eq!(opened(&images), [(0, number, 7)]);
}

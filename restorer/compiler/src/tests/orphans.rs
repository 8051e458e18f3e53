//! Processes that have outlived their parents, in sessions and groups whose leaders are gone.

use super::*;

/// Good images with more processes: id, parent, session, group.
fn with(more: &[[u32; 4]], adopts: bool) -> Verified {
    let mut images = good();
    task(&mut images).child_subreaper = Some(adopts);
    for (number, [pid, parent, session, group]) in (90..).zip(more) {
        let mut process = images.processes[0].clone();
        (process.tree.pid, process.tree.ppid) = (*pid, *parent);
        (process.tree.sid, process.tree.pgid) = (*session, *group);
        process.threads.truncate(1);
        process.threads[0].tid = *pid;
        process.threads[0].core.tc.as_mut().unwrap().child_subreaper = None;
        let ids = process.ids.as_mut().unwrap();
        (ids.vm_id, ids.files_id, ids.fs_id, ids.sighand_id) = (number, number, number, number);
        images.processes.push(process);
    }
    images
}

/// The leader that is gone, the numbers of its children, and whether it leads a session, by operation.
fn orphans(images: &Verified) -> Vec<(u32, Vec<u32>, bool)> {
    let compiled = compiled(images).unwrap();
    let program = Program::parse(&compiled.program).unwrap();
    let ops = program.ops().filter(|op| op.code == Code::Orphans as u32);
    let read = |op: Op| {
        let numbers = program.part(op.args[0], op.args[1] * 4).unwrap();
        let (numbers, _) = numbers.as_chunks();
        (
            op.a,
            numbers.iter().map(|number| u32::from_le_bytes(*number)).collect(),
            op.args[2] != 0,
        )
    };
    ops.map(read).collect()
}

#[test]
fn a_process_with_the_id_of_a_leader_that_is_gone_makes_those_that_it_led() {
    let images = with(
        &[
            [504, 501, 503, 503],
            [505, 504, 503, 503],
            [506, 501, 503, 506],
            [508, 501, 501, 507],
            [509, 501, 509, 509],
        ],
        true,
    );
    assert_eq!(orphans(&images), [(503, vec![1, 3], true), (507, vec![4], false)]);
    let first = codes(&images);
    let at = |code| first.iter().position(|found| *found == code).unwrap();
    assert!(
        [Code::Control, Code::Child, Code::Orphans, Code::Clear]
            .map(at)
            .is_sorted()
    );
    let compiled = compiled(&images).unwrap();
    let of = |number, code: Code| {
        let program = Program::parse(&compiled.program).unwrap().of(number).unwrap();
        program.ops().filter(|op| op.code == code as u32).count()
    };
    // A group of its own in that session, and none in the leader's.
    assert_eq!((of(1, Code::Group), of(3, Code::Group)), (0, 1));
    assert_eq!((of(1, Code::Child), of(5, Code::Session)), (1, 1));
}

#[test]
fn they_are_refused_below_a_process_that_adopts_none_and_in_a_group_of_others() {
    let strange = "has a session or group that is neither its own nor its parent's";
    let refused = |images: Verified| compiled(&images).unwrap_err().to_string();
    let told = refused(with(&[[504, 501, 503, 503]], false));
    assert!(told.ends_with(strange), "{told}");
    let told = refused(with(&[[504, 501, 504, 504], [505, 501, 503, 504]], true));
    assert!(told.ends_with(strange), "{told}");
}

#[test]
fn a_timer_of_processor_time_is_made_for_a_thread_of_its_own() {
    let of = |clock| {
        let mut images = good();
        posix(&mut images).push(PosixTimer {
            clock_id: clock,
            ..PosixTimer::default()
        });
        compiled(&images).is_ok()
    };
    // As the C library numbers them: the inverted id, three bits, of which 2 is the scheduler's clock and 4 a thread's.
    let clock = |id: u32, kind: u32| !id << 3 | kind;
    assert!(of(clock(502, 6)) && of(clock(501, 2)) && of(clock(0, 2)));
    assert!(!of(clock(700, 6)) && !of(clock(502, 7)) && !of(clock(0, 6)));
}

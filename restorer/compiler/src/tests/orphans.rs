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

/// What the first process makes through others that end.
fn orphans(images: &Verified) -> Vec<(u32, Vec<u32>, u64)> {
    orphans_of(images, 0)
}

/// The process that ends, the numbers of those that it makes, and what it leads, by operation.
fn orphans_of(images: &Verified, number: u32) -> Vec<(u32, Vec<u32>, u64)> {
    let compiled = compiled(images).unwrap();
    let program = Program::parse(&compiled.program).unwrap().of(number).unwrap();
    let ops = program.ops().filter(|op| op.code == Code::Orphans as u32);
    let read = |op: Op| {
        let numbers = program.part(op.args[0], op.args[1] * 4).unwrap();
        let (numbers, _) = numbers.as_chunks();
        (
            op.a,
            numbers.iter().map(|number| u32::from_le_bytes(*number)).collect(),
            op.args[2],
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
    assert_eq!(orphans(&images), [(503, vec![1, 3], 1), (507, vec![4], 0)]);
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
fn the_living_leader_of_a_session_makes_those_that_have_lost_their_parent() {
    // The program, its orphans in its group, a group of their own and one whose leader is gone, and a child of one.
    let images = with(
        &[
            [502, 501, 502, 502],
            [504, 501, 502, 502],
            [505, 501, 502, 505],
            [506, 501, 502, 503],
            [507, 504, 502, 502],
            [508, 502, 502, 502],
        ],
        true,
    );
    assert_eq!(orphans(&images), []);
    // The second id that nothing has, for the second process.
    assert_eq!(orphans_of(&images, 1), [(503, vec![4], 0), (510, vec![2, 3], 2)]);
    let compiled = compiled(&images).unwrap();
    let of = |number, code: Code| {
        let program = Program::parse(&compiled.program).unwrap().of(number).unwrap();
        program.ops().filter(|op| op.code == code as u32).count()
    };
    assert_eq!([0, 1, 2, 3].map(|number| of(number, Code::Child)), [1, 1, 1, 0]);
    assert_eq!([1, 2, 3].map(|number| of(number, Code::Group)), [0, 0, 1]);
}

#[test]
fn a_leader_that_the_orphans_of_do_not_reach_their_parent_makes_none() {
    let strange = "has a session or group that is neither its own nor its parent's";
    let refused = |more: &[[u32; 4]], adopts| {
        let told = compiled(&with(more, adopts)).unwrap_err().to_string();
        assert!(told.ends_with(strange), "{told}");
    };
    let simple = [[502, 501, 502, 502], [504, 501, 502, 502]];
    assert!(compiled(&with(&simple, true)).is_ok());
    refused(&simple, false);
    // The group of a living process that does not lead the session.
    refused(&[simple[0], [503, 502, 502, 503], [504, 501, 502, 503]], true);
    // One that adopts is between.
    let mut images = with(&[simple[0], [503, 502, 503, 503], [504, 501, 503, 503]], true);
    assert!(compiled(&images).is_ok());
    let core = images.processes[1].threads[0].core.tc.as_mut().unwrap();
    core.child_subreaper = Some(true);
    assert!(compiled(&images).unwrap_err().to_string().ends_with(strange));
    // Each would be made by a child of the other.
    let circle = [
        [502, 501, 505, 502],
        [503, 501, 504, 503],
        [504, 502, 504, 504],
        [505, 503, 505, 505],
    ];
    refused(&circle, true);
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

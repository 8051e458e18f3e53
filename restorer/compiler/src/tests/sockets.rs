//! UNIX sockets: names, connections through them, what was not read, and ways that were shut.

use super::*;

/// The number and the file of a socket with a name.
const NAMED: (u32, u32) = (5, 9);

/// What is done with sockets: the code, the number, and the arguments that say something.
fn done(images: &Verified) -> Vec<(Code, u32, Vec<u64>)> {
    let compiled = compiled(images).unwrap();
    let program = Program::parse(&compiled.program).unwrap();
    let ops = program.ops().map(|op| (Code::of(op.code).unwrap(), op.a, op.args));
    let told = ops.filter_map(|(code, a, args)| match code {
        Code::Socket | Code::SocketPair | Code::Connect | Code::Bind | Code::Unlink => Some((code, a, vec![])),
        Code::Send => Some((code, a, vec![args[1]])),
        Code::Shutdown | Code::Accept | Code::Listen => Some((code, a, vec![args[0]])),
        _ => None,
    });
    told.filter(|(_, a, _)| *a != INET).collect()
}

/// Images with a listening socket, and with a pair whose second end has its name.
fn connected() -> Verified {
    let mut images = good();
    images.queues.clear();
    open(&mut images, NAMED.1);
    let name = {
        let listening = images.files.get_mut(&NAMED.1).unwrap().usk.as_mut().unwrap();
        (listening.state, listening.backlog) = (10, 1);
        listening.name.clone()
    };
    let end = file(&mut images, PAIR + 1).usk.as_mut().unwrap();
    end.name = name;
    for number in [PAIR, PAIR + 1] {
        file(&mut images, number).usk.as_mut().unwrap().state = 1;
    }
    images
}

#[test]
fn a_pair_of_sockets_may_have_lost_an_end() {
    let mut images = good();
    images.queues.clear();
    let socket = file(&mut images, PAIR).usk.as_mut().unwrap();
    (socket.peer, socket.state, socket.shutdown) = (0, 1, Some(3));
    Arc::make_mut(&mut images.processes[0].descriptors).remove(&(PAIR + 1));
    let program = compiled(&images).unwrap().program;
    let program = Program::parse(&program).unwrap();
    let pair = program.ops().find(|op| op.code == Code::SocketPair as u32).unwrap();
    assert_eq!((pair.a, pair.args[0]), (PAIR, u64::from(CLOSED)));
}

#[test]
fn what_was_not_read_is_sent_again_and_ways_are_shut_afterwards() {
    let mut images = good();
    images.queues = everything().queues;
    images
        .queues
        .values_mut()
        .flatten()
        .for_each(|packet| packet.has_files = false);
    unix(&mut images).backlog = 1;
    unix(&mut images).shutdown = Some(1);
    let other = file(&mut images, PAIR + 1).usk.as_mut().unwrap();
    other.shutdown = Some(2);
    assert_eq!(
        done(&images),
        [
            (Code::SocketPair, PAIR, vec![]),
            (Code::Send, PAIR + 1, vec![1]),
            (Code::Shutdown, PAIR, vec![0]),
            (Code::Shutdown, PAIR + 1, vec![1]),
        ]
    );
    // From an end that is closed by then.
    let socket = unix(&mut images);
    (socket.peer, socket.state, socket.shutdown) = (0, 1, Some(3));
    Arc::make_mut(&mut images.processes[0].descriptors).remove(&(PAIR + 1));
    let codes = done(&images);
    assert_eq!(codes.len(), 2, "{codes:?}");
    assert_eq!((codes[0].0, codes[1].0), (Code::SocketPair, Code::Send));
}

#[test]
fn connections_are_made_through_the_socket_that_accepted_them() {
    let mut images = connected();
    let through = [
        (Code::Socket, NAMED.0, vec![]),
        (Code::Bind, NAMED.0, vec![]),
        (Code::Listen, NAMED.0, vec![1]),
        (Code::Socket, PAIR, vec![]),
        (Code::Connect, PAIR, vec![]),
        (Code::Accept, PAIR + 1, vec![NAMED.0.into()]),
    ];
    assert_eq!(done(&images), through);
    // The name was removed.
    for file in images.files.values_mut() {
        if let Some(socket) = file.usk.as_mut().filter(|socket| !socket.name.is_empty()) {
            socket.deleted = Some(true);
        }
    }
    assert_eq!(done(&images)[..6], through);
    assert_eq!(done(&images)[6].0, Code::Unlink);
    // Nobody listens at it any more.
    Arc::make_mut(&mut images.processes[0].descriptors).remove(&NAMED.0);
    assert_eq!(done(&images), [(Code::SocketPair, PAIR, vec![])]);
}

#[test]
fn connections_whose_listening_socket_is_closed_are_made_through_another_that_comes_first() {
    let mut images = connected();
    let [descriptor, file] = [NAMED.0, NAMED.1];
    Arc::make_mut(&mut images.processes[0].descriptors).remove(&descriptor);
    let listening = images.files.remove(&file).unwrap();
    let [socket, end] = {
        let codes = done(&images);
        let spare = codes[0].1;
        let through = [
            (Code::Socket, spare, vec![]),
            (Code::Bind, spare, vec![]),
            (Code::Listen, spare, vec![1]),
            (Code::Socket, PAIR, vec![]),
            (Code::Connect, PAIR, vec![]),
            (Code::Accept, PAIR + 1, vec![spare.into()]),
        ];
        assert_eq!(codes, through);
        [spare, PAIR + 1]
    };
    assert!(socket > end, "a number that no descriptor has");
    // Its name was removed, and another listens at it by now.
    super::file(&mut images, PAIR + 1).usk.as_mut().unwrap().deleted = Some(true);
    images.files.insert(file, listening);
    open(&mut images, file);
    let codes = done(&images);
    let at = |wanted: (Code, u32)| codes.iter().position(|(code, number, _)| (*code, *number) == wanted);
    let [accepted, removed, bound] = [(Code::Accept, end), (Code::Unlink, 0), (Code::Bind, descriptor)].map(at);
    assert!(accepted.is_some() && accepted < removed && removed < bound, "{codes:?}");
    // Its user may not connect to it.
    images.files.remove(&file);
    Arc::make_mut(&mut images.processes[0].descriptors).remove(&descriptor);
    let socket = super::file(&mut images, PAIR + 1).usk.as_mut().unwrap();
    socket.deleted = None;
    socket.file_perms.get_or_insert_default().mode = 0o140_000;
    assert!(done(&images).contains(&(Code::SocketPair, PAIR, vec![])));
}

#[test]
fn relative_names_are_bound_and_connected_to_in_their_directory() {
    let mut images = connected();
    for file in images.files.values_mut() {
        if let Some(socket) = file.usk.as_mut().filter(|socket| !socket.name.is_empty()) {
            (socket.name, socket.name_dir) = (b"./near\0".to_vec(), Some(b"/tmp/dir".to_vec()));
        }
    }
    let compiled = compiled(&images).unwrap();
    let program = Program::parse(&compiled.program).unwrap();
    let ops: Vec<_> = program.ops().map(|op| (Code::of(op.code).unwrap(), op)).collect();
    let named = std::iter::zip(&ops, &ops[1..]).filter(|(_, (code, op))| {
        let text = program.part(op.args[0], op.args[1]);
        matches!(code, Code::Bind | Code::Connect) && text == Ok(b"\x01\0./near\0")
    });
    let directories: Vec<_> = named
        .map(|((code, op), _)| (*code, program.part(op.args[0], op.args[1]).unwrap()))
        .collect();
    assert_eq!(directories, [(Code::Directory, b"/tmp/dir\0".as_slice()); 2]);
    assert_eq!(ops.iter().filter(|(code, _)| *code == Code::Accept).count(), 1);
}

#[test]
fn connections_that_wait_are_made_as_long_as_there_is_room() {
    let mut images = connected();
    let listening = images.files[&NAMED.1].usk.as_ref().unwrap().ino;
    for number in [PAIR, PAIR + 1] {
        let socket = file(&mut images, number).usk.as_mut().unwrap();
        (socket.peer, socket.name) = (listening, Vec::new());
    }
    assert_eq!(
        done(&images)[3..],
        [
            (Code::Socket, PAIR, vec![]),
            (Code::Connect, PAIR, vec![]),
            (Code::Socket, PAIR + 1, vec![]),
            (Code::Connect, PAIR + 1, vec![]),
        ]
    );
    images.files.get_mut(&NAMED.1).unwrap().usk.as_mut().unwrap().backlog = 0;
    let refusal = compiled(&images).unwrap_err().to_string();
    assert_eq!(
        refusal,
        "descriptor 7 is a unix socket that no listening one has room for"
    );
}

#[test]
fn datagrams_are_sent_to_names_and_connected_afterwards() {
    let mut images = connected();
    let socket = |images: &mut Verified, id| {
        let socket = images.files.get_mut(&id).unwrap().usk.as_mut().unwrap();
        (socket.kind, socket.state, socket.backlog) = (2, 1, 0);
        socket.peer = 0;
        socket.ino
    };
    let to = socket(&mut images, NAMED.1);
    let id = images.processes[0].descriptors[&PAIR].id;
    socket(&mut images, id);
    unix(&mut images).peer = to;
    Arc::make_mut(&mut images.processes[0].descriptors).remove(&(PAIR + 1));
    let packet = everything().queues.into_values().next().unwrap().remove(0);
    let packet = rekindle_verify::Packet {
        has_files: false,
        ..packet
    };
    images.queues.insert(NAMED.1, vec![packet]);
    let codes: Vec<_> = done(&images).into_iter().map(|(code, ..)| code).collect();
    use Code::{Bind, Connect, Send, Socket};
    assert_eq!(codes, [Socket, Bind, Socket, Socket, Connect, Send, Connect]);
    // A name that is gone cannot be connected to.
    images.files.get_mut(&NAMED.1).unwrap().usk.as_mut().unwrap().deleted = Some(true);
    assert!(compiled(&images).is_err());
}

#[test]
fn unix_sockets_with_a_name_are_bound() {
    let mut images = good();
    images.queues.clear();
    open(&mut images, 9);
    let socket = |images: &mut Verified| images.files.get_mut(&9).unwrap().usk.take().unwrap();
    let listening = UnixSocket {
        state: 10,
        backlog: 7,
        ..*socket(&mut images)
    };
    let mut with = |socket: UnixSocket| {
        images.files.get_mut(&9).unwrap().usk = Some(Box::new(socket));
        compiled(&images).map_err(|e| e.to_string())
    };
    let made = with(listening.clone()).unwrap().program;
    let program = Program::parse(&made).unwrap();
    let ops: Vec<_> = program.ops().filter(|op| op.a == 5).collect();
    let bind = ops.iter().find(|op| op.code == Code::Bind as u32).unwrap();
    assert_eq!(
        program.part(bind.args[0], bind.args[1]).unwrap(),
        b"\x01\0/tmp/socket\0"
    );
    assert!(ops.iter().any(|op| (op.code, op.args[0]) == (Code::Listen as u32, 7)));
    type Change = fn(&mut UnixSocket);
    let refused: [Change; 4] = [
        |socket| socket.name = b"relative\0".to_vec(),
        |socket| socket.name.clear(),
        |socket| socket.state = 1,
        |socket| (socket.state, socket.backlog) = (7, 1),
    ];
    for change in refused {
        let mut socket = listening.clone();
        change(&mut socket);
        assert!(with(socket).unwrap_err().starts_with("descriptor 5 is a"));
    }
}

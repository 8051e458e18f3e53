use super::message::{HollowOrder, HollowReport};
use super::*;

/// Bytes of the program.
const SIZE: usize = Header::BYTES + Process::BYTES + Op::BYTES;

/// A program of one process with one operation and no thread.
fn program() -> [u8; SIZE] {
    let process = Process {
        ops: Span {
            at: (Header::BYTES + Process::BYTES) as u32,
            count: 1,
        },
        threads: Span {
            at: SIZE as u32,
            count: 0,
        },
    };
    let header = Header {
        magic: MAGIC,
        version: VERSION,
        processes: Span {
            at: Header::BYTES as u32,
            count: 1,
        },
        size: SIZE as u32,
        descriptors_end: 4,
        shared_end: 4,
    };
    let op = Op {
        code: Code::Advise as u32,
        a: 7,
        args: [1, 2, 3, 4, u64::MAX],
    };
    let mut bytes = [0; SIZE];
    bytes[..Header::BYTES].copy_from_slice(&header.to_bytes());
    bytes[Header::BYTES..][..Process::BYTES].copy_from_slice(&process.to_bytes());
    bytes[SIZE - Op::BYTES..].copy_from_slice(&op.to_bytes());
    bytes
}

#[test]
fn a_program_is_read_as_it_was_written() {
    let bytes = program();
    let program = Program::parse(&bytes).unwrap();
    let op = program.ops().next().unwrap();
    assert_eq!(program.ops().count(), 1);
    assert_eq!((Code::of(op.code), op.a), (Some(Code::Advise), 7));
    assert_eq!(op.args, [1, 2, 3, 4, u64::MAX]);
    assert_eq!(program.threads().len(), 0);
    assert!(program.of(1).is_none());
    assert_eq!(program.header().descriptors_end, 4);
}

#[test]
fn records_are_read_as_they_were_written() {
    let thread = Thread {
        fs: 1,
        gs: 2,
        clear_tid: 3,
        robust: 4,
        rseq: 5,
        rseq_bytes: 6,
        rseq_signature: 7,
        id: 8,
        death_signal: 9,
        name: *b"abcdefghijklmno\0",
        frame: Span { at: 10, count: 11 },
    };
    assert_eq!(Thread::from_bytes(&thread.to_bytes()), thread);
    let order = HollowOrder { bytes: 12, residue: 13 };
    assert_eq!(HollowOrder::from_bytes(order.to_bytes()), order);
    for report in [
        HollowReport::Hollow(14),
        HollowReport::Mapped,
        HollowReport::Ready,
        HollowReport::Failed(15, -16),
    ] {
        assert_eq!(HollowReport::from_bytes(report.to_bytes()), Some(report));
    }
    assert_eq!(HollowReport::from_bytes([9; HollowReport::BYTES]), None);
}

#[test]
fn what_reaches_beyond_the_end_is_no_program() {
    for cut in 0..=SIZE {
        assert_eq!(Program::parse(&program()[..cut]).is_ok(), cut == SIZE, "{cut} bytes");
    }
}

#[test]
fn no_change_of_a_word_makes_a_part_reach_beyond_the_end() {
    for place in 0..(Header::BYTES + Process::BYTES) / 4 {
        for word in [0, 1, 7, 200, u32::MAX - 7, u32::MAX] {
            let mut bytes = program();
            bytes[place * 4..][..4].copy_from_slice(&word.to_le_bytes());
            if let Ok(program) = Program::parse(&bytes) {
                let size = program.header().size as usize;
                assert!(program.ops().count() * Op::BYTES + program.threads().len() * Thread::BYTES <= size);
                assert!(program.part(size as u64, 1).is_err());
            }
        }
    }
}

#[test]
fn every_operation_has_a_number_and_no_other_number_has_one() {
    for (number, code) in Code::ALL.iter().enumerate() {
        assert_eq!(*code as usize, number);
        assert_eq!(Code::of(number as u32), Some(*code));
    }
    assert_eq!(Code::of(Code::ALL.len() as u32), None);
}

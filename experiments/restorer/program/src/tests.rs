use super::*;

#[repr(C, align(8))]
struct Aligned([u8; 256]);

/// Bytes of the program.
const SIZE: usize = size_of::<Header>() + size_of::<Process>() + size_of::<Op>();

/// A program of one process with one operation and no thread.
fn program() -> Aligned {
    let (processes, op) = (size_of::<Header>(), size_of::<Header>() + size_of::<Process>());
    let header = [MAGIC, VERSION, processes as u32, 1, SIZE as u32, 4, 4, 0];
    let process = [op as u32, 1, SIZE as u32, 0];
    let mut bytes = Aligned([0; 256]);
    let words = header.into_iter().chain(process).chain([Code::Clear as u32]);
    for (place, word) in bytes.0.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

#[test]
fn a_program_is_read_as_it_was_written() {
    let bytes = program();
    let program = Program::parse(&bytes.0).unwrap();
    assert_eq!(program.ops().len(), 1);
    assert_eq!(Code::of(program.ops()[0].code), Some(Code::Clear));
    assert!(program.threads().is_empty());
    assert!(program.of(1).is_none());
    assert_eq!(program.header().descriptors_end, 4);
}

#[test]
fn what_reaches_beyond_the_end_is_no_program() {
    for cut in 0..program().0.len() {
        let bytes = program();
        assert_eq!(Program::parse(&bytes.0[..cut]).is_ok(), cut >= SIZE, "{cut} bytes");
    }
}

#[test]
fn no_change_of_a_word_makes_a_part_reach_beyond_the_end() {
    for place in 0..12 {
        for word in [0, 1, 7, 200, u32::MAX - 7, u32::MAX] {
            let mut bytes = program();
            bytes.0[place * 4..place * 4 + 4].copy_from_slice(&word.to_le_bytes());
            if let Ok(program) = Program::parse(&bytes.0) {
                let size = program.header().size as usize;
                assert!(size_of_val(program.ops()) + size_of_val(program.threads()) <= size);
                assert!(program.part(size as u64, 1).is_err());
            }
        }
    }
}

#[test]
fn every_operation_has_a_number_and_no_other_number_has_one() {
    let known = (0..100).filter_map(Code::of);
    assert!(known.clone().eq((1..).map_while(Code::of)));
    assert_eq!(known.last(), Some(Code::Barrier));
    assert_eq!(Code::of(0), None);
}

#[test]
fn a_frame_s_state_is_aligned_as_the_processor_wants() {
    assert!(frame::STATE.is_multiple_of(64));
    assert_eq!(frame::STATE_ADDRESS, 224);
}

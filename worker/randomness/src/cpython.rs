//! The generators behind the functions of Python modules. `random.random()` and the like are methods of one hidden
//! object, `random._inst`. Those of `numpy.random` belong to `numpy.random.mtrand._rand`. `tempfile` has an object of
//! the same type as the former, next to the id of the process that created it. Objects created by a program itself are
//! not found.
//!
//! ```text
//! str          refcnt type length hash state …  the name
//! dict entry   [hash] key:ptr value:ptr, followed by the entry of the first method: its fourth word is the object
//! _inst        refcnt type index:i32 state:[u32; 624]
//! attributes   … _rng:ptr _rng_pid:ptr …, the second to an int: refcnt type size digit:u32
//! _rand        refcnt type … state:ptr, of a generator whose state is: [u32; 624] index:i32
//! ```

use std::collections::BTreeSet;

use crate::{Generator, Kind, Memory, Write};

/// Words in the state of an MT19937.
const WORDS: u16 = 624;
/// Bytes before the text of a string: in 3.12 and later, and before.
const HEADERS: [u64; 2] = [40, 48];
/// Bytes between two entries of a dict: from 3.11 on if all keys are strings, and otherwise.
const ENTRIES: [u64; 2] = [16, 24];
/// Bytes of numpy's object that are searched.
const OBJECT: u64 = 512;

/// A string object that names a generator.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Name {
    object: u64,
    kind: Kind,
}

/// The string whose text starts at this word.
pub(crate) fn name_at(memory: &Memory<'_>, text: u64, word: u64) -> Option<Name> {
    const INST: [u8; 6] = *b"_inst\0";
    const RAND: [u8; 6] = *b"_rand\0";
    let kind = match *word.to_le_bytes().first_chunk()? {
        INST => Kind::PythonRandom,
        RAND => Kind::NumpyRandom,
        _ => return None,
    };
    let mut objects = HEADERS.iter().map(|header| text - header);
    let object = objects.find(|object| memory.u64(object + 16) == Some(5))?;
    Some(Name { object, kind })
}

/// The generators with these names in a module.
pub(crate) fn named(memory: &Memory<'_>, names: &[Name], pid: u32) -> Vec<Generator> {
    let (mut found, mut types) = (Vec::new(), BTreeSet::new());
    if names.is_empty() {
        return found;
    }
    memory.each_word(|key, word, _| {
        let Some(name) = names.iter().find(|name| name.object == word) else {
            return;
        };
        let generator = memory.pointer(key + 8).and_then(|object| {
            is_owner(memory, key, object).then_some(())?;
            let writes = match name.kind {
                Kind::NumpyRandom => numpy(memory, object)?,
                _ => {
                    types.insert(memory.u64(object + 8)?);
                    python(memory, object)?
                }
            };
            let kind = name.kind;
            Some(Generator { kind, writes })
        });
        found.extend(generator.filter(|generator| !found.contains(generator)));
    });
    found.extend(of_tempfile(memory, &types, pid));
    found
}

/// The generators for names of temporary files, which have one of these types.
fn of_tempfile(memory: &Memory<'_>, types: &BTreeSet<u64>, pid: u32) -> Vec<Generator> {
    let (mut objects, mut found) = (BTreeSet::new(), Vec::new());
    if types.is_empty() {
        return found;
    }
    memory.each_word(|address, word, _| {
        if types.contains(&word) {
            objects.insert(address - 8);
        }
    });
    let Some(all) = objects.first().zip(objects.last()).map(|(first, last)| *first..=*last) else {
        return found;
    };
    memory.each_word(|_, word, rest| {
        if !all.contains(&word) || !objects.contains(&word) {
            return;
        }
        // Before 3.12, a size of one digit. Later, also the sign below it.
        let beside = rest.first_chunk().map(|number| u64::from_le_bytes(*number));
        let is_pid = |number: u64| {
            let size = memory.u64(number.wrapping_add(16));
            [Some(1), Some(8)].contains(&size) && memory.u32(number.wrapping_add(24)) == Some(pid)
        };
        if let (true, Some(writes)) = (beside.is_some_and(is_pid), python(memory, word)) {
            let kind = Kind::PythonRandom;
            found.push(Generator { kind, writes });
        }
    });
    found
}

/// Whether the next entry of the dict is a method of the object.
fn is_owner(memory: &Memory<'_>, key: u64, object: u64) -> bool {
    let methods = ENTRIES.iter().filter_map(|entry| memory.u64(key + entry + 8));
    methods
        .into_iter()
        .any(|method| memory.u64(method.wrapping_add(24)) == Some(object))
}

fn python(memory: &Memory<'_>, object: u64) -> Option<Vec<Write>> {
    let index = object + 16;
    memory.bytes(index, 4 + usize::from(WORDS) * 4)?;
    let drawn = u32::from(WORDS);
    (memory.u32(index)? <= drawn).then(|| {
        vec![
            Write::constant(index, &drawn.to_le_bytes()),
            Write::random(index + 4, WORDS * 4),
        ]
    })
}

fn numpy(memory: &Memory<'_>, object: u64) -> Option<Vec<Write>> {
    let words = || (object + 16..object + OBJECT).step_by(8);
    words().find_map(|held| {
        let state = memory.pointer(held).filter(|state| state % 4 == 0)?;
        let index = state.checked_add(u64::from(WORDS) * 4)?;
        memory.bytes(state, usize::from(WORDS) * 4 + 4)?;
        // The generator, which contains its state, also points to it.
        let points = (state.checked_sub(OBJECT)?..state).step_by(8);
        let is_generator = points.into_iter().any(|at| memory.u64(at) == Some(state));
        if !is_generator || memory.u32(index)? > u32::from(WORDS) {
            return None;
        }
        let mut writes = vec![
            Write::random(state, WORDS * 4),
            Write::constant(index, &u32::from(WORDS).to_le_bytes()),
        ];
        // The second of two normal numbers is kept, next to a pointer to what drew it.
        let kept = words().find(|at| memory.u64(*at) == Some(held));
        writes.extend(kept.map(|at| Write::constant(at + 8, &[0; 4])));
        Some(writes)
    })
}

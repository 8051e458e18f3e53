//! Generators of the JDK's classes in HotSpot, from JDK 17 on. They are the one of `Math.random`, the seeds of threads,
//! from which `ThreadLocalRandom` draws, and what seeds new ones. `SecureRandom`s that keep a state are among them too:
//! SHA1PRNG and Hash_DRBG. The default one draws from the kernel.
//!
//! `Random.seedUniquifier` is a product of two constants, so it is told wherever it is. From it on all is found by what
//! leads back. A class object says its klass, whose handle leads to the object; a thread's says the native thread, with
//! the same. What a static field of a class of `java.base` refers to is the JDK's own: one that a program made itself
//! is not found. A thread's seed is proved by the numbers that it has drawn since the seeder gave it the first.
//!
//! ```text
//! object       mark:u64 klass:u32 …, in the first 32 GiB of addresses; a reference is a shifted u32
//! AtomicLong   mark klass 0:u32 value:u64
//! Class        mark klass _:u32 klass:ptr klass:ptr words:u32 …
//! Thread       mark klass _:u32 thread:ptr … tid:u64 … seed:u64 …
//! klass, and a native thread: … handle:ptr …, to a word: the object
//! byte[]       mark klass length:u32 bytes
//! ```

use std::collections::{BTreeMap, BTreeSet};

use crate::memory::words;
use crate::v8_seeds::hashed;
use crate::{Generator, Kind, Memory, Write};

/// Where the heap ends at most.
const HEAP_END: u64 = 1 << 35;
/// References are shifted by one of these.
const SHIFTS: [u32; 2] = [0, 3];
/// Bits of a mark that are set in objects that are not hashed and not locked: their age.
const AGE: u64 = 0x78;
const UNLOCKED: u64 = 1;
/// Where a header ends, a value begins, and a native thing is said.
const FIELDS: u64 = 12;
const VALUE: u64 = 16;
/// Bytes of a class object, a klass and a native thread that are looked at, and of a thread's object: fields that
/// threads contend for have room around them.
const CLASS: u64 = 256;
const NATIVE_THREAD: u64 = 2048;
const OBJECT: u64 = 128;
const THREAD: u64 = 256;
/// Where a thread's id may be.
const IDS: [u64; 2] = [24, 32];
/// Where a class object says how many words it has.
const WORDS: u64 = 32;
/// Where the base of narrow pointers to klasses may be, and what they may be shifted by.
const BASES: u64 = 1 << 16;
const KLASS_SHIFTS: [u32; 4] = [0, 3, 6, 10];
/// `Random.seedUniquifier` at first, what it is multiplied by for each new `Random`, and how often that is undone.
const FIRST: u64 = 8_682_522_807_148_012;
const TIMES: u64 = 1_181_783_497_276_652_981;
const RANDOMS_MAX: usize = 1 << 13;
/// What a seeder adds for each thread, and a thread for each number, beside twice its id; threads and numbers at most.
const SEEDER: u64 = 0xbb67_ae85_84ca_a73b;
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
const THREADS_MAX: u64 = 1 << 12;
const NUMBERS_MAX: u64 = 1 << 32;
/// Words that are looked at as pointers to native threads, and numbers that are compared with seeds: a search ends,
/// whatever is in memory.
const POINTERS_MAX: usize = 1 << 17;
const TRIES_MAX: u64 = 1 << 27;
/// Arrays that may be a state.
const ARRAYS_MAX: usize = 1 << 18;
/// Bytes of the state of SHA1PRNG, and of Hash_DRBG with SHA-256.
const SHA1: u32 = 20;
const DRBG: u32 = 55;

/// Whether the object whose mark is this word is `Random.seedUniquifier`.
pub(crate) fn is_uniquifier(address: u64, mark: u64, rest: &[u8]) -> bool {
    if address >= HEAP_END || mark & !AGE != UNLOCKED {
        return false;
    }
    let Some([klass, value]) = words(rest) else {
        return false;
    };
    let mut before = std::iter::successors(Some(value), |value| Some(value.wrapping_mul(inverse(TIMES))));
    klass >> 32 == 0 && is_random(value) && before.by_ref().take(RANDOMS_MAX).any(|value| value == FIRST)
}

/// The generators of the process whose `Random.seedUniquifier` is one of these objects.
pub(crate) fn generators(memory: &Memory<'_>, uniquifiers: &[u64]) -> Vec<Generator> {
    let heaps = uniquifiers
        .iter()
        .flat_map(|object| SHIFTS.map(|shift| (*object, shift)));
    let heap = heaps
        .into_iter()
        .find_map(|(object, shift)| Heap::of(memory, object, shift));
    heap.map(|heap| heap.generators()).unwrap_or_default()
}

/// What an object says of a native thing that leads back to it.
#[derive(Clone, Copy)]
struct NativePointer {
    object: u64,
    address: u64,
    /// Where in it the handle is.
    handle: u64,
}

impl NativePointer {
    fn of(memory: &Memory<'_>, object: u64, length: u64) -> Option<Self> {
        let address = memory
            .pointer(object + VALUE)
            .filter(|address| address.is_multiple_of(8))?;
        memory.u64(address)?;
        let leads_back = |handle: &u64| {
            let place = memory.u64(address + handle);
            place.and_then(|place| memory.u64(place)) == Some(object)
        };
        let handle = (0..length).step_by(8).find(leads_back)?;
        Some(Self {
            object,
            address,
            handle,
        })
    }
}

struct Heap<'a> {
    memory: &'a Memory<'a>,
    /// What references are shifted by.
    shift: u32,
    random: NativePointer,
    /// What an `AtomicLong` has behind its mark.
    long: u64,
}

impl<'a> Heap<'a> {
    fn of(memory: &'a Memory<'a>, uniquifier: u64, shift: u32) -> Option<Self> {
        let long = memory.u64(uniquifier + 8)?;
        let fields = references(memory, shift, &[uniquifier].into());
        let random = fields.iter().find_map(|(field, _)| class_around(memory, *field))?;
        Some(Self {
            memory,
            shift,
            random,
            long,
        })
    }

    fn generators(&self) -> Vec<Generator> {
        let (mut classes, mut threads, mut pointers) = (Vec::new(), Vec::new(), 0);
        let mut arrays = BTreeMap::new();
        let class = self.memory.u32(self.random.object + 8);
        self.memory.each_word(|address, word, rest| {
            let Some([klass, value]) = words(rest).filter(|_| address < HEAP_END) else {
                return;
            };
            let length = (klass >> 32) as u32;
            let may_point = word & 3 != 0 && value >> 32 != 0 && value >> 47 == 0 && value.is_multiple_of(8);
            if word & !AGE == UNLOCKED && [SHA1, DRBG].contains(&length) {
                // What was drawn of SHA1PRNG's last block is zero, so any content will do.
                if arrays.len() < ARRAYS_MAX {
                    arrays.insert(address, length);
                }
            } else if Some(klass as u32) == class {
                classes.extend(NativePointer::of(self.memory, address, CLASS));
            } else if may_point && pointers < POINTERS_MAX && self.memory.u64(value).is_some() {
                pointers += 1;
                threads.extend(NativePointer::of(self.memory, address, NATIVE_THREAD));
            }
        });
        let (mut writes, mut seeders, mut randoms) = (Vec::new(), Vec::new(), Vec::new());
        for object in classes.iter().flat_map(|class| self.statics(class.object)) {
            if let Some(value) = self.number(object).filter(|value| is_random(*value)) {
                seeders.push(value);
                writes.push(vec![Write::random(object + VALUE, 8)]);
            } else if self.klass_shift(object).is_some() {
                randoms.push(object);
                let fields = (FIELDS..32).step_by(4).filter_map(|at| self.reference(object + at));
                let seeds = fields.filter(|field| self.number(*field).is_some_and(|seed| seed >> 48 == 0));
                // A seed has 48 bits.
                writes.extend(seeds.map(|seed| vec![Write::random(seed + VALUE, 6)]));
            }
        }
        let fields = references(self.memory, self.shift, &arrays.keys().copied().collect());
        writes.extend(self.with_states(&fields, &arrays, randoms.first()));
        let mut tries = TRIES_MAX;
        let seeds = threads
            .iter()
            .filter_map(|thread| self.seed(thread.object, &mut seeders, &mut tries));
        let seeds: BTreeSet<u64> = seeds.collect();
        writes.extend(seeds.into_iter().map(|seed| vec![Write::random(seed, 8)]));
        let generators: BTreeMap<u64, _> = writes.into_iter().map(|writes| (writes[0].address, writes)).collect();
        let kind = Kind::Java;
        generators
            .into_values()
            .map(|writes| Generator { kind, writes })
            .collect()
    }

    /// What the reference at an address refers to.
    fn reference(&self, address: u64) -> Option<u64> {
        let narrow = self.memory.u32(address).filter(|narrow| *narrow != 0)?;
        Some(u64::from(narrow) << self.shift)
    }

    fn number(&self, object: u64) -> Option<u64> {
        let is_number = self.memory.u64(object + 8) == Some(self.long);
        is_number.then(|| self.memory.u64(object + VALUE)).flatten()
    }

    /// What the fields of a class object refer to, if the class is of `java.base`. The object says how long it is.
    fn statics(&self, class: u64) -> Vec<u64> {
        let words = self
            .memory
            .u32(class + WORDS)
            .filter(|_| self.is_of_jdk(class))
            .unwrap_or(0);
        let fields = (WORDS..u64::from(words).min(CLASS) * 8).step_by(4);
        fields.filter_map(|at| self.reference(class + at)).collect()
    }

    /// What the narrow pointer of this `Random` to its klass is shifted by; none if it is no `Random`.
    fn klass_shift(&self, object: u64) -> Option<u32> {
        let narrow = u64::from(self.memory.u32(object + 8)?);
        let base = |shift: u32| self.random.address.wrapping_sub(narrow << shift);
        let is_base = |shift: &u32| narrow != 0 && base(*shift).is_multiple_of(BASES);
        KLASS_SHIFTS.into_iter().find(is_base)
    }

    /// Whether a class is of the module that `Random` is of.
    fn is_of_jdk(&self, class: u64) -> bool {
        (VALUE + 8..OBJECT).step_by(4).any(|at| {
            let module = self.memory.u32(self.random.object + at).filter(|module| *module != 0);
            let object = module.map(|module| u64::from(module) << self.shift);
            let is_object = object
                .and_then(|object| self.memory.u64(object))
                .is_some_and(|mark| mark & 3 == UNLOCKED);
            is_object && self.memory.u32(class + at) == module
        })
    }

    /// Whether an object is of a class of `java.base`, as a `Random` tells where klasses are.
    fn is_object_of_jdk(&self, object: u64, random: u64) -> Option<bool> {
        let shift = self.klass_shift(random)?;
        let narrow = |object: u64| Some(u64::from(self.memory.u32(object + 8)?) << shift);
        let klass = self
            .random
            .address
            .wrapping_sub(narrow(random)?)
            .wrapping_add(narrow(object)?);
        let class = self
            .memory
            .pointer(self.memory.u64(klass.checked_add(self.random.handle)?)?)?;
        Some(self.memory.u64(class + VALUE)? == klass && self.is_of_jdk(class))
    }

    /// What is written to states that are two arrays.
    fn with_states(&self, fields: &[(u64, u64)], arrays: &BTreeMap<u64, u32>, random: Option<&u64>) -> Vec<Vec<Write>> {
        let pairs = fields.array_windows().filter_map(|[(field, first), (next, second)]| {
            let length = *arrays.get(first)?;
            (field + 4 == *next && arrays.get(second) == Some(&length)).then_some((*field, [*first, *second], length))
        });
        let states = pairs.filter_map(|(field, pair, length)| {
            let mut objects = (FIELDS..OBJECT).step_by(4).map(|before| field.wrapping_sub(before));
            // Of SHA1PRNG: bytes that are left of the last block, the digest, the two, and no more.
            let sha1 =
                |object: u64| self.memory.u32(object + FIELDS) < Some(SHA1) && self.memory.u32(field + 8) == Some(0);
            objects.find(|object| {
                let is_state = object.is_multiple_of(8) && (length == DRBG || sha1(*object));
                is_state && random.and_then(|random| self.is_object_of_jdk(*object, *random)) == Some(true)
            })?;
            let length = u16::try_from(length).ok()?;
            Some(pair.map(|array| Write::random(array + VALUE, length)).into())
        });
        states.collect()
    }

    /// Where the seed of a thread is. Once a seeder is known to be one it is the only one.
    fn seed(&self, thread: u64, seeders: &mut Vec<u64>, tries: &mut u64) -> Option<u64> {
        let fields = (VALUE..THREAD)
            .step_by(8)
            .map(|at| (thread + at, self.memory.u64(thread + at)));
        let fields: Vec<_> = fields.map_while(|(at, word)| Some((at, word?))).collect();
        let ids = IDS.iter().filter_map(|at| self.memory.u64(thread + at));
        let ids = ids.filter(|id| *id != 0 && id >> 32 == 0);
        let steps: Vec<_> = ids.map(|id| inverse(GAMMA.wrapping_add(2 * id))).collect();
        let seeds = fields.iter().filter(|(_, seed)| is_random(*seed));
        for ((at, seed), step) in seeds.flat_map(|seed| steps.iter().map(move |step| (seed, step))) {
            let gave = |seeder: &u64| {
                (1..=THREADS_MAX).any(|thread| {
                    let first = hashed(seeder.wrapping_sub(thread.wrapping_mul(SEEDER)));
                    seed.wrapping_sub(first).wrapping_mul(*step) < NUMBERS_MAX
                })
            };
            *tries = tries.checked_sub(THREADS_MAX * seeders.len() as u64)?;
            if let Some(seeder) = seeders.iter().copied().find(gave) {
                *seeders = vec![seeder];
                return Some(*at);
            }
        }
        None
    }
}

/// The class object that this field is in.
fn class_around(memory: &Memory<'_>, field: u64) -> Option<NativePointer> {
    let objects = (VALUE + 8..CLASS).step_by(4).map(|before| field.wrapping_sub(before));
    let mut objects = objects.filter(|object| object.is_multiple_of(8));
    objects.find_map(|object| NativePointer::of(memory, object, CLASS))
}

/// Fields that refer to one of these objects, and to which, by address.
fn references(memory: &Memory<'_>, shift: u32, objects: &BTreeSet<u64>) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let (Some(first), Some(last)) = (objects.first(), objects.last()) else {
        return found;
    };
    memory.each_word(|address, word, _| {
        for (at, narrow) in [(address, word & 0xffff_ffff), (address + 4, word >> 32)] {
            let object = narrow << shift;
            let is_counted = found.len() < ARRAYS_MAX && address < HEAP_END;
            if is_counted && (*first..=*last).contains(&object) && objects.contains(&object) {
                found.push((at, object));
            }
        }
    });
    found
}

/// Whether it may be a random number: counters and times are not.
fn is_random(number: u64) -> bool {
    number >> 48 != 0 && number.count_ones().abs_diff(32) < 22
}

/// What an odd number is multiplied with to be 1.
const fn inverse(number: u64) -> u64 {
    let mut inverse = number;
    let mut step = 0;
    while step < 5 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(number.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
}

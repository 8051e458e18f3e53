//! A process's memory as runs of bytes.

/// Where the addresses of programs end.
pub(crate) const END: u64 = 1 << 47;

/// Runs of memory, by address. Adjacent memory forms a single run.
#[derive(Debug, Default)]
pub struct Memory<'a> {
    runs: Vec<(u64, &'a [u8])>,
}

impl<'a> Memory<'a> {
    /// The memory consists of these runs: each has the address of its first byte, a multiple of 8, and its bytes. A
    /// read that spans two runs fails.
    pub fn new(mut runs: Vec<(u64, &'a [u8])>) -> Self {
        runs.sort_unstable_by_key(|(start, _)| *start);
        Self { runs }
    }

    /// Calls `look` with the address of each aligned word, the word, and the rest of its run. Skips a zero word if the
    /// next word is zero too.
    pub(crate) fn each_word(&self, mut look: impl FnMut(u64, u64, &'a [u8])) {
        for (start, bytes) in &self.runs {
            let mut address = *start;
            let mut rest = *bytes;
            while let Some((word, behind)) = rest.split_first_chunk::<8>() {
                let is_empty = *word == [0; 8] && behind.first_chunk() == Some(&[0; 8]);
                if !is_empty {
                    look(address, u64::from_le_bytes(*word), behind);
                }
                rest = behind;
                address += 8;
            }
        }
    }

    /// `length` bytes from an address on, if they exist.
    pub(crate) fn bytes(&self, address: u64, length: usize) -> Option<&'a [u8]> {
        let behind = self.runs.partition_point(|(start, _)| *start <= address);
        let (start, bytes) = self.runs.get(behind.checked_sub(1)?)?;
        let from = usize::try_from(address - start).ok()?;
        bytes.get(from..from.checked_add(length)?)
    }

    /// Like `bytes`, with a constant length.
    pub(crate) fn array<const N: usize>(&self, address: u64) -> Option<&'a [u8; N]> {
        self.bytes(address, N)?.first_chunk()
    }

    /// The 64-bit number at an address.
    pub(crate) fn u64(&self, address: u64) -> Option<u64> {
        self.array(address).map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// The pointer at an address, if it may be one: what is added to it does not overflow.
    pub(crate) fn pointer(&self, address: u64) -> Option<u64> {
        self.u64(address).filter(|pointer| *pointer < END)
    }

    pub(crate) fn u32(&self, address: u64) -> Option<u32> {
        self.array(address).map(|bytes| u32::from_le_bytes(*bytes))
    }

    /// 32-bit numbers from an address on.
    pub(crate) fn u32s<const N: usize>(&self, address: u64) -> Option<[u32; N]> {
        let bytes = self.bytes(address, 4 * N)?;
        let mut numbers = [0; N];
        for (number, bytes) in numbers.iter_mut().zip(bytes.as_chunks().0) {
            *number = u32::from_le_bytes(*bytes);
        }
        Some(numbers)
    }
}

/// The first 64-bit numbers of `bytes`.
#[inline]
pub(crate) fn words<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0.first_chunk::<N>()?) {
        *word = u64::from_le_bytes(*bytes);
    }
    Some(words)
}

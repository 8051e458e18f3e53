//! Images as CRIU would write them, for tests.

/// A run of pages.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// The first page.
    pub first: u64,
    /// Number of pages.
    pub pages: u64,
    /// Whether they may be restored lazily.
    pub lazy: bool,
}

/// Length-framed messages after CRIU's magic numbers.
pub fn framed(kind: u32, messages: &[Vec<u8>]) -> Vec<u8> {
    let mut out = 0x5456_4319_u32.to_le_bytes().to_vec();
    out.extend_from_slice(&kind.to_le_bytes());
    for message in messages {
        out.extend_from_slice(&(message.len() as u32).to_le_bytes());
        out.extend_from_slice(message);
    }
    out
}

/// A protobuf field of number `tag` with a varint.
pub fn varint(tag: u8, mut value: u64) -> Vec<u8> {
    let mut out = vec![tag << 3];
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

/// `pagemap-PID.img`, with its pages in `pages-1.img`.
pub fn pagemap_image(runs: &[Run]) -> Vec<u8> {
    let entry = |run: &Run| {
        let flags = if run.lazy { 6 } else { 4 };
        [
            varint(1, run.first * 4096),
            varint(2, 0),
            varint(4, flags),
            varint(5, run.pages),
        ]
        .concat()
    };
    let head = std::iter::once(varint(1, 1));
    framed(0x5608_4025, &head.chain(runs.iter().map(entry)).collect::<Vec<_>>())
}

/// `mm-PID.img` of mappings `(start, end, status)`.
pub fn mm_image(vmas: &[(u64, u64, u32)]) -> Vec<u8> {
    let mut mm = Vec::new();
    for (start, end, status) in vmas {
        let vma = [varint(1, *start), varint(2, *end), varint(7, u64::from(*status))].concat();
        mm.extend_from_slice(&[14 << 3 | 2, vma.len() as u8]);
        mm.extend_from_slice(&vma);
    }
    framed(0x5749_2820, &[mm])
}

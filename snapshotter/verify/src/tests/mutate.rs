//! Changes an image in one field at a time: numbers get other values, byte strings lose or change a byte, and fields
//! are removed. Knows protobuf's encoding, but not the messages.

/// An image with one field changed.
pub(crate) struct Mutation {
    pub(crate) image: Vec<u8>,
    pub(crate) entry: usize,
    /// The field's number, after those of the messages that contain it.
    pub(crate) field: Vec<u64>,
}

/// A field. If it is a message, it has the message's fields.
#[derive(Clone)]
struct Field {
    number: u64,
    value: Value,
}

#[derive(Clone)]
enum Value {
    Varint(u64),
    Fixed(Vec<u8>),
    Bytes(Vec<u8>),
    Message(Vec<Field>),
}

/// Number of fields with the same number in one message that are changed.
const REPEATS_MAX: usize = 3;

/// All changes of an image without data between its entries.
pub(crate) fn all(name: &str, image: &[u8]) -> Vec<Mutation> {
    let head = if name == "inventory.img" { 4 } else { 8 };
    let mut entries = Vec::new();
    let mut rest = &image[head..];
    while !rest.is_empty() {
        let length = u32::from_le_bytes(*rest.first_chunk().unwrap()) as usize;
        entries.push(rest[4..4 + length].to_vec());
        rest = &rest[4 + length..];
    }
    let mut mutations = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        let fields = parse(entry).unwrap();
        for (field, changed) in changes(&fields) {
            let mut all = entries.clone();
            all[at] = encode(&changed);
            let framed = all
                .iter()
                .flat_map(|e| [&(e.len() as u32).to_le_bytes()[..], e].concat());
            let image = image[..head].iter().copied().chain(framed).collect();
            mutations.push(Mutation {
                image,
                entry: at,
                field,
            });
        }
    }
    mutations
}

fn changes(fields: &[Field]) -> Vec<(Vec<u64>, Vec<Field>)> {
    let mut found = Vec::new();
    let mut repeats = std::collections::HashMap::new();
    for (at, field) in fields.iter().enumerate() {
        let seen = repeats.entry(field.number).or_insert(0);
        *seen += 1;
        if *seen > REPEATS_MAX {
            continue;
        }
        let mut with = |way: Vec<u64>, value: Option<Value>| {
            let mut changed = fields.to_vec();
            match value {
                Some(value) => changed[at].value = value,
                None => drop(changed.remove(at)),
            }
            found.push((way, changed));
        };
        let here = vec![field.number];
        with(here.clone(), None);
        match &field.value {
            Value::Varint(value) => {
                let others = [
                    value ^ 1,
                    value ^ 0x40,
                    value ^ 0x800,
                    value ^ 0x8000_0000,
                    value.wrapping_add(7),
                    0,
                    u64::MAX,
                ];
                for other in others.into_iter().filter(|other| other != value) {
                    with(here.clone(), Some(Value::Varint(other)));
                }
            }
            Value::Fixed(bytes) | Value::Bytes(bytes) => {
                for other in strings(bytes) {
                    let value = match &field.value {
                        Value::Fixed(_) if other.len() == bytes.len() => Value::Fixed(other),
                        Value::Fixed(_) => continue,
                        _ => Value::Bytes(other),
                    };
                    with(here.clone(), Some(value));
                }
            }
            Value::Message(inner) => {
                for (way, changed) in changes(inner) {
                    with([here.clone(), way].concat(), Some(Value::Message(changed)));
                }
            }
        }
    }
    found
}

fn strings(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut found = vec![
        [bytes, &[0]].concat(),
        b"/proc/1/mem".to_vec(),
        [b"/..", bytes].concat(),
    ];
    if let Some((_, shorter)) = bytes.split_last() {
        found.push(shorter.to_vec());
        for at in [0, bytes.len() / 2, bytes.len() - 1] {
            let mut other = bytes.to_vec();
            other[at] ^= 0x21;
            found.push(other);
        }
    }
    found
}

/// `None` if it is not a message. Short strings may be mistaken for messages, but changing them is still a change.
fn parse(mut bytes: &[u8]) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let value = match tag & 7 {
            0 => Value::Varint(varint(&mut bytes)?),
            1 => Value::Fixed(take(&mut bytes, 8)?),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let inner = take(&mut bytes, length)?;
                match parse(&inner) {
                    Some(fields) if !fields.is_empty() && encode(&fields) == inner => Value::Message(fields),
                    _ => Value::Bytes(inner),
                }
            }
            _ => return None,
        };
        if tag >> 3 == 0 {
            return None;
        }
        fields.push(Field {
            number: tag >> 3,
            value,
        });
    }
    Some(fields)
}

fn take(bytes: &mut &[u8], length: usize) -> Option<Vec<u8>> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken.to_vec())
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn encode(fields: &[Field]) -> Vec<u8> {
    let mut out = Vec::new();
    for Field { number, value } in fields {
        let (wire, bytes) = match value {
            Value::Varint(value) => {
                push_varint(&mut out, number << 3);
                push_varint(&mut out, *value);
                continue;
            }
            Value::Fixed(bytes) => (1, bytes.clone()),
            Value::Bytes(bytes) => (2, bytes.clone()),
            Value::Message(fields) => (2, encode(fields)),
        };
        push_varint(&mut out, number << 3 | wire);
        if wire == 2 {
            push_varint(&mut out, bytes.len() as u64);
        }
        out.extend_from_slice(&bytes);
    }
    out
}

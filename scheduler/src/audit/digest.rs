//! What makes the audit log a chain.

use rekindle_wire::Namespace;
use rekindle_wire::api::AuditEntry;

/// The hash of an entry: BLAKE3 of everything else in it, each text with its length before it.
pub fn digest(entry: &AuditEntry) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("rekindle audit log, version 1");
    hasher
        .update(&entry.number.to_le_bytes())
        .update(&entry.unix_ms.to_le_bytes());
    for text in [
        entry.previous.as_str(),
        &entry.actor,
        entry.namespace.as_ref().map_or("", Namespace::as_str),
        &entry.action,
        &entry.object,
        &entry.outcome,
        &entry.request_id,
    ] {
        hasher
            .update(&(text.len() as u64).to_le_bytes())
            .update(text.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_an_entry_is_in_its_hash() {
        let entry = AuditEntry {
            number: 1,
            unix_ms: 2,
            actor: "a".to_owned(),
            namespace: None,
            action: "b".to_owned(),
            object: "c".to_owned(),
            outcome: "d".to_owned(),
            request_id: "e".to_owned(),
            previous: "f".to_owned(),
            hash: "g".to_owned(),
        };
        let changed = |change: &dyn Fn(&mut AuditEntry)| {
            let mut other = entry.clone();
            change(&mut other);
            digest(&other)
        };
        let mut all = vec![
            digest(&entry),
            changed(&|e| e.number = 2),
            changed(&|e| e.unix_ms = 1),
            changed(&|e| e.actor.push('x')),
            changed(&|e| e.namespace = Some("team".parse().unwrap())),
            changed(&|e| e.action.push('x')),
            changed(&|e| e.object.push('x')),
            changed(&|e| e.outcome.push('x')),
            changed(&|e| e.request_id.push('x')),
            changed(&|e| e.previous.push('x')),
            // Moved from one text to the next.
            changed(&|e| (e.action, e.object) = ("bc".to_owned(), String::new())),
        ];
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
        assert_eq!(changed(&|e| e.hash.push('x')), digest(&entry));
    }
}

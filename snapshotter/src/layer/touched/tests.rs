use super::*;

#[test]
fn a_record_reads_back_for_its_layer_alone() {
    let (layer, pieces) = (Digest([7; 32]), [3, 1, 4_000_000_000]);
    let bytes = encode(&layer, &pieces);
    assert_eq!(decode(&layer, &bytes).unwrap(), pieces);
    assert_eq!(decode(&Digest([8; 32]), &bytes), None);
    for length in 0..bytes.len() {
        let found = decode(&layer, &bytes[..length]);
        assert!(found.is_none_or(|found| pieces.starts_with(&found)));
    }
}

#[tokio::test]
async fn a_larger_object_in_place_of_a_record_is_not_taken_into_memory() {
    let root = tempfile::tempdir().unwrap();
    let store = rekindle_store::Directory::open(root.path()).unwrap();
    let (id, layer): (SnapshotId, _) = ("s-0123".parse().unwrap(), Digest([7; 32]));
    let pieces = vec![3; TOUCHED_MAX];
    store_touched(&store, &id, &layer, &pieces).await.unwrap();
    assert_eq!(load_touched(&store, &id, &layer).await.unwrap(), pieces);
    let mut longer = encode(&layer, &pieces);
    longer.push(0);
    store.put(&keys::files(&id), longer.into()).await.unwrap();
    let refused = load_touched(&store, &id, &layer).await;
    assert!(matches!(refused, Err(StoreError::TooLarge { .. })), "{refused:?}");
}

#[test]
fn a_record_has_a_limit() {
    let (layer, pieces) = (Digest([7; 32]), vec![1; TOUCHED_MAX + 9]);
    let mut bytes = encode(&layer, &pieces);
    bytes.extend([0; 400]);
    assert_eq!(decode(&layer, &bytes).unwrap().len(), TOUCHED_MAX);
}

//! Listings.

use aws_sdk_s3::operation::list_objects_v2::ListObjectsV2Output;

use crate::target::{BUCKET, Target};

/// In byte order. Not both `a` and `a/b`: a store that is a tree of directories cannot hold them.
const KEYS: [&str; 8] = ["a-", "a/b", "a/c/d", "a/c/e", "a0", "b/1", "b/2", "c"];

async fn fill(target: &Target) {
    for key in KEYS {
        target.put(key, key).await;
    }
}

fn keys(page: &ListObjectsV2Output) -> Vec<String> {
    page.contents()
        .iter()
        .map(|object| object.key().unwrap().to_owned())
        .collect()
}

fn prefixes(page: &ListObjectsV2Output) -> Vec<String> {
    page.common_prefixes()
        .iter()
        .map(|prefix| prefix.prefix().unwrap().to_owned())
        .collect()
}

pub(crate) async fn pages_add_up(target: &Target) {
    fill(target).await;
    for size in [1, 2, 3, 8, 1000] {
        let (mut found, mut token) = (Vec::new(), None);
        loop {
            let page = target
                .client
                .list_objects_v2()
                .bucket(BUCKET)
                .max_keys(size)
                .set_continuation_token(token)
                .send()
                .await
                .unwrap();
            assert!(page.contents().len() <= size as usize);
            assert!(
                page.contents()
                    .iter()
                    .all(|object| object.size() == Some(object.key().unwrap().len() as i64))
            );
            found.extend(keys(&page));
            token = page.next_continuation_token.clone();
            if page.is_truncated != Some(true) {
                break;
            }
            assert!(token.is_some());
        }
        assert_eq!(found, KEYS, "pages of {size}");
    }
}

pub(crate) async fn a_delimiter_folds(target: &Target) {
    fill(target).await;
    let top = target
        .client
        .list_objects_v2()
        .bucket(BUCKET)
        .delimiter("/")
        .send()
        .await
        .unwrap();
    assert_eq!(keys(&top), ["a-", "a0", "c"]);
    assert_eq!(prefixes(&top), ["a/", "b/"]);
    let below = target
        .client
        .list_objects_v2()
        .bucket(BUCKET)
        .delimiter("/")
        .prefix("a/")
        .send()
        .await
        .unwrap();
    assert_eq!(
        (keys(&below), prefixes(&below)),
        (vec!["a/b".to_owned()], vec!["a/c/".to_owned()])
    );

    // A page may end on a folded prefix; the next one must not show it again.
    let (mut found, mut token) = (Vec::new(), None);
    loop {
        let page = target
            .client
            .list_objects_v2()
            .bucket(BUCKET)
            .delimiter("/")
            .max_keys(1)
            .set_continuation_token(token);
        let page = page.send().await.unwrap();
        found.extend(keys(&page));
        found.extend(prefixes(&page));
        token = page.next_continuation_token.clone();
        if page.is_truncated != Some(true) {
            break;
        }
    }
    found.sort_unstable();
    assert_eq!(found, ["a-", "a/", "a0", "b/", "c"]);
}

pub(crate) async fn start_after_and_prefix_narrow(target: &Target) {
    fill(target).await;
    let after = target
        .client
        .list_objects_v2()
        .bucket(BUCKET)
        .start_after("a/c/d")
        .send()
        .await
        .unwrap();
    assert_eq!(keys(&after), ["a/c/e", "a0", "b/1", "b/2", "c"]);
    let prefix = target
        .client
        .list_objects_v2()
        .bucket(BUCKET)
        .prefix("a/c")
        .send()
        .await
        .unwrap();
    assert_eq!(keys(&prefix), ["a/c/d", "a/c/e"]);
    let none = target
        .client
        .list_objects_v2()
        .bucket(BUCKET)
        .prefix("zzz")
        .send()
        .await
        .unwrap();
    assert_eq!((none.contents().len(), none.is_truncated), (0, Some(false)));
}

pub(crate) async fn an_empty_bucket_lists_nothing(target: &Target) {
    target.client.create_bucket().bucket("another").send().await.unwrap();
    let page = target.client.list_objects_v2().bucket("another").send().await.unwrap();
    assert_eq!((page.contents().len(), page.key_count), (0, Some(0)));
}

pub(crate) async fn buckets_are_listed(target: &Target) {
    target.client.create_bucket().bucket("another").send().await.unwrap();
    let buckets = target.client.list_buckets().send().await.unwrap();
    let mut names: Vec<_> = buckets.buckets().iter().map(|bucket| bucket.name().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["another", BUCKET]);
}

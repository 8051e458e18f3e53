//! What Rekindle requires of an S3 store, checked for every store it is tested with: the embedded server, and versitygw
//! and MinIO as independent ones. Each case of `objects`, `races`, `multipart` and `listing` runs against each.
//! `embedded` and `kills` check what can only be done to our own: restarts, damage on disk, kills.
//!
//! The others run if [`rekindle_s3_servers`] finds them. Otherwise their tests print `skipped: reason`, which is a
//! failure if `REKINDLE_REQUIRE_ALL=1`.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod embedded;
mod kills;
mod listing;
mod multipart;
mod objects;
mod races;
mod target;

/// One test for each case and store.
macro_rules! cases {
    ($($module:ident: $($case:ident)*;)*) => {
        mod on_embedded {
            $(mod $module {
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    crate::$module::$case(&crate::target::Target::embedded().await).await;
                })*
            })*
        }
        mod on_versitygw {
            $(mod $module {
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    if let Some(target) = crate::target::Target::other(rekindle_s3_servers::Kind::Versitygw).await {
                        crate::$module::$case(&target).await;
                    }
                })*
            })*
        }
        mod on_minio {
            $(mod $module {
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    if let Some(target) = crate::target::Target::other(rekindle_s3_servers::Kind::Minio).await {
                        crate::$module::$case(&target).await;
                    }
                })*
            })*
        }
    };
}

cases! {
    objects:
        what_is_put_is_what_is_got
        a_range_is_the_slice_it_names
        an_empty_object_is_an_object
        a_large_object_comes_back
        a_streamed_body_of_known_length_comes_back
        an_overwrite_replaces_body_and_metadata
        a_deleted_object_is_gone_and_deleting_again_is_no_error
        many_objects_are_deleted_at_once
        what_is_missing_is_named_as_such
        odd_keys_are_kept_apart
        reads_honour_their_conditions
        a_wrong_checksum_stores_nothing
        a_copy_is_the_same_object
        the_wrong_secret_is_refused;
    races:
        one_creator_of_many_wins
        overwrites_never_mix
        a_compare_and_swap_happens_once;
    multipart:
        parts_become_one_object
        an_aborted_upload_leaves_nothing
        a_completion_must_name_what_was_uploaded
        a_part_can_be_sent_again
        a_conditional_completion_does_not_replace;
    listing:
        pages_add_up
        a_delimiter_folds
        start_after_and_prefix_narrow
        an_empty_bucket_lists_nothing
        buckets_are_listed;
}

//! The S3 operations, over the storage. Each `impl` block of [`Service`] below this module owns one family.

mod buckets;
mod errors;
mod headers;
mod multipart;
mod objects;
mod read;
mod transfer;

use std::sync::Arc;

use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};

use crate::storage::{BodyWriter, Bucket, ChecksumVerifier, Storage};

/// The service that `s3s` calls.
pub(crate) struct Service {
    storage: Arc<Storage>,
}

impl Service {
    pub(crate) fn new(storage: Arc<Storage>) -> Service {
        Service { storage }
    }

    fn bucket(&self, name: &str) -> S3Result<Arc<Bucket>> {
        self.storage
            .bucket(name)
            .ok_or_else(|| s3_error!(NoSuchBucket, "there is no bucket of this name; create it first"))
    }

    fn writer(&self, checks: ChecksumVerifier) -> BodyWriter {
        BodyWriter::new(self.storage.temps.clone(), checks)
    }
}

/// The trait's methods, each forwarded to the method of the same name.
macro_rules! operations {
    ($($method:ident: $input:ty => $output:ty;)*) => {
        #[async_trait::async_trait]
        impl S3 for Service {
            $(async fn $method(&self, request: S3Request<$input>) -> S3Result<S3Response<$output>> {
                Ok(S3Response::new(Service::$method(self, request).await?))
            })*
        }
    };
}

operations! {
    create_bucket: CreateBucketInput => CreateBucketOutput;
    head_bucket: HeadBucketInput => HeadBucketOutput;
    list_buckets: ListBucketsInput => ListBucketsOutput;
    list_objects_v2: ListObjectsV2Input => ListObjectsV2Output;
    put_object: PutObjectInput => PutObjectOutput;
    copy_object: CopyObjectInput => CopyObjectOutput;
    delete_object: DeleteObjectInput => DeleteObjectOutput;
    delete_objects: DeleteObjectsInput => DeleteObjectsOutput;
    get_object: GetObjectInput => GetObjectOutput;
    head_object: HeadObjectInput => HeadObjectOutput;
    create_multipart_upload: CreateMultipartUploadInput => CreateMultipartUploadOutput;
    upload_part: UploadPartInput => UploadPartOutput;
    complete_multipart_upload: CompleteMultipartUploadInput => CompleteMultipartUploadOutput;
    abort_multipart_upload: AbortMultipartUploadInput => AbortMultipartUploadOutput;
    list_parts: ListPartsInput => ListPartsOutput;
}

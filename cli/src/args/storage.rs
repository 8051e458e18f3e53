//! Options of the object store.

use clap::{Args, ValueEnum};

/// An object store other than the platform's own directory.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct S3Args {
    /// An S3 server, or a directory (file:///PATH), to use instead of the platform's own; credentials and region come
    /// from the usual AWS variables.
    #[arg(long, value_name = "URL", env = "FN_S3_ENDPOINT")]
    pub(crate) s3_endpoint: Option<String>,
    /// The bucket.
    #[arg(long, value_name = "NAME", env = "FN_S3_BUCKET", default_value = "rekindle")]
    pub(crate) s3_bucket: String,
    /// Prefix of all keys in the bucket, so that several clusters may share one.
    #[arg(
        long,
        value_name = "NAME",
        env = "FN_S3_PREFIX",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) s3_prefix: String,
    /// How the server encrypts what it stores; by default as the bucket is configured.
    #[arg(long, value_name = "WORD", env = "FN_S3_SSE", value_enum)]
    pub(crate) s3_sse: Option<Sse>,
    /// With --s3-sse aws:kms: the key, if not the bucket's.
    #[arg(long, value_name = "KEY", env = "FN_S3_SSE_KEY", requires = "s3_sse")]
    pub(crate) s3_sse_key: Option<String>,
}

/// How an S3 server encrypts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sse {
    /// With keys of its own.
    #[value(name = "AES256")]
    Aes256,
    /// With a key of its key service.
    #[value(name = "aws:kms")]
    Kms,
}

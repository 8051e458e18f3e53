//! The platform's own directory of objects. Earlier versions kept them with an S3 server of their own, in files with a
//! footer; [`open`] turns those into plain ones, once.
//!
//! ```text
//! s3/FORMAT "rekindle-s3-local 1"                          s3/FORMAT "rekindle-objects 1"
//! s3/buckets/BUCKET/objects/NAME   body, footer    ──►     s3/objects/NAME   body
//! ```
//!
//! It can be killed at any time: the next start goes on with it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use rekindle_store::{Directory, Store, key_of};

/// Content of the FORMAT file of earlier versions.
const EARLIER: &str = "rekindle-s3-local 1\n";
/// Begins the last [`TRAILER`] bytes of their files; then come the body's length and two lengths of four bytes.
const MAGIC: &[u8] = b"RKS3OBJ1";
const TRAILER: u64 = 56;
/// The footer has 32 bytes for each block of this many.
const BLOCK: u64 = 64 << 10;

/// Opens the objects in `root`, first converting those that earlier versions kept in `bucket`. Blocks.
pub(super) fn open(root: &Path, bucket: &str) -> Result<Store> {
    let format = fs::read_to_string(root.join("FORMAT"));
    if format.is_ok_and(|format| format == EARLIER) {
        tracing::info!(target: super::LOG, directory = %root.display(), "converting objects of an earlier version");
        convert(root, bucket).with_context(|| format!("{}: its objects cannot be converted", root.display()))?;
    }
    Ok(Directory::open(root)?)
}

fn convert(root: &Path, bucket: &str) -> Result<()> {
    let (buckets, to) = (root.join("buckets"), root.join("objects"));
    let from = buckets.join(bucket).join("objects");
    fs::create_dir_all(&to)?;
    // What is gone was converted before.
    let names = |directory: &Path| -> io::Result<Vec<_>> {
        if !directory.exists() {
            return Ok(Vec::new());
        }
        let entries = fs::read_dir(directory)?;
        entries.map(|entry| entry.map(|e| e.file_name())).collect()
    };
    if let Some(other) = names(&buckets)?.into_iter().find(|name| *name != *bucket) {
        bail!(
            "there is another bucket, {}: move {} out of the way, or name it with --s3-bucket",
            other.display(),
            buckets.join(&other).display()
        );
    }
    let objects = names(&from)?;
    if let Some(odd) = objects.iter().find(|name| name.to_str().and_then(key_of).is_none()) {
        bail!(
            "{}: no object has such a name: move it out of the way",
            from.join(odd).display()
        );
    }
    for name in &objects {
        strip(&from.join(name)).with_context(|| name.display().to_string())?;
    }
    // No object may be found under its new name and with its footer after a power failure.
    nix::unistd::syncfs(File::open(&to)?)?;
    for name in &objects {
        fs::rename(from.join(name), to.join(name))?;
    }
    File::open(&to)?.sync_all()?;
    for done in ["buckets", "tmp"] {
        match fs::remove_dir_all(root.join(done)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
    }
    for done in ["LOCK", "FORMAT"] {
        match fs::remove_file(root.join(done)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
    }
    Ok(())
}

/// Cuts off the footer, if there is one. What the digests of its content do not prove is found by whoever reads it.
fn strip(path: &Path) -> io::Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    let len = file.metadata()?.len();
    let Some(at) = len.checked_sub(TRAILER) else {
        return Ok(());
    };
    let mut trailer = [0; 24];
    file.read_exact_at(&mut trailer, at)?;
    let number = |from: usize, bytes: usize| {
        let mut le = [0; 8];
        le[..bytes].copy_from_slice(&trailer[from..from + bytes]);
        u64::from_le_bytes(le)
    };
    let (body, metadata) = (number(8, 8), number(20, 4));
    let expected = body
        .checked_add(body.div_ceil(BLOCK).saturating_mul(32))
        .and_then(|n| n.checked_add(metadata + TRAILER));
    if trailer.starts_with(MAGIC) && expected == Some(len) {
        file.set_len(body)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file as earlier versions wrote it.
    fn earlier(body: &[u8]) -> Vec<u8> {
        let metadata = br#"{"key":"x","etag":"e","modified_ms":1,"root":""}"#;
        let mut file = body.to_vec();
        file.resize(body.len() + body.len().div_ceil(64 << 10) * 32, 7);
        file.extend_from_slice(metadata);
        file.extend_from_slice(MAGIC);
        file.extend_from_slice(&(body.len() as u64).to_le_bytes());
        file.extend_from_slice(&(64_u32 << 10).to_le_bytes());
        file.extend_from_slice(&(metadata.len() as u32).to_le_bytes());
        file.extend_from_slice(&[9; 32]);
        file
    }

    fn earlier_root(root: &Path) {
        let objects = root.join("buckets/rekindle/objects");
        fs::create_dir_all(&objects).unwrap();
        fs::create_dir_all(root.join("buckets/rekindle/uploads")).unwrap();
        fs::create_dir_all(root.join("tmp")).unwrap();
        fs::write(root.join("LOCK"), "").unwrap();
        fs::write(root.join("FORMAT"), EARLIER).unwrap();
        for (name, body) in [
            ("chunks%2Fa", vec![1; 200_000]),
            ("snapshots%2Fs%2Fbundle", vec![2; 3]),
            ("empty", vec![]),
        ] {
            fs::write(objects.join(name), earlier(&body)).unwrap();
        }
    }

    #[tokio::test]
    async fn objects_of_an_earlier_version_go_on() {
        let root = tempfile::tempdir().unwrap();
        earlier_root(root.path());
        // Killed in the middle: one is stripped, another moved.
        let objects = root.path().join("buckets/rekindle/objects");
        strip(&objects.join("empty")).unwrap();
        strip(&objects.join("chunks%2Fa")).unwrap();
        fs::create_dir(root.path().join("objects")).unwrap();
        fs::rename(objects.join("chunks%2Fa"), root.path().join("objects/chunks%2Fa")).unwrap();

        for _ in 0..2 {
            let store = open(root.path(), "rekindle").unwrap();
            let keys: Vec<_> = store
                .list("")
                .await
                .unwrap()
                .into_iter()
                .map(|o| (o.key, o.len))
                .collect();
            let expected = [("chunks/a", 200_000), ("empty", 0), ("snapshots/s/bundle", 3)];
            assert_eq!(keys, expected.map(|(key, len)| (key.to_owned(), len)));
            assert_eq!(store.get("chunks/a").await.unwrap(), vec![1; 200_000]);
        }
        // Killed at the end.
        fs::write(root.path().join("FORMAT"), EARLIER).unwrap();
        assert_eq!(open(root.path(), "rekindle").unwrap().list("").await.unwrap().len(), 3);
        let mut left: Vec<_> = fs::read_dir(root.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["FORMAT", "objects", "tmp"]);
    }

    #[test]
    fn a_second_bucket_is_not_lost() {
        let root = tempfile::tempdir().unwrap();
        earlier_root(root.path());
        fs::create_dir_all(root.path().join("buckets/another/objects")).unwrap();
        let error = format!("{:#}", open(root.path(), "rekindle").unwrap_err());
        assert!(error.contains("another") && error.contains("--s3-bucket"), "{error}");
        assert!(root.path().join("buckets/rekindle/objects/empty").exists());
    }
}

//! Sends a packed folder to the gateway, with a progress bar.

use std::io::{Read as _, Seek as _, SeekFrom};

use anyhow::{Context as _, Result};
use futures::stream;
use rekindle_wire::api::VersionInfo;

use super::DeployOptions;
use super::pack::Packed;
use crate::client::Client;
use crate::show;

const PIECE: usize = 256 << 10;

/// Uploads `packed` as a version of the function that its config names. Returns it, and whether it is new.
pub(super) async fn upload(client: &Client, packed: Packed, how: &DeployOptions) -> Result<(VersionInfo, bool)> {
    if !how.quiet {
        eprintln!(
            "packed {}, {} ({} packed)",
            show::count(packed.files, "file"),
            show::bytes(packed.plain_bytes),
            show::bytes(packed.bytes)
        );
    }
    let bar = show::byte_bar(packed.bytes, "upload", how.quiet);
    let mut file = packed.file;
    file.seek(SeekFrom::Start(0))
        .context("the packed folder cannot be read again")?;
    let shown = bar.clone();
    // The file is local and just written: reading it does not block for long.
    let pieces = stream::try_unfold(file, move |mut file| {
        let bar = shown.clone();
        async move {
            let mut piece = vec![0; PIECE];
            let n = file.read(&mut piece)?;
            if n == 0 {
                return Ok::<_, std::io::Error>(None);
            }
            piece.truncate(n);
            bar.inc(u64::try_from(n).unwrap_or(0));
            Ok(Some((piece, file)))
        }
    });
    let version = client
        .deploy(
            reqwest::Body::wrap_stream(pieces),
            packed.bytes,
            how.force,
            &how.release,
        )
        .await;
    bar.finish_and_clear();
    version
}

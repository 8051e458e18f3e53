//! `fn snapshot compress` and `decompress`: image directories, in place, without a store.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use rekindle_snapshotter::interchange::{self, Compression, Converted};

use crate::args::ConversionArgs;
use crate::show;

/// Compresses the pages in `dir`.
pub(super) fn compress(dir: &Path, block_bytes: u64, acceleration: i32, how: ConversionArgs) -> Result<ExitCode> {
    let compression = Compression {
        block_bytes,
        acceleration,
    };
    let done = interchange::compress(dir, &compression, !how.in_place)?;
    report(dir, done, "compressed", how)
}

/// Decompresses the pages in `dir`.
pub(super) fn decompress(dir: &Path, how: ConversionArgs) -> Result<ExitCode> {
    let done = interchange::decompress(dir, !how.in_place)?;
    report(dir, done, "decompressed", how)
}

fn report(dir: &Path, done: Option<Vec<Converted>>, word: &str, how: ConversionArgs) -> Result<ExitCode> {
    if how.listing.json {
        show::print_json(&done.unwrap_or_default())?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(done) = done else {
        say!("{} is {word} already", dir.display());
        return Ok(ExitCode::SUCCESS);
    };
    let mut table = show::table(["FILE", "PAGES", "BEFORE", "AFTER"]);
    for file in &done {
        table.add_row([
            file.name.clone(),
            file.pages.to_string(),
            show::bytes(file.before_bytes),
            show::bytes(file.after_bytes),
        ]);
    }
    show::print_table(&table);
    if !how.in_place {
        say!("what was replaced is beside it as .bak");
    }
    Ok(ExitCode::SUCCESS)
}

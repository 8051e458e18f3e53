//! A snapshot's images, as `fn snapshot export` writes them: checked by the verifier, and their pages.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use prost::Message;
use rekindle_verify::messages::{FileEntry, PagemapHead, PagemapRun, PipeData, Seccomp};
use rekindle_verify::{Expected, Limit, RESOURCES, Verified, verify_images};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// A pagemap's flag: the page is in the pages' file.
const PRESENT: u32 = 4;
const PIPE: u32 = 2;

/// A directory of images.
pub struct Images {
    pub verified: Verified,
    pub filters: Vec<Vec<u8>>,
    pub memory: BTreeMap<u32, Memory>,
    /// The pages' files of all processes, one after the other.
    pub pages: Vec<PathBuf>,
    /// What is in pipes, by their numbers.
    pub pipe_data: BTreeMap<u32, Vec<u8>>,
}

/// Pages of a process, by number: how many, and where in the pages' files of all.
pub struct Memory {
    pub runs: BTreeMap<u64, (u64, u64)>,
}

impl Memory {
    /// The runs in a range of page numbers, cut to it.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let before = self.runs.range(..range.start).next_back();
        let from = before
            .filter(|(first, (count, _))| *first + count > range.start)
            .map_or(range.start, |(f, _)| *f);
        let (start, end) = (range.start, range.end);
        self.runs.range(from..end).map(move |(first, (count, at))| {
            let skip = start.saturating_sub(*first);
            let last = (first + count).min(end);
            (first + skip, last - first - skip, at + skip)
        })
    }
}

/// The messages of an image after its magic numbers.
fn messages<M: Message + Default>(bytes: &[u8]) -> Result<Vec<M>> {
    let mut rest = bytes.get(8..).context("it has no magic numbers")?;
    let mut found = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let (message, after) = after
            .split_at_checked(u32::from_le_bytes(*length) as usize)
            .context("cut off")?;
        found.push(M::decode(message)?);
        rest = after;
    }
    Ok(found)
}

/// Messages with data after each.
fn pipe_data(image: &[u8]) -> Result<BTreeMap<u32, Vec<u8>>> {
    let mut rest = image.get(8..).context("no magic numbers")?;
    let mut found = BTreeMap::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let (message, after) = after
            .split_at_checked(u32::from_le_bytes(*length) as usize)
            .context("cut off")?;
        let pipe = PipeData::decode(message)?;
        let (bytes, after) = after.split_at_checked(pipe.bytes as usize).context("cut off")?;
        found.insert(pipe.pipe_id, bytes.to_vec());
        rest = after;
    }
    Ok(found)
}

/// What the worker would know of a function from elsewhere. Here only what the images themselves say.
fn expected(files: &[FileEntry], filters: &[Vec<u8>], others: Vec<String>) -> Expected {
    let mut limits = [Limit::AtMost(u64::MAX); RESOURCES];
    limits[7] = Limit::AtMost(1 << 20);
    let written = |entry: &FileEntry| Some(entry.pipe.as_ref().filter(|p| p.flags & 3 == 1)?.pipe_id);
    let read = |entry: &FileEntry| Some(entry.pipe.as_ref().filter(|p| p.flags & 3 != 1)?.pipe_id);
    let within: Vec<u32> = files.iter().filter_map(read).collect();
    Expected {
        uid: 1000,
        gid: 1000,
        groups: Vec::new(),
        filters: filters.iter().map(|filter| *blake3::hash(filter).as_bytes()).collect(),
        limits,
        oom_score_adj_min: 0,
        pids: 300..=4_194_303,
        port_min: 1024,
        output_pipes: files
            .iter()
            .filter(|f| f.kind == PIPE)
            .filter_map(written)
            .filter(|p| !within.contains(p))
            .collect(),
        other_files: others,
        travelling: None,
    }
}

/// Reads and checks a directory of images.
pub fn load(dir: &Path) -> Result<Images> {
    let mut files = BTreeMap::new();
    let mut others = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let is_image = name.ends_with(".img") || name == "stats-dump";
        let bytes = if name.starts_with("pages-") || !is_image {
            Vec::new()
        } else {
            fs::read(dir.join(&name))?
        };
        if is_image {
            files.insert(name, bytes);
        } else {
            others.push(name);
        }
    }
    let of = |name: &str| files.get(name).with_context(|| format!("{name} is missing"));
    let listed: Vec<FileEntry> = messages(of("files.img")?)?;
    let filters = match files.get("seccomp.img") {
        Some(image) => messages::<Seccomp>(image)?
            .pop()
            .map(|s| s.seccomp_filters)
            .unwrap_or_default(),
        None => Vec::new(),
    };
    ensure!(filters.iter().all(|f| f.prev.is_none()), "a thread has several filters");
    let filters: Vec<Vec<u8>> = filters.into_iter().map(|f| f.filter).collect();
    let images = files
        .iter()
        .map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
        .collect();
    let verified = verify_images(&images, &expected(&listed, &filters, others))?;
    let (mut memory, mut pages, mut at) = (BTreeMap::new(), Vec::new(), 0);
    for process in &verified.processes {
        let pid = process.tree.pid;
        let image = of(&format!("pagemap-{pid}.img"))?;
        let head = image.get(8..).and_then(|rest| {
            let (length, rest) = rest.split_first_chunk::<4>()?;
            PagemapHead::decode(rest.get(..u32::from_le_bytes(*length) as usize)?).ok()
        });
        let head = head.context("a pagemap has no head")?;
        let mut runs = BTreeMap::new();
        // The first is the head, which decodes as another message and is passed over.
        for run in messages::<PagemapRun>(&[&image[..8], &image[8 + 4 + head.encoded_len()..]].concat())? {
            let count = run.nr_pages.unwrap_or(run.compat_nr_pages.into());
            if run.flags.unwrap_or(PRESENT) & PRESENT == 0 {
                bail!("process {pid} has pages in a parent");
            }
            runs.insert(run.vaddr / PAGE, (count, at));
            at += count;
        }
        memory.insert(pid, Memory { runs });
        pages.push(dir.join(format!("pages-{}.img", head.pages_id)));
    }
    let pipe_data = files
        .get("pipes-data.img")
        .map_or_else(|| Ok(BTreeMap::new()), |image| pipe_data(image))?;
    Ok(Images {
        verified,
        filters,
        memory,
        pages,
        pipe_data,
    })
}

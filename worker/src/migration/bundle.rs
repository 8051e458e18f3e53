//! What goes to the target before the processes are restored there: CRIU's images, private files, and the pager's maps.
//!
//! ```text
//! header_len:u32 header:json { file bytes }*          little-endian; the header names the files and their lengths
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures::{AsyncRead, AsyncReadExt as _, Stream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::checks::RefusedError;
use super::header::Header;

const HEADER_MAX: u32 = 256 << 20;
/// Bytes of a file that are read at once.
const PIECE: usize = 256 << 10;
/// How long a source may be silent in the middle of a bundle.
const SILENCE: Duration = Duration::from_secs(10);
/// Maximum number of pieces that wait to be sent.
const PIECES: usize = 4;

/// Why a bundle cannot be packed or unpacked.
#[derive(Debug, thiserror::Error)]
pub(super) enum BundleError {
    /// A file cannot be read or written.
    #[error("{}", .0.display())]
    File(PathBuf, #[source] io::Error),
    #[error("receive the bundle")]
    Receive(#[source] io::Error),
    /// The bundle is cut off or too long.
    #[error("the bundle is cut off")]
    Cut,
    /// The header is not what this version writes.
    #[error("the bundle's header is not understood")]
    Header(#[source] serde_json::Error),
    /// The header contains something that no source sends.
    #[error("the bundle's header is refused")]
    Refused(#[source] RefusedError),
}

/// What is sent to a target. Files are read only when they are sent.
#[derive(Debug)]
pub(super) struct Bundle {
    /// The header with its length, and the files that exist in memory alone.
    head: Vec<u8>,
    /// The files that follow, with their lengths.
    files: Vec<(PathBuf, u64)>,
}

/// Packs files of memory, `more`, followed by the files of `dir` whose names `wanted` accepts. Blocks.
pub(super) fn pack(
    mut header: Header,
    dir: &Path,
    wanted: impl Fn(&str) -> bool,
    more: Vec<(String, Vec<u8>)>,
) -> Result<Bundle, BundleError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |e| BundleError::File(path, e)
    };
    header.files = more
        .iter()
        .map(|(name, bytes)| (name.clone(), bytes.len() as u64))
        .collect();
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed(dir))? {
        let entry = entry.map_err(failed(dir))?;
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else {
            continue;
        };
        if wanted(&name) {
            let path = entry.path();
            let bytes = entry.metadata().map_err(failed(&path))?.len();
            header.files.push((name, bytes));
            files.push((path, bytes));
        }
    }
    let encoded = serde_json::to_vec(&header).map_err(BundleError::Header)?;
    let length = u32::try_from(encoded.len()).map_err(|_| BundleError::Cut)?;
    let mut head = length.to_le_bytes().to_vec();
    head.extend_from_slice(&encoded);
    more.iter().for_each(|(_, bytes)| head.extend_from_slice(bytes));
    Ok(Bundle { head, files })
}

impl Bundle {
    /// Its size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.head.len() as u64 + self.files.iter().map(|(_, bytes)| bytes).sum::<u64>()
    }

    /// Its pieces. Few are in memory at once.
    pub(super) fn into_stream(self) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        let (pieces, receiver) = mpsc::channel(PIECES);
        tokio::task::spawn_blocking(move || {
            let send = |piece| pieces.blocking_send(piece).is_ok();
            if !send(Ok(self.head.into())) {
                return;
            }
            for (path, bytes) in self.files {
                match read_pieces(&path, bytes, |piece| send(Ok(piece))) {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(e) => {
                        // Whoever receives it may be gone.
                        let _told = send(Err(e));
                        return;
                    }
                }
            }
        });
        ReceiverStream::new(receiver)
    }
}

/// Hands out the first `bytes` of a file until `take` refuses a piece. Returns whether it took all.
fn read_pieces(path: &Path, bytes: u64, take: impl Fn(Bytes) -> bool) -> io::Result<bool> {
    let mut file = File::open(path)?.take(bytes);
    while file.limit() > 0 {
        let mut piece = Vec::with_capacity(PIECE.min(usize::try_from(file.limit()).unwrap_or(PIECE)));
        if file.by_ref().take(PIECE as u64).read_to_end(&mut piece)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if !take(piece.into()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reads a stream from a blocking thread of the runtime. A stream that is silent for too long fails.
pub(super) struct BlockingReader<R>(pub(super) R);

impl<R: AsyncRead + Unpin> Read for BlockingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = async { tokio::time::timeout(SILENCE, self.0.read(buffer)).await };
        futures::executor::block_on(read).map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }
}

/// Writes the files of a bundle into `dir`, if its header passes `check`. Blocks.
pub(super) fn unpack(
    mut bundle: impl Read,
    dir: &Path,
    check: impl FnOnce(&Header) -> Result<(), RefusedError>,
) -> Result<Header, BundleError> {
    let mut length = [0; 4];
    bundle.read_exact(&mut length).map_err(BundleError::Receive)?;
    let length = u32::from_le_bytes(length);
    if length > HEADER_MAX {
        return Err(BundleError::Cut);
    }
    let mut header = Vec::new();
    let received = bundle.by_ref().take(length.into()).read_to_end(&mut header);
    if received.map_err(BundleError::Receive)? != length as usize {
        return Err(BundleError::Cut);
    }
    let header: Header = serde_json::from_slice(&header).map_err(BundleError::Header)?;
    check(&header).map_err(BundleError::Refused)?;
    for (name, length) in &header.files {
        let path = dir.join(name);
        let mut file = File::create(&path).map_err(|e| BundleError::File(path.clone(), e))?;
        let copied = io::copy(&mut bundle.by_ref().take(*length), &mut file);
        if copied.map_err(|e| BundleError::File(path, e))? != *length {
            return Err(BundleError::Cut);
        }
    }
    match bundle.read(&mut [0]).map_err(BundleError::Receive)? {
        0 => Ok(header),
        _ => Err(BundleError::Cut),
    }
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt as _, TryStreamExt as _};
    use rekindle_pager::address_map::{AddressMap, Origin};

    use super::super::checks::check_header;
    use super::super::header::{pieces, set_pieces};
    use super::*;

    async fn sent(bundle: Bundle) -> Vec<u8> {
        let pieces: Vec<_> = bundle.into_stream().try_collect().await.unwrap();
        pieces.concat()
    }

    #[tokio::test]
    async fn a_parcel_is_opened_as_it_was_packed_and_a_damaged_one_is_refused() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(from.path().join("core-1.img"), "core").unwrap();
        std::fs::write(from.path().join("dump.log"), "log").unwrap();
        let mut map = AddressMap::default();
        map.remap(10, 100, 5);
        let header = Header {
            templates: vec!["file[1:2]".to_owned()],
            maps: vec![(501, pieces(&map))],
            ..Header::default()
        };
        let more = vec![("eager-501".to_owned(), vec![1, 2, 3])];
        let bundle = pack(header, from.path(), |name| name.ends_with(".img"), more).unwrap();
        let expected = bundle.bytes();
        let bundle = sent(bundle).await;
        assert_eq!(bundle.len() as u64, expected);
        let opened = unpack(&*bundle, to.path(), |header| check_header(header, 1)).unwrap();
        assert_eq!(opened.templates, ["file[1:2]"]);
        let mut again = AddressMap::default();
        set_pieces(&mut again, &opened.maps[0].1);
        assert_eq!(again.origin(102), Origin::Snapshot(12));
        assert_eq!(again.origin(12), Origin::Zero);
        assert_eq!(std::fs::read(to.path().join("core-1.img")).unwrap(), b"core");
        assert_eq!(std::fs::read(to.path().join("eager-501")).unwrap(), [1, 2, 3]);
        assert!(!to.path().join("dump.log").exists());
        assert!(matches!(
            unpack(&bundle[..bundle.len() - 1], to.path(), |_| Ok(())),
            Err(BundleError::Cut)
        ));
        assert!(matches!(
            unpack(&[0xff; 9][..], to.path(), |_| Ok(())),
            Err(BundleError::Cut)
        ));
        let inner = to.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        let more = vec![("../x".to_owned(), Vec::new())];
        let out = sent(pack(Header::default(), &inner, |_| false, more).unwrap()).await;
        let refused = unpack(&*out, &inner, |header| check_header(header, 0));
        assert!(matches!(refused, Err(BundleError::Refused(_))));
        assert!(!to.path().join("x").exists());
    }

    #[tokio::test]
    async fn a_file_that_shrinks_meanwhile_breaks_the_bundle_off() {
        let from = tempfile::tempdir().unwrap();
        let path = from.path().join("pages-1.img");
        std::fs::write(&path, vec![7; 3 * PIECE]).unwrap();
        let bundle = pack(Header::default(), from.path(), |_| true, Vec::new()).unwrap();
        std::fs::write(&path, vec![7; PIECE]).unwrap();
        let pieces: Vec<_> = bundle.into_stream().collect().await;
        assert!(pieces.last().unwrap().is_err());
        let whole = pieces.iter().filter_map(|piece| Some(piece.as_ref().ok()?.len()));
        assert!(whole.max().unwrap() <= PIECE);
    }
}

//! Our pager in the proof: it listens where CRIU looks for its own daemon, and counts the pages it served.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rekindle_pager::{Handover, Layout, LostPage, PageSource, Pager, PagerConfig};

/// CRIU's name for the socket, in its work directory.
const SOCKET: &str = "lazy-pages.socket";

/// A pager that serves one restore.
pub(super) struct Paging {
    pager: Pager,
    lost: Receiver<LostPage>,
}

impl Paging {
    /// Listens in CRIU's work directory; CRIU must connect within `limit`.
    pub(super) fn start(source: impl PageSource + 'static, work: &Path, limit: Duration) -> Result<Self> {
        let socket = work.join(SOCKET);
        let listener = UnixListener::bind(&socket).with_context(|| format!("{}: cannot be made", socket.display()))?;
        let (tell, lost) = channel();
        let pager = Pager::start(PagerConfig {
            name: "pager-doctor".to_owned(),
            handover: Handover::Socket(listener),
            source: Arc::new(source),
            layout: Layout::default(),
            record: false,
            maps: std::collections::HashMap::new(),
            handshake_limit: limit,
            on_lost: Box::new(move |page| {
                // CRIU has named the process by then. If it has not, the pager itself failed, and the limits end
                // everything.
                if page.pid > 0 {
                    // It may have ended already, which is fine.
                    let _ended = kill(Pid::from_raw(page.pid), Signal::SIGKILL);
                }
                // The receiver may be gone, which is fine.
                let _told = tell.send(page);
            }),
        })
        .context("the pager cannot be started")?;
        Ok(Self { pager, lost })
    }

    /// Number of pages served for faults. To be called once the restored process is gone.
    pub(super) fn finish(self) -> Result<u64> {
        if let Ok(lost) = self.lost.try_recv() {
            bail!("the pager lost a page: {lost}");
        }
        Ok(self.pager.stats().copied.load(Ordering::Relaxed))
    }
}

//! The mappings of a process, and where their pages come from.

use anyhow::{Context as _, Result, bail, ensure};
use rekindle_verify::Process;
use rekindle_verify::messages::Vma;
use restore_program::{Code, PAGE, source, window};

use crate::builder::Builder;
use crate::images::{Images, Memory};

/// CRIU's status flags of mappings.
mod status {
    pub(super) const VSYSCALL: u32 = 1 << 2;
    pub(super) const VDSO: u32 = 1 << 3;
    pub(super) const FILE_PRIVATE: u32 = 1 << 6;
    pub(super) const FILE_SHARED: u32 = 1 << 7;
    pub(super) const ANON_SHARED: u32 = 1 << 8;
    pub(super) const VVAR: u32 = 1 << 12;
    pub(super) const MEMFD: u32 = 1 << 14;
    pub(super) const GUARD: u32 = 1 << 16;
}

/// The kernel's own.
const KERNELS: u32 = status::VSYSCALL | status::VDSO | status::VVAR;
const WRITE: u64 = 2;
const GROWS_DOWN: u32 = 0x100;
const LOCKED: u32 = 0x2000;
/// `MADV_WIPEONFORK`, which only memory without a file can have.
const WIPE_ON_FORK: u32 = 18;
/// Maximum number of unwritten pages between written ones that move into the template with them.
const GAP_MAX: u64 = 16;
/// Maximum number of parts that the kernel reads in one call.
const PARTS_MAX: usize = 1024;

/// Where memory without a file comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Each restore reads its own copy.
    Eager,
    /// All restores map one file.
    Template,
    /// The same, and a pager fills that file.
    Paged,
}

/// Reads pages of a file of the function's root: path, offset, bytes.
pub type ReadFile<'a> = dyn Fn(&[u8], u64, u64) -> Result<Vec<u8>> + 'a;

/// The file that all restores map: pieces of it, in order.
#[derive(Default)]
pub struct Template {
    pub pages: u64,
    /// Page in the template, number of pages, page in the pages' file.
    pub copied: Vec<(u64, u64, u64)>,
    /// Page in the template, and the bytes there.
    pub folded: Vec<(u64, Vec<u8>)>,
}

/// A mapping to be made.
struct Plan<'a> {
    b: &'a mut Builder,
    memory: &'a Memory,
    template: &'a mut Template,
    /// Pages to be read: address, number, page in the pages' file.
    read: Vec<(u64, u64, u64)>,
    /// Mappings that are written to before they have their protection.
    protect: Vec<(u64, u64, u64)>,
    open: Option<(Vec<u8>, u32)>,
}

/// Adds the operations of stages 2 to 4.
pub fn compile(
    b: &mut Builder,
    images: &Images,
    process: &Process,
    pages: Pages,
    file: &ReadFile<'_>,
    template: &mut Template,
) -> Result<()> {
    let mm = process.memory.as_ref().context("the process is dead")?;
    let memory = images.memory.get(&process.tree.pid).context("no pagemap")?;
    let mut plan = Plan {
        b,
        memory,
        template,
        read: Vec::new(),
        protect: Vec::new(),
        open: None,
    };
    for vma in &mm.vmas {
        ensure!(
            vma.start >= window::END || vma.end <= window::START,
            "a mapping is in the restorer's window"
        );
        if vma.status & KERNELS != 0 {
            continue;
        }
        ensure!(vma.status & status::GUARD == 0, "guard pages");
        ensure!(vma.status & (status::ANON_SHARED | status::MEMFD) == 0, "shared memory");
        ensure!(vma.flags & LOCKED == 0, "locked memory");
        if vma.status & (status::FILE_PRIVATE | status::FILE_SHARED) != 0 {
            plan.file(images, vma, pages, file)?;
        } else {
            plan.close();
            plan.anonymous(vma, pages);
        }
    }
    plan.close();
    plan.b.op(Code::Stage, 2, []);
    plan.reads();
    plan.b.op(Code::Stage, 3, []);
    for (start, length, protection) in &plan.protect {
        plan.b.op(Code::Protect, 0, [*start, *length, *protection]);
    }
    for vma in mm.vmas.iter().filter(|vma| vma.status & KERNELS == 0) {
        for advice in (0..64).filter(|bit| vma.madv.unwrap_or(0) & 1 << bit != 0) {
            plan.b.op(Code::Advise, advice, [vma.start, vma.end - vma.start]);
        }
    }
    plan.b.op(Code::Stage, 4, []);
    Ok(())
}

impl Plan<'_> {
    fn close(&mut self) {
        if self.open.take().is_some() {
            self.b.op(Code::Close, 0, []);
        }
    }

    fn anonymous(&mut self, vma: &Vma, pages: Pages) {
        let (first, end) = (vma.start / PAGE, vma.end / PAGE);
        let runs: Vec<_> = self.memory.within(first..end).collect();
        let plain = vma.flags & GROWS_DOWN == 0 && vma.madv.unwrap_or(0) & 1 << WIPE_ON_FORK == 0;
        let flags = u64::from(vma.flags & !0x20);
        if pages != Pages::Eager && plain && !runs.is_empty() {
            let at = self.template.pages;
            self.template.copied.extend(
                runs.iter()
                    .map(|(page, count, from)| (at + page - first, *count, *from)),
            );
            self.template.pages += end - first;
            let args = [vma.start, vma.end - vma.start, vma.prot.into(), flags, at * PAGE];
            self.b.op(Code::Map, source::TEMPLATE, args);
        } else {
            let protection = self.readable(vma, &runs);
            self.b.op(
                Code::Map,
                source::ANONYMOUS,
                [vma.start, vma.end - vma.start, protection, flags, 0],
            );
        }
    }

    /// Notes that these pages are read into a mapping. Returns the protection that it is made with.
    fn readable(&mut self, vma: &Vma, runs: &[(u64, u64, u64)]) -> u64 {
        let protection = u64::from(vma.prot);
        self.read
            .extend(runs.iter().map(|(page, count, from)| (page * PAGE, *count, *from)));
        if runs.is_empty() || protection & WRITE != 0 {
            return protection;
        }
        self.protect.push((vma.start, vma.end - vma.start, protection));
        protection | WRITE
    }

    fn file(&mut self, images: &Images, vma: &Vma, pages: Pages, file: &ReadFile<'_>) -> Result<()> {
        let id = u32::try_from(vma.shmid)?;
        let named = images
            .verified
            .files
            .get(&id)
            .and_then(|f| f.reg.as_ref())
            .context("no such file")?;
        let flags = vma.fdflags.unwrap_or(0);
        if self
            .open
            .as_ref()
            .is_none_or(|(path, with)| (path, *with) != (&named.name, flags))
        {
            self.close();
            self.b.path(Code::Open, flags & 3, &named.name);
            self.open = Some((named.name.clone(), flags));
        }
        let (first, end) = (vma.start / PAGE, vma.end / PAGE);
        let runs: Vec<_> = self.memory.within(first..end).collect();
        let of_file = |b: &mut Builder, from: u64, to: u64, protection: u64| {
            let offset = vma.pgoff + from * PAGE - vma.start;
            b.op(
                Code::Map,
                source::FILE,
                [from * PAGE, (to - from) * PAGE, protection, vma.flags.into(), offset],
            );
        };
        if pages == Pages::Eager || runs.is_empty() {
            if vma.status & status::FILE_SHARED != 0 && !runs.is_empty() {
                bail!("pages of a shared file");
            }
            let protection = self.readable(vma, &runs);
            of_file(self.b, first, end, protection);
            return Ok(());
        }
        // Written pages move into the template, with the few unwritten ones between them.
        let mut at = first;
        for fold in folds(&runs) {
            let (from, to) = (fold[0].0, fold[fold.len() - 1].0 + fold[fold.len() - 1].1);
            if at < from {
                of_file(self.b, at, from, vma.prot.into());
            }
            let place = self.template.pages;
            let args = [
                from * PAGE,
                (to - from) * PAGE,
                vma.prot.into(),
                vma.flags.into(),
                place * PAGE,
            ];
            self.b.op(Code::Map, source::TEMPLATE, args);
            let between = file(&named.name, vma.pgoff + from * PAGE - vma.start, (to - from) * PAGE)?;
            self.template.folded.push((place, between));
            self.template.copied.extend(
                fold.iter()
                    .map(|(page, count, image)| (place + page - from, *count, *image)),
            );
            self.template.pages += to - from;
            at = to;
        }
        if at < end {
            of_file(self.b, at, end, vma.prot.into());
        }
        Ok(())
    }

    fn reads(&mut self) {
        let mut rest = self.read.as_slice();
        while let Some((_, _, from)) = rest.first() {
            let mut next = *from;
            let together = rest.iter().take(PARTS_MAX).take_while(|(_, count, at)| {
                let follows = *at == next;
                next += count;
                follows
            });
            let (now, later) = rest.split_at(together.count());
            let parts: Vec<u64> = now
                .iter()
                .flat_map(|(address, count, _)| [*address, count * PAGE])
                .collect();
            let bytes = now.iter().map(|(_, count, _)| count * PAGE).sum();
            let at = self.b.longs(&parts);
            self.b.op(Code::Read, now.len() as u32, [at, from * PAGE, bytes]);
            rest = later;
        }
    }
}

/// Groups runs with at most [`GAP_MAX`] pages between them.
fn folds(runs: &[(u64, u64, u64)]) -> impl Iterator<Item = &[(u64, u64, u64)]> {
    runs.chunk_by(|(page, count, _), (next, ..)| next - (page + count) <= GAP_MAX)
}

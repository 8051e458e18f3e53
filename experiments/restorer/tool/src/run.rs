//! Restores a snapshot by its program, many times, and says where the time goes.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use restore_program::{Order, REPORT_BYTES, RESIDUE_MAX, Report};

use crate::compile::{Compiled, STAGES, compile};
use crate::images::{Images, PAGE, load};
use crate::memory::Pages;
use crate::pager::{Pager, ranges};
use crate::residue;
use crate::sandbox::{self, Layers, Sandbox};

/// What restores of one snapshot share.
pub struct Job {
    pub images: Images,
    pub layers: Layers,
    pub compiled: Compiled,
    program: File,
    pub pages: File,
    template: File,
    how: Pages,
    stage: PathBuf,
}

/// Where the function answers.
const PORT: u16 = 8080;

fn memory_file(name: &std::ffi::CStr) -> Result<File> {
    // SAFETY: makes a new descriptor, owned from here on.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    ensure!(fd >= 0, "memfd_create");
    // SAFETY: as above.
    Ok(unsafe { File::from_raw_fd(fd) })
}

impl Job {
    /// Compiles, and fills the template.
    pub fn prepare(dir: &Path, layers: Layers, how: Pages) -> Result<Self> {
        let images = load(dir).context("load the images")?;
        let read = |path: &[u8], offset: u64, bytes: u64| {
            let path = String::from_utf8_lossy(path).into_owned();
            let root = path.strip_prefix("/app/").map(|rest| format!("{}/{rest}", layers.app));
            let file = File::open(root.unwrap_or_else(|| format!("{}{path}", layers.rootfs)))?;
            let mut buffer = vec![0; bytes as usize];
            let mut done = 0;
            while done < buffer.len() {
                match file.read_at(&mut buffer[done..], offset + done as u64)? {
                    0 => break,
                    n => done += n,
                }
            }
            Ok(buffer)
        };
        let began = Instant::now();
        let compiled = compile(&images, how, &read).context("compile")?;
        eprintln!("compiled in {:?}, {} bytes", began.elapsed(), compiled.program.len());
        let mut program = memory_file(c"program")?;
        program.write_all(&compiled.program)?;
        // Not of a disk while it is measured.
        let mut pages = memory_file(c"pages")?;
        for file in &images.pages {
            std::io::copy(&mut File::open(file)?, &mut pages)?;
        }
        let template = memory_file(c"template")?;
        template.set_len(compiled.template.pages * PAGE)?;
        for (at, bytes) in &compiled.template.folded {
            template.write_all_at(bytes, at * PAGE)?;
        }
        for (at, count, from) in &compiled.template.copied {
            let mut bytes = vec![0; (count * PAGE) as usize];
            pages.read_exact_at(&mut bytes, from * PAGE)?;
            template.write_all_at(&bytes, at * PAGE)?;
        }
        let stage = std::env::temp_dir().join(format!("restorer-{}", std::process::id()));
        fs::create_dir_all(&stage)?;
        sandbox::mount_layers(&stage, &layers)?;
        Ok(Self {
            images,
            layers,
            compiled,
            program,
            pages,
            template,
            how,
            stage,
        })
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // The mounts go with this program's mount namespace.
        if let Ok(stage) = std::ffi::CString::new(self.stage.as_os_str().as_encoded_bytes()) {
            // SAFETY: the string outlives the call.
            unsafe { libc::umount2(stage.as_ptr(), libc::MNT_DETACH) };
        }
        let _ = fs::remove_dir(&self.stage);
    }
}

impl Job {
    /// A place at random where the snapshot has no mapping.
    fn free_place(&self) -> Result<u64> {
        const LOWEST: u64 = 0x10_0000_0000;
        const RANGE: u64 = 0x7000_0000_0000;
        let vmas = self
            .images
            .verified
            .processes
            .iter()
            .flat_map(|p| p.memory.iter().flat_map(|m| &m.vmas));
        let vmas: Vec<_> = vmas.collect();
        loop {
            let mut random = 0u64;
            // SAFETY: room for eight bytes.
            let got = unsafe { libc::getrandom((&raw mut random).cast(), 8, 0) };
            ensure!(got == 8, "getrandom");
            let start = LOWEST + random % RANGE / PAGE * PAGE;
            if vmas
                .iter()
                .all(|vma| start >= vma.end || start + RESIDUE_MAX <= vma.start)
            {
                return Ok(start);
            }
        }
    }
}

/// A restore that has come to where it waits to be told to go on.
pub struct Restore {
    pub sandbox: Sandbox,
    processes: usize,
    report: *mut Report,
    pub ordered: u64,
    pub residue: u64,
    outputs: [OwnedFd; 2],
    pub pager: Option<Pager>,
}

impl Drop for Restore {
    fn drop(&mut self) {
        // SAFETY: mapped by `begin`, and used by nobody else.
        unsafe { libc::munmap(self.report.cast(), PAGE as usize) };
    }
}

/// Nanoseconds of `CLOCK_REALTIME`.
pub fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}

fn pipe() -> Result<[OwnedFd; 2]> {
    let mut ends = [0; 2];
    // SAFETY: the kernel writes two descriptors, owned from here on.
    unsafe {
        ensure!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) == 0, "pipe");
        Ok(ends.map(|end| OwnedFd::from_raw_fd(end)))
    }
}

impl Restore {
    /// Makes a sandbox, orders the restore, and waits until everything is in place.
    pub fn begin(job: &Job) -> Result<Self> {
        let mut sandbox = sandbox::make(&job.stage, &job.layers)?;
        let userfault = sandbox.userfault.take();
        // A template of its own, so that each restore finds it empty.
        let empty = memory_file(c"template")?;
        empty.set_len(job.compiled.template.pages * PAGE)?;
        let template = if job.how == Pages::Paged { &empty } else { &job.template };
        let report = memory_file(c"report")?;
        report.set_len(PAGE)?;
        // SAFETY: a fresh mapping of a page.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE as usize,
                3,
                libc::MAP_SHARED,
                report.as_raw_fd(),
                0,
            )
        };
        ensure!(mapped != libc::MAP_FAILED, "map the report");
        // It has come to its socket, so that only the restore is measured.
        let waits = format!("/proc/{}/wchan", sandbox.function);
        for _ in 0..2000 {
            if fs::read_to_string(&waits).is_ok_and(|w| w.contains("recv") || w.contains("wait_for_more_packets")) {
                break;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        let [read, write] = pipe()?;
        let parts: [RawFd; 6] = [
            job.program.as_raw_fd(),
            job.pages.as_raw_fd(),
            report.as_raw_fd(),
            template.as_raw_fd(),
            write.as_raw_fd(),
            write.as_raw_fd(),
        ];
        if std::env::var_os("VERBOSE").is_some() {
            let smaps = fs::read_to_string(format!("/proc/{}/smaps_rollup", sandbox.function))?;
            let status = fs::read_to_string(format!("/proc/{}/status", sandbox.function))?;
            let told = |text: &str, name: &str| {
                text.lines()
                    .find(|l| l.starts_with(name))
                    .unwrap_or_default()
                    .to_owned()
            };
            println!(
                "waiting: {} {} {}",
                told(&smaps, "Rss"),
                told(&smaps, "Pss"),
                told(&status, "VmPTE")
            );
        }
        let ordered = now();
        let bytes = job.compiled.program.len() as u64;
        let residue = job.free_place()?;
        sandbox::order(&sandbox.control, Order { bytes, residue }, &parts)?;
        let mut restore = Self {
            sandbox,
            processes: job.images.verified.processes.len(),
            report: mapped.cast(),
            ordered,
            residue,
            outputs: [read, write],
            pager: None,
        };
        // Each child sends its userfaultfd, and each process says once that it has mapped all.
        let processes = job.images.verified.processes.len();
        let read = (0..2 * processes - 1).take_while(|_| restore.hears()).count();
        if read != 2 * processes - 1 {
            let reports = (0..processes).map(|process| (process, restore.report_of(process)));
            let (process, report) = reports.max_by_key(|(_, r)| r.failed).context("no process")?;
            let op = restore_program::Program::parse(&job.compiled.program).ok();
            let op = op.and_then(|p| p.of(process as u32));
            let op = op.and_then(|p| p.ops().get((report.failed as usize).checked_sub(1)?).copied());
            let code = op.and_then(|op| restore_program::Code::of(op.code));
            let error = std::io::Error::from_raw_os_error(report.error);
            bail!(
                "process {process}, operation {}, {code:?} {op:x?}: {error}",
                report.failed
            );
        }
        if let (Pages::Paged, Some(userfault)) = (job.how, userfault) {
            let ranges = ranges(&job.compiled.program);
            restore.pager = Some(Pager::start(userfault, ranges, &job.template, template)?);
        }
        Ok(restore)
    }

    /// Lets it go on.
    pub fn go(&self) -> Result<()> {
        for _ in 0..self.processes {
            // SAFETY: sends one byte.
            let sent = unsafe { libc::send(self.sandbox.control.as_raw_fd(), c"g".as_ptr().cast(), 1, 0) };
            ensure!(sent == 1, "let it go on");
        }
        Ok(())
    }

    /// Removes what is left of the hollow process. It may take a moment until the function waits again.
    pub fn remove_residue(&self) -> Result<Duration> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.sandbox.function))?;
        let within = |line: &&str| {
            let start = line
                .split('-')
                .next()
                .and_then(|start| u64::from_str_radix(start, 16).ok());
            start.is_some_and(|start| (self.residue..self.residue + RESIDUE_MAX).contains(&start))
        };
        ensure!(maps.lines().filter(within).count() == 2, "the residue is not there");
        let mut tries = 0;
        loop {
            if !residue::is_left(self.sandbox.function, self.residue..self.residue + RESIDUE_MAX)? && tries < 1000 {
                tries += 1;
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            match residue::remove(self.sandbox.function, self.residue, RESIDUE_MAX) {
                Err(_) if tries < 50 => std::thread::sleep(Duration::from_millis(1)),
                done => break done,
            }
            tries += 1;
        }
    }

    /// What it has reported so far.
    pub fn report(&self) -> Report {
        self.report_of(0)
    }

    fn report_of(&self, process: usize) -> Report {
        let place = process * REPORT_BYTES as usize;
        // SAFETY: mapped as long as `self` is. The other side may write to it meanwhile, which is harmless for numbers.
        unsafe { self.report.byte_add(place).read_volatile() }
    }

    /// Waits for a message; a descriptor with it is closed. `false` if there comes none any more.
    fn hears(&self) -> bool {
        let mut byte = 0u8;
        let fd = self.sandbox.control.as_raw_fd();
        // SAFETY: room for one byte. What else a message has is discarded.
        unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, 0) > 0 }
    }

    /// What the function has written to its outputs.
    pub fn said(&self) -> String {
        let mut bytes = vec![0; 65536];
        // SAFETY: room for as many bytes.
        unsafe {
            libc::fcntl(self.outputs[0].as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK);
            let read = libc::read(self.outputs[0].as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len());
            bytes.truncate(read.max(0) as usize);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Requests `path` of the function. Returns the status line, the body, and how long it took.
    pub fn request(&self, path: &str) -> Result<(String, String, Duration)> {
        let namespace = File::open(format!("/proc/{}/ns/net", self.sandbox.function))?;
        let path = path.to_owned();
        let asked = std::thread::spawn(move || -> Result<_> {
            // SAFETY: this thread ends afterwards.
            let entered = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
            ensure!(entered == 0, "enter the network");
            let began = Instant::now();
            let mut stream = TcpStream::connect(("127.0.0.1", PORT)).context("connect")?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            write!(stream, "GET {path} HTTP/1.1\r\nhost: f\r\nconnection: close\r\n\r\n")?;
            let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
            while !is_whole(&answer) {
                match stream.read(&mut buffer).context("read")? {
                    0 => break,
                    read => answer.extend_from_slice(&buffer[..read]),
                }
            }
            let answer = String::from_utf8_lossy(&answer);
            let took = began.elapsed();
            let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
            Ok((
                head.lines().next().unwrap_or_default().to_owned(),
                body.to_owned(),
                took,
            ))
        });
        asked
            .join()
            .map_err(|_| anyhow::anyhow!("the request's thread panicked"))?
    }
}

/// Whether this is a whole response with a length.
fn is_whole(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    length.is_some_and(|length: usize| body.len() >= length)
}

fn summary(name: &str, mut nanoseconds: Vec<u64>) {
    nanoseconds.sort_unstable();
    let us = |n: u64| n as f64 / 1000.0;
    if let (Some(best), Some(median)) = (nanoseconds.first(), nanoseconds.get(nanoseconds.len() / 2)) {
        println!("| {name} | {:.0} | {:.0} |", us(*best), us(*median));
    }
}

/// Restores once, and holds the process until standard input ends.
pub fn hold(job: &Job) -> Result<()> {
    let restore = Restore::begin(job)?;
    restore.go()?;
    std::thread::sleep(Duration::from_millis(50));
    restore.remove_residue()?;
    println!("{}", restore.sandbox.function);
    for line in std::io::stdin().lines() {
        let (status, body, _) = restore.request(&line?)?;
        println!("{status} {body}");
    }
    Ok(())
}

/// Restores `runs` times, and prints the time of each stage, best and median, in microseconds.
pub fn measure(job: &Job, runs: usize, path: Option<&str>) -> Result<()> {
    let mut stages = vec![Vec::new(); STAGES.len()];
    let (mut registered, mut faults, mut removed, mut processor) = (vec![], vec![], vec![], vec![]);
    let (mut arrived, mut departed, mut whole, mut answered) = (vec![], vec![], vec![], vec![]);
    for run in 0..runs {
        let restore = Restore::begin(job).with_context(|| format!("run {run}"))?;
        restore.go()?;
        let end = Instant::now() + Duration::from_secs(2);
        while restore.report().departed == 0 && Instant::now() < end {
            std::hint::spin_loop();
        }
        let report = restore.report();
        ensure!(report.departed != 0, "run {run} did not come to its end: {report:?}");
        arrived.push(report.began - restore.ordered);
        let mut last = report.began;
        for (stage, end) in report.stages.iter().take(STAGES.len()).enumerate() {
            stages[stage].push(end - last);
            last = *end;
        }
        departed.push(report.departed - last);
        whole.push(report.departed - report.began);
        processor.push(report.processor);
        if let Some(path) = path {
            let (status, body, took) = restore
                .request(path)
                .with_context(|| format!("run {run}: {}", restore.said()))?;
            ensure!(status.contains("200"), "{status}: {body}");
            if run == 0 {
                println!("{status}\n{body}\n");
            }
            answered.push(took.as_nanos() as u64);
            removed.push(restore.remove_residue()?.as_nanos() as u64);
            let (status, ..) = restore.request(path).context("after the residue was removed")?;
            ensure!(status.contains("200"), "{status} after the residue was removed");
        }
        if let Some(pager) = &restore.pager {
            registered.push(pager.registered.as_nanos() as u64);
            faults.push(pager.faults() as u64 * 1000);
        }
    }
    println!("| stage, us of {runs} | best | median |\n|---|---|---|");
    summary("order until it runs", arrived);
    for (name, times) in STAGES.iter().zip(stages) {
        summary(name, times);
    }
    summary("threads go, first departs", departed);
    summary("all, from the order's arrival", whole);
    summary("its processor time", processor);
    summary("first response after it", answered);
    summary("the residue's removal, after it", removed);
    summary("of that the pager: register", registered);
    summary("faults until then (number)", faults);
    Ok(())
}

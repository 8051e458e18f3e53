//! What an installer may do, and what it leaves.

use super::*;

/// Returns an order for something that runs in a build's directory by itself.
fn order<'a>(
    config: &'a FunctionConfig,
    network: &'a BuildNetwork,
    time_limit: Duration,
    bytes: u64,
    groups: &[PathBuf],
) -> BuildOrder<'a> {
    BuildOrder {
        source_tar_gz: PathBuf::new(),
        config,
        work_dir: PathBuf::new(),
        limits: BuildLimits {
            unpacked_bytes: bytes,
            install_timeout: time_limit,
            ..BuildLimits::default()
        },
        roots: &roots,
        network,
        counts: counts(),
        confinement: Confinement::new(init_binary().unwrap()),
        cgroup_procs: groups.to_owned(),
    }
}

/// Runs Python code the way an installer is run.
async fn run_python(
    build_dir: &BuildDir,
    code: &str,
    time_limit: Duration,
    groups: &[PathBuf],
) -> Result<installer::InstallerOutcome, InstallerError> {
    let config = function_config::parse(&format!("name = \"f\"\n{PYTHON}")).unwrap();
    let network = BuildNetwork::default();
    let order = order(&config, &network, time_limit, 1 << 20, groups);
    let installer = Installer {
        order: &order,
        build_dir,
        root: vec![roots(Root::Runtime(Base::Python)).await.unwrap()],
        network: None,
        program: "/usr/bin/python3",
        arguments: ["-I", "-c", code].map(str::to_owned).into(),
        environment: Vec::new(),
        shown: Vec::new(),
    };
    installer.run().await
}

#[tokio::test]
async fn an_installer_cannot_write_a_file_larger_than_its_room_and_sees_its_room_alone() {
    let Some(shop) = BuildFixture::open() else { return };
    let build_dir = BuildDir::make(&shop.work_dir()).unwrap();
    let code = "\
import os
print(sorted(os.listdir('/tmp')), sorted(os.listdir('/run')), os.listdir('/app'))
try: open('x', 'w').write('x' * 4000000); print('large file written')
except OSError as e: print('large', e.errno)
";
    let finished = run_python(&build_dir, code, Duration::from_secs(30), &[])
        .await
        .unwrap();
    assert_eq!(finished.output, "['home'] ['deps'] []\nlarge 27");
}

#[tokio::test]
async fn an_installer_is_in_the_group_it_was_given() {
    let Some(shop) = BuildFixture::open() else { return };
    let Some(group) = group("group") else { return };
    let build_dir = BuildDir::make(&shop.work_dir()).unwrap();
    let procs = group.procs_files();
    let code = "open('/app/ready', 'w').close()\nimport time\ntime.sleep(3)";
    let running = run_python(&build_dir, code, Duration::from_secs(30), &procs);
    tokio::pin!(running);
    let ready = until("it did not start", || build_dir.app().join("ready").exists());
    tokio::select! {
        ended = &mut running => panic!("it ended: {ended:?}"),
        () = ready => {}
    }
    let inside = procs
        .iter()
        .all(|p| fs::read_to_string(p).unwrap().lines().count() >= 2);
    assert!(inside, "it is not in its group");
    running.await.unwrap();
    remove(group);
}

/// Makes a control group for a build, below one of the test's own.
fn group(test: &str) -> Option<Cgroup> {
    let parent = format!("rekindle-build-test-{test}-{}", std::process::id());
    let limits = crate::host::cgroup::Limits {
        memory_bytes: 512 << 20,
        cpu_cores: 1.0,
        pids: 64,
    };
    let groups = Cgroups::detect_below(Path::new(CGROUP_ROOT), &parent);
    let groups = groups.inspect_err(|e| skipped(&e.to_string())).ok()?;
    Some(groups.create("build", limits).unwrap())
}

fn remove(group: Cgroup) {
    let procs = group.procs_files();
    group.remove().unwrap();
    for procs in &procs {
        let _ = fs::remove_dir(procs.ancestors().nth(2).unwrap());
    }
}

/// Returns whether a process of the host runs with this argument.
fn runs(marker: &str) -> bool {
    let lines = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|e| fs::read(e.path().join("cmdline")).ok());
    lines
        .into_iter()
        .any(|line| String::from_utf8_lossy(&line).contains(marker))
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns code that hangs, and has a child that does; both can be found by the marker.
fn hang(marker: &str) -> String {
    format!(
        "import subprocess, time\nsubprocess.Popen(['/bin/sh', '-c', 'sleep 600; true', '{marker}'])\n\
         open('/app/ready', 'w').close()\nprint('hanging', flush=True)\ntime.sleep(600)\n"
    )
}

fn marker() -> String {
    format!("hang-{}", Uuid::new_v4().simple())
}

#[tokio::test]
async fn an_installer_that_hangs_is_killed_at_its_limit_with_all_it_started() {
    let Some(shop) = BuildFixture::open() else { return };
    let build_dir = BuildDir::make(&shop.work_dir()).unwrap();
    let marker = marker();
    let error = run_python(&build_dir, &hang(&marker), Duration::from_secs(3), &[])
        .await
        .unwrap_err();
    assert!(
        matches!(error, InstallerError::TimedOut { ref output, .. } if output == "hanging"),
        "{error}"
    );
    until("something lives on", || !runs(&marker)).await;
}

#[tokio::test]
async fn a_build_that_is_given_up_leaves_no_process() {
    let Some(shop) = BuildFixture::open() else { return };
    let build_dir = BuildDir::make(&shop.work_dir()).unwrap();
    let (marker, ready) = (marker(), build_dir.app().join("ready"));
    {
        let code = hang(&marker);
        let running = run_python(&build_dir, &code, Duration::from_secs(600), &[]);
        tokio::pin!(running);
        let started = until("the installer did not start", || ready.exists());
        tokio::select! {
            ended = &mut running => panic!("it ended: {ended:?}"),
            () = started => {}
        }
        assert!(runs(&marker));
    }
    until("the installer lives on", || !runs(&marker)).await;
}

#[tokio::test]
async fn an_installer_that_fills_the_disk_is_stopped() {
    let Some(shop) = BuildFixture::open() else { return };
    let build_dir = BuildDir::make(&shop.work_dir()).unwrap();
    let code = "import time\nfor i in range(8): open(str(i), 'w').write('x' * 900000)\ntime.sleep(600)\n";
    let error = run_python(&build_dir, code, Duration::from_secs(60), &[])
        .await
        .unwrap_err();
    assert!(matches!(error, InstallerError::TooLarge { .. }), "{error}");
}

#[tokio::test]
async fn files_that_an_installer_has_deleted_and_holds_open_are_counted() {
    let Some(shop) = BuildFixture::open() else { return };
    let Some(group) = group("deleted") else { return };
    let build_dir = BuildDir::make(&shop.work_dir()).unwrap();
    let code = "\
import mmap, os, time
held = []
for n in range(4):
    file = open('/app/f', 'w+b')
    os.unlink('/app/f')
    os.posix_fallocate(file.fileno(), 0, 900000)
    # Some are only mapped.
    held.append(mmap.mmap(file.fileno(), 900000) if n % 2 else file)
    if n % 2: file.close()
time.sleep(600)
";
    let stopped = run_python(&build_dir, code, Duration::from_secs(60), &group.procs_files()).await;
    assert!(matches!(stopped, Err(InstallerError::TooLarge { .. })), "{stopped:?}");
    remove(group);
}

#[tokio::test]
async fn directories_deeper_than_a_path_can_be_stop_the_installer_by_name() {
    let Some(shop) = BuildFixture::open() else { return };
    let build_dir = BuildDir::make(&shop.work_dir()).unwrap();
    let code = "import os, time\nfor i in range(50): os.mkdir('d' * 200); os.chdir('d' * 200)\ntime.sleep(600)\n";
    let stopped = run_python(&build_dir, code, Duration::from_secs(60), &[]).await;
    assert!(matches!(stopped, Err(InstallerError::TooDeep { .. })), "{stopped:?}");
    // It is removed all the same.
    drop(build_dir);
    assert_eq!(fs::read_dir(shop.work_dir()).unwrap().count(), 0);
}

#[tokio::test]
async fn an_installer_that_leaves_netlink_messages_unread_is_stopped() {
    let Some(shop) = BuildFixture::open() else { return };
    let Some(group) = group("netlink") else { return };
    let build_dir = BuildDir::make(&shop.work_dir()).unwrap();
    let code = "\
import socket, struct, time
link = struct.pack('IHHII', 32, 18, 1, 1, 0) + struct.pack('BxHiII', 0, 0, 1, 0, 0)
held = []
for _ in range(200):
    one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
    held.append(one)
    for _ in range(4):
        try: one.send(link * 64)
        except OSError: break
time.sleep(600)
";
    let stopped = run_python(&build_dir, code, Duration::from_secs(60), &group.procs_files()).await;
    assert!(matches!(stopped, Err(InstallerError::Hoards { .. })), "{stopped:?}");
    remove(group);
}

use super::*;

/// The kernel's files, as far as they are plain ones: written values stay, and nothing is watched.
fn files() -> tempfile::TempDir {
    let admin = tempfile::tempdir().unwrap();
    fs::create_dir(admin.path().join("kdamonds")).unwrap();
    fs::write(admin.path().join("kdamonds/nr_kdamonds"), "0\n").unwrap();
    for n in 0..SLOTS {
        let context = admin.path().join(format!("kdamonds/{n}/contexts/0"));
        for dir in [
            "monitoring_attrs/intervals",
            "monitoring_attrs/nr_regions",
            "targets/0",
            "schemes/0/access_pattern/sz",
            "schemes/0/access_pattern/nr_accesses",
            "schemes/0/access_pattern/age",
            "schemes/0/tried_regions",
        ] {
            fs::create_dir_all(context.join(dir)).unwrap();
        }
        for file in [
            "../../state",
            "../nr_contexts",
            "operations",
            "monitoring_attrs/intervals/sample_us",
            "monitoring_attrs/intervals/aggr_us",
            "monitoring_attrs/intervals/update_us",
            "monitoring_attrs/nr_regions/min",
            "monitoring_attrs/nr_regions/max",
            "targets/nr_targets",
            "targets/0/pid_target",
            "schemes/nr_schemes",
            "schemes/0/action",
            "schemes/0/access_pattern/sz/min",
            "schemes/0/access_pattern/sz/max",
            "schemes/0/access_pattern/nr_accesses/min",
            "schemes/0/access_pattern/nr_accesses/max",
            "schemes/0/access_pattern/age/min",
            "schemes/0/access_pattern/age/max",
        ] {
            fs::write(context.join(file), "").unwrap();
        }
        fs::write(context.join("avail_operations"), "vaddr\nfvaddr\npaddr\n").unwrap();
    }
    admin
}

fn read(admin: &Path, name: &str) -> String {
    fs::read_to_string(admin.join("kdamonds").join(name)).unwrap()
}

fn watched(watch: &DamonMonitor) -> Vec<i32> {
    let mut pids: Vec<i32> = watch.watched().collect();
    pids.sort_unstable();
    pids
}

#[test]
fn what_is_to_rest_for_half_a_minute_is_watched_for_so_many_aggregations() {
    let admin = files();
    let watch = DamonMonitor::open(admin.path(), Duration::from_secs(30)).unwrap();
    let context = |name: &str| read(admin.path(), &format!("3/contexts/0/{name}"));
    assert_eq!(context("monitoring_attrs/intervals/sample_us"), "100000");
    assert_eq!(context("monitoring_attrs/intervals/aggr_us"), "400000");
    assert_eq!(context("schemes/0/access_pattern/age/min"), "75");
    assert_eq!(
        (context("operations"), context("schemes/0/action")),
        ("vaddr".to_owned(), "stat".to_owned())
    );
    assert_eq!(context("schemes/0/access_pattern/nr_accesses/max"), "0");
    assert!(matches!(
        DamonMonitor::open(admin.path(), Duration::from_secs(30)),
        Err(DamonUnavailable::Busy)
    ));
    assert!(matches!(probe(admin.path()), Err(DamonUnavailable::Busy)));
    drop(watch);
    assert_eq!(read(admin.path(), "nr_kdamonds"), "0");
    probe(admin.path()).unwrap();
    DamonMonitor::open(admin.path(), Duration::from_secs(30)).unwrap();
}

#[test]
fn what_others_have_made_stays_and_what_a_killed_worker_left_is_ended() {
    let admin = files();
    let made = admin.path().join("kdamonds/nr_kdamonds");
    fs::write(&made, "1\n").unwrap();
    let opened = DamonMonitor::open(admin.path(), Duration::from_secs(30));
    assert!(matches!(opened, Err(DamonUnavailable::Busy)), "{opened:?}");
    assert!(matches!(probe(admin.path()), Err(DamonUnavailable::Busy)));
    assert_eq!(read(admin.path(), "nr_kdamonds"), "1\n");
    fs::write(&made, format!("{SLOTS}\n")).unwrap();
    let _watch = DamonMonitor::open(admin.path(), Duration::from_secs(30)).unwrap();
    assert_eq!(read(admin.path(), "0/state"), "off");
}

#[test]
fn a_kernel_that_watches_no_processes_is_told_as_that_and_left_as_it_was() {
    let admin = files();
    for n in 0..SLOTS {
        let known = admin.path().join(format!("kdamonds/{n}/contexts/0/avail_operations"));
        fs::write(known, "paddr\n").unwrap();
    }
    for lack in [
        probe(admin.path()),
        DamonMonitor::open(admin.path(), Duration::from_secs(30)).map(drop),
    ] {
        assert!(matches!(lack, Err(DamonUnavailable::Unknown(_))), "{lack:?}");
        assert_eq!(read(admin.path(), "nr_kdamonds"), "0");
    }
}

#[test]
fn a_place_that_does_not_do_as_it_is_told_keeps_no_other_from_being_used() {
    let admin = files();
    let mut watch = DamonMonitor::open(admin.path(), Duration::from_secs(30)).unwrap();
    let state = admin.path().join("kdamonds/0/state");
    fs::remove_file(&state).unwrap();
    watch.follow(&[(7, 2 * LEAST), (8, LEAST)]);
    assert_eq!(watched(&watch), [8], "the first place was of no use");
    watch.follow(&[(7, 2 * LEAST), (8, LEAST)]);
    fs::write(&state, "").unwrap();
    watch.follow(&[(7, 2 * LEAST), (8, LEAST)]);
    assert_eq!(watched(&watch), [7, 8]);
}

#[test]
fn a_kernel_without_it_is_told_as_that() {
    let lack = DamonMonitor::open(Path::new("/proc/no-damon"), Duration::from_secs(30)).unwrap_err();
    assert!(matches!(lack, DamonUnavailable::Unknown(_)), "{lack}");
}

#[test]
fn the_largest_are_watched_until_they_end() {
    let admin = files();
    let mut watch = DamonMonitor::open(admin.path(), Duration::from_secs(30)).unwrap();
    let small = (1, LEAST - 1);
    let many = (2..2 + 2 * SLOTS as i32).map(|pid| (pid, LEAST + pid as u64));
    let mut all: Vec<(i32, u64)> = many.collect();
    all.push(small);
    watch.follow(&all);
    let largest: Vec<i32> = (2 + SLOTS as i32..2 + 2 * SLOTS as i32).collect();
    assert_eq!(watched(&watch), largest);
    // A process that is somewhat larger has to wait, but not one that is much larger.
    all.push((100, 2 * LEAST));
    watch.follow(&all);
    assert_eq!(watched(&watch), largest);
    all.push((101, 4 * LEAST));
    watch.follow(&all);
    assert_eq!(watch.watched().count(), SLOTS);
    assert!(watched(&watch).contains(&101) && !watched(&watch).contains(&100));
    watch.follow(&[(101, 4 * LEAST)]);
    assert_eq!(watched(&watch), [101]);
    assert!(watch.untouched(50).is_none());
}

#[test]
fn regions_that_follow_each_other_are_one_run() {
    let admin = files();
    let mut watch = DamonMonitor::open(admin.path(), Duration::from_secs(30)).unwrap();
    watch.follow(&[(7, LEAST)]);
    let at = watched_dir(&watch, 7).join("contexts/0/schemes/0/tried_regions");
    for (n, (start, end)) in [(0x9001, 0xc000), (0x4000, 0x6000), (0x6000, 0x9001)]
        .iter()
        .enumerate()
    {
        let region = at.join(n.to_string());
        fs::create_dir(&region).unwrap();
        fs::write(region.join("start"), format!("{start}\n")).unwrap();
        fs::write(region.join("end"), format!("{end}\n")).unwrap();
    }
    fs::write(at.join("total_bytes"), "32768\n").unwrap();
    let run = |first, pages| PagemapRun {
        first,
        pages,
        present: true,
    };
    let slot = |watch: &DamonMonitor, name: &str| fs::read_to_string(watched_dir(watch, 7).join(name)).unwrap();
    assert_eq!(
        (slot(&watch, "state"), slot(&watch, "contexts/0/targets/0/pid_target")),
        ("on".to_owned(), "7".to_owned())
    );
    assert_eq!(watch.untouched(7).unwrap(), [run(4, 5), run(10, 2)]);
    assert_eq!(slot(&watch, "state"), "update_schemes_tried_regions");
    let dir = watched_dir(&watch, 7);
    watch.follow(&[]);
    assert_eq!(fs::read_to_string(dir.join("state")).unwrap(), "off");
}

fn watched_dir(watch: &DamonMonitor, pid: i32) -> PathBuf {
    let slot = watch
        .slots
        .iter()
        .find(|s| s.watched.is_some_and(|(own, _)| own == pid));
    slot.unwrap().dir.clone()
}

/// Only on kernels that support it: `make image-test` has one.
#[test]
fn this_kernel_tells_what_a_process_does_not_touch() {
    let rest = Duration::from_secs(1);
    let mut watch = match DamonMonitor::open(Path::new(ADMIN), rest) {
        Ok(watch) => watch,
        Err(lack) => {
            eprintln!("not tried on this kernel: {lack}");
            return;
        }
    };
    const PAGES: usize = 8_192;
    let mut memory = memmap2::MmapMut::map_anon(PAGES * PAGE as usize).unwrap();
    memory.fill(7);
    let first = memory.as_ptr() as u64 / PAGE;
    let (idle, used) = (
        first..first + PAGES as u64 / 2,
        first + PAGES as u64 / 2..first + PAGES as u64,
    );
    let pid = std::process::id().cast_signed();
    watch.follow(&[(pid, PAGES as u64)]);
    assert_eq!(watch.watched().count(), 1);
    let end = std::time::Instant::now() + rest * 30;
    let told = |watch: &mut DamonMonitor, range: &std::ops::Range<u64>| {
        let runs = watch.untouched(pid).unwrap();
        let pages = runs.iter().map(|r| {
            (r.first + r.pages)
                .min(range.end)
                .saturating_sub(r.first.max(range.start))
        });
        pages.sum::<u64>()
    };
    loop {
        for _ in 0..20 {
            memory[PAGES * PAGE as usize / 2..]
                .chunks_mut(PAGE as usize)
                .for_each(|page| page[0] = page[0].wrapping_add(1));
            std::thread::sleep(Duration::from_millis(5));
        }
        if told(&mut watch, &idle) > PAGES as u64 / 4 && told(&mut watch, &used) < PAGES as u64 / 20 {
            break;
        }
        assert!(
            std::time::Instant::now() < end,
            "{:?} of {idle:?} {used:?}",
            watch.untouched(pid)
        );
    }
}

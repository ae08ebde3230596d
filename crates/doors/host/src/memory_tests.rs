use super::*;

#[test]
fn a_cache_is_a_part_of_the_memory_within_bounds() {
    let gib = 1 << 30;
    assert_eq!([gib / 2, 4 * gib, 8 * gib, 256 * gib].map(cache_of), [64 << 20, 256 << 20, 512 << 20, gib]);
    assert!((LEAST..=MOST).contains(&default_cache()));
}

#[test]
fn the_narrowest_group_around_the_process_counts() {
    let temp = tempfile::tempdir().expect("a directory");
    let inner = temp.path().join("outer/inner");
    fs::create_dir_all(&inner).expect("made");
    let set = |file: &str, text: &str| fs::write(temp.path().join(file), text).expect("written");
    let limit = |group: &str| limit_of_groups(temp.path(), group);
    assert_eq!(limit("0::/outer/inner\n"), None, "no files");
    set("outer/inner/memory.max", "max\n");
    assert_eq!(limit("0::/outer/inner\n"), None, "no limit");
    set("outer/memory.max", "1000000000\n");
    set("outer/inner/memory.high", "2000000000\n");
    assert_eq!(limit("1:name=systemd:/x\n0::/outer/inner\n"), Some(1_000_000_000));
    set("outer/inner/memory.max", "500000000\n");
    assert_eq!(limit("0::/outer/inner\n"), Some(500_000_000));
    assert_eq!(limit("0::/outer\n"), Some(1_000_000_000));
    assert_eq!(limit("0::/\n"), None);
    assert_eq!(limit(""), None, "no groups");
}

#[test]
fn groups_of_version_1_count_too_and_so_does_the_root_that_a_container_sees() {
    let temp = tempfile::tempdir().expect("a directory");
    let set = |dir: &str, text: &str| {
        let dir = temp.path().join(dir);
        fs::create_dir_all(&dir).expect("made");
        fs::write(dir.join("memory.limit_in_bytes"), text).expect("written");
    };
    let limit = |group: &str| limit_of_groups(temp.path(), group);
    set("memory/outer/inner", "9223372036854771712\n");
    assert_eq!(cache_of(limit("4:memory:/outer/inner\n").expect("a number")), MOST, "as good as none");
    set("memory/outer", "2000000000\n");
    assert_eq!(limit("9:cpu:/\n4:memory:/outer/inner\n0::/\n"), Some(2_000_000_000));
    assert_eq!(limit("4:cpu,memory:/outer\n"), Some(2_000_000_000));
    assert_eq!(limit("4:cpu:/outer\n"), None);
    set("memory", "1000000000\n");
    assert_eq!(limit("4:memory:/docker/0123456789\n"), Some(1_000_000_000), "the path is the host's");
}

#[test]
fn a_cache_shrinks_by_halves_and_grows_back() {
    let size = |full: u64, now: u64| Size { full: full << 20, now: now << 20 };
    assert_eq!(size(256, 256).shrink(256 << 20), size(256, 128));
    assert_eq!(size(256, 128).shrink(256 << 20), size(256, 64));
    assert_eq!(size(256, 64).shrink(256 << 20), size(256, 64), "the least size of a cache");
    assert_eq!(size(16, 16).shrink(16 << 20), size(16, 16), "the user chose a smaller size");
    assert_eq!(size(1024, 1024).shrink(100 << 20), size(100, 100), "the group's limit is lower now");
    assert_eq!(size(256, 64).grow(), size(256, 128));
    assert_eq!(size(200, 128).grow(), size(200, 200));
}

/// The kernel's files are polled for PRI, which ordinary files cannot imitate. So the test ends the
/// wait by closing the pipe.
#[test]
fn a_watch_ends_while_nothing_happens() {
    let Ok(mut events) = Events::open(Path::new("/nothing"), "") else {
        return kedge_base::skip::note("no PSI on this machine");
    };
    let (stopped, stop) = io::pipe().expect("a pipe");
    let short = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    let event = events.wait(&stopped, Some(&short)).expect("a wait");
    assert!(!matches!(event, Event::Stop));
    drop(stop);
    assert!(matches!(events.wait(&stopped, None).expect("a wait"), Event::Stop));
}

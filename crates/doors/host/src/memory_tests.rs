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
    assert_eq!(limit(""), None, "version 1");
}

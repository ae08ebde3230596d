use super::*;

const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /tmp rw,nosuid - tmpfs tmpfs rw
31 30 7:0 / /tmp/deep rw master:3 - xfs /dev/loop0 rw
32 30 7:1 / /tmp/deep rw - btrfs /dev/loop1 rw
";

#[test]
fn the_mount_that_holds_a_path() {
    let kind = |path: &str| kind_of_mount(MOUNTS, Path::new(path)).unwrap();
    assert_eq!(kind("/home/x"), "ext4");
    assert_eq!(kind("/tmp"), "tmpfs");
    assert_eq!(kind("/tmpfoo"), "ext4", "whole names only");
    assert_eq!(kind("/tmp/deep/er"), "btrfs", "the one on top");
    assert_eq!(kind_of_mount("", Path::new("/")), None);
    assert_eq!(kind_of_mount("nonsense\n - ", Path::new("/")), None);
}

#[test]
fn words_of_proc() {
    assert_eq!(effective_uid("Name:\tx\nUid:\t1000\t0\t0\t0\n"), Some(0));
    assert_eq!(effective_uid("Name:\tx\n"), None);
    assert_eq!(memory_mib("MemTotal:       24683520 kB\nMemFree: 1 kB\n"), Some(24105));
    assert_eq!(memory_mib(""), None);
}

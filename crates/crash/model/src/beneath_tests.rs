#![allow(clippy::unwrap_used)]

use super::*;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// `openat2` and opening name by name reach the same files, and none outside.
#[test]
fn both_ways_lead_below_the_directory_or_nowhere() {
    let top = tempfile::tempdir().unwrap();
    let place = top.path().join("place");
    fs::create_dir_all(place.join("a/b/c")).unwrap();
    fs::create_dir(top.path().join("out")).unwrap();
    fs::write(place.join("file"), "").unwrap();
    std::os::unix::fs::symlink("../out", place.join("link")).unwrap();
    std::os::unix::fs::symlink("a", place.join("inside")).unwrap();
    std::os::unix::fs::symlink("/proc/self/root", place.join("magic")).unwrap();
    let beneath = Beneath::open(&place).unwrap();
    let number = |fd: OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
    for path in ["a", "a/b", "a/b/c"] {
        let there = fs::metadata(place.join(path)).unwrap().ino();
        assert_eq!(number(beneath.dir(path.as_bytes()).unwrap()), there, "{path}");
        assert_eq!(number(beneath.name_by_name(path.as_bytes()).unwrap()), there, "{path}");
    }
    let absolute = top.path().join("out");
    let outside =
        ["..", "../out", "a/../../out", "link", "link/x", "inside", "inside/b", "magic", "magic/etc"];
    let neither = ["file", "missing", "a//b", "a/", "/a", ".", "a/./b", "a\0b", absolute.to_str().unwrap()];
    for path in outside.into_iter().chain(neither) {
        assert!(beneath.dir(path.as_bytes()).is_err(), "{path}");
        assert!(beneath.name_by_name(path.as_bytes()).is_err(), "{path}");
        // Call `openat2` itself, without the check of the names.
        assert!(!outside.contains(&path) || beneath.at_once(path.as_bytes()).is_err(), "{path}");
    }
    assert!(last(b"a/b/..").is_err() && last(b"a/").is_err() && last(b"").is_err());
    assert_eq!(last(b"a/b/c").unwrap(), (&b"a/b"[..], OsStr::new("c")));
}

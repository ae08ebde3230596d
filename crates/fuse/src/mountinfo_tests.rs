use super::*;

#[test]
fn lines_are_taken_apart() {
    let line = b"36 35 7:0 / /mnt/a\\040b\\134c rw,noatime shared:1 master:2 - fuseblk.kedgefs /dev/loop0 rw,user_id=0";
    let entry = parse(line).unwrap();
    assert_eq!(entry.device, "7:0");
    assert_eq!(entry.dir, Path::new("/mnt/a b\\c"));
    assert_eq!(entry.kind, "fuseblk.kedgefs");
    assert_eq!(entry.source, Path::new("/dev/loop0"));
    assert!(entry.is_kedgefs());
    assert_eq!(parse(b"1 2 0:1 / /x rw - proc proc rw").unwrap().kind, "proc");
}

#[test]
fn broken_lines_are_none() {
    for line in ["", "1", "1 2 3:4 / /x rw", "1 2 3:4 / /x rw -", "1 2 3:4 / /x rw - type"] {
        assert_eq!(parse(line.as_bytes()), None, "{line}");
    }
    assert_eq!(path(b"\\04"), Path::new("\\04"));
    assert_eq!(path(b"\\999"), Path::new("\\999"));
}

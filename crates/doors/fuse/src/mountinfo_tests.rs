use super::*;

#[test]
fn lines_are_taken_apart() {
    let line = b"36 35 7:0 / /mnt/a\\040b\\134c rw,noatime shared:1 master:2 - fuseblk.kedgefs /dev/loop0 rw,user_id=0";
    let entry = parse(line).unwrap();
    assert_eq!((entry.id, entry.device.as_str()), (36, "7:0"));
    assert_eq!(entry.root, Path::new("/"));
    assert_eq!(entry.dir, Path::new("/mnt/a b\\c"));
    assert_eq!(entry.kind, "fuseblk.kedgefs");
    assert_eq!(entry.source, Path::new("/dev/loop0"));
    assert!(entry.is_kedgefs() && !entry.is_foreign());
    assert_eq!(entry.owner, Some(0));
    assert!(!entry.is_read_only());
    assert!(entry.has_option("noatime") && entry.has_option("user_id=0"), "{entry:?}");
    assert!(!entry.has_option("user_id") && !entry.has_option("shared:1"), "{entry:?}");
    assert!(!entry.is_idmapped());
    assert!(parse(b"1 2 0:1 / /x rw,idmapped - ext4 /dev/vda rw").unwrap().is_idmapped());
    assert!(parse(b"1 2 0:1 / /x ro - proc proc rw").unwrap().is_read_only());
    assert!(parse(b"1 2 0:1 / /x rw - proc proc ro").unwrap().is_read_only());
    assert_eq!(parse(b"1 2 0:1 / /x rw - proc proc rw").unwrap().kind, "proc");
    assert_eq!(parse(b"1 2 0:1 /part /x rw - proc proc rw").unwrap().root, Path::new("/part"));
}

#[test]
fn a_mount_of_another_user_is_foreign() {
    let me = rustix::process::geteuid().as_raw();
    let mount = |kind: &str, options: &str| {
        parse(format!("1 2 0:50 / /x rw shared:1 - {kind} /srv/image rw,{options}").as_bytes()).unwrap()
    };
    for kind in ["fuse", "fuse.kedgefs", "fuse.other"] {
        assert!(mount(kind, &format!("user_id={},group_id=0", me + 1)).is_foreign(), "{kind}");
        assert!(mount(kind, "group_id=0").is_foreign(), "{kind}: no option names its owner");
        assert!(!mount(kind, &format!("user_id={me},group_id=0")).is_foreign(), "{kind}");
        assert!(!mount(kind, "user_id=0").is_foreign(), "{kind}");
    }
    assert!(!mount("ext4", "stripe=4").is_foreign());
}

#[test]
fn broken_lines_are_none() {
    for line in [
        "",
        "x 2 3:4 / /x rw - a b rw",
        "1",
        "1 2 3:4 / /x rw",
        "1 2 3:4 / /x rw -",
        "1 2 3:4 / /x rw - type",
    ] {
        assert_eq!(parse(line.as_bytes()), None, "{line}");
    }
    assert_eq!(path(b"\\04"), Path::new("\\04"));
    assert_eq!(path(b"\\999"), Path::new("\\999"));
}

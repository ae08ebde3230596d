use super::*;

#[test]
fn a_line_of_mountinfo_is_read() {
    let line = br"36 35 0:52 / /mnt/a\040b rw,nosuid shared:1 master:2 - fuse.kedgefs /images/x\134y.kedge rw,user_id=0";
    let mount = parse_line(line).unwrap();
    assert_eq!(mount.dir, Path::new("/mnt/a b"));
    assert_eq!(mount.source, Path::new(r"/images/x\y.kedge"));
    assert!(mount.is_kedgefs());
    assert_eq!(mount.image(), mount.source);
    assert_eq!(parse_line(b""), None);
    assert_eq!(parse_line(b"1 2 3"), None);
}

#[test]
fn the_root_is_mounted_and_a_plain_directory_is_not() {
    assert!(list().unwrap().iter().any(|m| m.dir == Path::new("/")));
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(at(dir.path()).unwrap(), None);
    assert!(!is_dead(dir.path()).unwrap());
    let e = attribute(dir.path(), XATTR_PID).unwrap_err().to_string();
    assert!(e.contains("is not the root of a KedgeFS mount"), "{e}");
}

#[test]
fn a_plain_file_is_mounted_nowhere() {
    let file = tempfile::NamedTempFile::new().unwrap();
    assert_eq!(of_image(file.path()).unwrap(), None);
    assert_eq!(of_image(Path::new("/no/such/file")).unwrap(), None);
}

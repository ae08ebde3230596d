use super::*;

#[test]
fn a_plain_directory_is_no_mount() {
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

use super::*;

#[test]
fn the_server_is_known_by_its_words() {
    let words = |list: &[&str]| list.iter().map(|word| format!("{word}\0")).collect::<String>().into_bytes();
    let dir = Path::new("/tmp/x/kedge");
    let own = ["kedge", "mount", "--foreground", "--as-daemon", "--", "/dev/loop0", "/tmp/x/kedge"];
    assert!(serves(&words(&own), dir));
    assert!(!serves(&words(&own), Path::new("/tmp/y/kedge")), "another mount");
    assert!(!serves(&words(&["kedge", "mount", "kedge.img", "/tmp/x/kedge"]), dir), "the one that starts it");
    assert!(!serves(&words(&["kedge", "umount", "/tmp/x/kedge"]), dir));
    assert!(!serves(b"", dir), "a kernel thread");
}

#[test]
fn a_file_is_open_while_somebody_has_it() {
    let temp = tempfile::tempdir().expect("a directory");
    let path = temp.path().canonicalize().expect("it exists").join("image");
    let file = std::fs::File::create(&path).expect("created");
    assert!(is_open(&path).expect("looked"));
    drop(file);
    assert!(!is_open(&path).expect("looked"));
}

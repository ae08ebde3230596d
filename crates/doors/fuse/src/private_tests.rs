use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_directory_that_others_may_enter_or_made_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("dir");
    std::fs::create_dir(&path).unwrap();
    for mode in [0o755, 0o710, 0o701, 0o770, 0o777, 0o1777] {
        chmod(&path, mode);
        let e = PrivateDir::open(path.clone()).map(drop).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::PermissionDenied, "{mode:o}");
    }
    chmod(&path, 0o700);
    PrivateDir::open(path.clone()).unwrap();
    let link = place.path().join("link");
    symlink(&path, &link).unwrap();
    assert!(PrivateDir::open(link).is_err(), "a link may lead anywhere");
    let file = place.path().join("file");
    std::fs::write(&file, "").unwrap();
    chmod(&file, 0o700);
    assert!(PrivateDir::open(file).is_err());
    if !rustix::process::geteuid().is_root() {
        return kedge_base::skip::note("only root can give a directory away");
    }
    std::os::unix::fs::chown(&path, Some(65534), Some(65534)).unwrap();
    assert!(PrivateDir::open(path).is_err(), "another user's");
}

#[test]
fn a_name_is_reached_through_the_directory_however_long_its_path_is() {
    let place = tempfile::tempdir().unwrap();
    let mut path = place.path().to_owned();
    (0..3).for_each(|_| path.push("n".repeat(80)));
    std::fs::create_dir_all(&path).unwrap();
    chmod(&path, 0o700);
    let open = || PrivateDir::open(path.clone()).unwrap();
    assert!(!open().has("x"));
    let bound = open().listen("x").unwrap();
    assert!(open().has("x"));
    let client = open().connect("x", Duration::from_secs(1)).unwrap();
    bound.listener().accept().unwrap();
    drop(client);
    // The directory is renamed and replaced by another one. The descriptor still refers to the
    // first one.
    let dir = open();
    let aside = place.path().join("aside");
    std::fs::rename(&path, &aside).unwrap();
    std::fs::create_dir(&path).unwrap();
    dir.connect("x", Duration::from_secs(1)).unwrap();
    drop(bound);
    assert_eq!(std::fs::read_dir(&aside).unwrap().count(), 0, "the name is gone");
}

#[test]
fn one_process_alone_has_a_name_that_is_held() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("dir");
    std::fs::create_dir(&path).unwrap();
    chmod(&path, 0o700);
    let open = || PrivateDir::open(path.clone()).unwrap();
    let first = open().listen_alone("x").unwrap();
    let e = open().listen_alone("x").unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::WouldBlock);
    open().connect("x", Duration::from_secs(1)).unwrap();
    drop(first);
    open().listen_alone("x").unwrap();
}

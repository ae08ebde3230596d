use super::*;
use crate::create;
use kedgefs::FormatOptions;

fn request(image: &Path) -> Request {
    Request { image: image.to_owned(), dir: "mnt".into(), options: String::new(), cache_size: None }
}

fn host() -> Host {
    Host {
        budget: Config::default().budget().unwrap(),
        offer: |_, _| Box::new(|| ()),
        state: Mutex::new(Rank::Leaf, State::default()),
        changed: Condvar::default(),
    }
}

/// A daemon that never replies, for example because it accepts no connection.
#[test]
fn the_wait_for_a_reply_ends() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let e = ask(ours, &request(Path::new("disk.kedge")), Duration::from_millis(50)).err().unwrap();
    assert!(format!("{e:#}").contains("it may still mount disk.kedge"), "{e:#}");
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    assert!(ask(ours, &request(Path::new("disk.kedge")), REPLY_WAIT).unwrap().is_none());
}

/// Otherwise the process would wait forever for the end of a mount that no thread serves.
#[test]
fn a_mount_whose_thread_does_not_start_is_forgotten_and_closed() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.kedge");
    create::create(&image, 32 << 20, &FormatOptions::default()).unwrap();
    let fs = engine::open_to_change(&image).unwrap();
    let host = host();
    let mount = MountPoint {
        source: image.clone(),
        image,
        dir: "mnt".into(),
        device: None,
        privileged: false,
        why_plain: None,
    };
    let e = host.begin(&mount, &fs, || Err(std::io::ErrorKind::WouldBlock.into())).unwrap_err();
    assert!(format!("{e:#}").contains("start a thread for mnt"), "{e:#}");
    assert!(host.state.lock().live.is_empty(), "the mount stays noted");
    assert!(fs.sync().is_err(), "the file system is closed");
    host.wait();
}

/// Otherwise the process would accept no further request, and would never end.
#[test]
fn a_mount_that_panics_is_no_longer_awaited() {
    let host = host();
    let e = host.while_counted(|| panic!("the mount panics")).unwrap_err();
    assert!(format!("{e:#}").contains("a panic in the start of a mount: the mount panics"), "{e:#}");
    assert_eq!(host.state.lock().starting, 0);
    assert!(host.while_counted(|| Ok(Vec::new())).is_ok(), "the next one");
    host.wait();
}

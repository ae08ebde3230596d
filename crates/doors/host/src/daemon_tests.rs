use super::*;
use crate::create;
use kedgefs::FormatOptions;

fn request(image: &Path) -> Request {
    Request { image: image.to_owned(), dir: "mnt".into(), options: String::new(), cache_size: None }
}

fn host() -> Arc<Host> {
    Arc::new(Host {
        budget: Config::default().budget().unwrap(),
        offer: |_, _| Box::new(|| ()),
        state: Mutex::new(Rank::Leaf, State::default()),
        changed: Condvar::default(),
    })
}

fn point(image: &Path) -> MountPoint {
    MountPoint {
        source: image.to_owned(),
        image: image.to_owned(),
        dir: "mnt".into(),
        device: None,
        privileged: false,
        why_plain: None,
    }
}

/// A daemon that never replies, for example because it accepts no connection.
#[test]
fn the_wait_for_a_reply_ends() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let e = ask(ours, &request(Path::new("disk.kedge")), Duration::from_millis(50)).err().unwrap();
    assert!(format!("{e:#}").contains("it may still mount disk.kedge"), "{e:#}");
    assert!(e.is::<NoReply>(), "kedge mount --create would remove the image");
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
    let (host, mount) = (host(), point(&image));
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

/// A signal that comes while an image is being opened also ends the mounts that are not live yet.
#[test]
fn a_mount_in_preparation_does_not_outlive_a_signal() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.kedge");
    create::create(&image, 32 << 20, &FormatOptions::default()).unwrap();
    let mnt = dir.path().join("mnt");
    std::fs::create_dir(&mnt).unwrap();
    let wanted = Request { dir: mnt.clone(), ..request(&image) };
    let host = host();
    // The image is locked, so its open waits.
    let locked = engine::open_locked(&image).unwrap();
    let (mounts, asked) = (host.clone(), wanted.clone());
    let mounting = kedge_base::spawn_named("mount", move || mounts.mount(&asked).map(drop)).unwrap();
    while host.state.lock().starting == 0 {
        kedge_base::pause(Duration::from_millis(1));
    }
    host.unmount_all();
    drop(locked);
    let mounted = mounting.join().unwrap();
    let live = host.state.lock().live.clone();
    live.iter().for_each(|mount| engine::patiently(|| mount.request_unmount()).unwrap());
    assert!(live.is_empty() && mounted.is_err_and(|e| e.is::<Ending>()), "the mount becomes live");
    assert!(host.mount(&wanted).is_err_and(|e| e.is::<Ending>()), "a later mount is accepted");
    host.wait_for_first();
    host.wait();
    let fs = engine::open_to_change(&image).unwrap();
    // The same if the signal comes when the mount is made.
    let late = host.begin(&point(&image), &fs, || Ok(()));
    assert!(late.is_err_and(|e| e.is::<Ending>()), "it is not unmounted");
    fs.close().unwrap();
}

/// A keeper serves one mount in a process of its own.
#[test]
fn a_mount_with_a_keeper_is_refused_before_the_image_is_opened() {
    let asked = Request { options: "commit=3,keeper".into(), ..request(Path::new("none.kedge")) };
    let e = host().mount(&asked).unwrap_err();
    assert!(e.is::<Usage>() && e.to_string().contains("mount option keeper"), "{e:#}");
}

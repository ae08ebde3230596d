use super::*;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;

/// A number that no file system has.
fn device() -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    format!("test:{}:{}", std::process::id(), MADE.fetch_add(1, SeqCst))
}

fn mount(device: &str, owner: Option<u32>) -> MountEntry {
    MountEntry {
        id: 1,
        device: device.to_owned(),
        root: PathBuf::from("/"),
        dir: PathBuf::from("/x"),
        kind: "fuse.kedgefs".into(),
        source: PathBuf::from("/image"),
        owner,
        options: String::new(),
        super_options: String::new(),
    }
}

fn me() -> Option<u32> {
    Some(rustix::process::geteuid().as_raw())
}

fn teller() -> Teller {
    Arc::new(|name| (name == b"known").then(|| vec![b'v'; 100_000]))
}

#[test]
fn what_is_asked_is_answered_until_it_ends() {
    let device = device();
    let here = mount(&device, me());
    assert_eq!(ask(&here, "known"), None, "nobody listens");
    let status = Status::start(&device, teller()).unwrap();
    assert_eq!(ask(&here, "known").unwrap().len(), 100_000);
    assert_eq!(ask(&here, "unknown"), None);
    // Clients that ask nothing, or too much, are got rid of.
    drop(UnixStream::connect_addr(&address(&device).unwrap()).unwrap());
    let mut rude = UnixStream::connect_addr(&address(&device).unwrap()).unwrap();
    rude.write_all(&[b'x'; 10 * QUESTION_MAX]).unwrap();
    drop(rude);
    let silent = UnixStream::connect_addr(&address(&device).unwrap()).unwrap();
    assert!((0..10).any(|_| ask(&here, "known").is_some()), "the silent one does not keep others out");
    drop(silent);
    drop(status);
    assert_eq!(ask(&here, "known"), None);
    // The name is free again.
    drop(Status::start(&device, teller()).unwrap());
}

/// Whoever has taken the name: only root and the owner of the mount are believed.
#[test]
fn strangers_are_not_believed() {
    let device = device();
    let _status = Status::start(&device, teller()).unwrap();
    let believed = ask(&mount(&device, me()), "known").is_some();
    assert!(believed);
    let stranger = mount(&device, me().map(|uid| uid + 1));
    assert_eq!(ask(&stranger, "known").is_some(), me() == Some(0));
}

#[test]
fn a_name_that_is_taken_is_an_error() {
    let device = device();
    let _taken = UnixListener::bind_addr(&address(&device).unwrap()).unwrap();
    let e = Status::start(&device, teller()).map(drop).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::AddrInUse);
}

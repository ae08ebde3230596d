use super::*;
use kedge_base::HANG;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;

/// A device number that no file system has.
fn device() -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    format!("test:{}:{}", std::process::id(), MADE.fetch_add(1, SeqCst))
}

fn mount(device: &str) -> MountEntry {
    MountEntry {
        id: 1,
        device: device.to_owned(),
        root: PathBuf::from("/"),
        dir: PathBuf::from("/x"),
        kind: "fuse.kedgefs".into(),
        source: PathBuf::from("/image"),
        owner: Some(rustix::process::geteuid().as_raw()),
        options: String::new(),
        super_options: String::new(),
    }
}

fn read() -> ReadState {
    Arc::new(|name| (name == b"known").then(|| vec![b'v'; 100_000]))
}

/// Returns the value of an attribute. Repeats the query if the thread of the socket got no
/// processor in time.
fn answer_of(here: &MountEntry, name: &str) -> String {
    let begun = SystemClock::default();
    let asked = || ask(here, name);
    std::iter::repeat_with(asked).take_while(|_| begun.monotonic() < HANG).flatten().next().expect("a value")
}

fn connection(here: &MountEntry) -> UnixStream {
    visit(here, PATIENCE).unwrap()
}

#[test]
fn what_is_asked_is_answered_until_it_ends() {
    let device = device();
    let here = mount(&device);
    assert_eq!(ask(&here, "known"), None, "nobody listens");
    let status = Status::start(&device, read(), None).unwrap();
    assert_eq!(answer_of(&here, "known").len(), 100_000);
    assert_eq!(ask(&here, "unknown"), None);
    // Clients that send nothing, or too much, are disconnected.
    drop(connection(&here));
    let mut rude = connection(&here);
    rude.write_all(&[b'x'; 10 * QUESTION_MAX]).unwrap();
    drop(rude);
    let silent = connection(&here);
    // A silent client does not block others for long.
    answer_of(&here, "known");
    drop(silent);
    drop(status);
    assert_eq!(ask(&here, "known"), None);
    // The name is free again. A socket left by a killed process would be replaced in the same way.
    let stale = PrivateDir::make().unwrap().listen(&socket_name(&device)).unwrap();
    let status = Status::start(&device, read(), None).unwrap();
    drop(stale);
    // The socket belongs to the new server.
    answer_of(&here, "known");
    drop(status);
    assert!(!PrivateDir::make().unwrap().has(&socket_name(&device)));
}

#[test]
fn visitors_come_with_their_message() {
    let device = device();
    let here = mount(&device);
    let came = Arc::new(Mutex::new(Vec::new()));
    let keep = came.clone();
    let visits: Visits = Arc::new(move |stream| keep.lock().push(stream));
    let _status = Status::start(&device, read(), Some(visits)).unwrap();
    let mut visitor = connection(&here);
    visitor.write_all(b"kedge-beside\n").unwrap();
    // The visit was passed on before this query was served.
    answer_of(&here, "known");
    let mut text = [0; 13];
    came.lock().pop().unwrap().read_exact(&mut text).unwrap();
    assert_eq!(&text, b"kedge-beside\n");
}

/// One listener has a full queue and never accepts; one server sends single bytes slowly.
#[test]
fn asking_is_bounded_whatever_the_other_end_does() {
    let clock = SystemClock::default();
    let device = device();
    let here = mount(&device);
    let deaf = PrivateDir::make().unwrap().listen(&socket_name(&device)).unwrap();
    rustix::net::listen(deaf.listener(), 0).unwrap();
    let _queue: Vec<UnixStream> =
        std::iter::from_fn(|| visit(&here, Duration::from_millis(20)).ok()).take(100).collect();
    let begun = clock.monotonic();
    assert_eq!(ask(&here, "known"), None);
    assert!(clock.since(begun) >= ASK_PATIENCE, "the queue was full");
    drop(deaf);

    let slow = PrivateDir::make().unwrap().listen(&socket_name(&device)).unwrap();
    let listener = slow.listener().try_clone().unwrap();
    // Repeated until the server got enough processor time to send some bytes before the client gave
    // up.
    let drips_enough = (0..HANG.as_secs() / ASK_PATIENCE.as_secs()).any(|_| {
        let listener = listener.try_clone().unwrap();
        let drips = spawn_named("drips", move || {
            let (mut stream, _) = listener.accept().unwrap();
            let sent = std::iter::from_fn(|| {
                stream.write_all(b"x").ok().inspect(|()| SystemClock::default().sleep(PAUSE))
            });
            sent.count()
        });
        assert_eq!(ask(&here, "known"), None);
        drips.unwrap().join().unwrap() > 2
    });
    assert!(drips_enough);
}

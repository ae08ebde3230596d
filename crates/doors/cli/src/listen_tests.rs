use super::*;

#[test]
fn a_port_alone_is_of_this_machine() {
    assert_eq!(address("9090").unwrap().to_string(), "127.0.0.1:9090");
    assert_eq!(address("localhost:0").unwrap().to_string(), "127.0.0.1:0");
    assert_eq!(address("[::1]:9090").unwrap().to_string(), "[::1]:9090");
    for wrong in ["", "x", "70000", "host:80", "127.0.0.1"] {
        assert!(address(wrong).unwrap_err().is::<Usage>(), "{wrong}");
    }
}

#[test]
fn requests_are_told_apart() {
    let of = |line: &str| request(format!("{line}\r\nHost: x\r\n\r\n").as_bytes());
    assert_eq!(of("GET /metrics HTTP/1.1"), Request::Metrics);
    assert_eq!(of("HEAD /metrics?x=1 HTTP/1.0"), Request::Metrics);
    assert_eq!(of("GET / HTTP/1.1"), Request::Other("404 Not Found"));
    assert_eq!(of("POST /metrics HTTP/1.1"), Request::Other("405 Method Not Allowed"));
    for bad in ["", "GET /metrics", "GET /metrics SPDY/3"] {
        assert_eq!(of(bad), Request::Other("400 Bad Request"), "{bad}");
    }
    assert_eq!(request(b"GET /metrics HTTP/1.1\r\n"), Request::Other("431 Request Header Fields Too Large"));
}

/// Attempts to get the state of the mount that replies. Each lasts at most as long as `gather`
/// waits for a mount.
const TRIES: usize = 500;

#[test]
fn a_mount_that_does_not_answer_takes_one_thread_and_stops_no_other() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    fn ask(dir: &Path) -> Answered {
        if dir.ends_with("hung") {
            ASKED.fetch_add(1, Ordering::Relaxed);
            loop {
                std::thread::park();
            }
        }
        (json!({ "up": true }), dir.display().to_string())
    }
    let asked = Asked::default();
    let dirs = [PathBuf::from("/hung"), PathBuf::from("/well")];
    for _ in 0..3 {
        // Retry if the thread of the second mount got no processor in time.
        let mut all = std::iter::repeat_with(|| gather(&dirs, &asked, ask)).take(TRIES);
        let is_well = |tree: &Answered| *tree == (json!({ "up": true }), "/well".to_owned());
        let trees = all.find(|trees| is_well(&trees[1])).expect("it answers");
        assert_eq!(trees[0], (json!({ "up": false }), "/hung".to_owned()));
    }
    assert_eq!(ASKED.load(Ordering::Relaxed), 1);
}

/// The second scrape must not report the mount as down.
#[test]
fn two_scrapes_at_once_share_an_answer() {
    fn slow(dir: &Path) -> Answered {
        std::thread::sleep(Duration::from_millis(200));
        (json!({ "up": true }), dir.display().to_string())
    }
    let asked = Asked::default();
    let dirs = [PathBuf::from("/slow")];
    let (other, same) = (asked.clone(), dirs.clone());
    let first = kedge_base::spawn_named("first", move || gather(&same, &other, slow)).unwrap();
    let second = gather(&dirs, &asked, slow);
    assert_eq!(first.join().unwrap(), second);
    assert_eq!(second[0].0, json!({ "up": true }));
}

//! The name of an image, as users, fstab and configuration files write it.

use crate::drive::{Target, outcome, words_of};
use kedge_device::Location;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub const TARGET: Target = Target {
    name: "uri",
    run,
    words: &[
        b"file:",
        b"?offset=",
        b"&sizelimit=",
        b"nbd://",
        b"nbd+unix:///",
        b"rbd:",
        b"?socket=",
        b"&connections=",
        b"&timeout=",
        b"?id=",
        b"&conf=",
        b"%2f",
        b"%00",
        b"%",
        b"[::1]",
        b"@",
        b":10809/",
        b"18446744073709551616",
    ],
    len_max: 5000,
};

fn run(input: &[u8]) -> u64 {
    let location = match Location::parse(Path::new(OsStr::from_bytes(input))) {
        Ok(location) => location,
        Err(e) => return outcome(words_of(&e.to_string())),
    };
    assert!(location.same_image(&location));
    if let Location::Path(path) = &location {
        assert_eq!(path.as_os_str().as_bytes(), input, "a path is taken as it is");
        return 1;
    }
    let text = location.to_string();
    assert!(text.is_ascii() && !text.bytes().any(|b| b.is_ascii_control()), "{text:?} goes to a terminal");
    let again = Location::parse(Path::new(&text)).expect("what is written can be read");
    assert_eq!(again, location, "{text}");
    assert_eq!(again.to_string(), text, "the text is canonical");
    assert!(location.clone().absolute().is_ok_and(|absolute| absolute.is_uri()));
    match location {
        Location::Window(uri) => {
            let whole = |bytes: u64| bytes.is_multiple_of(4096);
            assert!(whole(uri.offset) && uri.size.is_none_or(|size| size > 0 && whole(size)));
            outcome(("file", uri.offset.min(9), uri.size.is_some()))
        }
        Location::Nbd(uri) => {
            assert!((1..=16).contains(&uri.connections) && uri.timeout.as_secs() > 0);
            outcome(("nbd", uri.export.len().min(9), uri.connections, uri.timeout.as_secs().ilog2()))
        }
        Location::Rbd(uri) => outcome((
            "rbd",
            uri.snapshot.is_some(),
            uri.id.is_some(),
            uri.conf.is_some(),
            uri.pool.len().min(9),
        )),
        Location::Path(_) => unreachable!("has returned"),
    }
}

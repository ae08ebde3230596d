use super::*;

fn parse(text: &str) -> Result<Location> {
    Location::parse(Path::new(text))
}

#[test]
fn uris_are_read_and_written_in_one_way() {
    for (text, canonical) in [
        ("file:image?sizelimit=8192", "file:image?offset=0&sizelimit=8192"),
        ("file:/a%20b?sizelimit=1M&offset=4K", "file:/a%20b?offset=4096&sizelimit=1048576"),
        ("file:%ff%3f?offset=0", "file:%FF%3F?offset=0"),
        ("nbd://Host", "nbd://host:10809/"),
        ("nbd://host/", "nbd://host:10809/"),
        ("nbd://10.0.0.1:99/a/b", "nbd://10.0.0.1:99/a/b"),
        ("nbd://[::1]:7/x%20y?timeout=5&connections=1", "nbd://[::1]:7/x%20y?connections=1&timeout=5"),
        ("nbd+unix://?socket=/run/s", "nbd+unix:///?socket=/run/s"),
        ("nbd+unix:///disk?socket=/run/%41", "nbd+unix:///disk?socket=/run/A"),
        ("rbd:pool/image", "rbd:pool/image"),
        ("rbd:p%20q/i@s?timeout=9&id=fs&conf=/a", "rbd:p%20q/i@s?id=fs&conf=/a&timeout=9"),
        ("nbd+unix:////disk?timeout=30&socket=a%26b", "nbd+unix:////disk?socket=a%26b"),
    ] {
        let location = parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert!(location.is_uri());
        assert_eq!(location.to_string(), canonical);
        assert_eq!(parse(canonical).unwrap(), location, "{canonical}");
    }
}

#[test]
fn texts_that_mean_the_same_image_are_known() {
    let here = std::env::current_dir().unwrap();
    let absolute = parse("nbd+unix:///x?socket=s").unwrap().absolute().unwrap();
    assert_eq!(absolute.to_string(), format!("nbd+unix:///x?socket={}/s", here.display()));
    let same = |a, b| parse(a).unwrap().same_image(&parse(b).unwrap());
    assert!(same("file:a?sizelimit=4096", "file:a?offset=0"));
    assert!(!same("file:a?offset=4096", "file:a?offset=0") && !same("file:a?offset=0", "a"));
    assert!(same("nbd://h/x?timeout=1", "nbd://H:10809/x?connections=3"));
    assert!(!same("nbd://h/x", "nbd://h/y"));
    assert!(!same("nbd://h/x", "nbd://h:1/x"));
    assert!(!same("nbd+unix:///?socket=/a", "nbd+unix:///?socket=/b"));
    assert!(same("dir/image", "dir/image") && !same("a", "nbd://a"));
}

#[test]
fn paths_stay_paths() {
    for text in [
        "image",
        "/dev/sda",
        "./nbd://x",
        "a:b",
        "c:/x",
        "",
        "nbd",
        "dir/x://y",
        "file:",
        "file:/x",
        "file:a?b",
    ] {
        assert_eq!(parse(text).unwrap(), Location::Path(text.into()), "{text}");
    }
}

/// Each kind of malformed URI has a message of its own, which contains the URI.
#[test]
fn nonsense_is_named() {
    for (text, word) in [
        ("file:?offset=0", "names no file"),
        ("file:a%00?offset=0", "zero byte"),
        ("file:a?offset=512", "offset=512: the value must be a multiple of 4096"),
        ("file:a?offset=-4096", "is not a size"),
        ("file:a?offset=", "is not a size"),
        ("file:a?offset=99999999999999999999", "offset=99999999999999999999"),
        ("file:a?offset=9223372036854775808", "no file is as long"),
        ("file:a?offset=9223372036854771712&sizelimit=4096", "no file is as long"),
        ("file:a?sizelimit=0", "at least one block"),
        ("file:a?sizelimit=1000", "sizelimit=1000: the value must be a multiple"),
        ("file:a?offset=0&offset=0", "offset is there twice"),
        ("file:a?offset=0&timeout=1", "no option; there are offset, sizelimit"),
        ("nbd:host", "// is missing"),
        ("nbd://", "names no host"),
        ("nbd:///x?socket=/s", "\"socket\" is no option; there are connections, timeout"),
        ("nbd://:80/x", "is no host"),
        ("nbd://user@host/", "is no host"),
        ("nbd://h:0", "is no port"),
        ("nbd://h:65536", "is no port"),
        ("nbd://h:+5", "is no port"),
        ("nbd://h:", "is no port"),
        ("nbd://::1/", "in brackets"),
        ("nbd://[::1/", "bracket after the host"),
        ("nbd://[::1]x/", "only :PORT may follow"),
        ("nbd+unix:///x", "?socket=PATH is missing"),
        ("nbd+unix://host/x?socket=/s", "names a host"),
        ("nbd+unix:///?socket=", "1 to 107 bytes"),
        ("nbd+unix:///?socket=/a&socket=/b", "socket is there twice"),
        ("nbd+unix:///?socket=/a%00", "zero byte"),
        ("nbd+unix:///?socket=/a%f", "two hexadecimal digits"),
        ("nbd+unix:///?socket=/a%+1", "two hexadecimal digits"),
        ("nbd+unix:///%ff?socket=/a", "not UTF-8"),
        ("nbd://h/?connections=0", "1 to 16"),
        ("nbd://h/?connections=17", "1 to 16"),
        ("nbd://h/?timeout=x", "1 to 3600 seconds"),
        ("nbd://h/?timeout=99999999999999999999", "1 to 3600 seconds"),
        ("nbd://h/?frob=1", "\"frob\" is no option"),
        ("nbd://h/?tls-psk=1", "TLS is not spoken"),
        ("nbd://h/#x", "# has no meaning"),
        ("nbds://h/x", "TLS is not spoken"),
        ("nbd+vsock://1/x", "nothing is known of nbd+vsock"),
        ("rbd:image", "rbd:POOL/IMAGE"),
        ("rbd:/image", "no name of a pool"),
        ("rbd:pool/", "no name of an image"),
        ("rbd:pool/space/image", "no name of an image"),
        ("rbd:pool/image@", "no name of a snapshot"),
        ("rbd:pool/image@a@b", "no name of a snapshot"),
        ("rbd:pool/image?id=", "no name of a user"),
        ("rbd:pool/image?connections=1", "no option; there are id, conf, timeout"),
        ("http://h/x", "nothing is known of http"),
    ] {
        let e = parse(text).expect_err(text).to_string();
        assert!(e.contains(word) && e.contains(text), "{text}: {e}");
    }
    let long = format!("nbd://h/{}", "x".repeat(5000));
    assert!(parse(&long).unwrap_err().to_string().contains("at most 4096 bytes"));
}

/// An earlier parser accepted such a URI, which could then not be made absolute.
#[test]
fn an_empty_configuration_is_refused() {
    let e = Location::parse(Path::new("rbd:pool/image?conf=")).unwrap_err().to_string();
    assert!(e.contains("conf= names no file"), "{e}");
}

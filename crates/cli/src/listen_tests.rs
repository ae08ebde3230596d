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

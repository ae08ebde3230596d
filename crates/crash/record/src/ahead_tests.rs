#![allow(clippy::unwrap_used)]

use super::*;

#[test]
fn a_file_that_is_ended_has_the_bytes_written_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let mut ahead = Ahead::new(File::create(&path).unwrap()).unwrap();
    let mut expected = Vec::new();
    for (n, len) in [1, 5000, STEP, 7, 3 * STEP, 100].into_iter().enumerate() {
        let bytes = vec![n as u8 + 1; len];
        ahead.write_all(&bytes).unwrap();
        expected.extend_from_slice(&bytes);
        let now = std::fs::read(&path).unwrap();
        assert!(now.len() > expected.len(), "no space is made ahead of byte {}", expected.len());
        assert_eq!(now[..expected.len()], expected);
        assert!(now[expected.len()..].iter().all(|byte| *byte == 0));
    }
    ahead.end().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), expected);
}

#[test]
fn what_is_no_regular_file_gets_the_bytes_alone() {
    let (mut pipe, end) = io::pipe().unwrap();
    let mut ahead = Ahead::new(File::from(std::os::fd::OwnedFd::from(end))).unwrap();
    ahead.write_all(b"bytes").unwrap();
    ahead.end().unwrap();
    let mut found = Vec::new();
    io::Read::read_to_end(&mut pipe, &mut found).unwrap();
    assert_eq!(found, b"bytes");
}

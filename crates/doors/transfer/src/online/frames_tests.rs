use super::{FrameReader, FrameWriter};
use crate::online::CHUNK;
use std::io::{ErrorKind, Read, Write};

fn framed(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut frames = FrameWriter::new(&mut out);
    frames.write_all(bytes).unwrap();
    frames.end().unwrap();
    out
}

#[test]
fn bytes_end_where_they_ended() {
    for len in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5] {
        let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let sent = [framed(&bytes), b"after".to_vec()].concat();
        let (mut from, mut found) = (&sent[..], Vec::new());
        FrameReader::new(&mut from).read_to_end(&mut found).unwrap();
        assert!(found == bytes, "{len} bytes");
        assert_eq!(from, b"after");
    }
}

#[test]
fn a_connection_that_ends_early_is_an_error() {
    let sent = framed(&[7; 1000]);
    for len in 0..sent.len() {
        let mut from = &sent[..len];
        let error = FrameReader::new(&mut from).read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{len} of {} bytes", sent.len());
    }
}

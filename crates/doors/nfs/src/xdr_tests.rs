use super::*;

#[test]
fn what_is_written_is_read() {
    let mut w = Writer::default();
    w.u32(7);
    w.u64(1 << 40);
    w.opaque(b"hello");
    w.optional(Some(3u32), Writer::u32);
    w.optional(None, Writer::u32);
    let bytes = w.into_bytes();
    assert_eq!(bytes.len(), 4 + 8 + 12 + 8 + 4);
    let mut r = Reader::new(&bytes);
    assert_eq!(r.u32(), Ok(7));
    assert_eq!(r.u64(), Ok(1 << 40));
    assert_eq!(r.opaque(5), Ok(&b"hello"[..]));
    assert_eq!(r.optional(Reader::u32), Ok(Some(3)));
    assert_eq!(r.optional(Reader::u32), Ok(None));
    assert_eq!(r.u32(), Err(Malformed));
}

#[test]
fn a_length_beyond_the_limit_or_the_message_is_refused() {
    let mut w = Writer::default();
    w.opaque(b"12345");
    let bytes = w.into_bytes();
    assert_eq!(Reader::new(&bytes).opaque(4), Err(Malformed));
    assert_eq!(Reader::new(&bytes[..10]).opaque(64), Err(Malformed));
    let huge = [0xff; 8];
    assert_eq!(Reader::new(&huge).opaque(usize::MAX), Err(Malformed));
    assert_eq!(Reader::new(&huge).bool(), Err(Malformed));
}

use super::*;
use kedge_base::ManualClock;
use std::io::Cursor;

fn read(bytes: Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    let (limits, clock) = (Limits::default(), ManualClock::default());
    Records { stream: Cursor::new(bytes), limits: &limits, clock: &clock }.next()
}

#[test]
fn fragments_are_joined() {
    let mut bytes = 2u32.to_be_bytes().to_vec();
    bytes.extend_from_slice(b"ab");
    bytes.extend_from_slice(&0u32.to_be_bytes());
    bytes.extend_from_slice(&framed(b"cde".to_vec()));
    assert_eq!(read(bytes).unwrap().unwrap(), b"abcde");
}

#[test]
fn the_end_between_messages_is_no_error() {
    assert_eq!(read(Vec::new()).unwrap(), None);
    assert_eq!(read(vec![0x80, 0, 0]).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert_eq!(read(vec![0x80, 0, 0, 9, 1]).unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn a_length_beyond_the_limit_is_refused_in_one_fragment_or_many() {
    let max = Limits::default().message_bytes as u32;
    assert_eq!(read((LAST | (max + 1)).to_be_bytes().to_vec()).unwrap_err().kind(), ErrorKind::InvalidData);
    let mut bytes = max.to_be_bytes().to_vec();
    bytes.resize(bytes.len() + max as usize, 0);
    bytes.extend_from_slice(&(LAST | 1).to_be_bytes());
    bytes.push(0);
    assert_eq!(read(bytes).unwrap_err().kind(), ErrorKind::InvalidData);
}

/// A stream on which each read takes time and returns one byte.
struct Trickle<'a>(&'a ManualClock);

impl Read for Trickle<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.advance(Duration::from_secs(1));
        buffer[0] = 0;
        Ok(1)
    }
}

#[test]
fn a_peer_that_trickles_is_given_up() {
    let (limits, clock) = (Limits::default(), ManualClock::default());
    let error = Records { stream: Trickle(&clock), limits: &limits, clock: &clock }.next().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(clock.monotonic() < limits.message_time * 2, "{:?}", clock.monotonic());
}

/// A stream on which each read takes time and returns nothing.
struct Silent<'a>(&'a ManualClock);

impl Read for Silent<'_> {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.advance(TICK);
        Err(ErrorKind::WouldBlock.into())
    }
}

#[test]
fn a_silent_connection_is_closed_after_a_while() {
    let (limits, clock) = (Limits::default(), ManualClock::default());
    let error = Records { stream: Silent(&clock), limits: &limits, clock: &clock }.next().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(clock.monotonic() > limits.idle_time);
}

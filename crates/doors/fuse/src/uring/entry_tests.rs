//! The tests act as the kernel by writing to the entry's memory.

#![allow(unsafe_code)]

use super::*;
use crate::abi::{WriteIn, op};
use crate::transport::out_header;
use zerocopy::FromZeros;

const COMMIT_ID: u64 = 77;

/// The second entry of two, so that a wrong offset is detected.
fn one(queue: u16) -> Entry {
    Entry::slab(queue, 2).pop().unwrap()
}

/// Stores a request as the kernel does. `len` replaces the length in its header.
fn bring(entry: &Entry, op_header: &[u8], payload: &[u8], len: Option<u32>) {
    let whole = (size_of::<InHeader>() + op_header.len() + payload.len()) as u32;
    let mut header = InHeader::new_zeroed();
    (header.len, header.opcode, header.unique) = (len.unwrap_or(whole), op::WRITE, COMMIT_ID);
    let at = |offset: usize| entry.memory.wrapping_add(offset);
    let put = |offset: usize, bytes: &[u8]| {
        // SAFETY: the tests' bytes fit into the entry, and no other thread uses it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at(offset), bytes.len()) };
    };
    put(0, header.as_bytes());
    put(std::mem::offset_of!(UringHeaders, op_in), op_header);
    put(std::mem::offset_of!(UringHeaders, entry) + 8, &COMMIT_ID.to_ne_bytes());
    put(PAYLOAD_SIZE_AT, &(payload.len() as u32).to_ne_bytes());
    put(BLOCK_SIZE, payload);
}

/// The reply as the kernel reads it at a commit: header and payload.
fn taken(entry: &Entry) -> (OutHeader, Vec<u8>) {
    let headers = entry.headers();
    let (header, _) = OutHeader::read_from_prefix(&headers.in_out).unwrap();
    let len = headers.entry.payload_sz as usize;
    // SAFETY: the length is that of a reply, which fits into the entry.
    (header, unsafe { std::slice::from_raw_parts(entry.memory.add(BLOCK_SIZE), len) }.to_vec())
}

#[test]
fn header_and_payload_are_one_slice() {
    let entry = one(3);
    let op_header = [7u8; size_of::<WriteIn>()];
    for payload in [vec![], vec![1; 10], (0..MAX_IO).map(|i| i as u8).collect()] {
        bring(&entry, &op_header, &payload, None);
        let arrived = entry.arrived().unwrap();
        assert_eq!((arrived.header.unique, arrived.payload_len), (COMMIT_ID, payload.len()));
        let body = entry.body(&arrived);
        assert_eq!(body[..op_header.len()], op_header);
        assert!(body[op_header.len()..] == payload);
    }
}

#[test]
fn lengths_that_contradict_each_other_are_refused() {
    let entry = one(0);
    for (op_header, payload, len) in [(40, 100, 139), (40, 100, 20), (100, 0, 40 + 129)] {
        bring(&entry, &vec![0; op_header], &vec![0; payload], Some(len));
        let error = entry.arrived().err().unwrap().to_string();
        assert!(error.contains(&format!("of {len} bytes")), "{error}");
    }
    // A payload larger than the entry.
    bring(&entry, &[], &[], Some(u32::MAX));
    assert!(entry.arrived().is_err());
}

/// While a worker still reads the request, a reply does not change its bytes. The worker's release
/// is the last one, after which the reply is committed.
#[test]
fn a_reply_waits_for_the_reader_of_its_request() {
    let entry = one(0);
    let payload = vec![5; 8000];
    bring(&entry, &[], &payload, None);
    let arrived = entry.arrived().unwrap();
    entry.begin(true);
    let body = entry.body(&arrived);
    let header = out_header(COMMIT_ID, 0, &[b"answer"]);
    assert!(!entry.reply(header, &[b"ans", b"wer"]), "the worker reads");
    assert!(body == payload);
    assert!(entry.release(), "the reply is there");
    assert_eq!(entry.commit_id(), COMMIT_ID);
    let (told, bytes) = taken(&entry);
    assert_eq!((told.unique, told.error, &bytes[..]), (COMMIT_ID, 0, &b"answer"[..]));
}

#[test]
fn a_reader_that_is_done_first_leaves_the_commit_to_the_reply() {
    let entry = one(0);
    for in_place in [true, false] {
        bring(&entry, &[], &[5; 8000], None);
        entry.begin(in_place);
        if in_place {
            assert!(!entry.release(), "there is no reply yet");
        }
        assert!(entry.reply(out_header(COMMIT_ID, -5, &[]), &[]));
        assert_eq!(entry.commit_id(), COMMIT_ID);
        let (told, bytes) = taken(&entry);
        assert_eq!((told.unique, told.error, bytes.len()), (COMMIT_ID, -5, 0));
    }
}

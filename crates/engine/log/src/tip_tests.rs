use super::*;
use kedge_base::lock::{Mutex, Rank};
use kedge_base::spawn_named;
use std::sync::Arc;

const START: Lsn = Lsn(7 * BLOCK);
const MAX: u64 = 3 * BLOCK;

/// The end of a full batch without padding is also the start of the next batch. An append that has
/// read the number before the batch was closed must not succeed after that.
#[test]
fn a_batch_that_ends_on_a_block_differs_from_the_next_one() {
    let tip = Tip::new(START, MAX);
    let full = BLOCK_SIZE - HEADER_SIZE - FRAME_SIZE;
    let placed = tip.place(full).expect("it fits");
    assert_eq!((placed.base, placed.end), (START, Lsn(START.0 + BLOCK)));
    let seen = tip.head.0.load(SeqCst);
    assert_eq!(tip.close(), Some((START, placed.end)));
    assert_ne!(tip.head.0.load(SeqCst), seen);
    assert_eq!((tip.head(), tip.base()), (placed.end, placed.end));
    assert_eq!(tip.close(), None, "an empty batch stays open");
    let next = tip.place(1).expect("it fits");
    assert_eq!((next.base, next.start), (placed.end, Lsn(placed.end.0 + HEADER_SIZE as u64)));
}

#[test]
fn no_place_is_given_beyond_the_largest_batch_or_while_a_batch_is_closed() {
    let tip = Tip::new(START, MAX);
    let most = MAX as usize - HEADER_SIZE - FRAME_SIZE;
    assert_eq!(tip.place(most + 1), None);
    tip.place(most / 2).expect("it fits");
    let end = Lsn(START.0 + (HEADER_SIZE + FRAME_SIZE + most / 2) as u64);
    let head = tip.mark();
    assert_eq!((tip.place(1), head, tip.head()), (None, end, end));
    tip.open_next(head);
    assert_eq!(tip.place(1).map(|placed| placed.base), Some(tip.base()));
}

/// Threads append while another thread closes batches. Records and batches divide the log without
/// gaps or overlaps, and each record has the start of its own batch.
#[test]
fn places_of_many_threads_divide_the_log() {
    const THREADS: usize = 4;
    const EACH: usize = if cfg!(miri) { 20 } else { 4_000 };
    let tip = Arc::new(Tip::new(START, MAX));
    let batches = Arc::new(Mutex::new(Rank::LogState, Vec::new()));
    let place = |thread: usize| {
        let (tip, batches) = (tip.clone(), batches.clone());
        move || -> Vec<Placed> {
            let size = |i: usize| 1 + (i * 37 + thread * 11) % 900;
            let one = |i: usize| {
                tip.place(size(i)).unwrap_or_else(|| {
                    let mut batches = batches.lock();
                    loop {
                        // Another thread may have closed the batch since the last attempt.
                        match tip.place(size(i)) {
                            Some(placed) => break placed,
                            None => batches.extend(tip.close()),
                        }
                    }
                })
            };
            (0..EACH).map(one).collect()
        }
    };
    let threads: Vec<_> = (0..THREADS).map(|i| spawn_named("t", place(i)).unwrap()).collect();
    let mut placed: Vec<Placed> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    let mut batches = batches.lock();
    batches.extend(tip.close());
    placed.sort_by_key(|placed| placed.start);
    let (mut at, mut records) = (START, placed.iter().peekable());
    for (base, head) in batches.iter() {
        assert_eq!(*base, at, "batches are contiguous");
        assert!(head.0 - base.0 <= MAX);
        let mut end = Lsn(base.0 + HEADER_SIZE as u64);
        while let Some(record) = records.next_if(|record| record.start < *head) {
            assert_eq!((record.base, record.start), (*base, end));
            end = record.end;
        }
        assert_eq!(end, *head);
        at = Lsn(head.0.next_multiple_of(BLOCK));
    }
    assert_eq!((records.next(), tip.head()), (None, at));
    let grown: u64 = placed.iter().map(|placed| placed.grown).sum();
    assert_eq!(grown, at.0 - START.0, "the records pay for all padding");
}

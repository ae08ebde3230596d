use super::*;
use crate::tip::Tip;
use kedge_base::spawn_named;
use std::sync::Arc;

const BASE: Lsn = Lsn(5 * BLOCK_SIZE as u64);

fn opened() -> (Tip, Stage) {
    (Tip::new(BASE, 64 * BLOCK_SIZE as u64), Stage::new())
}

/// The lanes may still hold parts of an earlier batch whose leader has not collected them.
#[test]
fn each_batch_gets_its_own_records() {
    let (tip, stage) = opened();
    let mut batches = Vec::new();
    for batch in 0..3u8 {
        for _ in 0..=batch {
            stage.lane().add(&tip.place(100).unwrap(), &[batch; 100], batch == 1);
        }
        batches.push(tip.close().unwrap());
    }
    for batch in [1, 0, 2] {
        let (base, head) = batches[batch];
        let mut buf = IoBuf::zeroed(1);
        assert_eq!(stage.fill(base, head, &mut buf), (batch as u32 + 1, batch == 1));
        let payload = &buf.as_bytes()[HEADER_SIZE..(head.0 - base.0) as usize];
        let record = [&100u32.to_le_bytes()[..], &[batch as u8; 100]].concat();
        assert_eq!(payload, record.repeat(batch + 1));
    }
    assert!(stage.0.iter().all(|Aligned(lane)| lane.lock().parts.is_empty()));
}

#[test]
#[should_panic(expected = "has all of its records")]
fn a_missing_record_is_found() {
    let (tip, stage) = opened();
    stage.lane().add(&tip.place(100).unwrap(), &[1; 100], true);
    tip.place(100).unwrap();
    let (base, head) = tip.close().unwrap();
    stage.fill(base, head, &mut IoBuf::zeroed(1));
}

/// A leader waits for a record that has its range but not yet its bytes in the lane.
#[test]
fn a_leader_waits_for_a_record_that_has_its_place() {
    let (tip, stage) = opened();
    let stage = Arc::new(stage);
    let mut lane = stage.lane();
    let placed = tip.place(100).unwrap();
    let (base, head) = tip.close().unwrap();
    let leader = {
        let stage = stage.clone();
        spawn_named("leader", move || stage.fill(base, head, &mut IoBuf::zeroed(1))).unwrap()
    };
    lane.add(&placed, &[1; 100], true);
    drop(lane);
    assert_eq!(leader.join().unwrap(), (1, true));
}

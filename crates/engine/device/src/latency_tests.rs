use super::*;
use LatencyKind::*;
use kedge_base::{BLOCK_SIZE, IoBuf};

const MS: Duration = Duration::from_millis(1);

#[test]
fn the_first_request_counts_whole_and_one_slow_one_next_to_nothing() {
    let latency = Latency::default();
    assert_eq!(latency.typical(Read), None);
    latency.record(Read, MS);
    assert_eq!(latency.typical(Read), Some(MS));
    latency.record(Read, 1000 * MS);
    assert_eq!(latency.typical(Read), Some(MS + MS / 16));
    latency.record(Read, Duration::ZERO);
    assert!(latency.typical(Read).unwrap() <= MS);
    // Each kind has its own estimate.
    assert_eq!(latency.typical(Flush), None);
    latency.record(Flush, Duration::ZERO);
    assert!(latency.typical(Flush).is_some(), "measured, though too short for the clock");
    latency.record(Write, Duration::MAX);
    latency.record(Write, Duration::MAX);
    assert!(latency.typical(Write).is_some());
}

#[test]
fn the_estimate_follows_a_step_and_rests_at_the_median() {
    let latency = Latency::default();
    latency.record(DurableWrite, MS / 10);
    let mut requests = 0;
    while latency.typical(DurableWrite).unwrap() < MS {
        latency.record(DurableWrite, MS);
        requests += 1;
    }
    assert!((30..50).contains(&requests), "{requests}");
    // Every third request takes a second. A mean would be a third of a second.
    for i in 0..300 {
        latency.record(DurableWrite, if i % 3 == 0 { 1000 * MS } else { 2 * MS });
    }
    let typical = latency.typical(DurableWrite).unwrap();
    assert!((2 * MS..3 * MS).contains(&typical), "{typical:?}");
}

#[test]
fn a_size_grows_with_the_latency_within_its_bounds() {
    let latency = Latency::default();
    assert_eq!(latency.times(&[Write, Read], MS, 8), 1, "no latency is known yet");
    for (took, times) in [(MS / 50, 1), (MS, 1), (3 * MS, 3), (1000 * MS, 8)] {
        let latency = Latency::default();
        latency.record(Read, took);
        assert_eq!(latency.times(&[Write, Read], MS, 8), times, "{took:?}");
    }
    assert_eq!(latency.times(&[Read], Duration::ZERO, 0), 1, "a unit of zero does not divide by zero");
}

#[test]
fn what_fits_into_a_round_trip_is_latency_over_interval() {
    let latency = Latency::default();
    assert_eq!(latency.at_once(Write), None);
    latency.record_interval(Write, MS / 10);
    assert_eq!(latency.at_once(Write), None, "the latency is not known yet");
    latency.record(Write, 10 * MS);
    assert_eq!(latency.at_once(Write), Some(100));
    // A disk serves one request after another.
    let latency = Latency::default();
    latency.record(Write, 8 * MS);
    latency.record_interval(Write, 9 * MS);
    assert_eq!(latency.at_once(Write), Some(0));
    // Completions that arrive at the same time.
    let latency = Latency::default();
    latency.record(Write, Duration::MAX);
    latency.record_interval(Write, Duration::ZERO);
    assert!(latency.at_once(Write).is_some());
}

#[test]
fn only_small_requests_count() {
    let buf = |bytes: usize| IoBuf::zeroed(bytes / BLOCK_SIZE);
    let (small, large) = (SMALL as usize, SMALL as usize + BLOCK_SIZE);
    assert_eq!(LatencyKind::of(&Op::Read(buf(small))), Some(Read));
    assert_eq!(LatencyKind::of(&Op::Read(buf(large))), None);
    assert_eq!(LatencyKind::of(&Op::Write { buf: buf(small), fua: true }), Some(DurableWrite));
    assert_eq!(LatencyKind::of(&Op::Write { buf: buf(small), fua: false }), Some(Write));
    assert_eq!(LatencyKind::of(&Op::Write { buf: buf(large), fua: true }), None);
    assert_eq!(LatencyKind::of(&Op::Flush), Some(Flush));
    assert_eq!(LatencyKind::of(&Op::Discard { len: 4096 }), None);
}

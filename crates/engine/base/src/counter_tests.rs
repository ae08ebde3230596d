use super::*;
use crate::spawn_named;
use std::sync::Arc;

#[test]
fn what_threads_record_is_summed() {
    let histogram = Arc::new(Histogram::default());
    assert_eq!(histogram.snapshot().buckets, Vec::<u64>::new());
    let threads: Vec<_> = (0..2 * STRIPES as u64)
        .map(|i| {
            let histogram = histogram.clone();
            spawn_named("recorder", move || (0..1000).for_each(|k| histogram.record(i * 1000 + k)))
                .expect("start a thread")
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().expect("no panic"));
    let n = 2 * STRIPES as u64 * 1000;
    let seen = histogram.snapshot();
    assert_eq!((seen.count, seen.sum, seen.max), (n, n * (n - 1) / 2, n - 1));
    assert_eq!(seen.buckets[0], 1);
    assert_eq!(seen.buckets.len(), 64 - (n - 1).leading_zeros() as usize + 1);
    assert_eq!(seen.buckets[10], 512, "of 512 to 1023");
}

#[test]
fn a_thread_keeps_its_stripe_and_others_have_others() {
    assert_eq!(stripe(), stripe());
    let stripes: std::collections::BTreeSet<usize> = (0..4 * STRIPES)
        .map(|_| spawn_named("striped", stripe).expect("start a thread").join().expect("no panic"))
        .collect();
    assert!(stripes.len() > STRIPES / 2 && stripes.iter().all(|s| *s < STRIPES), "{stripes:?}");
}

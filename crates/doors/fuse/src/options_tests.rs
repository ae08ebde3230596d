use super::FuseOptions;

#[test]
fn a_small_cache_permits_few_workers() {
    let options = FuseOptions::default();
    let first = options.worker_count();
    assert_eq!(options.workers_max_with(0), first);
    assert_eq!(options.workers_max_with(64 << 20), 8);
    assert_eq!(options.workers_max_with(256 << 20), 32);
    assert_eq!(options.workers_max_with(512 << 20), 64);
    assert_eq!(options.workers_max_with(u64::MAX), 64);
}

#[test]
fn a_number_of_workers_that_was_asked_for_stays() {
    let options = FuseOptions { workers: Some(20), ..FuseOptions::default() };
    assert_eq!(options.worker_range(), 20..=20);
    assert_eq!(options.workers_max_with(64 << 20), 20);
}

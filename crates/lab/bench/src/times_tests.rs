use super::*;

#[test]
fn sums() {
    let mut times = Times::default();
    assert!(times.max().is_nan() && times.average().is_nan() && times.quantile(0.5).is_nan());
    (1..=1000).for_each(|ms| times.push(Duration::from_millis(ms)));
    let mut other = Times::default();
    other.push(Duration::from_secs(3600));
    assert_eq!((times.count(), times.average(), times.max()), (1000.0, 500.5, 1000.0));
    assert_eq!((times.quantile(0.5), times.quantile(0.999), times.quantile(1.0)), (500.0, 999.0, 1000.0));
    times.merge(other);
    assert_eq!(times.max(), f64::from(u32::MAX) / 1e6, "what is longer than four seconds counts as that");
}

use super::*;

#[test]
fn a_flood_is_cut_and_counted() {
    let at = |ms| Duration::from_millis(ms);
    let mut seen = Seen::default();
    let judge = |seen: &mut Seen, from: u64, n: u64| -> Vec<Verdict> {
        (0..n).map(|i| seen.judge(at(from + i))).collect()
    };
    assert_eq!(judge(&mut seen, 0, 3), [Verdict::Pass(0), Verdict::Pass(0), Verdict::Pass(0)]);
    assert!(judge(&mut seen, 3, 80).iter().all(|v| *v == Verdict::Drop));
    assert_eq!(judge(&mut seen, 60_000, 2), [Verdict::Pass(80), Verdict::Pass(0)]);
    assert_eq!(judge(&mut seen, 200_000, 1), [Verdict::Pass(0)]);
}

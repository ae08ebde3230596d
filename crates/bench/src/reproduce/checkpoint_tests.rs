use super::*;
use crate::contest::Side;
use crate::sample::Sample;

fn outcome(mode: usize, of: impl Fn(usize, &str) -> f64) -> Outcome {
    let metrics = metrics();
    let side = |i: usize| {
        let mut samples = vec![Sample::default(); metrics.len()];
        samples.iter_mut().zip(&metrics).for_each(|(s, m)| s.push(of(i, &m.name)));
        Side { name: OPTIONS[i], command: String::new(), samples, failed: None }
    };
    let sides = vec![side(0), side(1)];
    let published = PLAN[mode].published.to_vec();
    Outcome { title: "t".into(), metrics: metrics.clone(), goal: None, sides, published }
}

fn published(mode: usize, side: usize, name: &str) -> Option<f64> {
    Some(PLAN[mode].published.iter().find(|p| p.metric == name)?.figures[side])
}

#[test]
fn the_published_figures_meet_what_they_claim() {
    for mode in 0..7 {
        let figure = |side: usize, name: &str| match name {
            FSYNC => [10.0, 5.0][side],
            LOG_WRAPS => 4.0,
            _ => published(mode, side, name).unwrap_or(0.0),
        };
        let missed: Vec<_> =
            bars(&outcome(mode, figure), "t", mode, 5, false).into_iter().filter(|b| !b.met).collect();
        // Its announcement names the last mode a regression of 1.3 %.
        assert_eq!(missed.len(), usize::from(mode == 6), "{missed:?}");
    }
}

#[test]
fn any_wait_or_slow_down_misses() {
    for slow in [STALL, THROTTLE] {
        let figure = |side: usize, name: &str| if side == 1 && name == slow { 0.1 } else { 1.0 };
        let figure = |side: usize, name: &str| match name {
            STALL | THROTTLE if figure(side, name) == 1.0 => 0.0,
            _ => figure(side, name),
        };
        assert!(!bars(&outcome(1, figure), "t", 1, 5, true)[0].met, "{slow}");
    }
}

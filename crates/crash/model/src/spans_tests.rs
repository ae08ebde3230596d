use super::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Random changes, compared with an array that holds the value of each number.
#[test]
fn ranges_have_the_value_that_they_got_last() {
    const LEN: u64 = 40;
    for seed in 0..200 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut spans = Spans::default();
        let mut plain = [None; LEN as usize];
        for value in 0..30 {
            let from = rng.random_range(0..LEN);
            let range = from..rng.random_range(from..=LEN);
            let value = rng.random_bool(0.7).then_some(value);
            plain[range.start as usize..range.end as usize].fill(value);
            match value {
                Some(value) => spans.set(range.clone(), value),
                None => spans.clear(range.clone()),
            }
            let found: Vec<Option<u32>> = (0..LEN).map(|n| spans.at(n)).collect();
            assert_eq!(found, plain, "seed {seed}");
            assert_eq!(spans.is_empty(), plain.iter().all(Option::is_none), "seed {seed}");
            let mut inside = [false; LEN as usize];
            for part in spans.within(range.clone()) {
                assert!(part.start < part.end, "seed {seed}: {part:?}");
                assert!(range.contains(&part.start) && part.end <= range.end, "seed {seed}: {part:?}");
                inside[part.start as usize..part.end as usize].fill(true);
            }
            let expected = (0..LEN).map(|n| range.contains(&n) && plain[n as usize].is_some());
            assert!(expected.eq(inside), "seed {seed}");
        }
    }
}

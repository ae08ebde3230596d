use super::*;
use rand::{Rng, SeedableRng, rngs::StdRng};

/// Compares every function with a definition that examines one bit at a time.
#[test]
fn words_agree_with_bits() {
    for seed in 0..40u64 {
        let mut rng = StdRng::seed_from_u64(seed);
        let density = rng.random_range(0.0..1.0f64).powi(3);
        let mut map = Bitmap::new();
        let mut bits = vec![false; BITS as usize];
        for _ in 0..200 {
            let start = rng.random_range(0..BITS);
            let len = rng.random_range(0..=(BITS - start).min(700));
            let on = rng.random_bool(density);
            if on {
                map.set(start, len);
            } else {
                map.clear(start, len);
            }
            bits[start as usize..][..len as usize].fill(on);
        }
        for _ in 0..200 {
            let start = rng.random_range(0..BITS);
            let len = rng.random_range(0..=(BITS - start).min(900));
            let range = &bits[start as usize..][..len as usize];
            let first = |v: bool| range.iter().position(|&b| b == v).map(|i| start + i as u32);
            assert_eq!(map.first_set(start, len), first(true), "seed {seed}");
            assert_eq!(map.first_clear(start, len), first(false), "seed {seed}");
            assert_eq!(map.count_set(start, len), range.iter().filter(|&&b| b).count() as u32, "seed {seed}");
            assert_eq!(map.next_set(start, start + len), first(true).unwrap_or(start + len), "seed {seed}");
            assert_eq!(
                map.next_clear(start, start + len),
                first(false).unwrap_or(start + len),
                "seed {seed}"
            );
            let before = bits[..start as usize].iter().rposition(|&b| b).map_or(0, |i| i as u32 + 1);
            assert_eq!(map.clear_run_before(start, 0), before, "seed {seed}");
            let near = map.clear_run_before(start, start.saturating_sub(100));
            assert!(near == before || near > before && near + 100 <= start, "seed {seed}");
            let slot = (start / 4 * 4..BITS).step_by(4).find(|&s| !bits[s as usize..][..4].contains(&true));
            assert_eq!(map.next_clear_slot(start / 4 * 4), slot, "seed {seed}");
        }
        let mut bytes = vec![0; BLOCK_SIZE];
        map.to_bytes(&mut bytes);
        for (i, &b) in bits.iter().enumerate() {
            assert_eq!(bytes[i / 8] >> (i % 8) & 1 == 1, b, "seed {seed}");
            assert_eq!(map.get(i as u32), b, "seed {seed}");
        }
        assert!(Bitmap::from_bytes(&bytes) == map);
    }
}

#[test]
fn union() {
    let (mut a, mut b) = (Bitmap::new(), Bitmap::new());
    a.set(3, 70);
    b.set(60, 100);
    assert_eq!(a.or(&b).count_set(0, BITS), 157);
}

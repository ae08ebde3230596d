use super::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const fn max(pages: u64) -> AtomicMax {
    AtomicMax { pages, log_bytes: 1 << 20 }
}

/// Stages random ranges, and compares with an array and the set of its written bytes.
#[test]
fn what_is_staged_is_laid_over_byte_for_byte() {
    const SPAN: usize = 6 * BLOCK_SIZE;
    for seed in 0..50 {
        let mut random = SmallRng::seed_from_u64(seed);
        let (mut staged, mut shall) = (Staged::default(), vec![None; SPAN]);
        for n in 0..random.random_range(1..30u32) {
            let from = random.random_range(0..SPAN);
            let len = random.random_range(0..=(SPAN - from).min(if n % 3 == 0 { SPAN } else { 700 }));
            let byte = random.random();
            staged.write(from as u64, &vec![byte; len], max(6)).expect("six pages");
            shall[from..from + len].fill(Some(byte));
        }
        let written = shall.iter().filter(|byte| byte.is_some()).count();
        assert_eq!(staged.bytes(), written, "seed {seed}");
        let end = shall.iter().rposition(Option::is_some).map_or(0, |at| at + 1);
        assert_eq!(staged.end(), end as u64, "seed {seed}");
        for page in staged.pages.values() {
            assert!(page.ranges.windows(2).all(|w| w[0].1 < w[1].0), "seed {seed}: {:?}", page.ranges);
        }
        let at = random.random_range(0..SPAN);
        let mut buf = vec![0x55; SPAN - at];
        staged.lay_over(at as u64, &mut buf);
        let expected: Vec<u8> = shall[at..].iter().map(|byte| byte.unwrap_or(0x55)).collect();
        assert!(buf == expected, "seed {seed}, from {at}");
    }
}

#[test]
fn the_bound_counts_pages_and_a_refused_piece_leaves_nothing() {
    let mut staged = Staged::default();
    staged.write(0, &[1; 2 * BLOCK_SIZE], max(2)).expect("two pages");
    staged.write(BLOCK - 1, &[2; 2], max(2)).expect("the same pages");
    let refused = staged.write(2 * BLOCK - 1, &[3; 2], max(2)).expect_err("a third page");
    assert!(matches!(refused, Error::AtomicTooLarge(bytes) if bytes == 2 * BLOCK), "{refused}");
    assert_eq!((staged.end(), staged.bytes()), (2 * BLOCK, 2 * BLOCK_SIZE));
    let beyond = staged.write(FILE_SIZE_MAX, &[4], max(9)).expect_err("beyond any file");
    assert!(matches!(beyond, Error::FileTooLarge), "{beyond}");
    assert!(matches!(staged.write(u64::MAX, &[4], max(9)), Err(Error::FileTooLarge)));
    let runs = staged.runs();
    assert!(matches!(&runs[..], [run] if *run == (0..2)), "{runs:?}");
}

#[test]
fn the_bound_counts_each_range_of_a_page() {
    let bound = AtomicMax { pages: 1, log_bytes: LOG_BYTES_PER_PAGE };
    let mut staged = Staged::default();
    let accepted = (0..BLOCK / 2).take_while(|n| staged.write(2 * n, &[1], bound).is_ok()).count();
    assert!((2..10).contains(&accepted), "{accepted} ranges");
    assert_eq!((staged.edits(), staged.bytes()), (accepted, accepted), "a refused range is not staged");
    // Bytes that join the ranges need no edits of their own.
    staged.write(0, &[2; BLOCK_SIZE], bound).expect("one whole page");
    assert_eq!((staged.edits(), staged.bytes()), (1, BLOCK_SIZE));
}

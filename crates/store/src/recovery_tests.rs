use super::*;

#[test]
fn a_search_finds_the_pieces_that_overlap_a_block() {
    let mut pieces: Vec<DrainedPiece> = Vec::new();
    let mut at = 0;
    // Many in one block, some over two and three, some blocks without any.
    for (gap, len) in [(0, 1), (0, 4095), (0, 10), (4000, 200), (0, 9000), (20_000, 1), (1, 1), (4094, 2)] {
        pieces.push((at + gap, len, Source::Zero));
        at += gap + len;
    }
    for block in 0..at / BLOCK_SIZE as u64 + 3 {
        let (start, end) = (block * BLOCK_SIZE as u64, (block + 1) * BLOCK_SIZE as u64);
        let all: Vec<u64> =
            pieces.iter().filter(|(at, len, _)| *at < end && at + len > start).map(|p| p.0).collect();
        let found: Vec<u64> = pieces_of(&pieces, block).iter().map(|p| p.0).collect();
        assert_eq!(found, all, "block {block}");
    }
}

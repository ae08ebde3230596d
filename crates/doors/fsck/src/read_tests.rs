use super::*;
use kedge_device::MemDevice;

#[test]
fn runs_come_in_order_whether_neighbours_or_not() {
    let device = MemDevice::new(16 << 20);
    for block in 0..4096u64 {
        device.corrupt(block * 4096, |b| b[..8].copy_from_slice(&block.to_le_bytes()));
    }
    let places: Vec<u64> = (0..1500).chain((2000..4000).rev()).chain([5000, u64::MAX, 7]).collect();
    let mut seen = Vec::new();
    let mut reader = Reader::new(&device);
    reader.stream(
        places.len(),
        2,
        |i| BlockNo(places[i]),
        |i, bytes| {
            assert_eq!(i, seen.len());
            seen.push(bytes.ok().map(|b| {
                assert_eq!(b.len(), 2 * BLOCK_SIZE);
                u64::from_le_bytes(b[..8].try_into().unwrap())
            }));
        },
    );
    let expected: Vec<_> = places.iter().map(|&p| (p < 4096).then_some(p)).collect();
    assert_eq!(seen, expected);
}

#[test]
fn neighbours_join_up_to_the_largest_request() {
    let joined = spans((0..40).map(|i| BlockNo(100 + 4 * i)).chain([BlockNo(8)]), 4);
    let shape: Vec<(u64, usize)> = joined.iter().map(|s| (s.start.0, s.runs)).collect();
    assert_eq!(shape, [(100, 16), (164, 16), (228, 8), (8, 1)]);
}

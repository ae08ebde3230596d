use super::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

#[test]
fn behaves_as_a_plain_vector() {
    let mut rng = SmallRng::seed_from_u64(7);
    let mut plain: Vec<u8> = Vec::new();
    let mut content = Content::default();
    for _ in 0..2000 {
        let at = rng.random_range(0..20_000u64);
        let len = rng.random_range(0..9_000u64);
        match rng.random_range(0..3) {
            0 => {
                let byte = rng.random_range(0..3u8);
                content.write(at, &vec![byte; len as usize]);
                if len > 0 {
                    plain.resize(plain.len().max((at + len) as usize), 0);
                    plain[at as usize..(at + len) as usize].fill(byte);
                }
            }
            1 => {
                content.zero(at, at + len);
                let end = plain.len().min((at + len) as usize);
                if (at as usize) < end {
                    plain[at as usize..end].fill(0);
                }
            }
            _ => {
                content.set_size(at);
                plain.resize(at as usize, 0);
            }
        }
        assert_eq!(content.size(), plain.len() as u64);
        assert_eq!(content.read(0, plain.len() + 10), plain);
        assert_eq!(
            content.read(at, len as usize),
            plain.iter().skip(at as usize).take(len as usize).copied().collect::<Vec<_>>()
        );
        let mut fresh = Content::default();
        fresh.write(0, &plain);
        fresh.set_size(plain.len() as u64);
        assert_eq!(fresh, content, "equal bytes have equal maps");
    }
}

#[test]
fn sparse_sizes_cost_nothing() {
    let mut content = Content::default();
    content.write(1 << 40, b"x");
    content.set_size(1 << 50);
    assert_eq!(content.chunk_numbers().count(), 1);
    content.set_size(1 << 39);
    assert_eq!(content.chunk_numbers().count(), 0);
}

#[test]
fn the_first_difference_is_found() {
    let mut a = Content::default();
    a.write(0, &[1; 10_000]);
    let mut b = a.clone();
    assert_eq!(a.first_difference(&b), None);
    b.write(9_000, &[2]);
    assert_eq!(a.first_difference(&b), Some(9_000));
    b.set_size(8_000);
    assert_eq!(a.first_difference(&b), None, "only below both sizes");
}

//! Makes inputs from other inputs.

use rand::Rng;
use rand::rngs::SmallRng;

/// Boundary values, which make code take its less usual branches.
const NUMBERS: [u64; 18] = [
    0,
    1,
    2,
    7,
    8,
    127,
    128,
    255,
    256,
    4095,
    4096,
    0x7fff,
    0xffff,
    1 << 20,
    0x7fff_ffff,
    0xffff_ffff,
    i64::MAX as u64,
    u64::MAX,
];

/// Returns a changed copy of one of the inputs.
pub fn mutate(rng: &mut SmallRng, inputs: &[Vec<u8>], words: &[&[u8]], len_max: usize) -> Vec<u8> {
    let mut input = inputs[rng.random_range(0..inputs.len())].clone();
    // Half of the copies have a single change, so that the bytes after it stay correct.
    let changes = if rng.random_bool(0.5) { 1 } else { rng.random_range(1..=8) };
    for _ in 0..changes {
        change(rng, &mut input, inputs, words);
    }
    input.truncate(len_max);
    input
}

fn range(rng: &mut SmallRng, len: usize) -> std::ops::Range<usize> {
    if len == 0 {
        return 0..0;
    }
    let from = rng.random_range(0..len);
    let most = (len - from).min(if rng.random_bool(0.8) { 16 } else { 1024 });
    from..from + rng.random_range(1..=most)
}

fn change(rng: &mut SmallRng, input: &mut Vec<u8>, inputs: &[Vec<u8>], words: &[&[u8]]) {
    let at = rng.random_range(0..=input.len());
    match rng.random_range(0..12) {
        0 if at < input.len() => input[at] ^= 1 << rng.random_range(0..8),
        1 if at < input.len() => input[at] = rng.random(),
        2 if at < input.len() => input[at] = input[at].wrapping_add(rng.random_range(0..5)).wrapping_sub(2),
        3 => drop(input.drain(range(rng, input.len()))),
        4 => {
            let piece = input[range(rng, input.len())].to_vec();
            input.splice(at..at, piece);
        }
        5 => {
            let other = &inputs[rng.random_range(0..inputs.len())];
            let piece = other[range(rng, other.len())].to_vec();
            if rng.random_bool(0.5) {
                let end = (at + piece.len()).min(input.len());
                input.splice(at..end, piece);
            } else {
                input.splice(at..at, piece);
            }
        }
        6 => {
            // Joins the beginning of one input and the end of another.
            let other = &inputs[rng.random_range(0..inputs.len())];
            input.truncate(at);
            input.extend_from_slice(&other[rng.random_range(0..=other.len())..]);
        }
        7 if !words.is_empty() => {
            let word = words[rng.random_range(0..words.len())];
            let end = if rng.random_bool(0.5) { at } else { (at + word.len()).min(input.len()) };
            input.splice(at..end, word.iter().copied());
        }
        8 => input.truncate(at),
        9 => {
            let len = if rng.random_bool(0.9) { 8 } else { 300 };
            let byte = rng.random();
            input.splice(at..at, std::iter::repeat_n(byte, len));
        }
        _ => number(rng, input, at),
    }
}

/// Overwrites 2, 4 or 8 bytes with a number, in either byte order.
fn number(rng: &mut SmallRng, input: &mut [u8], at: usize) {
    let mut number = NUMBERS[rng.random_range(0..NUMBERS.len())];
    if rng.random_bool(0.2) {
        number = number.wrapping_add(rng.random_range(0..9)).wrapping_sub(4);
    }
    let len = [1, 2, 4, 8][rng.random_range(0..4)];
    let Some(place) = input.get_mut(at..).and_then(|rest| rest.get_mut(..len)) else { return };
    match rng.random_bool(0.5) {
        true => place.copy_from_slice(&number.to_le_bytes()[..len]),
        false => place.copy_from_slice(&number.to_be_bytes()[8 - len..]),
    }
}

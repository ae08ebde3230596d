//! Random operations on a device, compared with a vector of bytes as the model.

use crate::{Device, Io, Op, run_batch};
use kedge_base::{BLOCK_SIZE, IoBuf};
use proptest::prelude::*;

pub const BLOCKS: u64 = 96;
pub const SIZE: u64 = BLOCKS * BLOCK_SIZE as u64;
const B: u64 = BLOCK_SIZE as u64;

#[derive(Clone, Debug)]
pub enum Step {
    /// A write; `fill` 0 writes zeros.
    Write {
        at: u64,
        len: u64,
        fill: u8,
        fua: bool,
    },
    Read {
        at: u64,
        len: u64,
    },
    Flush,
    Discard {
        at: u64,
        len: u64,
    },
    Zero {
        at: u64,
        len: u64,
    },
    /// Single blocks, ascending with gaps: written in one batch with flushes in between, then read
    /// in one batch.
    Batch {
        blocks: Vec<u64>,
        fill: u8,
    },
}

/// Returns bytes that differ by sector, block and fill.
pub fn pattern(at: u64, len: u64, fill: u8) -> Vec<u8> {
    if fill == 0 {
        return vec![0; (len * B) as usize];
    }
    (0..len * B).map(|i| fill.wrapping_add((at * 8 + i / 512) as u8 | 1)).collect()
}

fn range() -> impl Strategy<Value = (u64, u64)> {
    (0..BLOCKS).prop_flat_map(|at| (Just(at), 0..=(BLOCKS - at).min(20)))
}

pub fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (range(), 0..8u8, any::<bool>()).prop_map(|((at, len), fill, fua)| Step::Write { at, len, fill, fua }),
        4 => range().prop_map(|(at, len)| Step::Read { at, len }),
        2 => Just(Step::Flush),
        1 => range().prop_map(|(at, len)| Step::Discard { at, len }),
        1 => range().prop_map(|(at, len)| Step::Zero { at, len }),
        2 => (prop::collection::btree_set(0..BLOCKS, 0..40), 0..8u8)
            .prop_map(|(blocks, fill)| Step::Batch { blocks: blocks.into_iter().collect(), fill }),
    ]
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..40)
}

fn put(model: &mut [u8], at: u64, bytes: &[u8]) {
    model[(at * B) as usize..][..bytes.len()].copy_from_slice(bytes);
}

pub fn apply(device: &dyn Device, model: &mut [u8], step: &Step) {
    match step {
        Step::Write { at, len, fill, fua } => {
            let bytes = pattern(*at, *len, *fill);
            device.write(at * B, &IoBuf::from_bytes(&bytes), *fua).unwrap();
            put(model, *at, &bytes);
        }
        Step::Read { at, len } => expect(device, model, *at, *len),
        Step::Flush => device.flush().unwrap(),
        Step::Discard { at, len } => {
            let geometry = device.geometry();
            if geometry.discard_granularity > 0 {
                device.discard(at * B, len * B).unwrap();
            }
            // A discarded range may then read as anything.
            if geometry.discard_granularity == 0 || !geometry.discard_zeroes {
                device.write_zeroes(at * B, len * B).unwrap();
            }
            put(model, *at, &pattern(*at, *len, 0));
        }
        Step::Zero { at, len } => {
            device.write_zeroes(at * B, len * B).unwrap();
            put(model, *at, &pattern(*at, *len, 0));
        }
        Step::Batch { blocks, fill } => batch(device, model, blocks, *fill),
    }
}

fn batch(device: &dyn Device, model: &mut [u8], blocks: &[u64], fill: u8) {
    let mut ios = Vec::new();
    let geometry = device.geometry();
    let discards = geometry.discard_granularity > 0 && geometry.discard_zeroes;
    for &at in blocks {
        let op = match at % 7 {
            1 if discards => Op::Discard { len: B },
            0 | 1 => Op::WriteZeroes { len: B },
            n => Op::Write { buf: IoBuf::from_bytes(&pattern(at, 1, fill)), fua: n == 2 },
        };
        let zero = matches!(op, Op::WriteZeroes { .. } | Op::Discard { .. });
        put(model, at, &pattern(at, 1, if zero { 0 } else { fill }));
        ios.push(Io { offset: at * B, op });
        if at % 11 == 0 {
            ios.push(Io { offset: 0, op: Op::Flush });
        }
    }
    run_batch(device, ios).into_iter().for_each(|done| done.result.unwrap());
    let reads = blocks.iter().map(|at| Io { offset: at * B, op: Op::Read(IoBuf::zeroed(1)) }).collect();
    for (at, done) in blocks.iter().zip(run_batch(device, reads)) {
        done.result.unwrap();
        let Op::Read(buf) = done.op else { panic!("a read completes as a read") };
        assert!(buf.as_bytes() == &model[(at * B) as usize..][..BLOCK_SIZE], "block {at} in a batch");
    }
}

/// Checks that the blocks read as in the model, into a buffer filled with other bytes.
pub fn expect(device: &dyn Device, model: &[u8], at: u64, len: u64) {
    let mut buf = IoBuf::from_bytes(&vec![0xee; (len * B) as usize]);
    device.read(at * B, &mut buf).unwrap();
    assert!(buf.as_bytes() == &model[(at * B) as usize..][..(len * B) as usize], "blocks {at}+{len}");
}

/// Runs the steps and compares the whole device at the end.
pub fn run(device: &dyn Device, model: &mut [u8], steps: &[Step]) {
    for step in steps {
        apply(device, model, step);
    }
    expect(device, model, 0, BLOCKS);
}

/// Both interfaces refuse ranges that are outside the device or not whole blocks.
pub fn refuses_bad_ranges(device: &dyn Device) {
    let size = device.geometry().size;
    for (offset, len) in [(size, B), (size - B, 2 * B), (u64::MAX - B + 1, B), (512, B)] {
        let mut buf = IoBuf::zeroed((len / B) as usize);
        let named =
            |e: kedge_base::Error| matches!(e, kedge_base::Error::Io { offset: o, .. } if o == offset);
        assert!(named(device.read(offset, &mut buf).unwrap_err()));
        assert!(named(device.write(offset, &buf, false).unwrap_err()));
        assert!(named(device.discard(offset, len).unwrap_err()));
        assert!(named(device.write_zeroes(offset, len).unwrap_err()));
        let ios = vec![
            Io { offset, op: Op::Read(buf.clone()) },
            Io { offset, op: Op::Write { buf, fua: true } },
            Io { offset, op: Op::Discard { len } },
            Io { offset, op: Op::WriteZeroes { len } },
        ];
        assert!(run_batch(device, ios).into_iter().all(|done| named(done.result.unwrap_err())));
    }
}

use super::*;
use crate::testing::{BLOCKS, SIZE, Step, apply, expect, pattern, run, steps};
use proptest::prelude::*;

proptest! {
    #[test]
    fn forks_do_not_see_each_other(before in steps(), left in steps(), right in steps()) {
        let device = MemDevice::new(SIZE);
        let mut model = vec![0; SIZE as usize];
        run(&device, &mut model, &before);
        let (fork, mut fork_model) = (device.fork(), model.clone());
        for (a, b) in left.iter().zip(&right) {
            apply(&device, &mut model, a);
            apply(&fork, &mut fork_model, b);
        }
        expect(&device, &model, 0, BLOCKS);
        expect(&fork, &fork_model, 0, BLOCKS);
    }
}

#[test]
fn the_contract_is_kept() {
    crate::conformance::conform(&|size| Arc::new(MemDevice::new(size)));
    assert_eq!(MemDevice::new(SIZE + 4095).geometry().size, SIZE);
}

#[test]
fn zeros_take_no_memory() {
    let device = MemDevice::new(1 << 40);
    device.write(1 << 39, &IoBuf::from_bytes(&[1; 8192]), false).unwrap();
    device.write(1 << 39, &IoBuf::zeroed(2), false).unwrap();
    assert!(device.pages.read().is_empty());
    device.write((1 << 39) + 4096, &IoBuf::from_bytes(&[1; 8192]), false).unwrap();
    device.discard(0, 1 << 40).unwrap();
    assert!(device.pages.read().is_empty());
}

#[test]
fn a_filled_device_has_its_byte_wherever_nothing_was_written() {
    let (block, blocks) = (BLOCK_SIZE as u64, 2 * 64 + 7);
    let device = MemDevice::filled(blocks * block + 100, 0xee);
    assert_eq!(device.geometry().size, blocks * block);
    let base = device.fork();
    let mut model = vec![0xee; (blocks * block) as usize];
    let mut put = |at: u64, bytes: &[u8]| model[at as usize..][..bytes.len()].copy_from_slice(bytes);
    device.write(63 * block, &IoBuf::from_bytes(&[1; 2 * BLOCK_SIZE]), false).unwrap();
    put(63 * block, &[1; 2 * BLOCK_SIZE]);
    device.write_zeroes(130 * block, block).unwrap();
    put(130 * block, &[0; BLOCK_SIZE]);
    assert!(device.bytes(0, model.len()) == model);
    assert!(base.bytes(0, model.len()).iter().all(|byte| *byte == 0xee));
    assert_ne!(device.difference_hash(&base), base.fork().difference_hash(&base));
    device.write(63 * block, &IoBuf::from_bytes(&[0xee; 2 * BLOCK_SIZE]), false).unwrap();
    device.write(130 * block, &IoBuf::from_bytes(&[0xee; BLOCK_SIZE]), false).unwrap();
    assert_eq!(device.difference_hash(&base), base.fork().difference_hash(&base));
    device.cut(64 * block).unwrap();
    assert_ne!(device.difference_hash(&base), base.fork().difference_hash(&base));
    assert!(MemDevice::filled(1 << 40, 0).pages.read().is_empty());
}

#[test]
fn bytes_and_corrupt_work_at_any_offset() {
    let device = MemDevice::new(SIZE);
    let mut model = vec![0; SIZE as usize];
    apply(&device, &mut model, &Step::Write { at: 1, len: 3, fill: 5, fua: false });
    assert_eq!(device.bytes(4000, 9000), model[4000..13000]);
    device.corrupt(8192 + 100, |rest| {
        assert_eq!(rest.len(), 4096 - 100);
        rest[0] ^= 0x80;
    });
    model[8192 + 100] ^= 0x80;
    expect(&device, &model, 0, BLOCKS);
}

#[test]
fn requests_are_counted() {
    let device = MemDevice::new(SIZE);
    device.write(0, &IoBuf::from_bytes(&pattern(0, 3, 1)), true).unwrap();
    device.write(0, &IoBuf::zeroed(1), false).unwrap();
    device.read(0, &mut IoBuf::zeroed(2)).unwrap();
    device.flush().unwrap();
    let s = device.stats();
    assert_eq!((s.writes.get(), s.write_bytes.get(), s.fua_writes.get()), (2, 4 * 4096, 1));
    assert_eq!((s.reads.get(), s.read_bytes.get(), s.flushes.get()), (1, 8192, 1));
    assert_eq!(device.fork().stats().writes.get(), 0);
}

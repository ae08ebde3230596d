use super::*;
use crate::MemDevice;
use crate::sim::{Choice, FaultPlan, OpKind, SimDevice, StatePlan};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const CHEAP: Cost = Cost { memory_kib: 8, passes: 1, lanes: 1 };
const KEY_OF_IMAGE: [u8; KEY] = [9; KEY];

fn secret(text: &str) -> Secret {
    Secret::new(text.as_bytes().to_vec())
}

fn formatted() -> (MemDevice, Header) {
    let device = MemDevice::new(2 * AREA);
    let mut header = Header::new(&KEY_OF_IMAGE, &secret("first"), CHEAP).unwrap();
    header.format(&device).unwrap();
    (device, header)
}

fn opens(header: &Header, text: &str) -> Option<usize> {
    let (slot, key) = header.unlock(&secret(text)).ok()?;
    assert_eq!(*key, KEY_OF_IMAGE);
    Some(slot)
}

#[test]
fn slots_are_added_and_removed() {
    let (device, mut header) = formatted();
    assert!(Header::is_there(&device).unwrap());
    assert_eq!(header.add(&KEY_OF_IMAGE, &secret("second"), CHEAP).unwrap(), 1);
    header.replace(&device).unwrap();
    let mut header = Header::read(&device).unwrap();
    assert_eq!(
        [opens(&header, "first"), opens(&header, "second"), opens(&header, "")],
        [Some(0), Some(1), None]
    );
    header.remove(0).unwrap();
    header.replace(&device).unwrap();
    let mut header = Header::read(&device).unwrap();
    assert_eq!([opens(&header, "first"), opens(&header, "second")], [None, Some(1)]);
    assert!(header.remove(1).unwrap_err().to_string().contains("the last one"));
    assert!(header.remove(5).unwrap_err().to_string().contains("not used"));
    assert!(header.remove(99).unwrap_err().to_string().contains("not used"));
    for _ in 1..SLOTS {
        header.add(&KEY_OF_IMAGE, &secret("more"), CHEAP).unwrap();
    }
    let full = header.add(&KEY_OF_IMAGE, &secret("more"), CHEAP).unwrap_err();
    assert!(full.to_string().contains("all 8 key slots"), "{full}");
}

fn block(device: &MemDevice, copy: usize) -> Vec<u8> {
    let mut buf = IoBuf::zeroed(1);
    device.read(COPIES[copy], &mut buf).unwrap();
    buf.as_bytes().to_vec()
}

/// Either copy alone suffices. If both are damaged, the error describes the damage of each.
#[test]
fn one_damaged_copy_costs_nothing() {
    for copy in [0, 1] {
        let (device, _) = formatted();
        let mut bytes = block(&device, copy);
        bytes[100] ^= 1;
        device.write(COPIES[copy], &IoBuf::from_bytes(&bytes), true).unwrap();
        assert_eq!(opens(&Header::read(&device).unwrap(), "first"), Some(0));
        device.write(COPIES[1 - copy], &IoBuf::zeroed(1), true).unwrap();
        assert!(Header::is_there(&device).unwrap());
        let e = Header::read(&device).unwrap_err().to_string();
        assert!(
            e.contains("damaged header") && e.contains("wrong checksum") && e.contains("no magic"),
            "{e}"
        );
    }
    let short = Header::read(&MemDevice::new(AREA)).unwrap_err().to_string();
    assert!(short.contains("truncated"), "{short}");
}

/// The checksum is correct: an attacker could write such a header to make a program use all memory.
#[test]
fn absurd_values_are_refused_by_name() {
    let (device, _) = formatted();
    let good = block(&device, 0);
    for (at, value, said) in [
        (8, 2, "encryption of version 2"),
        (12, 9, "cipher 9"),
        (40, 4096, "4096 bytes of header"),
        (FIRST_SLOT, 7, "key slot 0: nothing is known of kind 7"),
        (FIRST_SLOT, 0, "key slot 0: a free slot is not zero"),
        (FIRST_SLOT + 4, u32::MAX, "key slot 0: 4294967295 KiB of memory"),
        (FIRST_SLOT + 4, 7, "key slot 0: 7 KiB of memory"),
        (FIRST_SLOT + 8, 0, "key slot 0: 0 passes"),
        (FIRST_SLOT + 8, u32::MAX, "key slot 0: 4294967295 passes"),
        (FIRST_SLOT + 12, 0, "key slot 0: 0 lanes"),
        (FIRST_SLOT + 12, u32::MAX, "key slot 0: 4294967295 lanes"),
        (FIRST_SLOT + SLOT - 4, 1, "key slot 0: bytes after its end"),
    ] {
        let mut bytes = good.clone();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        let sum = crc32c::crc32c(&bytes[..CHECKSUM]);
        bytes[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
        let e = Header::decode(&bytes).unwrap_err().to_string();
        assert!(e.contains(said), "{said}: {e}");
    }
    let mut empty = good.clone();
    empty[FIRST_SLOT..CHECKSUM].fill(0);
    let sum = crc32c::crc32c(&empty[..CHECKSUM]);
    empty[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
    assert!(Header::decode(&empty).unwrap_err().to_string().contains("no key slot is used"));
}

/// A slot is bound to its number and to its header. A slot that was moved or changed opens nothing.
#[test]
fn moved_or_changed_slots_open_nothing() {
    let (_, header) = formatted();
    let slot = header.slots[0].clone();
    let mut moved = header.clone();
    moved.slots.swap(0, 3);
    assert_eq!(opens(&moved, "first"), None);
    let mut foreign = header.clone();
    foreign.uuid[0] ^= 1;
    assert_eq!(opens(&foreign, "first"), None);
    let mut bytes = [0; SLOT];
    slot.unwrap().encode(&mut bytes);
    for at in [16, 48, 72, 140] {
        let mut changed = bytes;
        changed[at] ^= 1;
        let slot = Slot::decode(&changed).unwrap().unwrap();
        assert!(slot.open(&secret("first"), &Header::binding(header.uuid, 0)).unwrap().is_none(), "{at}");
    }
}

/// For a power failure at each event of each kind of change, with every subset of the unflushed
/// writes and with torn writes, either the old slots or the new ones are valid.
#[test]
fn a_change_leaves_a_key_at_each_crash_point() {
    let (device, mut header) = formatted();
    header.add(&KEY_OF_IMAGE, &secret("second"), CHEAP).unwrap();
    header.replace(&device).unwrap();
    type Change = fn(&mut Header);
    let changes: [(&str, Change); 3] = [
        ("add", |h| assert_eq!(h.add(&KEY_OF_IMAGE, &secret("third"), CHEAP).unwrap(), 2)),
        ("remove", |h| h.remove(0).unwrap()),
        ("change", |h| {
            h.add(&KEY_OF_IMAGE, &secret("third"), CHEAP).unwrap();
            h.remove(0).unwrap();
        }),
    ];
    for (name, change) in changes {
        let sim = SimDevice::new(device.fork());
        let mut new = Header::read(&sim).unwrap();
        let old = used(&new);
        change(&mut new);
        new.replace(&sim).unwrap();
        let (mut before, mut after) = (0, 0);
        let recording = sim.recording();
        assert!(recording.events.len() >= 4, "two writes and two flushes");
        let plan = StatePlan { torn: 32, ..StatePlan::default() };
        for state in recording.states(plan) {
            let header = Header::read(&state.medium).unwrap_or_else(|e| panic!("{name}: {state:?}: {e}"));
            let slots = used(&header);
            assert!(slots == old || slots == used(&new), "{name}: {state:?}");
            before += usize::from(slots == old);
            after += usize::from(slots == used(&new));
            // The next change must succeed in whatever state the crash left.
            let mut next = header;
            next.add(&KEY_OF_IMAGE, &secret("next"), CHEAP).unwrap();
            next.replace(&state.medium).unwrap();
            assert_eq!(used(&Header::read(&state.medium).unwrap()), used(&next));
        }
        assert!(before > 0 && after > 0, "{name}: {before} {after}");
    }
}

/// Returns the copies on the device that a secret opens.
fn opened_by(device: &MemDevice, text: &str) -> Vec<usize> {
    let copy = |copy: &usize| Header::decode(&block(device, *copy)).unwrap();
    [0, 1].into_iter().filter(|n| opens(&copy(n), text).is_some()).collect()
}

/// The write or the flush of the second copy fails, or the first flush. In the last case the medium
/// never gets the first write, although the device reads as if it had it.
#[test]
fn a_removal_that_failed_is_completed_before_the_next_change_is_judged() {
    let (device, mut header) = formatted();
    header.add(&KEY_OF_IMAGE, &secret("second"), CHEAP).unwrap();
    header.replace(&device).unwrap();
    const EIO: i32 = 5;
    for (plan, differ, said) in [
        (FaultPlan::new(1).fail(OpKind::Write, 1, EIO), true, "have changed"),
        (FaultPlan::new(1).lose_flush(1, EIO), false, "have changed"),
        (FaultPlan::new(1).lose_flush(0, EIO), true, "may have changed or not"),
    ] {
        let sim = SimDevice::new(device.fork());
        let (mut header, _) = Header::settle(&sim).unwrap();
        header.remove(0).unwrap();
        sim.set_plan(plan);
        let e = header.replace(&sim).unwrap_err().to_string();
        assert!(e.contains(said), "{e}");
        sim.heal();
        assert!(!opened_by(&sim.crash_as(Choice::None), "first").is_empty(), "{said}");
        // A repeated removal would be refused, because the header has no such slot any more.
        let (header, differed) = Header::settle(&sim).unwrap();
        assert_eq!((opens(&header, "first"), differed), (None, differ), "{said}");
        for seed in 0..8 {
            let medium = sim.crash(seed);
            assert_eq!(opened_by(&medium, "first"), Vec::<usize>::new(), "{said}");
            assert_eq!(opened_by(&medium, "second"), [0, 1], "{said}");
        }
    }
}

/// For a power failure during a change, and a second one while its copies are made equal: each
/// state keeps what the first one left.
#[test]
fn a_power_failure_while_the_copies_are_made_equal_changes_no_slot() {
    let (device, mut header) = formatted();
    header.add(&KEY_OF_IMAGE, &secret("second"), CHEAP).unwrap();
    header.replace(&device).unwrap();
    let first = SimDevice::new(device);
    header.remove(0).unwrap();
    header.replace(&first).unwrap();
    let mut differing = 0;
    let plan = StatePlan { torn: 4, ..StatePlan::default() };
    for left in first.recording().states(plan) {
        let found = Header::read(&left.medium).unwrap();
        let second = SimDevice::new(left.medium.fork());
        differing += usize::from(Header::settle(&second).unwrap().1);
        for state in second.recording().states(plan) {
            let header = Header::read(&state.medium).unwrap_or_else(|e| panic!("{left:?}, {state:?}: {e}"));
            assert!(used(&header) == used(&found), "{left:?}, {state:?}");
        }
        let medium = second.crash(1);
        assert!(block(&medium, 0) == block(&medium, 1), "{left:?}");
    }
    assert!(differing > 0);
}

/// Returns the numbers of the used slots on the device.
fn used(header: &Header) -> Vec<u8> {
    header.encode().as_bytes()[FIRST_SLOT..CHECKSUM].to_vec()
}

/// Any bytes with the magic and a correct checksum decode to a header that can be encoded again, or
/// to an error. Opening the header costs no more than the bounds allow.
#[test]
fn any_bytes_are_decoded_without_harm() {
    let (device, _) = formatted();
    let good = block(&device, 0);
    let mut rng = SmallRng::seed_from_u64(26);
    let (mut valid, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..rng.random_range(1..6) {
            bytes[rng.random_range(8..FIRST_SLOT + 2 * SLOT)] = rng.random();
        }
        let sum = crc32c::crc32c(&bytes[..CHECKSUM]);
        bytes[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
        match Header::decode(&bytes) {
            Ok(header) => {
                valid += 1;
                assert!(header.used().all(|(_, cost)| cost.check().is_ok()) && header.used().count() > 0);
                let again = Header::decode(header.encode().as_bytes()).unwrap();
                assert_eq!(again.encode().as_bytes(), header.encode().as_bytes());
            }
            Err(_) => refused += 1,
        }
    }
    assert!(valid > 100 && refused > 100, "{valid} {refused}");
    assert!(Header::decode(&[]).is_err() && Header::decode(&good[..100]).is_err());
}

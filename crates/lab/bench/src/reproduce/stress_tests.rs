use super::*;
use kedge_device::{Device, MemDevice};
use kedgefs::{FormatOptions, MountOptions};
use std::collections::BTreeSet;

fn made() -> FileSystem {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(256 << 20));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    FileSystem::format(device.clone(), clock.clone(), &FormatOptions::default()).unwrap();
    FileSystem::open(device, clock, MountOptions::default()).unwrap()
}

#[test]
fn each_step_is_picked_as_often_as_it_should_be() {
    let mut rng = SmallRng::seed_from_u64(1);
    let picked: Vec<Step> = (0..27_000).map(|_| pick(&mut rng)).collect();
    for (step, often) in STEPS {
        let count = picked.iter().filter(|picked| **picked == step).count();
        assert!((count as f64 / 1000.0 - f64::from(often)).abs() < 0.3, "{step:?}: {count}");
    }
}

/// Every kind of step has an effect, and the resulting file system is consistent.
#[test]
fn clients_and_freezes_end_and_leave_a_file_system() {
    let (a, b) = (made(), made());
    let freezer = {
        let b = b.clone();
        kedge_base::spawn_named("freezer", move || freeze_often(&b, &AtomicU64::new(100), 100)).unwrap()
    };
    let mut client = Client::new(&a, &b, 0).unwrap();
    let mut did = BTreeSet::new();
    for i in 0..2000 {
        let step = pick(&mut client.rng);
        let (name, other) = (client.name(), client.name());
        match client.try_step(step, &name, &other) {
            Ok(()) => drop(did.insert(format!("{step:?}"))),
            Err(_) => drop(client.step(step).unwrap_or_else(|e| panic!("step {i}: {e:#}"))),
        }
    }
    assert_eq!(did.len(), STEPS.len(), "{did:?}");
    let (freezes, frozen) = freezer.join().unwrap().unwrap();
    assert_eq!(freezes.count(), FREEZES as f64);
    assert!(frozen >= FROZEN * FREEZES as u32);
    assert_eq!(b.frozen_since(), None);
    b.close().unwrap();
}

#[test]
fn only_what_chance_explains_is_forgiven() {
    assert!(Step::Create.may_answer(libc::EEXIST) && Step::Stat.may_answer(libc::ENOENT));
    for (step, _) in STEPS {
        assert!(!step.may_answer(libc::EIO) && !step.may_answer(libc::ENOSPC));
    }
    assert!(!Step::Sync.may_answer(libc::ENOENT) && !Step::Fsync.may_answer(libc::EINVAL));
}

use super::*;
use crate::Error;
use kedge_base::ManualClock;
use kedge_device::MemDevice;
use kedge_store::{FormatParams, OpenOptions};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

fn store() -> Arc<Store> {
    let device = Arc::new(MemDevice::new(16 << 20));
    let clock = Arc::new(ManualClock::default());
    let params = FormatParams {
        size: 16 << 20,
        log_size: 1 << 20,
        label: String::new(),
        uuid: uuid::Uuid::nil(),
        hash_seed: [0; 16],
        log_secret: kedge_format::logwrite::LogSecret([1; 16]),
        uid: 0,
        gid: 0,
        immutable: false,
        data_checksums: false,
        inline_max: 0,
    };
    kedge_store::format(device.clone(), clock.clone(), &params).unwrap();
    Store::open(device, clock, &OpenOptions::default()).unwrap()
}

fn table(max: usize) -> InodeTable {
    InodeTable::new(max, None)
}

fn inode(ino: u64) -> Arc<Inode> {
    Arc::new(Inode::new(Ino(ino), InodeCore::default(), FileKind::Regular, false, Progress::default()))
}

/// Checks the counters and indexes of the shards. Returns the number of chunks.
fn check(table: &InodeTable) -> usize {
    let mut chunks = 0;
    for shard in &table.shards {
        let shard = shard.read();
        assert_eq!(shard.ring.len(), shard.chunks.len());
        let mut inodes = 0;
        for (at, first) in shard.ring.iter().enumerate() {
            let chunk = &shard.chunks[first];
            let there = chunk.inodes.iter().flatten().count();
            assert_eq!((chunk.at, chunk.count as usize), (at, there));
            assert!(there > 0, "an empty chunk stays");
            inodes += there;
        }
        assert_eq!(shard.inodes, inodes);
        chunks += shard.chunks.len();
    }
    chunks
}

#[test]
fn it_has_what_was_put_in_and_not_evicted() {
    let (store, table) = (store(), table(SHARDS * 64));
    let mut rng = SmallRng::seed_from_u64(7);
    let mut held: BTreeMap<u64, Arc<Inode>> = BTreeMap::new();
    let mut evictions = 0;
    for step in 0..60_000 {
        // Some numbers share chunks; others are alone in theirs.
        let ino =
            if rng.random_bool(0.7) { rng.random_range(1..4000) } else { rng.random_range(1..4000) * 1000 };
        match rng.random_range(0..10) {
            0 => {
                held.remove(&ino);
                table.remove(Ino(ino));
                assert!(table.get(Ino(ino)).is_none());
            }
            1..4 => match (table.get(Ino(ino)), held.get(&ino)) {
                (Some(there), Some(mine)) => assert!(Arc::ptr_eq(&there, mine)),
                (None, Some(_)) => panic!("step {step}: inode {ino} was held and is gone"),
                (Some(there), None) => assert_eq!(there.ino, Ino(ino)),
                (None, None) => {}
            },
            _ => {
                let before = table.len();
                let new = table.insert_loaded(&store, Ino(ino), InodeCore::default(), FileKind::Regular);
                assert_eq!(new.ino, Ino(ino));
                evictions += (table.len() < before) as usize;
                if rng.random_bool(0.1) {
                    held.insert(ino, new);
                }
                if held.len() > 500 {
                    held.pop_first();
                }
            }
        }
    }
    check(&table);
    assert!(evictions > 100, "{evictions} evictions");
    assert!(table.len() < SHARDS * 64 + 1000, "{} inodes are beyond the limit", table.len());
    held.into_values().for_each(|inode| assert!(Arc::ptr_eq(&inode, &table.get(inode.ino).unwrap())));
}

#[test]
fn what_is_deleted_leaves_nothing() {
    let (store, table) = (store(), table(1 << 20));
    for ino in 1..10_000 {
        assert!(table.insert_new(&store, inode(ino)));
        if ino > 100 {
            table.remove(Ino(ino - 100));
        }
    }
    assert_eq!(table.len(), 100);
    assert!(check(&table) <= 8, "chunks of deleted inodes stay");
}

#[test]
fn what_is_used_stays_and_what_holds_something_unwritten() {
    let (store, table) = (store(), table(SHARDS * 64));
    // Every SHARDSth chunk is in the first shard.
    let first_of = |chunk: u64| 1 + chunk * CHUNK * SHARDS as u64;
    let dirty = inode(first_of(0));
    dirty.meta.lock().listed = true;
    assert!(table.insert_new(&store, dirty));
    let favourite = first_of(1);
    for chunk in 1..1000 {
        for i in 0..8 {
            assert!(table.insert_new(&store, inode(first_of(chunk) + i)));
        }
        assert!(table.get(Ino(favourite)).is_some(), "used again and again, evicted at chunk {chunk}");
    }
    assert!(table.get(Ino(first_of(0))).is_some(), "a dirty inode is evicted");
    assert!(table.get(Ino(first_of(2))).is_none(), "nothing is evicted");
    check(&table);
    assert!(table.len() <= 64 + 8, "{}", table.len());
}

#[test]
fn what_is_oldest_goes_first() {
    let (store, table) = (store(), table(SHARDS * 64));
    let chunk = CHUNK * SHARDS as u64;
    for i in 0..1000 {
        assert!(table.insert_new(&store, inode(1 + i * chunk)));
    }
    // The table has room for 64, so the last 32 of the new inodes are still in it, wherever the
    // hand is.
    for i in 968..1000 {
        assert!(table.get(Ino(1 + i * chunk)).is_some(), "newcomer {i} is evicted before older ones");
    }
    assert!((0..900).all(|i| table.get(Ino(1 + i * chunk)).is_none()));
}

#[test]
fn what_cannot_go_takes_no_place() {
    let (store, table) = (store(), table(SHARDS * 64));
    let chunk = CHUNK * SHARDS as u64;
    let dirty: Vec<u64> = (0..64).map(|i| 1 + i * chunk).collect();
    for ino in &dirty {
        let inode = inode(*ino);
        inode.meta.lock().listed = true;
        assert!(table.insert_new(&store, inode));
    }
    for i in 64..1000 {
        assert!(table.insert_new(&store, inode(1 + i * chunk)));
    }
    for i in 968..1000 {
        assert!(table.get(Ino(1 + i * chunk)).is_some(), "newcomer {i} has no place");
    }
    // Once clean, these inodes can be evicted like any other.
    for ino in &dirty {
        table.get(Ino(*ino)).expect("dirty").meta.lock().listed = false;
    }
    for i in 1000..2000 {
        assert!(table.insert_new(&store, inode(1 + i * chunk)));
    }
    assert!(dirty.iter().all(|ino| table.get(Ino(*ino)).is_none()));
    assert!(table.len() <= 64 + 8, "{} stay where 64 may", table.len());
    check(&table);
}

#[test]
fn what_is_undurable_of_an_evicted_inode_comes_back_with_it() {
    let (store, table) = (store(), table(0));
    let lsn = kedge_base::Lsn(u64::MAX);
    let undurable = inode(1);
    undurable.meta.lock().progress.commit_lsn = lsn;
    assert!(table.insert_new(&store, undurable));
    let mut ino = 1;
    for _ in 0..100 {
        ino += CHUNK * SHARDS as u64;
        assert!(table.insert_new(&store, inode(ino)));
    }
    assert!(table.get(Ino(1)).is_none(), "not evicted");
    let back = table.insert_loaded(&store, Ino(1), InodeCore::default(), FileKind::Regular);
    assert_eq!(back.meta.lock().progress.commit_lsn, lsn);
}

const READERS: usize = 4;

/// Waits until all other threads wait for the thread that reads.
fn until_awaited(table: &InodeTable, ino: Ino) {
    loop {
        // The shard and the reading thread have one reference each.
        let awaited = table.shard(ino).read().loads.get(&ino).map_or(0, |load| Arc::strong_count(load) - 2);
        if awaited == READERS - 1 {
            return;
        }
        std::thread::yield_now();
    }
}

/// Several threads request one inode. The first read returns the result of `first`, later reads
/// find the inode. Returns the threads' results, and the number of reads.
fn load_together(
    table: &InodeTable,
    first: impl Fn() -> Result<(InodeCore, FileKind)> + Sync,
) -> (Vec<std::thread::Result<Result<Arc<Inode>>>>, usize) {
    let (store, reads, ino) = (store(), AtomicUsize::new(0), Ino(5));
    let read = || match reads.fetch_add(1, Ordering::SeqCst) {
        0 => {
            until_awaited(table, ino);
            first()
        }
        _ => Ok((InodeCore::default(), FileKind::Regular)),
    };
    let answers = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..READERS).map(|_| scope.spawn(|| table.get_or_load(&store, ino, read))).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    assert!(table.shard(ino).read().loads.is_empty(), "a read is under way for ever");
    (answers, reads.into_inner())
}

#[test]
fn an_inode_that_many_want_is_read_once() {
    let table = table(0);
    let (answers, reads) = load_together(&table, || Ok((InodeCore::default(), FileKind::Regular)));
    assert_eq!(reads, 1);
    let there = table.get(Ino(5)).unwrap();
    assert!(answers.into_iter().all(|answer| Arc::ptr_eq(&answer.unwrap().unwrap(), &there)));
}

#[test]
fn an_error_is_told_to_all_who_wait_and_the_next_reads_anew() {
    let table = table(0);
    let (answers, reads) = load_together(&table, || Err(Error::NotDirectory));
    assert_eq!(reads, 1, "an error is no reason to read again at once");
    assert!(answers.into_iter().all(|answer| matches!(answer.unwrap(), Err(Error::NotDirectory))));
    assert!(table.get(Ino(5)).is_none());
    let read = || Ok((InodeCore::default(), FileKind::Regular));
    assert!(table.get_or_load(&store(), Ino(5), read).is_ok());
}

#[test]
fn a_reader_that_panics_leaves_nobody_waiting() {
    let table = table(0);
    let (answers, reads) = load_together(&table, || panic!("on purpose"));
    assert_eq!(reads, 2, "one of those who waited reads, for all");
    let panicked = answers.iter().filter(|answer| answer.is_err()).count();
    let found = answers.iter().filter(|answer| matches!(answer, Ok(Ok(_)))).count();
    assert_eq!((panicked, found), (1, READERS - 1));
}

#[test]
fn a_new_inode_whose_number_is_in_use_stays_out() {
    let (store, table) = (store(), table(0));
    let there = table.insert_loaded(&store, Ino(5), InodeCore::default(), FileKind::Regular);
    assert!(!table.insert_new(&store, inode(5)));
    assert!(Arc::ptr_eq(&there, &table.get(Ino(5)).unwrap()));
}

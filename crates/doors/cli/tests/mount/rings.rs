//! A mount whose requests come through rings of io_uring: which requests must not use up all
//! entries of a ring, and what such a mount refuses.

use crate::common::io::Mapping;
use crate::common::rings::rings_are_on;
use crate::common::{Place, needs_fuse, until};
use kedge_base::spawn_named;
use rustix::thread::CpuSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

/// The number of callers that wait on one processor, more than a ring has entries at first.
const MANY: usize = 300;
/// The number of callers that may start at once, fewer than the entries that are always free.
const AT_ONCE: usize = 50;

const MOUNT: &str = "mount --create 128M -o transport=io_uring disk.kedge mnt";

/// Binds the calling thread to one processor, so that all requests go to one ring.
fn to_one_processor() {
    let mut set = CpuSet::new();
    set.set(0);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

#[test]
fn files_of_many_threads_are_as_written() {
    needs_fuse!();
    if !rings_are_on() {
        return;
    }
    let place = Place::after(MOUNT);
    assert_eq!(place.info("mnt")["mount"]["transport"], "io_uring");
    let bytes = |thread: usize, len: usize| (0..len).map(|i| (i * 31 + thread) as u8).collect::<Vec<u8>>();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let place = &place;
            scope.spawn(move || {
                let dir = place.path(&format!("mnt/{thread}"));
                fs::create_dir(&dir).unwrap();
                // Small requests are copied out of their entry, large ones are read in place.
                for len in [0, 1, 100, 4000, 4096, 5000, 70_000, 1 << 20, (1 << 20) + 1, 3 << 20] {
                    let (new, path) = (dir.join("new"), dir.join(len.to_string()));
                    let mut file = File::create(&new).unwrap();
                    file.write_all(&bytes(thread, len)).unwrap();
                    file.sync_all().unwrap();
                    fs::rename(&new, &path).unwrap();
                    assert_eq!(fs::read(&path).unwrap(), bytes(thread, len), "{path:?}");
                }
                rustix::fs::setxattr(
                    &dir,
                    "user.long",
                    &bytes(thread, 60_000),
                    rustix::fs::XattrFlags::empty(),
                )
                .unwrap();
                assert_eq!(fs::read_dir(&dir).unwrap().count(), 10);
            });
        }
    });
    place.run("umount mnt").ok();
    place.run("mount disk.kedge mnt").ok();
    for thread in 0..8 {
        let read = fs::read(place.path(&format!("mnt/{thread}/70000"))).unwrap();
        assert_eq!(read, bytes(thread, 70_000));
        let mut value = vec![0; 60_000];
        rustix::fs::getxattr(place.path(&format!("mnt/{thread}")), "user.long", &mut value[..]).unwrap();
        assert_eq!(value, bytes(thread, 60_000));
    }
    place.unmount_and_check("disk.kedge");
}

/// Each writer's request keeps its entry until the thaw, whose request needs one, too.
#[test]
fn more_writers_than_entries_wait_for_a_thaw() {
    needs_fuse!();
    if !rings_are_on() {
        return;
    }
    let place = Place::after(MOUNT);
    let files: Vec<File> =
        (0..MANY).map(|i| File::create(place.path(&format!("mnt/{i}"))).unwrap()).collect();
    place.run("freeze mnt").ok();
    let mut writers = Vec::new();
    for file in files {
        let write = move || {
            to_one_processor();
            file.write_all_at(b"late", 0).unwrap();
            file.sync_all().unwrap();
        };
        writers.push(spawn_named("late-writer", write).unwrap());
        if writers.len().is_multiple_of(AT_ONCE) {
            until("the server has the requests of all writers", || {
                let stats = place.run("stats --json mnt").ok();
                let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
                stats["fuse"]["requests"]["WRITE"] == writers.len()
            });
        }
    }
    // Another request of the same processor is served while the writers wait.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            to_one_processor();
            assert_eq!(fs::metadata(place.path("mnt/0")).unwrap().len(), 0);
        });
    });
    place.run("thaw mnt").ok();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    for i in 0..MANY {
        assert_eq!(fs::read(place.path(&format!("mnt/{i}"))).unwrap(), b"late");
    }
    place.unmount_and_check("disk.kedge");
}

/// A seek waits until the kernel has written the stored pages of its file, for which it sends
/// requests through the same ring.
#[test]
fn many_seeks_wait_for_stored_pages_on_one_processor() {
    needs_fuse!();
    if !rings_are_on() {
        return;
    }
    let place = Place::after(MOUNT);
    let seekers: Vec<_> = (0..2 * AT_ONCE)
        .map(|i| {
            let path = place.path(&format!("mnt/{i}"));
            spawn_named("seeker", move || {
                to_one_processor();
                let mut file =
                    OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap();
                file.set_len(1 << 20).unwrap();
                for round in 0..20u64 {
                    let at = round * 40_960;
                    let map = Mapping::new(&file, 0, 1 << 20).unwrap();
                    map.write(at as usize, b"x");
                    assert_eq!(file.seek(SeekFrom::Start(at)).unwrap(), at);
                    let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)).unwrap();
                    assert_eq!(data, at, "stored before the seek");
                }
            })
            .unwrap()
        })
        .collect();
    seekers.into_iter().for_each(|seeker| seeker.join().unwrap());
    place.unmount_and_check("disk.kedge");
}

#[test]
fn what_excludes_rings_is_refused() {
    needs_fuse!();
    let place = Place::after("mkfs --size 64M disk.kedge");
    fs::create_dir(place.path("mnt")).unwrap();
    place
        .run("mount -o transport=carrier disk.kedge mnt")
        .refused(2, &["transport=carrier", "dev, io_uring"]);
    place
        .run("mount -o keeper,transport=io_uring disk.kedge mnt")
        .refused(2, &["keeper", "transport=io_uring"]);
    if rings_are_on() {
        place.run("mount -o transport=io_uring disk.kedge mnt").ok();
        place.run("remount -o transport=dev mnt").refused(2, &["transport"]);
        place.unmount_and_check("disk.kedge");
    }
}

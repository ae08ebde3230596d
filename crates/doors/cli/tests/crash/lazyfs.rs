//! `kedge crash lazyfs`: configurations and scripts that were written for LazyFS work here.

use crate::common::{Place, needs_fuse, until, until_dead};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt};

/// Mounts `root` on `mnt`, as mount-lazyfs.sh does, with `more` in the configuration.
fn lazyfs(more: &str) -> Place {
    lazyfs_with(more, "")
}

/// The same with further words on the command line.
fn lazyfs_with(more: &str, words: &str) -> Place {
    let place = Place::new();
    for dir in ["root", "mnt"] {
        fs::create_dir(place.path(dir)).unwrap();
    }
    configure(&place, more);
    mount_with(&place, words);
    place
}

fn configure(place: &Place, more: &str) {
    let path = |name: &str| place.path(name).display().to_string();
    let text = format!(
        "[faults]\nfifo_path=\"{}\"\nfifo_path_completed=\"{}\"\n[cache]\napply_eviction=false\n\
         [cache.simple]\ncustom_size=\"0.5GB\"\nblocks_per_page=1\n\
         [filesystem]\nlog_all_operations=true\nlogfile=\"{}\"\n{more}",
        path("fifo"),
        path("done"),
        path("log")
    );
    fs::write(place.path("lazyfs.toml"), text).unwrap();
}

fn mount(place: &Place) {
    mount_with(place, "");
}

fn mount_with(place: &Place, words: &str) {
    place.run(format!("crash lazyfs -c lazyfs.toml -m mnt -r root --size 64M {words}").trim_end()).ok();
}

/// Waits until the file system has ended, and mounts it again without faults, as LazyFS's scripts
/// do.
fn again(place: &Place) {
    until_dead(place, "mnt");
    logged(place, "Killing LazyFS pid");
    configure(place, "");
    mount(place);
}

fn command(place: &Place, line: &str) {
    // Open without O_CREAT, so that a missing pipe is an error.
    let mut pipe = File::options().write(true).open(place.path("fifo")).unwrap();
    pipe.write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Loses data and waits for the notice, as Jepsen does.
fn clear(place: &Place) {
    command(place, "lazyfs::clear-cache");
    let mut notice = String::new();
    File::open(place.path("done")).unwrap().read_to_string(&mut notice).unwrap();
    assert_eq!(notice, "finished::clear-cache\n");
}

fn logged(place: &Place, words: &str) {
    until(words, || fs::read_to_string(place.path("log")).unwrap().contains(words));
}

fn read(place: &Place, name: &str) -> String {
    String::from_utf8(fs::read(place.path("mnt").join(name)).unwrap()).unwrap()
}

fn create(place: &Place, name: &str, text: &str) -> File {
    let mut file = File::create(place.path("mnt").join(name)).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

#[test]
fn what_no_fsync_covers_is_lost_and_the_rest_stays() {
    needs_fuse!();
    let place = lazyfs("");
    // `wrong` is acknowledged without an fsync, which is the bug to find. `right` is synced.
    create(&place, "wrong", "acknowledged");
    let mut right = create(&place, "right", "acknowledged");
    right.sync_all().unwrap();
    fs::rename(place.path("mnt/right"), place.path("mnt/renamed")).unwrap();
    right.write_all(b", and more").unwrap();
    command(&place, "lazyfs::unsynced-data-report");
    logged(&place, "report: total number of bytes un-fsynced: 22 bytes.");
    clear(&place);
    // As in LazyFS, names are durable at once.
    assert_eq!(read(&place, "wrong"), "");
    assert_eq!(read(&place, "renamed"), "acknowledged");

    // Open files stay usable.
    right.sync_all().unwrap();
    create(&place, "wrong", "second");
    command(&place, "lazyfs::cache-checkpoint");
    logged(&place, "checkpoint is done.");
    clear(&place);
    assert_eq!(read(&place, "wrong"), "second");
    logged(&place, "lfs_write(path=");

    command(&place, "lazyfs::clear-cash");
    logged(&place, "INVALID clear-cash fault: there is no command");
    drop(right);
    place.unmount_and_check("root/lazyfs.kedge");
    // After a remount the root directory has the data that survived.
    mount(&place);
    assert_eq!(read(&place, "renamed"), "acknowledged");
    place.unmount_and_check("root/lazyfs.kedge");
}

/// A file without a name may get one after a loss; its synced bytes then stay.
#[test]
fn a_file_that_gets_its_name_after_a_loss_keeps_what_was_synced() {
    needs_fuse!();
    let place = lazyfs("");
    let tmpfile = OFlags::TMPFILE | OFlags::WRONLY;
    let mnt = place.path("mnt");
    let mut file = File::from(open(&mnt, tmpfile, Mode::from_raw_mode(0o644)).unwrap());
    file.write_all(b"AAAA").unwrap();
    file.sync_all().unwrap();
    clear(&place);
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, path, CWD, mnt.join("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    file.sync_all().unwrap();
    file.write_all(b"BBBB").unwrap();
    clear(&place);
    assert_eq!(read(&place, "named"), "AAAA");
    drop(file);
    place.unmount_and_check("root/lazyfs.kedge");
}

/// A file without a name stays usable through its descriptor after a loss, and after a second one.
#[test]
fn a_file_that_lost_its_name_keeps_what_was_synced() {
    needs_fuse!();
    let place = lazyfs("");
    for way in ["removed", "replaced"] {
        create(&place, "file", "AAAA");
        let mut file = File::options().read(true).append(true).open(place.path("mnt/file")).unwrap();
        if way == "removed" {
            fs::remove_file(place.path("mnt/file")).unwrap();
        } else {
            create(&place, "other", "");
            fs::rename(place.path("mnt/other"), place.path("mnt/file")).unwrap();
        }
        file.sync_all().unwrap();
        File::open(place.path("mnt")).unwrap().sync_all().unwrap();
        for _ in 0..2 {
            clear(&place);
            file.write_all(b"BBBB").unwrap();
        }
        clear(&place);
        let mut found = [0; 8];
        let len = file.read_at(&mut found, 0).unwrap();
        assert_eq!(&found[..len], b"AAAA", "{way}");
    }
    place.unmount_and_check("root/lazyfs.kedge");
}

/// With a model, a write with `O_DSYNC` makes its own range durable; without one, as in LazyFS, the
/// whole file.
#[test]
fn a_synchronous_write_makes_its_range_or_its_file_durable() {
    needs_fuse!();
    for (model, kept) in [("--model ext4", b'-'), ("", b'+')] {
        let place = lazyfs_with("", model);
        let file = create(&place, "file", &"-".repeat(2 * 4096));
        file.sync_all().unwrap();
        File::open(place.path("mnt")).unwrap().sync_all().unwrap();
        file.write_all_at(&[b'+'; 4096], 4096).unwrap();
        let flags = OFlags::WRONLY | OFlags::DSYNC;
        let synced = File::from(open(place.path("mnt/file"), flags, Mode::empty()).unwrap());
        synced.write_all_at(&[b'+'; 4096], 0).unwrap();
        clear(&place);
        let found = read(&place, "file").into_bytes();
        assert_eq!(found.len(), 2 * 4096);
        assert!(found[..4096].iter().all(|byte| *byte == b'+'), "{model}");
        assert!(found[4096..].iter().all(|byte| *byte == kept), "{model}");
        drop((file, synced));
        place.unmount_and_check("root/lazyfs.kedge");
    }
}

#[test]
fn a_write_is_torn_and_the_file_system_ends() {
    needs_fuse!();
    let torn = "[[injection]]\ntype=\"torn-op\"\nfile=\"log\"\noccurrence=2\nparts=2\npersist=[2]\n";
    let place = lazyfs(torn);
    let mut log = create(&place, "log", "first.");
    log.sync_all().unwrap();
    // The file system ends during the write.
    log.write_all(b"abcdefgh").unwrap_err();
    drop(log);
    again(&place);
    assert_eq!(read(&place, "log"), "first.\0\0\0\0efgh");
    place.unmount_and_check("root/lazyfs.kedge");
}

#[test]
fn a_crash_by_command_and_a_sequence_lose_what_is_not_synced() {
    needs_fuse!();
    let place =
        lazyfs("[[injection]]\ntype=\"torn-seq\"\nop=\"write\"\nfile=\"log\"\noccurrence=1\npersist=[1,3]\n");
    let mut log = create(&place, "log", "aa");
    log.write_all(b"bb").unwrap();
    log.write_all(b"cc").unwrap_err();
    drop(log);
    again(&place);
    assert_eq!(read(&place, "log"), "aa\0\0cc");

    // A crash before the fsync loses the write; a crash after the fsync keeps it.
    for (rule, left) in
        [("before::op=fsync::from_rgx=lo[g]", "aa\0\0cc"), ("after::op=fsync::from_rgx=log", "aa\0\0ccdd")]
    {
        command(&place, &format!("lazyfs::crash::timing={rule}"));
        logged(&place, "received: VALID crash fault");
        let mut log = File::options().append(true).open(place.path("mnt/log")).unwrap();
        log.write_all(b"dd").unwrap();
        log.sync_all().unwrap_err();
        drop(log);
        again(&place);
        assert_eq!(read(&place, "log"), left, "{rule}");
    }
    place.unmount_and_check("root/lazyfs.kedge");
}

/// Faults are due at an open, before or after the open truncates the file.
#[test]
fn data_is_lost_at_an_open() {
    needs_fuse!();
    let fault = |timing: &str, nth: u32| {
        format!(
            "[[injection]]\ntype=\"clear-cache\"\nop=\"open\"\nfrom=\"log\"\ntiming=\"{timing}\"\n\
             occurrence={nth}\ncrash=false\n"
        )
    };
    let place = lazyfs(&format!("{}{}", fault("before", 2), fault("after", 3)));
    let open = |truncate| File::options().write(true).truncate(truncate).open(place.path("mnt/log"));
    // Creating the file does not count as an open.
    let mut log = create(&place, "log", "synced.");
    log.sync_all().unwrap();
    log.write_all(b"more").unwrap();
    open(false).unwrap();
    assert_eq!(fs::metadata(place.path("mnt/log")).unwrap().len(), 11);
    open(false).unwrap();
    assert_eq!(fs::metadata(place.path("mnt/log")).unwrap().len(), 7, "lost before the second open");
    // A loss after the open also undoes the truncation by the open.
    open(true).unwrap();
    assert_eq!(read(&place, "log"), "synced.");
    logged(&place, "lfs_open(path=");
    drop(log);
    place.unmount_and_check("root/lazyfs.kedge");
}

#[test]
fn the_pipe_comes_back_and_the_command_line_is_that_of_lazyfs() {
    needs_fuse!();
    let place = Place::new();
    for dir in ["root", "mnt"] {
        fs::create_dir(place.path(dir)).unwrap();
    }
    fs::write(place.path("root/initial"), "was there").unwrap();
    configure(&place, "");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_kedge"), place.path("lazyfs")).unwrap();
    let mut lazyfs = place.command("./lazyfs");
    lazyfs.args("mnt --config-path lazyfs.toml -o allow_other -o modules=subdir".split(' '));
    lazyfs.args(["-o".to_owned(), format!("subdir={}", place.path("root").display())]);
    lazyfs.args(["--model", "posix"]);
    let run = crate::common::output_of(lazyfs).unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(read(&place, "initial"), "was there");

    fs::remove_file(place.path("fifo")).unwrap();
    let is_pipe = || fs::symlink_metadata(place.path("fifo")).is_ok_and(|m| m.file_type().is_fifo());
    until("the pipe is made again", is_pipe);
    logged(&place, "was removed or replaced");
    // By POSIX an fsync of the directory makes a name durable, so this name is lost.
    create(&place, "file", "text").sync_all().unwrap();
    clear(&place);
    assert!(!place.path("mnt/file").exists());
    place.unmount_and_check("root/lazyfs.kedge");
}

#[test]
fn bad_configurations_are_refused_before_anything_is_mounted() {
    let place = Place::new();
    for dir in ["root", "mnt"] {
        fs::create_dir(place.path(dir)).unwrap();
    }
    let line = "crash lazyfs -c lazyfs.toml -m mnt -r root";
    place.run(line).refused(1, &["lazyfs.toml"]);
    configure(&place, "[[injection]]\ntype=\"torn-op\"\nfile=\"a\"\n");
    place.run(line).refused(2, &["lazyfs.toml: line 12: [[injection]]: one of parts"]);
    configure(&place, "");
    place.run(&format!("{line} --model fast")).refused(2, &["there is no model \"fast\""]);
    place.run(&format!("{line} -o sync_read")).refused(2, &["-o sync_read"]);
    place.run("crash lazyfs -c lazyfs.toml -m mnt").refused(2, &["--root.dir"]);
    fs::write(place.path("fifo"), "a file").unwrap();
    place.run(line).refused(1, &["fifo_path", "is there and is no named pipe"]);
}

//! The commands `kedge diff`, `kedge send` and `kedge receive`.

use crate::common::{Place, Run, copy_program, kill, needs_fuse, output_of, until};
use kedge_base::HANG;
use rustix::fd::AsFd;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Stdio;

/// Runs a script in which `kedge` is the program. With `pipefail`, a pipe fails if any of its
/// commands does.
fn script(place: &Place, script: &str) -> Run {
    let mut command = place.command("bash");
    let whole = format!("set -o pipefail\nkedge() {{ \"$PROGRAM\" \"$@\"; }}\n{script}");
    command.env("PROGRAM", env!("CARGO_BIN_EXE_kedge")).env_remove("KEDGE_LOG").arg("-c").arg(whole);
    let output = output_of(command).unwrap();
    Run {
        code: output.status.code().expect("ends by itself"),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The image `disk.kedge`, whose snapshots `old` and `new` are two states of the fork `tree`, and
/// the empty image `back.kedge`.
fn two_snapshots() -> Place {
    let place = Place::new();
    let made = "
        mkdir -p in/dir
        head -c 300000 /dev/urandom > in/dir/file
        ln in/dir/file in/link
        ln -s dir/file in/symlink
        truncate -s 1M in/holes
        echo text > in/gone
        mkfifo in/fifo
        kedge mkfs --size 64M disk.kedge >/dev/null
        kedge fork disk.kedge:/ disk.kedge:/tree
        kedge cp -r in/. disk.kedge:/tree
        kedge snapshot create disk.kedge:/tree disk.kedge:/old
        kedge rm disk.kedge:/tree/gone
        kedge mkdir disk.kedge:/tree/more
        echo other > other
        kedge cp other disk.kedge:/tree/more/other
        kedge snapshot create disk.kedge:/tree disk.kedge:/new
        kedge mkfs --size 64M back.kedge >/dev/null";
    script(&place, &format!("set -e{made}")).ok();
    place
}

/// The names in the root of `back.kedge`.
fn received(place: &Place) -> Vec<String> {
    place.run("ls back.kedge:/").ok().lines().map(str::to_owned).collect()
}

/// Asserts that `back.kedge` shows no names and that fsck finds no error in it.
#[track_caller]
fn nothing_there(place: &Place) {
    assert_eq!(received(place), Vec::<String>::new());
    place.run("fsck -n -f back.kedge").ok();
}

/// Asserts that the archives of two directories are equal. Archives do not contain access times.
#[track_caller]
fn same_files(place: &Place, a: &str, b: &str) {
    script(place, &format!("cmp <(kedge tar -c {a}) <(kedge tar -c {b})")).ok();
}

#[test]
fn snapshots_reach_another_image_through_pipes() {
    let place = two_snapshots();
    script(&place, "kedge send disk.kedge:/old | kedge receive back.kedge:/old").ok();
    let step = "kedge send --from disk.kedge:/old disk.kedge:/new | kedge receive back.kedge:/later";
    script(&place, step).ok();
    assert_eq!(received(&place), ["later", "old"]);
    same_files(&place, "disk.kedge:/old", "back.kedge:/old");
    same_files(&place, "disk.kedge:/new", "back.kedge:/later");
    let listed = place.run("snapshot list --json back.kedge").ok();
    assert_eq!(listed.lines().filter(|row| row.contains("\"read_only\":true")).count(), 2, "{listed}");
    let differs = place.run("diff disk.kedge:/old disk.kedge:/new");
    assert_eq!((differs.code, differs.out), {
        let there = place.run("diff back.kedge:/old back.kedge:/later");
        (there.code, there.out)
    });
    // The received snapshot is the base for the way back, because the sender's snapshot has the
    // same state.
    script(&place, "kedge fork back.kedge:/later back.kedge:/work && kedge mkdir back.kedge:/work/x").ok();
    script(&place, "kedge snapshot create back.kedge:/work back.kedge:/last").ok();
    let back = "kedge send --from back.kedge:/later back.kedge:/last | kedge receive disk.kedge:/last";
    script(&place, back).ok();
    same_files(&place, "back.kedge:/last", "disk.kedge:/last");
    for image in ["disk.kedge", "back.kedge"] {
        place.run(&format!("fsck -n -f {image}")).ok();
    }
}

#[test]
fn what_differs_is_a_line_each_and_an_exit_code() {
    let place = two_snapshots();
    let lines = "- gone\n+ more/\n+ more/other\n";
    let run = place.run("diff disk.kedge:/old disk.kedge:/new");
    assert_eq!((run.code, run.out.as_str(), run.err.as_str()), (1, lines, ""));
    let run = place.run("diff -0 disk.kedge:/old disk.kedge:/new");
    assert_eq!((run.code, run.out.as_str()), (1, "- gone\0+ more\0+ more/other\0"));
    let run = place.run("diff --json disk.kedge:/old disk.kedge:/new");
    let rows: Vec<serde_json::Value> =
        run.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let expected = [("deleted", "gone", "file"), ("created", "more", "directory")];
    for (row, (change, path, kind)) in rows.iter().zip(expected) {
        let found = (row["change"].as_str(), row["path"].as_str(), row["type"].as_str());
        assert_eq!(found, (Some(change), Some(path), Some(kind)));
    }
    assert_eq!((run.code, rows.len()), (1, 3));
    for same in ["disk.kedge:/new disk.kedge:/tree", "disk.kedge:/old disk.kedge:/old"] {
        let run = place.run(&format!("diff {same}"));
        assert_eq!((run.code, run.out.as_str(), run.err.as_str()), (0, "", ""), "{same}");
    }
    let refused = |args: &str, words: &[&str]| place.run(&format!("diff {args}")).refused(2, words);
    refused("disk.kedge:/old disk.kedge:/none", &["disk.kedge:/none", "no such file"]);
    refused("disk.kedge:/old disk.kedge:/tree/dir", &["disk.kedge:/tree/dir", "not the root of a tree"]);
    refused("disk.kedge:/old back.kedge:/", &["two images"]);
    refused("no.kedge:/a no.kedge:/b", &["no.kedge"]);
    script(&place, "kedge send disk.kedge:/old | kedge receive back.kedge:/old").ok();
    refused("back.kedge:/old back.kedge:/", &["do not come from one tree"]);
}

#[test]
fn what_cannot_be_sent_or_received_is_refused() {
    let place = two_snapshots();
    let send = |args: &str, code: i32, words: &[&str]| {
        script(&place, &format!("kedge send {args} > stream")).refused(code, words);
    };
    send("disk.kedge:/none", 1, &["disk.kedge:/none", "no such file"]);
    send("disk.kedge:/tree", 1, &["only snapshots can be sent", "kedge snapshot create"]);
    send("--from disk.kedge:/tree disk.kedge:/new", 1, &["only snapshots can be sent"]);
    send("disk.kedge:/old/dir", 1, &["disk.kedge:/old/dir", "not the root of a tree"]);
    send("--from back.kedge:/old disk.kedge:/new", 2, &["two images"]);
    send("no.kedge:/old", 1, &["no.kedge"]);
    script(&place, "kedge send disk.kedge:/old | head -c 100 >/dev/null")
        .refused(1, &["the reader of the stream"]);
    script(&place, "kedge send disk.kedge:/old > whole").ok();
    script(&place, "kedge send --from disk.kedge:/old disk.kedge:/new > step").ok();
    let receive = |args: &str, code: i32, words: &[&str]| {
        script(&place, &format!("kedge receive {args}")).refused(code, words);
        nothing_there(&place);
    };
    receive("back.kedge:/new < step", 1, &["the difference is not here"]);
    receive("back.kedge:/ < whole", 2, &["the root"]);
    receive("back.kedge:/none/old < whole", 1, &["back.kedge:/none/old", "no such file"]);
    receive("--resume back.kedge:/old < whole", 1, &["no interrupted transfer"]);
    receive("--status back.kedge:/old < whole", 1, &["no interrupted transfer"]);
    receive(&format!("back.kedge:/{} < whole", "n".repeat(201)), 1, &["the name is too long by 1 bytes"]);
    receive("no.kedge:/old < whole", 1, &["no.kedge"]);
    assert!(!place.path("no.kedge").exists());
    script(&place, "kedge receive back.kedge:/old < whole").ok();
    script(&place, "kedge receive back.kedge:/old < whole").refused(1, &["old is there already"]);
    script(&place, "kedge receive back.kedge:/old/x < whole").refused(1, &["read-only"]);
    // The mode alone must protect the file, so root's capabilities to override modes are dropped.
    fs::set_permissions(place.path("back.kedge"), fs::Permissions::from_mode(0o444)).unwrap();
    let bare = match rustix::process::geteuid().is_root() {
        true => "setpriv --bounding-set -dac_override,-dac_read_search ",
        false => "",
    };
    script(&place, &format!("{bare} \"$PROGRAM\" receive back.kedge:/again < whole"))
        .refused(1, &["back.kedge", "ermission denied"]);
    fs::set_permissions(place.path("back.kedge"), fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(received(&place), ["old"]);
    // The snapshot that the stream is based on exists by its name, but has other contents.
    let changed = "kedge fork back.kedge:/old back.kedge:/own && kedge mkdir back.kedge:/own/x &&
        kedge snapshot delete back.kedge:/old && kedge snapshot create back.kedge:/own back.kedge:/old";
    script(&place, changed).ok();
    script(&place, "kedge receive back.kedge:/new < step").refused(1, &["is not here, or was changed"]);
    place.run("fsck -n -f back.kedge").ok();
}

#[test]
fn a_stream_that_is_cut_or_damaged_leaves_nothing() {
    let place = two_snapshots();
    script(&place, "kedge send disk.kedge:/old > whole").ok();
    let whole = fs::read(place.path("whole")).unwrap();
    let bad = |bytes: &[u8], what: &str| {
        fs::write(place.path("bad"), bytes).unwrap();
        let run = script(&place, "kedge receive back.kedge:/old < bad");
        assert_eq!(run.code, 1, "{what}: {}", run.err);
        assert_eq!(run.err.lines().count(), 1, "{what}: {}", run.err);
        assert!(run.err.starts_with("kedge: "), "{what}: {}", run.err);
        assert_eq!(received(&place), Vec::<String>::new(), "{what}");
    };
    for part in 0..12 {
        let at = whole.len() * part / 12;
        bad(&whole[..at], &format!("cut after {at} bytes"));
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        bad(&flipped, &format!("byte {at} flipped"));
    }
    bad(&whole[..whole.len() - 1], "cut before the last byte");
    bad(b"no stream at all, but a text", "a text");
    bad(&[&whole[..12], &[0xff; 4096]].concat(), "records of the largest size");
    // The length of a record is bounded before any memory is taken for it.
    bad(&[&whole[..12], &[1, 0xff, 0xff, 0xff, 0x7f]].concat(), "a record of 2 GiB");
    nothing_there(&place);
    script(&place, "kedge receive back.kedge:/old < whole").ok();
    same_files(&place, "disk.kedge:/old", "back.kedge:/old");
}

#[test]
fn a_full_image_takes_all_of_a_snapshot_or_nothing() {
    let place = two_snapshots();
    let big = "kedge snapshot delete disk.kedge:/old && head -c 30M /dev/urandom > big &&
        kedge cp big disk.kedge:/tree/big && kedge snapshot create disk.kedge:/tree disk.kedge:/big";
    script(&place, big).ok();
    script(
        &place,
        "kedge mkfs -f --size 16M back.kedge && echo kept > kept && kedge cp kept back.kedge:/kept",
    )
    .ok();
    script(&place, "kedge send disk.kedge:/big > stream").ok();
    let run = script(&place, "kedge receive back.kedge:/big < stream");
    run.refused(1, &["receive back.kedge:/big", "no space"]);
    assert_eq!(received(&place), ["kept"]);
    place.run("fsck -n -f back.kedge").ok();
    script(&place, "kedge send disk.kedge:/new | kedge receive back.kedge:/new").ok();
    assert_eq!(received(&place), ["kept", "new"]);
}

#[test]
fn an_interrupted_transfer_goes_on() {
    let place = Place::new();
    let made = "head -c 80M /dev/urandom > big
        kedge mkfs --size 400M disk.kedge >/dev/null
        kedge fork disk.kedge:/ disk.kedge:/tree
        kedge cp big disk.kedge:/tree/a
        kedge cp big disk.kedge:/tree/b
        kedge snapshot create disk.kedge:/tree disk.kedge:/snap
        kedge mkfs --size 400M back.kedge >/dev/null";
    script(&place, &format!("set -e\n{made}")).ok();
    // The stream has a mark every 64 MiB: the first transfer ends after two of them.
    script(&place, "kedge send disk.kedge:/snap > whole").ok();
    let run = script(&place, "head -c 150M whole | kedge receive back.kedge:/snap");
    assert_eq!(run.code, 1);
    let token = place.run("receive --status back.kedge:/snap").ok().trim().to_owned();
    assert!(token.starts_with("2-"), "{token}");
    run.refused(
        1,
        &[&format!("kedge send --resume-from {token} … | kedge receive --resume back.kedge:/snap")],
    );
    assert_eq!(received(&place), [".kedge-receive.snap"]);
    // Only the stream with the rest of this transfer resumes it.
    let refused = |script_: &str, words: &[&str]| script(&place, script_).refused(1, words);
    refused("kedge receive --resume back.kedge:/snap < whole", &["needs --resume-from", &token]);
    script(&place, "kedge send --resume-from 2-00 disk.kedge:/snap > rest; exit $?")
        .refused(2, &["what `kedge receive` printed"]);
    let rest = format!("kedge send --resume-from {token} disk.kedge:/snap > rest");
    script(&place, &rest).ok();
    assert!(fs::metadata(place.path("rest")).unwrap().len() < 40 << 20);
    let run = script(&place, "head -c 1M rest | kedge receive --resume back.kedge:/snap");
    run.refused(1, &[&token]);
    script(&place, "kedge receive back.kedge:/other < rest").refused(1, &["--resume"]);
    script(&place, "kedge receive --resume back.kedge:/snap < rest").ok();
    assert_eq!(received(&place), ["snap"]);
    same_files(&place, "disk.kedge:/snap", "back.kedge:/snap");
    place.run("fsck -n -f back.kedge").ok();
    // The rest of a difference needs the same base.
    let made = "kedge cp big disk.kedge:/tree/c
        kedge snapshot create disk.kedge:/tree disk.kedge:/next
        kedge send --from disk.kedge:/snap disk.kedge:/next > difference";
    script(&place, &format!("set -e\n{made}")).ok();
    let run = script(&place, "head -c 70M difference | kedge receive back.kedge:/next");
    let status = place.run("receive --status back.kedge:/next");
    let token = status.out.trim();
    let hint = format!(
        "kedge send --from A --resume-from {token} … | kedge receive --resume back.kedge:/next, \
         where A is the snapshot that is /snap in the receiving image"
    );
    assert!(token.starts_with("1-") && status.err.contains(&hint), "{token}: {}", status.err);
    run.refused(1, &[&hint]);
    script(&place, &format!("kedge send --resume-from {token} disk.kedge:/next > rest")).ok();
    refused("kedge receive --resume back.kedge:/next < rest", &["the difference from no snapshot"]);
    let send = format!("kedge send --from disk.kedge:/snap --resume-from {token} disk.kedge:/next");
    script(&place, &format!("{send} | kedge receive --resume back.kedge:/next")).ok();
    same_files(&place, "disk.kedge:/next", "back.kedge:/next");
    script(&place, "kedge snapshot delete back.kedge:/next").ok();
    // `--forget` deletes what an interrupted transfer has left.
    script(&place, "kedge snapshot delete back.kedge:/snap").ok();
    assert_eq!(script(&place, "head -c 70M whole | kedge receive back.kedge:/snap").code, 1);
    place.run("receive --forget back.kedge:/snap").ok();
    nothing_there(&place);
}

/// `two_snapshots`, mounted: the image on `mnt`, the empty one on `back`.
fn two_mounted() -> Place {
    let place = two_snapshots();
    for dir in ["mnt", "back"] {
        fs::create_dir(place.path(dir)).unwrap();
    }
    place.run("mount disk.kedge mnt").ok();
    place.run("mount back.kedge back").ok();
    place
}

#[track_caller]
fn end_both(place: &Place) {
    for (dir, image) in [("mnt", "disk.kedge"), ("back", "back.kedge")] {
        until("the mount is no longer in use", || place.run(&format!("umount {dir}")).code == 0);
        place.run(&format!("fsck -n -f {image}")).ok();
    }
}

#[test]
fn snapshots_of_a_mount_reach_another_mount() {
    needs_fuse!();
    let place = two_mounted();
    // Look the names up first, so that the kernel has cached that they do not exist.
    assert!(!place.path("back/old").exists() && !place.path("back/later").exists());
    script(&place, "kedge send mnt/old | kedge receive back/old").ok();
    script(&place, "kedge send --from mnt/old mnt/new | (cd back && kedge receive later)").ok();
    script(
        &place,
        "diff -r -x fifo --no-dereference mnt/old back/old && diff -r -x fifo --no-dereference mnt/new back/later",
    )
    .ok();
    let links = fs::metadata(place.path("back/old/link")).unwrap().nlink();
    assert_eq!(links, 2);
    let lines = "- gone\n+ more/\n+ more/other\n";
    let run = place.run("diff back/old back/later");
    assert_eq!((run.code, run.out.as_str(), run.err.as_str()), (1, lines, ""));
    // Write bytes that the kernel has not sent to the serving process yet.
    place.run("fork mnt/new mnt/fork").ok();
    fs::write(place.path("mnt/fork/unsynced"), vec![1; 100_000]).unwrap();
    fs::write(place.path("mnt/fork/dir/file"), "short").unwrap();
    let run = place.run("diff mnt/new mnt/fork");
    assert_eq!((run.code, run.err.as_str()), (1, ""));
    assert!(run.out.contains("+ unsynced\n") && run.out.contains("M dir/file  (data 0+"), "{}", run.out);
    let run = place.run("diff --json mnt/new mnt/fork");
    let rows: Vec<serde_json::Value> =
        run.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rows.iter().any(|row| row["path"] == "dir/file" && row["parts"][0] == "data"), "{rows:?}");
    assert_eq!(place.run("diff mnt/new mnt/new").code, 0);
    // From a mount to an image that is not mounted, and back.
    place.run("mkfs --size 64M third.kedge").ok();
    script(&place, "kedge send mnt/new | kedge receive third.kedge:/new").ok();
    script(&place, "kedge send third.kedge:/new | kedge receive back/third").ok();
    script(&place, "diff -r -x fifo --no-dereference mnt/new back/third").ok();
    end_both(&place);
    // What was received is durable.
    same_files(&place, "disk.kedge:/new", "back.kedge:/later");
}

#[test]
fn a_mount_refuses_what_an_image_refuses() {
    needs_fuse!();
    let place = two_mounted();
    let refused = |line: &str, code: i32, words: &[&str]| script(&place, line).refused(code, words);
    refused("kedge diff mnt/old mnt/dir", 2, &["mnt/dir", "No such file"]);
    refused("kedge diff mnt/old mnt/old/dir", 2, &["mnt/old/dir", "not the root of a tree"]);
    refused("kedge diff mnt/old back", 2, &["two mounts"]);
    refused("kedge diff mnt/old disk.kedge:/old", 2, &["both must be in a mount, or both in an image"]);
    refused("kedge diff disk.kedge:/old disk.kedge:/new", 2, &["is mounted on"]);
    refused("kedge diff in in", 2, &["neither IMAGE:/PATH nor a directory of a mounted image"]);
    refused("kedge send mnt/old/dir > stream", 1, &["mnt/old/dir", "not the root of a tree"]);
    refused("kedge send mnt/tree > stream", 1, &["send mnt/tree", "only snapshots can be sent"]);
    refused("kedge send --from mnt/tree mnt/new > stream", 1, &["only snapshots can be sent"]);
    refused("kedge send in > stream", 2, &["neither IMAGE:/PATH nor a directory of a mounted image"]);
    refused("kedge send mnt/old | head -c 100 >/dev/null", 1, &["the reader of the stream"]);
    script(&place, "kedge send mnt/old > whole && kedge send --from mnt/old mnt/new > step").ok();
    refused("kedge receive back/new < step", 1, &["receive back/new", "is not here"]);
    refused("kedge receive back/none/old < whole", 1, &["back/none", "No such file"]);
    refused("kedge receive --resume back/old < whole", 1, &["no interrupted transfer"]);
    refused("kedge receive --status back/old < whole", 1, &["back/old: no interrupted transfer"]);
    let no_name = "neither IMAGE:/PATH nor a name in a directory of a mounted image";
    refused("kedge receive in/old < whole", 2, &["in/old", no_name]);
    refused("kedge receive back < whole", 2, &["kedge: back: ", no_name]);
    refused("head -c 400 whole | kedge receive back/cut", 1, &["back/cut: the stream is cut at record"]);
    refused("kedge receive back/cut < /dev/null", 1, &["back/cut: the stream has no beginning"]);
    refused("kedge receive mnt/old/x < whole", 1, &["receive mnt/old/x", "ead-only"]);
    let whole = fs::read(place.path("whole")).unwrap();
    for part in 0..8 {
        let at = whole.len() * part / 8;
        fs::write(place.path("bad"), &whole[..at]).unwrap();
        refused("kedge receive back/old < bad", 1, &["receive back/old"]);
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        fs::write(place.path("bad"), flipped).unwrap();
        refused("kedge receive back/old < bad", 1, &["receive back/old"]);
        assert_eq!(fs::read_dir(place.path("back")).unwrap().count(), 0);
    }
    script(&place, "kedge receive back/old < whole").ok();
    refused("kedge receive back/old < whole", 1, &["receive back/old", "is there already"]);
    until("the mount is no longer in use", || place.run("umount back").code == 0);
    place.run("mount -o ro back.kedge back").ok();
    refused("kedge receive back/other < whole", 1, &["back", "mounted read-only"]);
    script(&place, "kedge send back/old | cmp - whole || [ $? -eq 1 ]").ok();
    end_both(&place);
}

/// The kernel must not keep what it has cached of a tree that is still being received.
#[test]
fn the_kernel_forgets_what_it_has_seen_of_an_unfinished_tree() {
    needs_fuse!();
    let place = two_mounted();
    script(&place, "kedge send mnt/old | kedge receive back/old").ok();
    script(&place, "kedge send --from mnt/old mnt/new > step").ok();
    let step = fs::read(place.path("step")).unwrap();
    let mut command = place.command(env!("CARGO_BIN_EXE_kedge"));
    let mut receiver = command.args(["receive", "back/new"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = receiver.stdin.take().unwrap();
    // Send the first record, with which the receiver makes the tree. The other records change it.
    input.write_all(&step[..150]).unwrap();
    input.flush().unwrap();
    let part = place.path("back/.kedge-receive-part.new");
    until("the unfinished tree is there", || part.join("gone").exists());
    assert!(!part.join("more").exists() && fs::read(part.join("gone")).unwrap() == b"text\n");
    assert_eq!(fs::read_dir(&part).unwrap().count(), 6);
    let busy = script(&place, "kedge receive back/new < step");
    busy.refused(1, &["receive back/new", "is being received already"]);
    input.write_all(&step[150..]).unwrap();
    drop(input);
    assert!(receiver.wait().unwrap().success());
    assert!(!part.exists());
    let made = place.path("back/new");
    assert!(!made.join("gone").exists());
    assert_eq!(fs::read(made.join("more/other")).unwrap(), b"other\n");
    script(&place, "diff -r -x fifo --no-dereference mnt/new back/new").ok();
    end_both(&place);
}

#[test]
fn a_transfer_to_a_mount_is_interrupted_and_goes_on() {
    needs_fuse!();
    let place = Place::new();
    let made = "head -c 80M /dev/urandom > big
        kedge mount --create 256M disk.kedge mnt >/dev/null
        cp big mnt/a && cp big mnt/b
        kedge snapshot create mnt mnt/snap
        kedge mount --create 256M back.kedge back >/dev/null
        kedge send mnt/snap > whole";
    script(&place, &format!("set -e\n{made}")).ok();
    let run = script(&place, "head -c 150M whole | kedge receive back/snap");
    let token = place.run("receive --status back/snap").ok().trim().to_owned();
    run.refused(1, &[&format!("kedge send --resume-from {token} … | kedge receive --resume back/snap")]);
    // The serving process is killed while the rest arrives.
    script(&place, &format!("kedge send --resume-from {token} mnt/snap > rest")).ok();
    let rest = fs::read(place.path("rest")).unwrap();
    let mut command = place.command(env!("CARGO_BIN_EXE_kedge"));
    command.args(["receive", "--resume", "back/snap"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut receiver = command.spawn().unwrap();
    let mut input = receiver.stdin.take().unwrap();
    input.write_all(&rest[..2 << 20]).unwrap();
    kill(&place, "back");
    // This write fails if the client has ended already.
    let _ = input.write_all(&rest[2 << 20..]);
    drop(input);
    let output = receiver.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("ended during the transfer"), "{output:?}");
    place.run("umount back").refused(1, &["had died"]);
    place.run("mount back.kedge back").ok();
    assert!(!place.path("back/snap").exists());
    assert_eq!(place.run("receive --status back/snap").ok().trim(), token);
    script(&place, "kedge receive --resume back/snap < rest").ok();
    script(&place, "diff -r mnt/snap back/snap").ok();
    assert_eq!(fs::read_dir(place.path("back")).unwrap().count(), 1);
    assert_eq!(script(&place, "head -c 70M whole | kedge receive back/again").code, 1);
    place.run("receive --forget back/again").ok();
    assert_eq!(fs::read_dir(place.path("back")).unwrap().count(), 1);
    end_both(&place);
}

/// A client does not hold the mount open and does not read the stream that it requested. The mount
/// ends all the same.
#[test]
fn a_client_that_does_not_read_does_not_keep_a_mount() {
    needs_fuse!();
    let place = Place::new();
    let made = "head -c 20M /dev/urandom > big
        kedge mount --create 64M disk.kedge mnt >/dev/null && cp big mnt/a
        kedge snapshot create mnt mnt/snap";
    script(&place, &format!("set -e\n{made}")).ok();
    let dir = fs::File::open(place.path("mnt/snap")).unwrap();
    let mount = kedge_fuse::mount_of(&dir).unwrap().unwrap();
    let mut stream = kedge_fuse::visit(&mount, HANG).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [dir.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let hello = [IoSlice::new(b"kedge-trees 1 read\n")];
    sendmsg(&stream, &hello, &mut control, SendFlags::NOSIGNAL).unwrap();
    drop(dir);
    let mut ready = [0; 15];
    stream.read_exact(&mut ready).unwrap();
    assert_eq!(&ready, b"{\"error\":null}\n");
    stream.write_all(b"{\"Send\":{\"resume\":null}}\n").unwrap();
    stream.read_exact(&mut ready).unwrap();
    place.unmount_and_check("disk.kedge");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.len() < 20 << 20, "{} bytes", rest.len());
}

#[test]
fn another_user_neither_compares_nor_sends_nor_receives() {
    needs_fuse!(root: "another user needs root to become it");
    let place = two_mounted();
    script(&place, "kedge send mnt/old > whole && chmod 777 . mnt back && chmod 644 whole").ok();
    copy_program(&place.path("kedge"));
    let other = "setpriv --reuid 65534 --regid 65534 --clear-groups ./kedge";
    for line in [
        "diff mnt/old mnt/new",
        "send mnt/old",
        "receive back/old",
        "receive --forget back/old",
        "receive --status back/old",
    ] {
        let run = script(&place, &format!("{other} {line} < whole | cat"));
        let code = if line.starts_with("diff") { 2 } else { 1 };
        run.refused(code, &["only root and the user who serves the mount may compare, send and receive"]);
    }
    assert_eq!(fs::read_dir(place.path("back")).unwrap().count(), 0);
    end_both(&place);
}

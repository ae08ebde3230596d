//! Usage errors are refused with exit code 2 (fsck: 16) and one line, before anything is changed.

use crate::common::Place;

#[test]
fn requests_that_make_no_sense() {
    let place = Place::new();
    place.run("mkfs").refused(2, &["<IMAGE>"]);
    place.run("mkfs new.kedge").refused(2, &["new.kedge does not exist", "--size"]);
    place.run("mkfs --size large new.kedge").refused(2, &["large", "4G"]);
    place.run("mkfs -U 1234 --size 16M new.kedge").refused(2, &["1234"]);
    place.run("frobnicate").refused(2, &["frobnicate"]);
    place.run("mount -o commit=0 a b").refused(2, &["commit=0", "from 1 to 300"]);
    place.run("mount -o ro,datta=journal a b").refused(2, &["datta=journal", "async_checkpoint"]);
    place
        .run("mount -o tree_lock=mutex a b")
        .refused(2, &["tree_lock=mutex", "optimistic, rwlock, blocking, pingpong"]);
    place.run("mount --create 16M -o ro a b").refused(2, &["--create", "ro"]);
    place.run("dump --log --tree a").refused(2, &["--log", "--tree"]);
    place.run("fsck").refused(16, &["<IMAGE>"]);
    place.run("bench").refused(2, &["kedge-lab"]);
    place.run("bench reproduce rename --quick").refused(2, &["kedge-lab reproduce"]);
    assert_eq!(place.kedge([""; 0]).code, 2, "no subcommand");
    assert_eq!(std::fs::read_dir(place.path("")).unwrap().count(), 0, "nothing was made");
}

#[test]
fn requests_that_cannot_be_met() {
    let place = Place::new();
    std::fs::create_dir(place.path("dir")).unwrap();
    std::fs::write(place.path("text"), "no image").unwrap();
    place.run("mount gone dir").refused(1, &["gone does not exist", "--create"]);
    place.run("umount dir").refused(1, &["dir is not a mount point"]);
    place.run("umount /").refused(1, &["not of KedgeFS"]);
    place.run("stats dir").refused(1, &["not the root of a KedgeFS mount"]);
    place.run("info dir").refused(1, &["not the root of a KedgeFS mount"]);
    place.run("info gone").refused(1, &["gone"]);
    place.run("info text").refused(1, &["text"]);
    place.run("dump --tree text").refused(1, &["text"]);
    place.run("mkfs text").refused(1, &["text", "-f"]);
    place.run("fsck gone").refused(8, &["gone"]);
    assert_eq!(std::fs::read(place.path("text")).unwrap(), b"no image");
}

/// The hint names the help of the subcommand used.
#[test]
fn hints_lead_to_the_help_of_the_subcommand() {
    let place = Place::new();
    for (line, help) in [
        ("mount --frob a b", "kedge mount --help"),
        ("mkfs", "kedge mkfs --help"),
        ("crash explore --frob", "kedge crash explore --help"),
        ("frobnicate", "see kedge --help"),
    ] {
        place.run(line).refused(2, &[help]);
    }
}

#[test]
fn sizes_that_are_too_small_or_negative_get_advice() {
    let place = Place::new();
    place.run("mount --create 10 small.kedge mnt").refused(1, &["10 bytes", "the least is 16 MiB"]);
    place.run("mkfs --size 10 small.kedge").refused(1, &["10 bytes", "the least is 16 MiB"]);
    for line in ["mkfs --size -5 n", "mkfs --size 16M --log-size -5 n", "mount --create -5 n mnt"] {
        place.run(line).refused(2, &["-5", "not a size", "16M"]);
    }
    assert_eq!(std::fs::read_dir(place.path("")).unwrap().count(), 0, "nothing was made");
}

/// A new file has a temporary name until it is complete. Errors show the name that the user gave.
#[test]
fn errors_have_the_name_that_was_given() {
    let place = Place::new();
    std::fs::create_dir(place.path("from")).unwrap();
    std::fs::write(place.path("from/large"), vec![1; 20 << 20]).unwrap();
    let long = "x".repeat(65);
    for (line, words) in [
        (format!("mkfs --size 16M -L {long} new.kedge"), ["new.kedge", "the longest is 64"]),
        ("mkfs --size 16M --log-size 15M new.kedge".into(), ["new.kedge", "at most half the image"]),
        ("mkfs --size 16M --from from new.kedge".into(), ["new.kedge", "a larger --size"]),
        ("mkfs --size 16M gone/new.kedge".into(), ["gone/new.kedge", "No such file"]),
        ("mount --create 16M gone/new.kedge from".into(), ["gone/new.kedge", "No such file"]),
        ("crash record -o gone/run.kcr -- true".into(), ["gone/run.kcr", "No such file"]),
    ] {
        let run = place.run(&line);
        assert!(!run.err.contains(".new") && !run.err.contains("/."), "{line}: {}", run.err);
        run.refused(1, &words);
    }
    place.run("mkfs --size 16M whole.kedge").ok();
    for from in ["", "--from whole.kedge"] {
        let mut command = place.command(env!("CARGO_BIN_EXE_kedge"));
        command.args(format!("crash record {from} -o run.kcr -- true").split_whitespace());
        let out = command.env("TMPDIR", "/gone").output().unwrap();
        let errors = String::from_utf8(out.stderr).unwrap();
        assert!(errors.ends_with(" in /gone\n"), "{errors}");
    }
}

#[test]
fn what_is_no_image_is_named_before_a_mount_is_tried() {
    let place = Place::new();
    std::fs::create_dir(place.path("mnt")).unwrap();
    std::fs::write(place.path("text"), "what somebody wrote down\n").unwrap();
    place.run("mount text mnt").refused(1, &["text holds data of an unknown kind", "no KedgeFS magic"]);
}

#[test]
fn an_image_inside_of_its_mount_point_is_refused() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("mnt/deep")).unwrap();
    for image in ["mnt/a.kedge", "mnt/deep/a.kedge"] {
        place.run(&format!("mount --create 16M {image} mnt")).refused(1, &[image, "lies inside", "hide it"]);
        assert!(!place.path(image).exists());
        place.run(&format!("mkfs --size 16M {image}")).ok();
        place.run(&format!("mount {image} mnt")).refused(1, &[image, "lies inside"]);
    }
}

#[test]
fn help_and_version() {
    let place = Place::new();
    assert!(place.run("--version").ok().starts_with("kedge "));
    let help = place.run("--help").ok();
    for command in ["mkfs", "mount", "umount", "fsck", "info", "stats", "dump"] {
        assert!(help.contains(command), "{command} in {help}");
        assert!(place.kedge([command, "--help"]).ok().contains("Usage: kedge"));
    }
    assert!(!help.contains("bench"), "{help}");
}

#[test]
fn what_was_nearly_right_is_guessed() {
    let place = Place::new();
    place.run("mkf a").refused(2, &["'mkf'", "similar subcommand exists: 'mkfs'"]);
    place.run("mount --creat 4G a b").refused(2, &["'--creat'", "'--create'"]);
    place.run("mount -o comit=5 a b").refused(2, &["comit=5", "did you mean commit?"]);
    place.run("mount -o noacl a b").refused(2, &["mount option noacl: ", "cannot be turned off"]);
    let help = place.run("mount --help").ok();
    assert!(help.contains("commit=SECONDS *") && help.contains("fuseblk, fuse"), "{help}");
}

#[test]
fn mkfs_tells_its_version() {
    let place = Place::new();
    let version = place.run("--version").ok();
    let version = version.trim_start_matches("kedge ");
    assert!(place.run("mkfs -V").ok().ends_with(version), "{version}");
    // Call the helper as mkfs(8) does.
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_kedge"), place.path("mkfs.kedgefs")).unwrap();
    let out = place.command(place.path("mkfs.kedgefs").to_str().unwrap()).arg("-V").output().unwrap();
    assert!(out.status.success() && String::from_utf8(out.stdout).unwrap().ends_with(version));
}

#[test]
fn what_is_no_image_is_named() {
    let place = Place::new();
    std::fs::write(place.path("text"), vec![b'x'; 200_000]).unwrap();
    let run = place.run("dump text");
    assert_eq!(run.code, 1, "{}", run.out);
    assert!(run.out.contains("slot 0") && run.err.contains("holds data of an unknown kind"), "{}", run.err);
    let mut other = vec![0; 200_000];
    other[..4].copy_from_slice(b"XFSB");
    std::fs::write(place.path("other"), other).unwrap();
    place.run("info other").refused(1, &["other holds an XFS file system, no KedgeFS image"]);
    place.run("dump --log other").refused(1, &["other holds an XFS file system"]);
    place.run("mkfs other").refused(1, &["other holds an XFS file system; -f overwrites it"]);
    std::fs::create_dir(place.path("mnt")).unwrap();
    place.run("mount other mnt").refused(1, &["other holds an XFS file system, no KedgeFS image"]);
}

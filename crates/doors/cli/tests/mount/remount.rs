//! `mount -o remount` with the real mount(8), in the forms of its manual page.
//!
//! mount(8) searches for helpers only in /sbin, and for fstab in /etc. So each test runs a shell
//! script in its own mount namespace, where other directories are mounted over these.
//!
//! One form cannot be supported: a source and a directory, without `-t`. mount(8) calls no helper
//! then, and the kernel ignores all options for a FUSE file system except `ro`, `nosuid` and the
//! like.

use crate::common::{LET_GO, Place, no_fuse, output_of};
use std::fs;
use std::os::unix::fs::symlink;

/// Runs the shell `script` and returns its output. `$K` is kedge, `$HERE` the directory of the
/// test; helpers are installed and `disk.kedge` is mounted on `mnt` with `options`.
#[track_caller]
fn in_namespace(options: &str, script: &str) -> Option<String> {
    if no_fuse() {
        return None;
    }
    if !rustix::process::geteuid().is_root() {
        kedge_base::skip::note("only root can lay a directory over /sbin");
        return None;
    }
    let place = Place::new();
    fs::create_dir(place.path("helpers")).unwrap();
    for helper in ["mount.kedgefs", "mount.fuseblk.kedgefs", "mount.fuse.kedgefs"] {
        symlink(env!("CARGO_BIN_EXE_kedge"), place.path("helpers").join(helper)).unwrap();
    }
    fs::write(place.path("fstab"), "").unwrap();
    let script = format!(
        "set -eu\n\
         {LET_GO}\
         mount --bind $HERE/helpers /sbin\n\
         mount --bind $HERE/fstab /etc/fstab\n\
         trap '$K umount $HERE/mnt' EXIT\n\
         option() {{ $K info --json mnt | sed -n \"s/^ *\\\"$1\\\": \\(.*[^,]\\),*$/\\1/p\"; }}\n\
         flags() {{ grep \" $HERE/mnt \" /proc/self/mountinfo | cut -d' ' -f6; }}\n\
         $K mount --create 64M -o {options} disk.kedge mnt > said\n\
         {script}"
    );
    let mut command = place.command("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &script]);
    command.env("K", env!("CARGO_BIN_EXE_kedge")).env("HERE", place.path("").canonicalize().unwrap());
    let out = output_of(command).unwrap();
    let (said, errors) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert!(out.status.success(), "{script}\n{said}{errors}");
    assert_eq!(place.info("disk.kedge")["clean"], true, "the script unmounts at its end");
    Some(said)
}

#[test]
fn every_form_that_names_the_mount_reaches_its_options() {
    let script = r"
        LOOP=$(findmnt -no SOURCE mnt)
        mount -o remount,commit=11 mnt;                                  option commit
        mount -o remount,commit=12 --target $HERE/mnt;                   option commit
        mount -o remount,commit=13 $LOOP;                                option commit
        mount -t kedgefs -o remount,commit=14 disk.kedge mnt;            option commit
        mount -t fuseblk.kedgefs -o remount,commit=15 $LOOP mnt;         option commit
        mount -n -v -o remount -o commit=16 mnt;                         option commit
        mount -o remount,noasync_checkpoint,plug,x-a.b=c mnt;            option async_checkpoint
        mount -o remount,defaults,nofail mnt;                            option commit
        mount --source $LOOP --target mnt -t kedgefs -o remount,commit=17; option commit
        mount disk.kedge mnt -o remount,commit=19;                       option commit
        mount disk.kedge mnt -o remount,nodev;                           flags
    ";
    let Some(said) = in_namespace("commit=10,cache_size=64M", script) else { return };
    let said: Vec<&str> = said.lines().collect();
    assert_eq!(
        said,
        ["11.0", "12.0", "13.0", "14.0", "15.0", "16.0", "null", "16.0", "17.0", "17.0", "rw,nodev,relatime"]
    );
}

#[test]
fn a_plain_mount_is_reached_as_well() {
    let script = r"
        mount -o remount,commit=11 mnt;                                  option commit
        mount -t fuse.kedgefs -o remount,commit=12 disk.kedge mnt;       option commit
        mount -o remount,ro mnt;                                         flags
        mount -o remount,rw,commit=14 mnt;                               flags
        option commit
    ";
    let Some(said) = in_namespace("commit=10,fuse", script) else { return };
    let said: Vec<&str> = said.lines().collect();
    assert_eq!(said, ["11.0", "12.0", "ro,relatime", "rw,relatime", "14.0"]);
}

/// `--all` uses the mount table of its namespace, which has no mounts of other tests.
#[test]
fn all_mounts_of_a_type_are_reached() {
    let script = r"
        mount --all -o remount,commit=12 -t $(findmnt -no FSTYPE mnt);  option commit
    ";
    for kind in ["fuseblk", "fuse"] {
        let Some(said) = in_namespace(&format!("commit=10,{kind}"), script) else { return };
        assert_eq!(said, "12.0\n", "{kind}");
    }
}

#[test]
fn words_of_fstab_and_of_the_mount_table_are_understood() {
    let script = r#"
        echo "$HERE/disk.kedge $HERE/mnt kedgefs commit=21,cache_size=64M,nodev,nofail,noauto,x-y 0 2" >> fstab
        mount -o remount $HERE/mnt;                                      option commit
        mount -o remount,commit=22 $HERE/mnt;                            option commit
        mount -o remount,commit=23 $HERE/disk.kedge;                     option commit
        mount -o remount,commit=23 $HERE/mnt;                            option commit
        mount -o remount,commit=22,noplug,plug,commit=23 $HERE/mnt;      option commit
        flags
        $K remount mnt -o $(findmnt -no OPTIONS mnt),commit=24;          option commit
        $K remount mnt -o user_id=0,allow_other,cache_size=64M,rw;       option commit
    "#;
    let Some(said) = in_namespace("commit=10,cache_size=64M", script) else { return };
    let said: Vec<&str> = said.lines().collect();
    assert_eq!(said, ["21.0", "22.0", "23.0", "23.0", "23.0", "rw,nodev,relatime", "24.0", "24.0"]);
}

/// The kernel's mount table shows no options of a FUSE server, but `kedge info` does.
#[test]
fn the_percentage_of_background_checkpoints_is_shown_and_stays_until_it_is_named() {
    let script = r#"
        option async_checkpoint
        mount -o remount,commit=11 mnt;                                  option async_checkpoint
        $K remount mnt -o $(findmnt -no OPTIONS mnt),commit=12;          option async_checkpoint
        mount -o remount,ro mnt; mount -o remount,rw mnt;                option async_checkpoint
        mount -o remount,noasync_checkpoint mnt;                         option async_checkpoint
        mount -o remount,commit=13 mnt;                                  option async_checkpoint
        mount -o remount,async_checkpoint=1 mnt;                         option async_checkpoint
        mount -o remount,async_checkpoint=99 mnt;                        option async_checkpoint
        mount -o remount,async_checkpoint mnt;                           option async_checkpoint
        $K info mnt | sed -n "s/.*async_checkpoint */shown: /p"
    "#;
    let Some(said) = in_namespace("async_checkpoint=37", script) else { return };
    let said: Vec<&str> = said.lines().collect();
    assert_eq!(said, ["37", "37", "37", "37", "null", "null", "1", "99", "50", "shown: 50"]);
}

#[test]
fn flags_of_the_kernel_change_and_the_others_stay() {
    let script = r"
        echo kept > mnt/file
        mount -o remount,nosuid,noexec mnt;                              flags
        mount -o remount,exec,commit=31 mnt;                             flags
        exec 3>> mnt/file
        mount -o remount,ro mnt 2>&1 && exit 1 || true
        exec 3>&-
        mount -o remount,ro,commit=32 mnt;                               flags
        option commit
        touch mnt/more 2>&1 && exit 1 || true
        cat mnt/file
        mount -o remount,ro mnt
        mount -o remount,commit=33 mnt 2>&1 && exit 1 || true
        mount -o remount,rw,commit=34 mnt;                               flags
        option commit
        touch mnt/more
        $K remount mnt -o noexec,commit=35;                              flags
        $K remount mnt -o exec;                                          flags
        mount -o remount,bind,ro mnt;                                    flags
    ";
    let Some(said) = in_namespace("nodev", script) else { return };
    let said: Vec<&str> = said.lines().collect();
    assert_eq!(said[..2], ["rw,nosuid,nodev,noexec,relatime", "rw,nosuid,nodev,relatime"], "{said:?}");
    assert!(said[2].contains("in use: files are open for writing"), "{said:?}");
    assert_eq!(said[3..5], ["ro,nosuid,nodev,relatime", "32.0"], "{said:?}");
    assert!(said[5].contains("Read-only file system"), "{said:?}");
    assert_eq!(said[6], "kept");
    assert!(said[7].contains("commit=33 cannot change on a read-only mount"), "{said:?}");
    assert_eq!(said[8..10], ["rw,nosuid,nodev,relatime", "34.0"], "{said:?}");
    let last = ["rw,nosuid,nodev,noexec,relatime", "rw,nosuid,nodev,relatime", "ro,nosuid,nodev,relatime"];
    assert_eq!(said[10..], last, "{said:?}");
}

#[test]
fn what_cannot_change_is_refused_and_changes_nothing() {
    let script = r"
        for word in cache_size=32M workers=7 tree_lock=rwlock writeback_cache user_id=5 datta=x; do
            mount -o remount,commit=41,nosuid,$word mnt 2>&1 && exit 1 || true
        done
        option commit
        flags
        mount -o remount,commit=42,nosuid,cache_size=64M,workers=3,tree_lock=optimistic,nowriteback_cache mnt
        option commit
        flags
    ";
    let Some(said) = in_namespace("commit=10,cache_size=64M,workers=3", script) else { return };
    let said: Vec<&str> = said.lines().collect();
    for (line, words) in said.iter().zip([
        ["cache_size cannot change while mounted", "67108864"],
        ["workers cannot change while mounted", "3"],
        ["tree_lock cannot change while mounted", "optimistic"],
        ["writeback_cache cannot change while mounted", "false"],
        ["user_id=5 cannot change while mounted", "mount table"],
        ["unknown mount option datta=x", "commit=SECONDS"],
    ]) {
        assert!(words.iter().all(|word| line.contains(word)), "{line}");
    }
    assert_eq!(said[6..], ["10.0", "rw,relatime", "42.0", "rw,nosuid,relatime"], "{said:?}");
}

#[test]
fn a_mount_made_read_only_stays_so() {
    let script = r"
        $K umount mnt
        $K mount -o ro,commit=51 disk.kedge mnt
        mount -o remount,rw mnt 2>&1 && exit 1 || true
        mount -o remount,nosuid,commit=51 mnt;                           flags
    ";
    let Some(said) = in_namespace("rw", script) else { return };
    let said: Vec<&str> = said.lines().collect();
    assert!(said[0].contains("was mounted read-only: unmount it, and mount it without ro"), "{said:?}");
    assert_eq!(said[1..], ["ro,nosuid,relatime"], "{said:?}");
}

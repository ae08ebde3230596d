//! The mount under a real overlay: as its upper layer, with whiteouts.

use crate::common::{Place, kill, needs_fuse, tool};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

const NEEDS_ROOT: &str = "only root mounts an overlay, and makes whiteouts";

fn is_whiteout(path: &std::path::Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_char_device() && m.rdev() == 0)
}

fn names(dir: &std::path::Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn overlay(place: &Place, lower: &str) {
    let mut command = place.command("mount");
    let layers = format!("lowerdir={lower},upperdir=mnt/upper,workdir=mnt/work");
    command.args(["-t", "overlay", "overlay", "merged", "-o", &layers]);
    tool(command, "mount");
}

fn no_overlay(place: &Place) {
    let mut command = place.command("umount");
    command.arg("merged");
    tool(command, "mount");
}

#[test]
fn an_upper_layer_hides_changes_and_moves_what_is_below() {
    needs_fuse!(root: NEEDS_ROOT);
    let place = Place::after("mount --create 64M disk.kedge mnt");
    for dir in ["lower", "merged", "lower/dir", "mnt/upper", "mnt/work"] {
        fs::create_dir(place.path(dir)).unwrap();
    }
    for name in ["gone", "moved", "changed", "dir/inside"] {
        fs::write(place.path("lower").join(name), name).unwrap();
    }
    overlay(&place, "lower");
    let merged = place.path("merged");
    fs::remove_file(merged.join("gone")).unwrap();
    // The overlay copies the file up, and sends a rename that leaves a whiteout.
    fs::rename(merged.join("moved"), merged.join("new")).unwrap();
    fs::write(merged.join("changed"), "in the upper layer").unwrap();
    fs::remove_file(merged.join("dir/inside")).unwrap();
    fs::remove_dir(merged.join("dir")).unwrap();
    fs::create_dir(merged.join("dir")).unwrap(); // opaque: an xattr of the overlay
    fs::write(merged.join("dir/other"), "other").unwrap();
    let check = || {
        assert_eq!(names(&merged), ["changed", "dir", "new"]);
        assert_eq!(names(&merged.join("dir")), ["other"]);
        assert_eq!(fs::read_to_string(merged.join("new")).unwrap(), "moved");
        assert_eq!(fs::read_to_string(merged.join("changed")).unwrap(), "in the upper layer");
        for hidden in ["gone", "moved"] {
            assert!(is_whiteout(&place.path("mnt/upper").join(hidden)), "{hidden}");
        }
    };
    check();
    rustix::fs::syncfs(fs::File::open(place.path("mnt")).unwrap()).unwrap();
    no_overlay(&place);
    kill(&place, "mnt");
    place.run("mount disk.kedge mnt").ok();
    overlay(&place, "lower");
    check();
    no_overlay(&place);
    place.unmount_and_check("disk.kedge");
}

/// Both layers are on the mount, as in the store of a container tool. With a copied-up file the
/// overlay stores the handle of the lower file, and looks that file up by it.
#[test]
fn what_was_copied_up_is_there_after_a_remount() {
    needs_fuse!(root: NEEDS_ROOT);
    for options in ["", " -o writeback_cache", " -o fuse"] {
        let place = Place::after(&format!("mount{options} --create 64M disk.kedge mnt"));
        for dir in ["merged", "mnt/lower", "mnt/lower/dir", "mnt/upper", "mnt/work"] {
            fs::create_dir(place.path(dir)).unwrap();
        }
        for name in ["changed", "dir/moved"] {
            fs::write(place.path("mnt/lower").join(name), name).unwrap();
        }
        overlay(&place, "mnt/lower");
        let merged = place.path("merged");
        fs::write(merged.join("changed"), "new").unwrap();
        fs::rename(merged.join("dir/moved"), merged.join("dir/new")).unwrap();
        no_overlay(&place);
        place.remount("disk.kedge", options);
        overlay(&place, "mnt/lower");
        // The second access uses and revalidates the dentries of the first.
        for _ in 0..2 {
            assert_eq!(fs::read_to_string(merged.join("changed")).unwrap(), "new", "{options}");
            assert_eq!(fs::read_to_string(merged.join("dir/new")).unwrap(), "dir/moved", "{options}");
        }
        assert_eq!(names(&merged.join("dir")), ["new"]);
        no_overlay(&place);
        place.unmount_and_check("disk.kedge");
    }
}

/// Containers share the layers of one image in this way. Each read-only mount has its own process.
#[test]
fn two_overlays_lie_over_two_read_only_mounts_of_one_image() {
    needs_fuse!(root: NEEDS_ROOT);
    let place = Place::after("mount --create 64M disk.kedge mnt");
    fs::write(place.path("mnt/file"), "below").unwrap();
    place.unmount();
    for name in ["one", "two"] {
        for dir in [name.to_owned(), format!("{name}.layers"), format!("{name}.merged")] {
            fs::create_dir(place.path(&dir)).unwrap();
        }
    }
    let script = "set -eu
        trap 'umount -q one.merged two.merged one two two.layers one.layers || true' EXIT
        for name in one two; do
            $K mount -o ro disk.kedge $name
            mount -t tmpfs tmpfs $name.layers
            mkdir $name.layers/upper $name.layers/work
            LAYERS=lowerdir=$name,upperdir=$name.layers/upper,workdir=$name.layers/work
            mount -t overlay overlay $name.merged -o $LAYERS
        done
        for name in one two; do
            cat $name.merged/file
            echo $name >> $name.merged/file
        done
        cat one.merged/file two.merged/file one/file two/file";
    let mut command = place.command("sh");
    command.args(["-c", script]).env("K", env!("CARGO_BIN_EXE_kedge"));
    assert_eq!(tool(command, "mount"), "belowbelowbelowone\nbelowtwo\nbelowbelow");
    assert_eq!(place.run("cat disk.kedge:/file").ok(), "below");
}

#[test]
fn a_rename_leaves_a_whiteout() {
    needs_fuse!(root: NEEDS_ROOT);
    let place = Place::after("mount --create 64M disk.kedge mnt");
    let at = |name: &str| place.path("mnt").join(name);
    let rename = |from: &str, to: &str, more: RenameFlags| {
        renameat_with(CWD, at(from), CWD, at(to), RenameFlags::WHITEOUT | more)
    };
    fs::create_dir(at("d")).unwrap();
    fs::write(at("a"), "a").unwrap();
    rename("a", "b", RenameFlags::empty()).unwrap();
    assert!(is_whiteout(&at("a")));
    let whiteout = fs::symlink_metadata(at("a")).unwrap();
    assert_eq!((whiteout.mode() & 0o7777, whiteout.uid(), whiteout.nlink()), (0, 0, 1));
    assert_eq!(fs::read_to_string(at("b")).unwrap(), "a");

    assert_eq!(rename("b", "a", RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    rename("b", "a", RenameFlags::empty()).unwrap();
    assert_eq!((fs::read_to_string(at("a")).unwrap().as_str(), is_whiteout(&at("b"))), ("a", true));
    // The replaced directory is removed, so its parent has one subdirectory less.
    assert_eq!(fs::metadata(place.path("mnt")).unwrap().nlink(), 3);
    fs::create_dir(at("e")).unwrap();
    rename("e", "d/e", RenameFlags::NOREPLACE).unwrap();
    assert!(is_whiteout(&at("e")));
    assert_eq!(fs::metadata(place.path("mnt")).unwrap().nlink(), 3);
    assert_eq!(fs::metadata(at("d")).unwrap().nlink(), 3);
    let both = RenameFlags::EXCHANGE;
    assert_eq!(rename("a", "d", both), Err(rustix::io::Errno::INVAL));
    place.remount("disk.kedge", "");
    assert!(is_whiteout(&at("b")) && is_whiteout(&at("e")) && at("d/e").is_dir());
    place.unmount_and_check("disk.kedge");
}

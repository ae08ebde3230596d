//! Reads and changes an image that is not mounted.

use crate::common::{Place, needs_fuse, output_of, write_and_fsync};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};

fn place_with_image() -> Place {
    let place = Place::new();
    let at = |name: &str| place.path("source").join(name);
    fs::create_dir_all(at("dir/sub")).unwrap();
    fs::write(at("dir/b"), vec![7u8; 2_500_000]).unwrap();
    fs::write(at("dir/a"), "text\n").unwrap();
    fs::write(at("dir/line\nend"), "").unwrap();
    fs::set_permissions(at("dir/a"), fs::Permissions::from_mode(0o4640)).unwrap();
    symlink("dir", at("link")).unwrap();
    place.run("mkfs --from source disk.kedge").ok();
    place
}

#[test]
fn names_contents_and_attributes_are_shown() {
    let place = place_with_image();
    assert_eq!(place.run("ls disk.kedge:/").ok(), "dir\nlink\n");
    assert_eq!(place.run("ls disk.kedge:/dir").ok(), "a\nb\nline?end\nsub\n");
    let long = place.run("ls -l disk.kedge:/dir/a").ok();
    assert!(long.starts_with("-rwSr----- "), "{long}");
    assert!(long.ends_with(" a\n") && long.contains(" 5 "), "{long}");
    assert!(place.run("ls -l disk.kedge:/").ok().contains("link -> dir\n"));
    assert_eq!(place.run("cat disk.kedge:/dir/a disk.kedge:/dir/a").ok(), "text\ntext\n");
    let mut command = place.command(env!("CARGO_BIN_EXE_kedge"));
    command.args(["cat", "disk.kedge:/dir/b"]);
    assert!(output_of(command).unwrap().stdout == vec![7u8; 2_500_000]);
    let found = place.run("find disk.kedge:/").ok();
    assert_eq!(found, "/\n/dir\n/dir/a\n/dir/b\n/dir/line?end\n/dir/sub\n/link\n");
    let found = place.run("find -0 disk.kedge:/dir/").ok();
    assert_eq!(found, "/dir\0/dir/a\0/dir/b\0/dir/line\nend\0/dir/sub\0");
    let json: serde_json::Value =
        serde_json::from_str(&place.run("stat --json disk.kedge:/dir/a").ok()).unwrap();
    assert_eq!((&json["size"], &json["links"]), (&5.into(), &1.into()), "{json}");
}

#[test]
fn what_cannot_be_shown_is_named() {
    let place = place_with_image();
    place.run("ls disk.kedge").refused(2, &["IMAGE:/PATH"]);
    place.run("ls :/x").refused(2, &["IMAGE:/PATH"]);
    place.run("ls gone.kedge:/").refused(1, &["gone.kedge"]);
    place.run("cat disk.kedge:/dir/gone").refused(1, &["/dir/gone", "no such file"]);
    place.run("cat disk.kedge:/dir").refused(1, &["is a directory"]);
    place.run("cat disk.kedge:/dir/a/").refused(1, &["not a directory"]);
    place.run("cat disk.kedge:/dir/a/x").refused(1, &["not a directory"]);
    place.run("cat disk.kedge:/link/a").refused(1, &["symbolic link"]);
    place.run("cat disk.kedge:/link").refused(1, &["no regular file"]);
    place.run("cat disk.kedge:/dir/../dir/a").refused(2, &["'..'"]);
    fs::write(place.path("text"), "no image").unwrap();
    assert_eq!(place.run("ls text:/").code, 1);
}

/// Nothing is written, even if the log has to be replayed first.
#[test]
fn an_image_that_was_not_closed_is_read_and_stays_as_it_is() {
    needs_fuse!();
    let place = Place::after("mount --create 64M disk.kedge mnt");
    write_and_fsync(&place.path("mnt/kept"), b"by the log");
    place.run("ls disk.kedge:/").refused(1, &["mounted on"]);
    crate::common::kill(&place, "mnt");
    let before = fs::read(place.path("disk.kedge")).unwrap();
    assert_eq!(place.run("cat disk.kedge:/kept").ok(), "by the log");
    assert!(fs::read(place.path("disk.kedge")).unwrap() == before, "nothing was written");
    // A damaged image gives an error and no panic.
    let image = File::options().write(true).open(place.path("disk.kedge")).unwrap();
    let size = image.metadata().unwrap().len();
    image.write_all_at(&vec![0xa5; (size / 2) as usize], size / 4).unwrap();
    let run = place.run("cat disk.kedge:/kept");
    assert!(run.code == 1 && run.err.starts_with("kedge: "), "{}: {}", run.code, run.err);
}

#[test]
fn directories_are_made_and_removed() {
    let place = place_with_image();
    place.run("mkdir disk.kedge:/new").ok();
    place.run("mkdir disk.kedge:/new").refused(1, &["/new", "already"]);
    place.run("mkdir disk.kedge:/x/y").refused(1, &["/x/y", "no such file"]);
    place.run("mkdir -p disk.kedge:/x/y/z").ok();
    place.run("mkdir -p disk.kedge:/x/y/z").ok();
    place.run("mkdir -p disk.kedge:/dir/a/b").refused(1, &["no directory"]);
    place.run("mkdir disk.kedge:/").refused(2, &["root"]);
    place.run("rm disk.kedge:/dir/a").ok();
    place.run("rm disk.kedge:/dir/a").refused(1, &["/dir/a", "no such file"]);
    place.run("rm disk.kedge:/dir").refused(1, &["is a directory", "-r"]);
    place.run("rm disk.kedge:/link/b").refused(1, &["/link/b"]);
    place.run("rm -r disk.kedge:/").refused(2, &["root"]);
    place.run("rm disk.kedge:/link").ok();
    place.run("rm -r disk.kedge:/dir").ok();
    assert_eq!(place.run("find disk.kedge:/").ok(), "/\n/new\n/x\n/x/y\n/x/y/z\n");
    assert_eq!(place.info("disk.kedge")["clean"], true, "closed, and so durable");
    let judged = place.run("fsck -f disk.kedge");
    assert_eq!(judged.code, 0, "{}{}", judged.out, judged.err);
}

/// A tree as deep as a path can be long: neither the walk nor the removal may overflow the stack.
#[test]
fn a_deep_tree_is_listed_and_removed() {
    let place = place_with_image();
    let deep = format!("disk.kedge:/{}", "d/".repeat(1500));
    place.kedge(["mkdir", "-p", &deep]).ok();
    assert_eq!(place.run("find disk.kedge:/d").ok().lines().count(), 1500);
    place.run("rm -r disk.kedge:/d").ok();
    assert_eq!(place.run("ls disk.kedge:/").ok(), "dir\nlink\n");
}

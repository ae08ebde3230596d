//! Extended attributes with large values on the real mount, by setfattr and getfattr.

use crate::common::{Place, kill, needs_fuse, tool, write_and_fsync};
use std::fs::{self, File};

/// A value of `len` bytes; no part of it occurs in a value with another `word`.
fn text(word: &str, len: usize) -> String {
    let mut text: String = (0..).map(|n| format!("{word}{n} ")).take(len).collect();
    text.truncate(len);
    text
}

fn setfattr(place: &Place, path: &str, name: &str, value: &str) {
    let mut command = place.command("setfattr");
    command.args(["-n", name, "-v", value, path]);
    tool(command, "attr");
}

fn getfattr(place: &Place, path: &str, name: &str) -> String {
    let mut command = place.command("getfattr");
    command.args(["--only-values", "-n", name, path]);
    tool(command, "attr")
}

/// Makes a mount with large values, one replaced by a smaller value and one by a larger value.
/// Returns the values.
fn with_values(place: &Place) -> [(&'static str, String); 3] {
    place.run("mount --create 64M disk.kedge mnt").ok();
    File::create(place.path("mnt/f")).unwrap();
    setfattr(place, "mnt/f", "user.shrinks", &text("old", 65536));
    setfattr(place, "mnt/f", "user.grows", "small");
    let values = [("user.large", 65536), ("user.shrinks", 5000), ("user.grows", 20_000)];
    let values = values.map(|(name, len)| (name, text(&name[5..], len)));
    for (name, value) in &values {
        setfattr(place, "mnt/f", name, value);
    }
    values
}

fn has_values(place: &Place, values: &[(&str, String)]) {
    for (name, value) in values {
        assert!(getfattr(place, "mnt/f", name) == *value, "{name}");
    }
}

#[test]
fn values_of_64_kib_survive_a_kill() {
    needs_fuse!();
    let place = Place::new();
    let values = with_values(&place);
    has_values(&place, &values);
    write_and_fsync(&place.path("mnt/f"), b"data");
    kill(&place, "mnt");
    place.run("umount mnt").refused(1, &["had died"]);
    assert_eq!(place.run("fsck disk.kedge").code, 0);
    place.run("mount disk.kedge mnt").ok();
    has_values(&place, &values);
    let mut command = place.command("setfattr");
    command.args(["-x", "user.large", "mnt/f"]);
    tool(command, "attr");
    has_values(&place, &values[1..]);
    place.unmount_and_check("disk.kedge");
}

#[test]
fn values_of_64_kib_are_copied_whole_and_told_to_nobody() {
    needs_fuse!();
    let place = Place::new();
    let values = with_values(&place);
    place.run("mkfs --from mnt from-mount.kedge").ok();
    // The fsync puts the values into the log before the mount is killed.
    write_and_fsync(&place.path("mnt/f"), b"data");
    kill(&place, "mnt");
    place.run("umount mnt").refused(1, &["had died"]);
    place.run("tar -c -f out.tar disk.kedge:/").ok();
    place.run("mkfs --from out.tar from-tar.kedge").ok();
    place.run("mkfs --size 64M copy.kedge").ok();
    place.run("cp disk.kedge:/f copy.kedge:/f").ok();
    for image in ["from-mount.kedge", "from-tar.kedge", "copy.kedge"] {
        place.run(&format!("mount {image} mnt")).ok();
        has_values(&place, &values);
        place.unmount_and_check(image);
    }
    place.run("image --scramble disk.kedge told").ok();
    assert_eq!(place.run("fsck told").code, 0);
    let told = fs::read(place.path("told")).unwrap();
    for word in ["large1", "shrinks1", "grows1"] {
        assert!(!told.windows(word.len()).any(|w| w == word.as_bytes()), "{word} is in the copy");
    }
}

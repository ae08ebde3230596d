//! The state that a mount has besides its files, and that the next server must have too: a freeze,
//! changed options, the key of an encrypted image.

use crate::common::keeper::{keeper, kill_server, server};
use crate::common::{Place, copy_program, needs_fuse};
use kedge_base::spawn_named;
use rustix::process::Signal;
use std::fs;

/// Replaces the server three times: by two deaths and a handover.
fn three_servers(place: &Place) {
    let deaths = keeper(place)["deaths"].as_u64().unwrap();
    kill_server(place, Signal::KILL);
    kill_server(place, Signal::KILL);
    let other = place.path("other");
    copy_program(&other);
    let before = server(place);
    let mut command = place.command(other.to_str().unwrap());
    command.args(["upgrade-server", "mnt"]);
    crate::common::tool(command, "kedge");
    assert_ne!(server(place), before);
    assert_eq!(keeper(place)["deaths"].as_u64(), Some(deaths + 2));
}

#[test]
fn a_freeze_outlives_its_server() {
    needs_fuse!();
    let place = Place::after("mount --create 64M -o keeper disk.kedge mnt");
    fs::write(place.path("mnt/a"), "before").unwrap();
    // Change another directory than the root: a remount needs the lock of the root directory, which
    // a waiting change there would hold.
    fs::create_dir(place.path("mnt/d")).unwrap();
    let open = fs::File::create(place.path("mnt/nameless")).unwrap();
    fs::remove_file(place.path("mnt/nameless")).unwrap();
    place.run("freeze mnt").ok();
    let image = fs::read(place.path("disk.kedge")).unwrap();
    let to = place.path("mnt/d/b");
    let writer = spawn_named("writer", move || fs::write(to, "waits")).unwrap();
    three_servers(&place);
    assert_eq!(fs::read(place.path("mnt/a")).unwrap(), b"before", "reads go on");
    assert!(!place.info("mnt")["frozen_since"].is_null());
    place.run("freeze mnt").refused(1, &["frozen already"]);
    place.run("remount -o commit=9 mnt").refused(1, &["it is frozen"]);
    assert!(!writer.is_finished(), "a change has passed the freeze");
    assert!(fs::read(place.path("disk.kedge")).unwrap() == image, "the frozen image has changed");
    place.run("thaw mnt").ok();
    writer.join().unwrap().unwrap();
    place.run("thaw mnt").refused(1, &["not frozen"]);
    drop(open);
    kill_server(&place, Signal::KILL);
    assert_eq!(fs::read(place.path("mnt/d/b")).unwrap(), b"waits");
    assert!(place.info("mnt")["frozen_since"].is_null());
    // The time limit of a freeze continues across a death.
    place.run("freeze --for 1 mnt").ok();
    kill_server(&place, Signal::KILL);
    assert!(!place.info("mnt")["frozen_since"].is_null());
    fs::write(place.path("mnt/c"), "after").unwrap();
    place.unmount_and_check("disk.kedge");
}

#[test]
fn changed_options_outlive_their_server() {
    needs_fuse!();
    let place = Place::after("mount --create 64M -o keeper,commit=40 disk.kedge mnt");
    let options = || {
        let info = place.info("mnt");
        let options = &info["options"];
        (options["commit"].as_f64().unwrap(), options["plug"].as_bool().unwrap(), options["noatime"].clone())
    };
    assert_eq!(options(), (40.0, true, false.into()));
    place.run("remount -o commit=77,noplug mnt").ok();
    kill_server(&place, Signal::KILL);
    assert_eq!(options(), (77.0, false, false.into()));
    place.run("remount -o noatime,commit=9 mnt").ok();
    three_servers(&place);
    assert_eq!(options(), (9.0, false, true.into()));
    place.unmount_and_check("disk.kedge");
}

#[test]
fn the_next_server_of_an_encrypted_image_has_its_key() {
    needs_fuse!();
    let place = Place::new();
    fs::create_dir(place.path("mnt")).unwrap();
    fs::write(place.path("key"), "open sesame").unwrap();
    place.run("mkfs --encrypt --key-file key --size 64M disk.kedge").ok();
    place.run("mount -o keeper,key-file=key disk.kedge mnt").ok();
    fs::remove_file(place.path("key")).unwrap();
    fs::write(place.path("mnt/a"), "told").unwrap();
    three_servers(&place);
    assert_eq!(fs::read(place.path("mnt/a")).unwrap(), b"told");
    place.run("umount mnt").ok();
    fs::write(place.path("key"), "open sesame").unwrap();
    assert_eq!(place.run("fsck --key-file key -f disk.kedge").code, 0);
    fs::write(place.path("wrong"), "open barley").unwrap();
    place.run("mount -o keeper,key-file=wrong disk.kedge mnt").refused(1, &["the key opens no slot"]);
}

use super::*;
use std::time::Duration;

#[test]
fn sizes_read_as_people_write_them() {
    for (text, bytes) in [
        ("0", 0),
        ("4096", 4096),
        ("64K", 64 << 10),
        ("64k", 64 << 10),
        ("16M", 16 << 20),
        ("4G", 4 << 30),
        ("4GiB", 4 << 30),
        ("4gib", 4 << 30),
        ("2T", 2 << 40),
    ] {
        assert_eq!(parse_size(text), Ok(bytes), "{text}");
    }
    for text in ["", "G", "4X", "4 G", "-1", "1.5G", "4ib", "4GB", "16777216T", "99999999999999999999"] {
        let e = parse_size(text).unwrap_err();
        assert!(e.contains(text), "{e}");
    }
}

#[test]
fn sizes_show_as_people_read_them() {
    assert_eq!(show_size(0), "0 bytes");
    assert_eq!(show_size(4 << 30), "4 GiB");
    assert_eq!(show_size(3 << 19), "1.50 MiB");
}

#[test]
fn mount_options_are_read_in_order() {
    let w =
        MountWords::parse(["ro,commit=7,nodev,noexec,relatime", "rw,exec,cache_size=64M,async_checkpoint"])
            .unwrap();
    assert_eq!(
        w,
        MountWords {
            switches: Switches {
                commit: Some(Duration::from_secs(7)),
                async_checkpoint: Some(Some(50)),
                noatime: Some(false),
                ..Switches::default()
            },
            cache_size: Some(64 << 20),
            nodev: true,
            ..MountWords::default()
        }
    );
    let w = MountWords::parse([
        "async_checkpoint=30,noasync_checkpoint,workers=4,nowriteback_cache,ro,,x-systemd.a=b",
    ]);
    let w = w.unwrap();
    assert_eq!(
        (w.switches.async_checkpoint, w.workers, w.writeback_cache),
        (Some(None), Some(4), Some(false))
    );
    assert!(w.read_only);
    assert_eq!(MountWords::parse([""]).unwrap(), MountWords::default());
}

#[test]
fn the_kind_of_latches_is_one_of_those_there_are() {
    for &lock in TreeLock::ALL {
        let words = MountWords::parse([format!("tree_lock={lock}").as_str()]).unwrap();
        assert_eq!(words.tree_lock, Some(lock));
    }
    for list in ["tree_lock=mutex", "tree_lock=", "tree_lock", "tree_lock=Rwlock"] {
        let e = MountWords::parse([list]).unwrap_err().to_string();
        let named = TreeLock::ALL.iter().all(|lock| e.contains(lock.name()));
        assert!(e.contains(list) && named, "{e}");
    }
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    let refused = |list| MountWords::parse([list]).unwrap_err().to_string();
    let e = refused("ro,datta=journal");
    assert!(e.contains("unknown mount option datta=journal") && e.contains("commit=SECONDS"), "{e}");
    for list in
        ["commit=0", "commit=301", "commit=x", "async_checkpoint=100", "async_checkpoint=0", "workers=1"]
    {
        assert!(refused(list).contains(list), "{list}");
    }
    assert!(refused("commit").contains("needs a value: commit=SECONDS"));
    assert!(refused("cache_size=lots").contains("lots"));
    assert!(refused("ro=1").contains("takes no value"));
    assert!(refused("comit=5").contains("did you mean commit?"));
    assert!(refused("nofial").contains("did you mean nofail?"));
    assert!(!refused("datta=journal").contains("did you mean"));
}

/// Options from an fstab that was written for other file systems.
#[test]
fn words_of_fstab_are_understood_or_refused_with_a_reason() {
    let words = MountWords::parse(["user_xattr,acl,lazytime,nodiscard,errors=remount-ro,noatime,nodiratime"]);
    assert_eq!(words.unwrap().switches.noatime, Some(true));
    // An option that cannot be fulfilled is refused.
    for (word, why) in [
        ("noacl", "cannot be turned off"),
        ("sync", "programs call fsync"),
        ("dirsync", "fsync of the directory"),
        ("strictatime", "as with relatime"),
        ("errors=panic", "goes on reading"),
        ("errors", "goes on reading"),
        ("offset=-1", "is not a size"),
        ("sizelimit=x", "is not a size"),
    ] {
        let e = MountWords::parse([word]).unwrap_err().to_string();
        assert!(e.starts_with(&format!("mount option {word}: ")) && e.contains(why), "{e}");
    }
    let e = MountWords::parse(["offset"]).unwrap_err().to_string();
    assert_eq!(e, "mount option offset needs a value: offset=BYTES");
}

/// All options that mount(8) lists for any file system except `remount`, which is another command.
#[test]
fn generic_words_of_mount_are_understood_or_refused_with_a_reason() {
    const UNDERSTOOD: &str = "async atime noatime auto noauto defaults dev nodev diratime nodiratime exec noexec \
                              group noiversion nomand _netdev nofail relatime nostrictatime lazytime nolazytime \
                              suid nosuid silent loud owner ro rw user nouser users symfollow X-mount.mkdir x-a";
    for word in UNDERSTOOD.split_whitespace() {
        assert!(MountWords::parse([word]).is_ok(), "{word}");
    }
    for word in [
        "context=a",
        "fscontext=a",
        "defcontext=a",
        "rootcontext=a",
        "dirsync",
        "iversion",
        "mand",
        "norelatime",
        "nosymfollow",
        "strictatime",
        "sync",
    ] {
        let e = MountWords::parse([word]).unwrap_err().to_string();
        assert!(e.starts_with(&format!("mount option {word}: ")), "{e}");
    }
}

#[test]
fn the_help_names_every_option() {
    for word in
        KNOWN.iter().chain(SWITCH_WORDS).filter(|w| !w.contains("nowriteback") && !w.contains("default_"))
    {
        let name = word.split(['=', '[']).next().unwrap();
        assert!(HELP.contains(name), "{name}");
    }
}

#![allow(clippy::unwrap_used)]

use super::*;

#[test]
fn rules_count_what_they_are_for() {
    let mut rules = Rules::default();
    rules.add("on=fsync,path=*.db,nth=2,count=2,do=eio,like=xfs".parse().unwrap());
    rules.add("on=any,nth=4,do=crash,when=after,kill=caller".parse().unwrap());
    let mut meet = |on, path: &str| rules.meet(on, &[path.as_bytes().to_vec()]);
    let eio = Some(Action::Fail { errno: kedge_base::errno::EIO, like: Like::Xfs });
    assert_eq!(meet(On::Write, "a.db"), None);
    assert_eq!(meet(On::Fsync, "a.db"), None);
    assert_eq!(meet(On::Fsync, "other"), None);
    assert_eq!(meet(On::Fsync, "dir/a.db"), eio);
    assert_eq!(meet(On::Fsync, "a.db"), eio);
    let crash = meet(On::Fsync, "a.db");
    assert!(matches!(crash, Some(Action::Crash { after: true, kill: Some(Kill::Caller), .. })), "{crash:?}");
    assert_eq!(meet(On::Fsync, "a.db"), None);
}

#[test]
fn rules_that_make_no_sense_say_why() {
    for (rule, why) in [
        ("", "NAME=VALUE"),
        ("do=eio", "on= is missing"),
        ("on=write", "do= is missing"),
        ("on=read,do=eio", "no on=read"),
        ("on=write,do=panic", "no do=panic"),
        ("on=write,do=slow", "on=fsync"),
        ("on=fsync,do=slow,time=9999999", "more than"),
        ("on=fsync,do=torn", "on=write"),
        ("on=write,do=torn,model=btrfs", "tears no pages"),
        ("on=write,do=eio,like=xfs", "like= is for on=fsync"),
        ("on=fsync,do=eio,like=zfs", "no like=zfs"),
        ("on=fsync,do=eio,kill=caller", "kill= does not belong here"),
        ("on=fsync,do=crash,model=vfat", "no model \"vfat\""),
        ("on=fsync,do=crash,kill=1", "no process"),
        ("on=fsync,do=crash,kill=-5", "no process"),
        ("on=fsync,do=crash,nth=0", "nth=1"),
        ("on=fsync,do=crash,nth=x", "no number"),
        ("on=fsync,do=crash,lose=some", "neither all nor a number"),
        ("on=fsync,on=write,do=crash", "twice"),
    ] {
        let error = rule.parse::<Rule>().unwrap_err().to_string();
        assert!(error.contains(why), "{rule}: {error}");
    }
}

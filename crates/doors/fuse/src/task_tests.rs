use super::*;

const STATUS: &str = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t5\t5\t5\nGroups:\t8 9 \nNSpid:\t70\t1\nVmSize:\t  8 kB\n\
    CapPrm:\t000001ffffffffff\nCapEff:\t0000000000200010\n";

#[test]
fn the_lines_that_matter_are_read() {
    let status = Status::parse(STATUS).unwrap();
    assert_eq!((status.uids, status.gids), ([1, 2, 3, 4], [5; 4]));
    assert_eq!((status.user(), status.own_number(), status.is_programs()), (4, Some(1), true));
    assert!(status.has(Capability::SysAdmin) && status.has(Capability::Fsetid));
    assert!([5, 8, 9].iter().all(|gid| status.is_member(*gid)) && !status.is_member(1));
    assert!(!status.has(Capability::Chown) && !status.has(Capability::Setfcap));
    for name in ["Uid", "Gid", "Groups", "NSpid", "CapEff"] {
        let without: String =
            STATUS.lines().filter(|l| !l.starts_with(name)).map(|l| format!("{l}\n")).collect();
        assert_eq!(Status::parse(&without), None, "{name}");
    }
    assert_eq!(Status::parse(&STATUS.replace("1\t2\t3\t4", "1\t2\t3")), None);
    let kernels = Status::parse(&STATUS.replace("VmSize", "VmNone")).unwrap();
    assert!(!kernels.is_programs());
}

#[test]
fn a_set_id_program_is_not_wholly_its_users() {
    let plain = Status { uids: [7; 4], gids: [8; 4], ..Status::parse(STATUS).unwrap() };
    assert!(plain.is_wholly(7) && !plain.is_wholly(8));
    assert!(!Status { uids: [7, 0, 0, 0], ..plain.clone() }.is_wholly(7));
    assert!(!Status { uids: [7, 7, 0, 7], ..plain.clone() }.is_wholly(7));
    assert!(!Status { gids: [8, 9, 9, 9], ..plain }.is_wholly(7));
}

/// The thread is user 4, in the groups 5, 8 and 9.
#[test]
fn the_right_to_write_follows_mode_and_access_list() {
    let status = Status::parse(STATUS).unwrap();
    let fs = kedgefs::FileSystem::in_memory(16 << 20).unwrap();
    let root = fs.getattr(kedgefs::Ino::ROOT).unwrap();
    let of = |uid, gid, mode| Attr { uid, gid, mode, ..root };
    for (attr, may) in [
        (of(4, 1, 0o200), true),
        (of(4, 5, 0o077), false),
        (of(1, 8, 0o020), true),
        (of(1, 9, 0o602), false),
        (of(1, 1, 0o002), true),
        (of(1, 1, 0o664), false),
    ] {
        assert_eq!(status.may_write(&attr, None), may, "{attr:?}");
    }
    let list = |named: &[(Tag, u16, u32)], mask| {
        let mut entries = vec![(Tag::Owner, 6, 0), (Tag::OwningGroup, 0, 0), (Tag::Mask, mask, 0)];
        entries.extend(named.iter().chain(&[(Tag::Others, 2, 0)]));
        entries.sort_by_key(|(tag, ..)| *tag);
        let entry = |(tag, permissions, id)| Entry { tag, permissions, id };
        Acl::new(entries.into_iter().map(entry).collect()).unwrap()
    };
    for (named, mask, may) in [
        (&[(Tag::User, 2, 4)][..], 2, true),
        (&[(Tag::User, 2, 4)], 4, false),
        (&[(Tag::User, 4, 4), (Tag::Group, 2, 8)], 7, false),
        (&[(Tag::Group, 4, 8), (Tag::Group, 2, 9)], 7, true),
        (&[(Tag::Group, 4, 8)], 7, false),
        (&[(Tag::User, 0, 77), (Tag::Group, 0, 77)], 0, true),
    ] {
        let list = list(named, mask);
        assert_eq!(status.may_write(&of(1, 1, list.mode()), Some(&list)), may, "{list:?}");
    }
}

#[test]
fn this_thread_is_found_and_no_thread_is_not() {
    let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let task = Task::open(own).unwrap();
    let status = task.status().unwrap();
    assert_eq!(status.user(), rustix::process::geteuid().as_raw());
    assert!(status.is_programs());
    assert!(task.shares(Namespace::User).unwrap() && task.shares(Namespace::Mount).unwrap());
    assert!(Task::open(0).is_err());
    assert!(Task::open(u32::MAX).is_err());
}

#[test]
fn a_thread_that_has_ended_is_nobody_elses() {
    let (send, receive) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let thread = kedge_base::spawn_named("short", move || {
        send.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
        let _ = ended.recv();
    })
    .unwrap();
    let task = Task::open(receive.recv().unwrap()).unwrap();
    task.status().unwrap();
    drop(end);
    thread.join().unwrap();
    // The kernel may remove the thread from /proc slightly after the join.
    while task.status().is_ok() {
        std::thread::yield_now();
    }
}

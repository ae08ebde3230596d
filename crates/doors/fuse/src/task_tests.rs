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

use super::*;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

#[test]
fn this_process_is_known() {
    let (here, there) = UnixStream::pair().unwrap();
    let peer = Peer::of(&here).unwrap();
    let ids = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    assert_eq!(peer.ids(), ids);
    assert_eq!(peer.own_number(), Some(std::process::id()));
    assert_eq!(peer.is_own_user(), ids.0 != 0);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let sys_admin = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    let sys_admin = u64::from_str_radix(sys_admin.trim(), 16).unwrap() & 1 << 21 != 0;
    assert_eq!(peer.is_capable(&[Capability::SysAdmin]), sys_admin);
    let dir = std::fs::File::open("/").unwrap();
    assert_eq!(peer.mount_of(&dir).unwrap(), crate::mount_of(&dir).unwrap());
    drop(there);
}

/// Each program connects with fewer capabilities than root has here, or with none.
#[test]
fn root_without_capabilities_or_in_a_user_namespace_is_not_capable() {
    if !rustix::process::geteuid().is_root() {
        return kedge_base::skip::note("only root can take its own rights away");
    }
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let connect = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\ns.recv(1)";
    for (words, capable) in [
        ("setpriv --reset-env", true),
        ("setpriv --bounding-set -all", false),
        ("setpriv --bounding-set -mknod", false),
        ("unshare --user --map-root-user", false),
    ] {
        let mut command = words.split(' ').chain(["python3", "-c", connect]);
        let mut child = Command::new(command.next().unwrap())
            .args(command)
            .arg(&path)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let (stream, _) = listener.accept().unwrap();
        let peer = Peer::of(&stream).unwrap();
        assert_eq!(peer.is_capable(&[Capability::SysAdmin, Capability::Mknod]), capable, "{words}");
        assert!(!peer.is_own_user(), "{words}: root serves no mount as an ordinary user");
        drop(stream);
        child.wait().unwrap();
    }
}

#[test]
fn a_process_that_has_ended_has_no_rights() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let connect = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])";
    let ended = Command::new("python3").args(["-c", connect]).arg(&path).status().unwrap();
    assert!(ended.success());
    let (stream, _) = listener.accept().unwrap();
    assert!(Peer::of(&stream).is_err());
}

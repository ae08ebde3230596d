#![allow(clippy::unwrap_used)]

use super::*;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Runs a checker that leaves a server in a session of its own, and returns the server's number.
fn leave(dir: &Path) -> Pid {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "setsid sh -c 'echo $$; exec sleep 60 > /dev/null' & wait $!; :"]);
    command.args(["sh"]).env(DIR_VARIABLE, dir).stdout(Stdio::piped()).process_group(0);
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    Pid::from_raw(line.trim().parse().unwrap()).unwrap()
}

fn runs(pid: Pid) -> bool {
    Standing::of(pid).is_some_and(|standing| !standing.has_ended)
}

#[test]
fn servers_of_a_checker_end_and_those_of_others_go_on() {
    adopt().unwrap();
    let (ours, other) = (Path::new("/nonexistent/0."), Path::new("/nonexistent/1."));
    let (left, stays) =
        (leave(Path::new("/nonexistent/0.7/state")), leave(Path::new("/nonexistent/1.7/state")));
    assert!(runs(left) && runs(stays));
    end(ours);
    assert!(!runs(left), "{:?}", Standing::of(left));
    assert!(runs(stays));
    end(other);
    assert!(!runs(stays));
}

#[test]
fn a_line_of_proc_is_read_with_any_name() {
    let pid = Pid::from_raw(7).unwrap();
    let standing = |group, session, has_ended| Some(Standing { pid: 7, group, session, has_ended });
    assert_eq!(Standing::read(pid, "7 (a) Z 9 (b)) S 1 20 30 0 -1"), standing(20, 30, false));
    assert_eq!(Standing::read(pid, "7 (sh) Z 1 7 30 0 -1"), standing(7, 30, true));
    assert_eq!(Standing::read(pid, "7 (sh) Z 1"), None);
    assert_eq!(Standing::read(pid, ""), None);
}

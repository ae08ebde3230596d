#![allow(clippy::unwrap_used)]

use super::*;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Starts a shell, whose first line of output is the number of a process.
fn shell(script: &str, dir: Option<&Path>) -> (Child, u32) {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).env_remove(DIR_VARIABLE).stdout(Stdio::piped());
    if let Some(dir) = dir {
        command.env(DIR_VARIABLE, dir);
    }
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().parse().unwrap())
}

/// A process that outlives the shell that started it, so that this process is no ancestor of it.
const ORPHAN: &str = "sleep 60 > /dev/null & echo $!";

fn is_orphan(pid: u32) -> bool {
    !descends_from(pid, std::process::id())
}

fn end(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn descendants_and_orphans_with_the_directory_belong_to_the_program() {
    let dir = Path::new("/nonexistent/mount");
    let family = Family::new(dir);
    assert!(family.has(std::process::id()));

    let (mut child, pid) = shell("echo $$; exec sleep 60", None);
    assert!(family.has(pid));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(family.strangers(), 0);

    for (of, belongs) in [
        (Some(dir.to_owned()), true),
        (Some(dir.join("below")), true),
        (dir.parent().map(Path::to_owned), true),
        (Some(PathBuf::from("/nonexistent/other")), false),
        (Some(PathBuf::new()), false),
        (None, false),
    ] {
        let (mut child, pid) = shell(ORPHAN, of.as_deref());
        child.wait().unwrap();
        assert!(is_orphan(pid), "the parent of {pid} has ended");
        assert_eq!(family.has(pid), belongs, "{of:?}");
        end(pid);
    }
    assert_eq!(family.strangers(), 3);
    assert!(!family.has(0), "the kernel is not the program");
}

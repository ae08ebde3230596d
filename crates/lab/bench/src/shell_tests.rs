use super::*;

fn shell(dir: &Path) -> Shell {
    Shell::new(dir, Path::new("/bin/echo"), &Interrupt::new(|_| {}))
}

#[test]
fn output_and_failures() {
    let dir = tempfile::tempdir().unwrap();
    let shell = shell(dir.path());
    assert_eq!(shell.run("echo one two").unwrap(), "one two\n");
    assert_eq!(shell.run("kedge is what we say").unwrap(), "is what we say\n");
    assert_eq!(shell.run("pwd").unwrap().trim(), dir.path().canonicalize().unwrap().to_str().unwrap());
    let missing = format!("{:#}", shell.run("no-such-program-here x").unwrap_err());
    assert_eq!(missing, "no-such-program-here is not installed");
    let failed = format!("{:#}", shell.run("cat gone").unwrap_err());
    assert!(failed.starts_with("`cat gone`: exit status: 1: cat: gone: "), "{failed}");
}

#[test]
fn an_interrupt_ends_what_runs_and_lets_undo_pass() {
    let dir = tempfile::tempdir().unwrap();
    let shell = shell(dir.path());
    let interrupt = shell.interrupt.clone();
    let raise = kedge_base::spawn_named("raise", move || {
        std::thread::sleep(Duration::from_millis(50));
        interrupt.raise();
    })
    .unwrap();
    // This test's `end_group` sends no signal, so the command is killed after the grace period.
    let clock = SystemClock::default();
    let error = format!("{:#}", shell.run("sleep 60").unwrap_err());
    raise.join().unwrap();
    assert!(error.contains("interrupted"), "{error}");
    assert!(clock.monotonic() < Duration::from_secs(30));
    assert!(shell.run("true").is_err());
    shell.undo("true").unwrap();
}

#[test]
fn a_missing_tool_names_its_package() {
    // The result does not depend on what is installed here.
    for (tool, package) in [("fs_mark", "fsmark"), ("mkfs.xfs", "xfsprogs"), ("dbench", "dbench")] {
        let missing = need_from(tool, None).unwrap_err().to_string();
        assert_eq!(missing, format!("{tool} is not installed (Debian package {package})"));
    }
}

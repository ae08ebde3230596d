use super::*;
use std::sync::Barrier;

fn job(package: &str, script: &str) -> Job {
    Job {
        package: package.to_owned(),
        words: ["/bin/sh", "-c", script].map(OsString::from).to_vec(),
        dir: std::env::temp_dir(),
        env: vec![("EMPTY".into(), OsString::new()), ("ODD".into(), OsString::from_vec(vec![0xff, b'=']))],
    }
}

#[test]
fn a_job_is_written_down_and_read_again() {
    let job = job("kedge", "true");
    assert_eq!(Job::decode(&job.encode()), Some(job));
    assert_eq!(Job::decode(b"kedge\0\0"), None);
    assert_eq!(Job::decode(b""), None);
}

/// Each program runs with the directory and environment that cargo would give it, and each failure
/// is named.
#[test]
fn failures_are_counted_and_named() {
    let queue = tempfile::tempdir().unwrap();
    let print = "printf 'test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured\\n'; test -z \"$EMPTY\" && test -n \"$ODD\"";
    for (name, package, script) in
        [("0000", "kedge", print), ("0001", "kedgefs", print), ("0002", "kedgefs", "exit 3")]
    {
        fs::write(queue.path().join(name), job(package, script).encode()).unwrap();
    }
    let run = |job: &Job| {
        let ended = Command::new(&job.words[0])
            .args(&job.words[1..])
            .env_clear()
            .envs(job.env.iter().cloned())
            .output()
            .unwrap();
        Ok(Ended { ok: ended.status.success(), output: ended.stdout })
    };
    let mut tally = Tally::default();
    let e = run_by(queue.path(), &mut tally, &run).unwrap_err().to_string();
    assert_eq!(e, "1 test programs failed: /bin/sh");
    assert_eq!((tally.programs, tally.passed, tally.failed, tally.ignored), (2, 4, 0, 2));
    fs::write(queue.path().join("0003"), b"no job").unwrap();
    assert!(run_by(queue.path(), &mut tally, &run).is_err(), "a program that is lost is no success");
}

/// Three programs of other packages wait for each other. They end only if the two other lanes,
/// which have no programs of their own, each run one of them.
#[test]
fn lanes_that_have_ended_help() {
    let (queue, met) = (tempfile::tempdir().unwrap(), Barrier::new(3));
    for name in ["0000", "0001", "0002"] {
        fs::write(queue.path().join(name), job("kedgefs", "true").encode()).unwrap();
    }
    let run = |_: &Job| {
        met.wait();
        Ok(Ended { ok: true, output: Vec::new() })
    };
    run_by(queue.path(), &mut Tally::default(), &run).unwrap();
}

#[test]
fn programs_that_wait_are_known_by_package_and_name() {
    let waits = |package: &str, program: &str| {
        let mut job = job(package, "true");
        job.words[0] = program.into();
        job.waits()
    };
    assert!(waits("kedge", "/target/debug/deps/rbd-0123456789abcdef"));
    assert!(!waits("kedge-ceph", "/target/debug/deps/rbd-0123456789abcdef"));
    assert!(!waits("kedge", "/target/debug/deps/rbd_other-0123456789abcdef"));
}

/// A name in the list that no program has would silently put that program into the second lane.
#[test]
fn each_program_that_waits_exists() {
    let packages = cargo_metadata::MetadataCommand::new().no_deps().exec().unwrap().packages;
    for (package, name) in WAITING {
        let package = packages.iter().find(|known| *known.name == *package).expect(package);
        assert!(package.targets.iter().any(|target| target.is_test() && target.name == *name), "{name}");
    }
}

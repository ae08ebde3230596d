use super::*;
use kedge_crash::Call;

/// The recorder may be delayed right after it has started the command.
#[test]
fn what_is_printed_at_once_stands_before_the_first_call() {
    let dir = tempfile::tempdir().unwrap();
    let printed = dir.path().join("printed");
    let words = ["sh", "-c", "echo saved; : > \"$KEDGE_DIR/printed\""];
    let options = Options {
        size: 0,
        from: None,
        device: None,
        cd: false,
        ack: Some(Regex::new("saved").unwrap()),
        timeout: Some(Duration::from_secs(60)),
        out: dir.path().join("out"),
        backtrace: false,
        mappings: false,
        command: words.map(OsString::from).to_vec(),
    };
    let log = Arc::new(Log::in_memory(Vec::new()));
    let first_call = |_| {
        while !printed.exists() {
            std::thread::sleep(POLL);
        }
        log.append(&mut log.lock(), 0, 0, Call::Sync { since: 0 });
        Ok(())
    };
    let ended = run_command(dir.path(), None, &options, &log, None, &first_call).unwrap();
    assert!(ended.code == 0 && !ended.timed_out);
    let calls: Vec<Call> = log.settle().into_iter().map(|event| event.call).collect();
    assert_eq!(calls, [Call::Mark { text: "saved".into() }, Call::Sync { since: 0 }]);
}

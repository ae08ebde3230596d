#![allow(clippy::unwrap_used)]

use super::*;
use kedge_base::ManualClock;
use std::fs::File;
use std::io::Write as _;
use std::process::Command;
use tracing_subscriber::layer::SubscriberExt;

#[test]
fn a_flood_is_cut_and_counted() {
    let at = |ms| Duration::from_millis(ms);
    let mut seen = Seen::default();
    let judge = |seen: &mut Seen, from: u64, n: u64| -> Vec<Verdict> {
        (0..n).map(|i| seen.judge(at(from + i))).collect()
    };
    assert_eq!(judge(&mut seen, 0, 3), [Verdict::Pass(0), Verdict::Pass(0), Verdict::Pass(0)]);
    assert!(judge(&mut seen, 3, 80).iter().all(|v| *v == Verdict::Drop));
    assert_eq!(judge(&mut seen, 60_000, 2), [Verdict::Pass(80), Verdict::Pass(0)]);
    assert_eq!(judge(&mut seen, 200_000, 1), [Verdict::Pass(0)]);
}

/// Set in the process whose standard error is full.
const FULL: &str = "KEDGE_TEST_FULL_STDERR";

/// A panic in the thread that logs would shut the mount down.
#[test]
fn a_count_that_cannot_be_written_is_left_out() {
    if std::env::var_os(FULL).is_none() {
        let name = "syslog::tests::a_count_that_cannot_be_written_is_left_out";
        let mut command = Command::new(std::env::current_exe().unwrap());
        // Without --nocapture the test's thread would write to a buffer.
        command.args(["--exact", name, "--nocapture"]).env(FULL, "1").env(SOCKET_VARIABLE, "/none");
        let run = command.stderr(File::options().write(true).open("/dev/full").unwrap()).output().unwrap();
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && said.contains("1 passed"), "{}: {said}", run.status);
        return;
    }
    let clock = Arc::new(ManualClock::default());
    let limit = Limit { clock: clock.clone(), seen: Mutex::default() };
    tracing::subscriber::with_default(tracing_subscriber::registry().with(limit), || {
        for n in 0..6 {
            if n == 5 {
                clock.advance(WINDOW);
            }
            tracing::warn!("again");
        }
    });
    assert!(writeln!(std::io::stderr(), "full").is_err());
}

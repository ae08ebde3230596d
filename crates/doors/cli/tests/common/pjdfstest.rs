//! pjdfstest, a suite of tests of the POSIX rules on names, permissions and times.

use super::{Place, output_of};
use std::fs;

const CONFIGURATION: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.01
allow_remount = REMOUNT

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// The result of one run of the suite.
pub struct Said {
    pub passed: Vec<String>,
    pub skipped: Vec<String>,
}

/// Runs the tests whose names contain `pattern`; none may fail. `None` if pjdfstest is not
/// installed.
pub fn run(place: &Place, pattern: &str, remount: bool) -> Option<Said> {
    let configuration = CONFIGURATION.replace("REMOUNT", &remount.to_string());
    fs::write(place.path("pjdfstest.toml"), configuration).unwrap();
    let mut command = place.command("pjdfstest");
    command.args(["-c", "pjdfstest.toml", "-p"]).arg(place.path("mnt")).arg("-s").arg(place.path("other"));
    command.arg(pattern);
    let out = match output_of(command) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            kedge_base::skip::note("no pjdfstest: cargo install pjdfstest");
            return None;
        }
        out => out.unwrap(),
    };
    let said = String::from_utf8(out.stdout).unwrap();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && said.contains("Summary: 0 failed, "), "{said}{errors}");
    let ending = |word: &str| {
        let lines = said.lines().filter_map(|line| line.strip_suffix(word));
        lines.map(|line| line.trim_end().to_owned()).collect::<Vec<_>>()
    };
    Some(Said { passed: ending(" ok"), skipped: ending(" skipped") })
}

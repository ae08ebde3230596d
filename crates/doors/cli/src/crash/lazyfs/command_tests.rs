#![allow(clippy::unwrap_used)]

use super::*;
use kedge_crash_record::Timing;

fn parsed(line: &str) -> Result<Command, String> {
    parse(line, &Dirs { root: "/r".into(), mount: "/m".into() })
}

#[test]
fn commands_of_lazyfs_are_understood() {
    assert!(matches!(parsed("lazyfs::clear-cache"), Ok(Command::Clear)));
    assert!(matches!(parsed("lazyfs::cache-checkpoint"), Ok(Command::Checkpoint)));
    assert!(matches!(parsed("lazyfs::display-cache-usage"), Ok(Command::Usage)));
    assert!(matches!(parsed("lazyfs::unsynced-data-report"), Ok(Command::Report)));
    assert!(matches!(parsed("lazyfs::help"), Ok(Command::Help)));
    let Ok(Command::Fault(Fault::Clear(clear))) =
        parsed("lazyfs::crash::timing=before::op=rename::to_rgx=file[0-9]")
    else {
        panic!()
    };
    assert!(clear.crash && clear.timing == Timing::Before && clear.from.is_none() && clear.to.is_some());
    let Ok(Command::Fault(Fault::TornOp(torn))) =
        parsed("lazyfs::torn-op::file=/r/a/b::persist=1,3::parts=3::occurrence=5")
    else {
        panic!()
    };
    assert_eq!((&torn.file[..], torn.occurrence, &torn.persist[..]), (&b"a/b"[..], 5, &[1, 3][..]));
    let Ok(Command::Fault(Fault::TornSeq(torn))) = parsed("lazyfs::torn-seq::op=write::file=a::persist=2")
    else {
        panic!()
    };
    assert_eq!(torn.occurrence, 1);
}

#[test]
fn what_is_not_understood_is_named() {
    for (line, words) in [
        ("clear-cache", "begins with lazyfs::"),
        ("lazyfs::clear-cash", "there is no command \"clear-cash\""),
        ("lazyfs::clear-cache::now=1", "now does not belong to clear-cache"),
        ("lazyfs::crash::op=write", "timing is missing"),
        ("lazyfs::crash::timing=before::op=write", "needs from_rgx"),
        ("lazyfs::crash::timing=before::op=write::from_rgx=(", "from_rgx: "),
        ("lazyfs::crash::timing=before::op=write::from_rgx=a::from_rgx=b", "from_rgx is there twice"),
        ("lazyfs::torn-op::file=a::parts=2::persist=x", "persist: \"x\" is no number"),
        ("lazyfs::torn-op::file=a::persist=1", "one of parts and parts_bytes"),
        ("lazyfs::torn-seq::file", "\"file\" is not KEY=VALUE"),
    ] {
        let Err(why) = parsed(line) else { panic!("{line}") };
        assert!(why.contains(words), "{line}: {why}");
    }
}

#![allow(clippy::unwrap_used)]

use super::*;

fn config(text: &str) -> Result<Config> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lazyfs.toml");
    fs::write(&path, text).unwrap();
    read(&path, &Dirs { root: "/r".into(), mount: "/m".into() })
}

#[test]
fn the_file_of_lazyfs_is_understood() {
    let config = config(
        r#"
[faults]
fifo_path="/tmp/faults.fifo"
fifo_path_completed="/tmp/done.fifo"
[cache]
apply_eviction=false
[cache.simple]
custom_size="0.5GB"
blocks_per_page=1
[filesystem]
log_all_operations=true
logfile=""
[[injection]]
type="torn-seq"
op="write"
file="output.txt"
persist=[1,4]
occurrence=2
[[injection]]
type="torn-op"
file="/r/output1.txt"
op="write"
occurrence=5
parts=3
persist=[1,3]
[[injection]]
type="clear-cache"
from="/m/f1.txt"
timing="before"
op="fsync"
occurrence=6
crash=true
"#,
    )
    .unwrap();
    assert_eq!(config.fifo, Path::new("/tmp/faults.fifo"));
    assert_eq!(config.completed.as_deref(), Some(Path::new("/tmp/done.fifo")));
    assert_eq!((config.cache, config.log_all, config.logfile), (Some(1 << 29), true, None));
    let [Fault::TornSeq(seq), Fault::TornOp(op), Fault::Clear(clear)] = &config.faults[..] else {
        panic!("{:?}", config.faults)
    };
    assert_eq!((&seq.file[..], seq.occurrence, &seq.persist[..]), (&b"output.txt"[..], 2, &[1, 4][..]));
    assert_eq!((&op.file[..], op.occurrence, &op.parts), (&b"output1.txt"[..], 5, &Parts::Equal(3)));
    let Some(Named::Path(from)) = &clear.from else { panic!("{clear:?}") };
    assert_eq!(
        (&from[..], clear.op, clear.timing, clear.crash),
        (&b"f1.txt"[..], Op::Fsync, Timing::Before, true)
    );
}

#[test]
fn what_is_not_understood_is_named_with_its_line() {
    let clear = "[[injection]]\ntype=\"clear-cache\"\n";
    let cases = [
        ("[faults]\nfifo=\"x\"\n", "line 2: unknown field `fifo`"),
        ("[file system]\n", "line 1: "),
        ("[cache.simple]\ncustom_size=\"5 apples\"\n", "line 2: custom_size"),
        ("[cache.manual]\nno_pages=0\n", "line 2: no_pages"),
        ("\n[[injection]]\ntype=\"torn\"\n", "line 2: [[injection]]: there is no type \"torn\""),
        ("[[injection]]\nfile=\"a\"\n", "type is missing"),
        (&format!("{clear}op=\"fly\"\n"), "there is no op \"fly\""),
        (&format!("{clear}op=\"access\"\n"), "op \"access\": this mount does not see it"),
        (&format!("{clear}op=\"fsync\"\nfrom=\"/other/a\"\n"), "from \"/other/a\" is no file below /r or /m"),
        (&format!("{clear}op=\"rename\"\nfrom=\"a\"\n"), "op \"rename\" needs from and to"),
        (&format!("{clear}op=\"fsync\"\nfrom=\"a\"\ntiming=\"now\"\n"), "timing \"now\""),
        (
            &format!("{clear}op=\"fsync\"\nfrom=\"a\"\ntiming=\"after\"\noccurrence=0\ncrash=true\n"),
            "occurrence is counted from 1",
        ),
        (&format!("{clear}op=\"fsync\"\nfrom=\"a\"\ntiming=\"after\"\noccurrence=1\n"), "crash is missing"),
        (
            &format!(
                "{clear}op=\"fsync\"\nfrom=\"a\"\ntiming=\"after\"\noccurrence=1\ncrash=true\nparts=2\n"
            ),
            "parts does not belong to type \"clear-cache\"",
        ),
        ("[[injection]]\ntype=\"torn-op\"\nparts=2\nparts_bytes=[1]\n", "not both"),
        ("[[injection]]\ntype=\"torn-op\"\nparts=2\npersist=[3]\n", "there is no part 3 of 2"),
        ("[[injection]]\ntype=\"torn-seq\"\nop=\"fsync\"\n", "only a write can be torn"),
    ];
    for (text, words) in cases {
        let Err(e) = config(text) else { panic!("{text}") };
        assert!(e.is::<kedge_host::Usage>(), "{e:#}");
        assert!(format!("{e:#}").contains(words), "{text}: {e:#}");
    }
}

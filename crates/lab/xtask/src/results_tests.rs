use super::*;

const RESULTS: &str = "\
Some words about the machine.

### The load in this process, on the library

|        | unit       |       old |       new |      null |  change | published: old | published: new | published change |
|--------|------------|----------:|----------:|----------:|--------:|---------------:|---------------:|------------------|
| load 1 | time, ms   | 2.00 ±3 % | 1.00 ±9 % | 0.90 ±1 % | -50.0 % |          1,000 |            600 | -40.0 %          |
| load 1 | own, ms    | 2.00 ±3 % | 0.10 ±9 % |         - | -95.0 % |              - |              - | -                |
| load 2 | time, ms   |    FAILED | 1.00 ±9 % |         - |       - |          1,000 |            600 | -40.0 %          |

### The load on the mount

|        | unit       |           old |           new |  change | published: old | published: new | published change |
|--------|------------|--------------:|--------------:|--------:|---------------:|---------------:|------------------|
| load 1 | time, ms   |  1,200.5 ±3 % | 0.00, once 5  | -12.0 % |          1,000 |            600 | -40.0 %          |

### Bars

| bar | wanted | reached | verdict |
|-----|--------|--------:|---------|
| load 1: time, less null's | ≤ -40 % | -88.6 % | met |
| load 1: time, new by old | ≤ 1 | 0.49 | met |
| load 1: longest time | ≤ 1 | not measured | MISSED |
";

fn cells(
    contest: &'static str,
    metric: &'static str,
    places: &'static [(&str, &str)],
    kind: Kind,
) -> [String; 3] {
    let lines = parse(RESULTS).unwrap();
    let (published, here, word) = row("c", "f", contest, metric, places, kind).cells(&lines).unwrap();
    [published, here, word]
}

#[test]
fn the_word_is_a_rule() {
    let time = |places| cells("load 1", "time, ms", places, Kind::Change);
    assert_eq!(time(&[PROCESS]), ["-40 %", "in process -50 %", "reproduced"]);
    assert_eq!(time(&[MOUNT]), ["-40 %", "on the mount -12 %", "missed"]);
    assert_eq!(time(BOTH), ["-40 %", "in process -50 %, on the mount -12 %", "in part"]);
    let failed = cells("load 2", "time, ms", BOTH, Kind::Change);
    assert_eq!(failed, ["-40 %", "in process –, on the mount –", "not measured"]);
    let newer = cells("load 1", "a metric that the file does not have", BOTH, Kind::ChangeAs("time, ms"));
    assert_eq!(newer, ["-40 %", "in process –, on the mount –", "not measured"]);
    assert!(reaches(6.0, 5.8) && !reaches(5.7, 5.8) && !reaches(-6.0, 5.8));
    assert!(reaches(-95.0, -94.3) && !reaches(-94.2, -94.3));
}

#[test]
fn each_kind_of_figure() {
    let of = |metric, kind| cells("load 1", metric, &[PROCESS], kind);
    assert_eq!(of("own, ms", Kind::ChangeAs("time, ms")), ["-40 %", "in process -95 %", "reproduced"]);
    assert_eq!(of("own, ms", Kind::Change), ["–", "in process -95 %", "–"]);
    assert_eq!(of("time, ms", Kind::FromTo), ["1,000 to 600", "in process 2.00 to 1.00", "reproduced"]);
    // Computed from the rounded cells, the change would be -91 %: from 1.1 to 0.1, after
    // subtracting the 0.9 of null.
    let bar = Kind::Bar("load 1: time, less null's");
    assert_eq!(of("time, ms", bar), ["-40 %", "in process -89 %", "reproduced"]);
    let bar = Kind::BarAlone("load 1: time, new by old");
    assert_eq!(of("time, ms", bar), ["–", "in process 0.49 times", "–"]);
    assert_eq!(of("own, ms", Kind::Bar("load 1: longest time"))[1..], ["in process –", "not measured"]);
    // The rounded cells 1.00 and 2.00 would not give this change either.
    let rounded = RESULTS.replace("-50.0 %", "-49.4 %").replace("-40.0 %", "-40.4 %");
    let row = row("c", "f", "load 1", "time, ms", &[PROCESS], Kind::Times);
    let (published, here, _) = row.cells(&parse(&rounded).unwrap()).unwrap();
    assert_eq!((&*published, &*here), ("0.60 times", "in process 0.51 times"));
    assert_eq!(percent(0.04).0, "+0.0 %");
    assert_eq!((number("0.00, once 5"), number("-"), number("FAILED")), (Some(0.0), None, None));
    assert_eq!(number("1,200.5 ±3 %"), Some(1200.5));
}

#[test]
fn what_is_not_there_is_an_error() {
    let lines = parse(RESULTS).unwrap();
    assert!(row("c", "f", "load 3", "time, ms", BOTH, Kind::Change).cells(&lines).is_err());
    assert!(row("c", "f", "load 1", "time, ms", &[MODEL], Kind::Change).cells(&lines).is_err());
    let bar = row("c", "f", "load 1", "time, ms", BOTH, Kind::Bar("load 1: a bar of another time"));
    assert!(bar.cells(&lines).unwrap_err().to_string().contains("a bar of another time"));
    assert!(parse("no tables").is_err());
    assert!(parse("### t\n| a | b | c |\n|---|---|---|\n| 1 | 2 |\n").is_err());
}

/// The table is made from the result files: a changed figure in a file changes the table.
#[test]
fn the_table_follows_the_files() {
    let rows = [row("c", "f", "load 1", "time, ms", BOTH, Kind::Change)];
    let of = |text: &str| render(&rows, &BTreeMap::from([("f", parse(text).unwrap())])).unwrap();
    let before = of(RESULTS);
    assert_eq!(
        before.lines().nth(2).unwrap(),
        "| c | -40 % | in process -50 %, on the mount -12 % | in part |"
    );
    let after = of(&RESULTS.replace("-12.0 %", "-41.0 %"));
    assert!(after.contains("on the mount -41 % | reproduced |"), "{after}");
    assert_eq!(table().unwrap().lines().count(), 2 + ROWS.len());
}

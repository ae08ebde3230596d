use super::*;
use crate::contest::Side;
use crate::sample::Sample;

#[test]
fn the_loads_leave_what_they_say() {
    let dir = tempfile::tempdir().unwrap();
    Load::Mail.work(dir.path(), KEPT + 3).unwrap();
    let mut names: Vec<u64> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names, (3..KEPT + 3).collect::<Vec<_>>(), "the newest, under their own names");
    assert_eq!(std::fs::read(dir.path().join("3")).unwrap(), MESSAGE);

    Load::Regions.prepare(dir.path()).unwrap();
    let before = std::fs::read(dir.path().join("regions")).unwrap();
    assert_eq!(before.len() as u64, FILE);
    Load::Regions.work(dir.path(), 1).unwrap();
    let after = std::fs::read(dir.path().join("regions")).unwrap();
    let changed = before.chunks(REGION).zip(after.chunks(REGION)).filter(|(a, b)| a != b).count() as u64;
    assert_eq!(after.len() as u64, FILE);
    assert!((1..=REGIONS).contains(&changed), "{changed} regions");
}

#[test]
fn a_bar_is_missed_where_an_fsync_writes_more_than_ext4() {
    let side = |name, bytes, flushes| {
        let counts = DiskCounts { writes: 30, merges: 0, bytes, flushes };
        let samples = values(counts, 10, 2.0).into_iter().map(|value| {
            let mut sample = Sample::default();
            sample.push(value);
            sample
        });
        Side { name, command: String::new(), samples: samples.collect(), failed: None }
    };
    let sides = vec![side("kedge", 80_000, 20), side("ext4", 160_000, 20), side("ext4-fast", 40_000, 10)];
    let outcome = Outcome { title: "t".into(), metrics: metrics(), goal: None, sides, published: vec![] };
    assert_eq!(outcome.median(0, BYTES), 8_000.0);
    assert_eq!(outcome.median(0, "fsyncs"), 5.0);
    let bars = bars(&outcome);
    let reached: Vec<(f64, bool)> = bars.iter().map(|bar| (bar.reached.unwrap(), bar.met)).collect();
    assert_eq!(reached, [(0.5, true), (2.0, false), (1.0, true), (2.0, false)]);
}

use super::*;

#[test]
fn a_population_grows_and_costs_are_measured_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("scale.img");
    let interrupt = Interrupt::new(|_| {});
    let mut population = Population::make(image, 256 << 20).unwrap();
    for files in [500, 2_300] {
        population.grow(files, &interrupt).unwrap();
        let samples = population.costs(2, 50, &interrupt).unwrap();
        assert_eq!(samples.len(), OPERATIONS.len());
        assert!(samples.iter().all(|s| s.rounds().len() == 2 && s.rounds().iter().all(|v| *v > 0.0)));
        population.close().unwrap();
        population.reopen().unwrap();
        let fs = population.library().fs();
        let root = fs.root();
        let files = |dir: &str| root.read_dir(dir).unwrap().count() as u64;
        let dirs = population.dirs.len();
        assert_eq!((0..dirs).map(|i| files(&format!("dir{i:06}"))).sum::<u64>(), population.files);
        assert_eq!(files("."), dirs as u64, "the measured directory is gone");
        assert_eq!(root.metadata("dir000000/file0010").unwrap().size, 4096);
        assert_eq!(root.metadata("dir000000/file0011").unwrap().size, 0);
    }
    interrupt.raise();
    assert!(population.costs(1, 1, &interrupt).is_err());
    population.close().unwrap();
}

fn constant(value: f64) -> Sample {
    let mut sample = Sample::default();
    sample.push(value);
    sample
}

#[test]
fn each_bar_is_about_its_figure() {
    let of = |metrics: &[&'static str], sides: &[(&'static str, f64)]| {
        let all = metrics.iter().map(|name| Metric::new(*name, "", Better::Lower)).collect();
        let sides = sides.iter().map(|(name, v)| (*name, vec![constant(*v); metrics.len()])).collect();
        outcome("t", all, sides)
    };
    let judged = |growth: f64, fsck: f64, opening: f64| -> Vec<bool> {
        let costs = of(&OPERATIONS, &[("10,000", 2.0), ("30,000", 9.0), ("1,000,000", 2.0 * growth)]);
        let fsck = of(&["kedge fsck -n"], &[("10,000", 0.1), (FSCK_SIZE, fsck)]);
        let opening = of(&["library"], &[("50 %", 9.0), ("95 %", opening)]);
        bars(&costs, &fsck, &opening).iter().map(|bar| bar.met).collect()
    };
    assert_eq!(judged(1.5, 10.0, 1.0), [true; 8]);
    assert_eq!(judged(1.51, 10.0, 1.0), [false, false, false, false, false, false, true, true]);
    assert_eq!(judged(1.0, 10.1, 1.1), [true, true, true, true, true, true, false, false]);
}

#[test]
fn the_picture_has_the_bars_of_its_panels() {
    let metrics = || vec![Metric::new("first", "s", Better::Lower)];
    let sample = |value: f64| {
        let mut sample = Sample::default();
        sample.push(value);
        vec![sample]
    };
    let picture = |fsck: &'static str| {
        let outcomes = vec![
            outcome(COSTS, metrics(), vec![("10,000", sample(1.0)), ("1,000,000", sample(2.0))]),
            outcome(FSCK, metrics(), vec![("10,000", sample(0.1)), (fsck, sample(2.0))]),
            outcome(OPENING, metrics(), vec![("50 %", sample(0.1)), ("95 %", sample(0.4))]),
        ];
        let section = Section { title: "t".into(), setup: vec![], outcomes, reading: Reading::Ratio };
        svg(&Report {
            experiment: "scale",
            version: "0.1.0",
            machine: Machine {
                cores: 2,
                memory_mib: 1024,
                kernel: "6.18".into(),
                host: "ext4".into(),
                load: 0.0,
                durable_write: vec![100.0],
            },
            rounds: 3,
            sections: vec![section],
            bars: vec![],
            notes: vec![],
            failures: vec![],
        })
    };
    assert_eq!(picture(FSCK_SIZE).matches("class=\"bar\"").count(), 2, "fsck's and opening's");
    assert_eq!(picture("100,000").matches("class=\"bar\"").count(), 1, "no bar without its size");
    let caption = "KedgeFS 0.1.0, 2 cores, Linux 6.18; median of 3 rounds";
    assert!(picture(FSCK_SIZE).contains(caption));
}

use super::*;
use crate::contest::Side;
use kedge_device::MemDevice;
use kedgefs::{FormatOptions, MountOptions};

fn outcome(storm: [f64; 4], clean: [f64; 4]) -> Outcome {
    let metrics = vec![Metric::new(STORM, "s", Better::Lower), Metric::new(CLEAN_SYNC, "ms", Better::Lower)];
    let sides = SIDES.iter().enumerate().map(|(i, (name, ..))| {
        let mut samples = vec![Sample::default(); 2];
        samples[0].push(storm[i]);
        samples[1].push(clean[i]);
        Side { name, command: String::new(), samples, failed: None }
    });
    Outcome { title: "t".into(), metrics, goal: None, sides: sides.collect(), published: vec![] }
}

#[test]
fn per_sb_is_judged_and_shared_only_shown() {
    let met = |storm, clean| storm_bars(&outcome(storm, clean)).iter().map(|b| b.met).collect::<Vec<_>>();
    assert_eq!(met([1.0, 25.0, 1.0, 1.09], [0.01, 10.0, 0.01, 0.05]), [true, true]);
    assert_eq!(met([1.0, 1.0, 1.0, 1.2], [0.01, 1.0, 0.01, 0.05]), [false, false]);
}

#[test]
fn a_filled_file_system_is_cached_and_clean() {
    let device = Arc::new(MemDevice::new(128 << 20));
    let options = MountOptions { cache_size: 64 << 20, ..MountOptions::default() };
    let library = Library::on(device, &FormatOptions::default(), options).unwrap();
    assert!(fill(&library, 2000).unwrap() >= 2000.0);
    assert!(clean_sync(&library).unwrap() > 0.0);
    library.close().unwrap();

    let device = Arc::new(MemDevice::new(128 << 20));
    let options = MountOptions { cache_size: 8 << 20, ..MountOptions::default() };
    let library = Library::on(device, &FormatOptions::default(), options).unwrap();
    let error = fill(&library, 8000).unwrap_err().to_string();
    assert!(error.contains("stayed in the cache"), "{error}");
    library.close().unwrap();
}

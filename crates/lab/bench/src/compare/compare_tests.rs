use super::*;
use kedge_device::MemDevice;
use std::sync::Arc;

/// Each load that needs no mount does its work through the library and in a directory.
#[test]
fn loads_do_their_work_in_both_worlds() {
    let device = Arc::new(MemDevice::new(256 << 20));
    let library = Library::on(device, &FormatOptions::default(), MountOptions::default()).expect("opens");
    let image = Ground::Library(Reopened::new(PathBuf::new(), library));
    let temp = tempfile::tempdir().expect("a directory");
    for (i, load) in LOADS.iter().enumerate() {
        let host = Root::Host(temp.path().to_owned()).make_dir(&format!("{i}")).expect("a directory");
        for root in [image.fresh().expect("empty"), host] {
            let rate = match load.work {
                Work::Calls(work) => work(&root, load.threads, 20),
                Work::Kept { prepare, run, .. } => prepare(&root, 20).and_then(|()| run(&root, 20)),
                Work::Tool { .. } => continue,
            };
            let rate = rate.unwrap_or_else(|e| panic!("{}: {e:#}", load.title));
            assert!(rate.is_finite() && rate > 0.0, "{}: {rate}", load.title);
        }
    }
}

#[test]
fn loads_are_chosen_by_a_part_of_their_title() {
    let titles = |texts: &[&str]| -> Vec<&str> {
        loads(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
            .iter()
            .map(|load| load.title)
            .collect()
    };
    assert_eq!(titles(&[]).len(), LOADS.len());
    assert_eq!(titles(&["dbench", "git"]), ["dbench, 16 clients", "git add and commit"]);
    assert!(titles(&["no such load"]).is_empty());
}

#[test]
fn kedgefs_always_takes_part() {
    let all: Vec<Peer> = Peer::value_variants().iter().copied().filter(|p| *p != Peer::Before).collect();
    assert_eq!(contestants(&[], false), all);
    assert_eq!(contestants(&[], true), Peer::value_variants());
    let asked = contestants(&[Peer::Fuse2fs, Peer::Ext4], false);
    assert_eq!(asked, [Peer::Kedge, Peer::Ext4, Peer::Fuse2fs], "in the order of reports");
    assert_eq!(
        contestants(&[Peer::Raw, Peer::Library], false),
        [Peer::Library, Peer::Raw],
        "as it was asked for"
    );
    assert_eq!(contestants(&[Peer::Kedge], false), [Peer::Kedge]);
    assert_eq!(contestants(&[Peer::Kedge], true), [Peer::Kedge, Peer::Before]);
}

/// The outcome of a round on one processor has the title of its load and says so, with a figure for
/// each metric.
#[test]
fn a_round_says_where_its_threads_ran() {
    let device = Arc::new(MemDevice::new(64 << 20));
    let library = Library::on(device, &FormatOptions::default(), MountOptions::default()).expect("opens");
    let image = Ground::Library(Reopened::new(PathBuf::new(), library));
    let temp = tempfile::tempdir().expect("a directory");
    let settings = Settings {
        dir: Some(temp.path().to_owned()),
        size: 64 << 20,
        rounds: Some(1),
        quick: true,
        written: false,
        kedge: "kedge".into(),
        before: None,
        interrupt: crate::Interrupt::new(|_| ()),
        progress: |_| (),
    };
    let place = Place::new(&settings).expect("a place");
    let load = LOADS.iter().find(|load| load.title == "empty files, 1 thread").expect("there is one");
    let free = round(&place, load, Places::Free, &image, 20).expect("done");
    let pinned = round(&place, load, Places::OneProcessor, &image, 20).expect("done");
    assert_eq!(free.values.len(), 1 + SEEN.len());
    assert_eq!(free.command, "# empty files, 1 thread: 20 files");
    assert!(pinned.command.starts_with("# empty files, 1 thread: 20 files, all on processor "));
    assert!(free.values[1].is_nan(), "no server: {:?}", free.values);
    assert!(free.values[3].is_finite() && free.values[4].is_finite(), "{:?}", free.values);
    assert_eq!(Places::OneProcessor.title(load), "empty files, 1 thread; all on one processor");
}

#[test]
fn what_is_durable_is_compared_with_durable_writes() {
    let durable = LOADS.iter().filter(|load| fits(Peer::Raw, load)).count();
    assert_eq!(durable, 16);
    assert!(LOADS.iter().all(|load| fits(Peer::Ext4, load)));
    assert!(LOADS.iter().filter(|load| !fits(Peer::Library, load)).count() == 3, "programs need a mount");
    assert!(LOADS.iter().all(|load| fits(Peer::Redoxfs, load) != load.durable), "its fsync does nothing");
    assert_eq!(LOADS.iter().filter(|load| !fits(Peer::Tmpfs, load)).count(), 2, "it has nothing cold");
}

/// A directory that a round prepared is reused by the next one. If its content differs, that is an
/// error.
#[test]
fn what_is_kept_is_made_once() {
    let device = Arc::new(MemDevice::new(64 << 20));
    let library = Library::on(device, &FormatOptions::default(), MountOptions::default()).expect("opens");
    let image = Ground::Library(Reopened::new(PathBuf::new(), library));
    let walk = LOADS.iter().find(|load| matches!(load.work, Work::Kept { name: "tree", cold: false, .. }));
    let Work::Kept { name, prepare, run, .. } = walk.expect("there is one").work else { unreachable!() };
    image.kept(name, prepare, 20).expect("made");
    let kept = image.kept(name, |_, _| bail!("made twice"), 20).expect("there");
    run(&kept, 20).expect("walked");
    kept.create("more").expect("created");
    let told = run(&kept, 20).expect_err("one more").to_string();
    assert_eq!(told, "22 were found where 20 files are");
}

/// A bar compares with the best of the measured contestants. Without any there is no bar.
#[test]
fn a_bar_is_by_the_best_of_those_that_are_there() {
    let outcome = |sides: &[(Peer, f64)]| {
        let sides = sides.iter().map(|(peer, rate)| {
            let mut sample = crate::sample::Sample::default();
            sample.push(*rate);
            crate::contest::Side {
                name: peer.name(),
                command: String::new(),
                samples: vec![sample],
                failed: None,
            }
        });
        let metrics = vec![Metric::new("", "files/s", Better::Higher)];
        Outcome { title: "load".into(), metrics, goal: None, sides: sides.collect(), published: vec![] }
    };
    let wanted = Wanted { whose: Peer::Kedge, times: 2.5, of: &[Peer::Ext4, Peer::Xfs] };
    let all = outcome(&[(Peer::Kedge, 50.0), (Peer::Ext4, 10.0), (Peer::Xfs, 25.0), (Peer::Tmpfs, 900.0)]);
    let bar_of_all = bar(&wanted, &all).expect("all are there");
    assert_eq!((bar_of_all.reached, bar_of_all.met), (Some(2.0), false));
    assert_eq!(bar_of_all.what, "load: KedgeFS by the best of ext4, XFS");
    let one = bar(&wanted, &outcome(&[(Peer::Kedge, 50.0), (Peer::Ext4, 10.0)])).expect("one is there");
    assert_eq!((one.reached, one.met), (Some(5.0), true));
    assert!(bar(&wanted, &outcome(&[(Peer::Kedge, 50.0), (Peer::Tmpfs, 1.0)])).is_none());
    assert!(bar(&wanted, &outcome(&[(Peer::Ext4, 50.0)])).is_none());
}

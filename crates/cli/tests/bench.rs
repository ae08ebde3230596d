//! `kedge bench` refuses what makes no sense before it makes anything. That it measures is for people to see: it takes
//! minutes and a quiet machine.

mod common;
use common::Place;

#[test]
fn requests_that_make_no_sense() {
    let place = Place::new();
    assert_eq!(place.run("bench").code, 2, "no experiment");
    place.run("bench baseline --only everything").refused(2, &["everything", "fs_mark, library, dbench"]);
    place.run("bench baseline --size 16M").refused(2, &["16M", "256M"]);
    place.run("bench baseline --rounds 0").refused(2, &["0"]);
    place.run("bench baseline --json --markdown").refused(2, &["--json", "--markdown"]);
    place.run("bench baseline --dir gone").refused(1, &["gone"]);
    assert_eq!(std::fs::read_dir(place.path("")).unwrap().count(), 0, "nothing was made");
    assert!(place.run("bench baseline --help").ok().contains("--quick"));
}

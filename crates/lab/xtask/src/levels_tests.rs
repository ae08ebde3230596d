use super::*;

const PAGE: &str = "//! A file uses only those before it:\n//! 1. values: `a`, `b`;\n//! 2. `c::{d, e}`;\n\
                    //!    and `f`;\n//! 3. the rest of `c`.\n//!\n//! `a` -> `f`, because it
                    //!    must.\n";

fn faults_of(files: &[(&str, &str)]) -> Vec<String> {
    let all = ["a", "b", "c", "c::d", "c::e", "c::x", "f"].map(|name| (name, ""));
    let mut found = Files::new();
    for (module, text) in all.iter().chain(files) {
        found.insert((*module).to_owned(), (*text).to_owned());
    }
    faults(&page(PAGE).unwrap(), &found)
}

#[test]
fn a_page_has_levels_and_what_is_allowed() {
    let page = page(PAGE).unwrap();
    let level = |name: &str| level(&page, name);
    assert_eq!(
        ["a", "c::d", "f", "c::x", "c", "z"].map(level),
        [Some(1), Some(2), Some(2), Some(3), Some(3), None]
    );
    assert!(super::page("//! Something else.\n").is_none());
}

#[test]
fn an_edge_upwards_is_found() {
    let allowed = ("a", "use crate::f::F;\n");
    assert!(faults_of(&[allowed, ("c::x", "use crate::a::A;\n")]).is_empty());
    assert_eq!(faults_of(&[allowed, ("b", "use crate::c::e::E;\n")]), ["b (level 1) uses c::e (level 2)"]);
    assert_eq!(faults_of(&[allowed, ("c::d", "use super::x::X;\n")]), ["c::d (level 2) uses c::x (level 3)"]);
    assert_eq!(faults_of(&[]), ["`a` -> `f` is allowed and not used"]);
    assert_eq!(faults_of(&[allowed, ("z", "use crate::a::A;\n")]), ["z has no level"]);
}

#[test]
fn the_crates_that_list_levels_keep_them() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    check_in(&crates, &LISTED).unwrap();
    // `base` has no list: a crate that must have one and lost it is reported by its name.
    let missing = check_in(&crates, &["base", "btree"]).unwrap_err().to_string();
    assert!(missing.contains(r#"{"base"}"#), "{missing}");
}

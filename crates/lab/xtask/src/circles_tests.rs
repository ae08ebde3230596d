use super::*;

fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let files: Files = files.iter().map(|(module, text)| (module.to_string(), code(text))).collect();
    circles(&edges(&files))
}

#[test]
fn a_circle_is_found_through_groups_and_inline_paths() {
    let a = ("a", "use crate::{b::{self, B}, c::C};\n");
    let b = ("b::x", "fn f() -> crate::a::A {}\n");
    assert!(found(&[a, ("b", "pub use x::B;\n"), b, ("c", "")]) == [["a", "b::x"]]);
    assert!(found(&[a, ("b", "pub use x::B;\n"), ("b::x", ""), ("c", "")]).is_empty());
    assert!(found(&[a, ("b", ""), ("c", "use super::a;\n")]) == [["a", "c"]]);
}

#[test]
fn comments_and_tests_are_no_edges() {
    let tests = "// crate::a\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n";
    assert!(found(&[("a", "use crate::b::B;\n"), ("b", tests)]).is_empty());
}

#[test]
fn a_name_that_the_root_passes_on_is_the_file_s_that_has_it() {
    let root = ("", "pub use a::{A, Other};\npub use b::B;\n");
    assert!(found(&[root, ("a", "use crate::B;\n"), ("b", "")]).is_empty());
    assert!(found(&[root, ("a", "use crate::B;\n"), ("b", "use crate::A;\n")]) == [["a", "b"]]);
}

#[test]
fn the_crates_that_have_none_keep_it() {
    check_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap();
}

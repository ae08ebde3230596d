//! `include/kedgefs.h` describes the library that was built: its functions, its structures, its
//! numbers. `cargo xtask header` generates it.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Place, built, is_there, ok, root};
use kedgefs_c::*;
use std::collections::BTreeSet;
use std::mem::offset_of;
use std::process::Command;

fn header() -> String {
    std::fs::read_to_string(root().join("include/kedgefs.h")).unwrap()
}

/// The names of the declared functions: the word before each `(`.
fn declared() -> BTreeSet<String> {
    let text = header();
    let code = text.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    let names = code.filter_map(|line| line.split_once('(')).map(|(before, _)| before);
    names.map(|before| before.rsplit([' ', '*']).next().unwrap().to_owned()).collect()
}

/// The functions that the sources export.
fn defined() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(root().join("src")).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for part in text.split("extern \"C\" fn ").skip(1) {
            names.extend(part.split_once('(').map(|(name, _)| name.to_owned()));
        }
    }
    // Only the C library calls the handler of forks.
    assert!(names.remove("in_child"));
    names
}

#[test]
fn the_header_declares_what_the_library_exports() {
    let declared = declared();
    assert!(declared.len() > 30 && declared.contains("kedgefs_pwrite"), "{declared:?}");
    assert_eq!(declared, defined());
    if !is_there("nm") {
        return kedge_base::skip::note("nm is not installed: the symbols of the library were not compared");
    }
    let symbols = ok(Command::new("nm").args(["--dynamic", "--defined-only"]).arg(built("libkedgefs_c.so")));
    let exported: BTreeSet<String> =
        symbols.lines().map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect();
    assert_eq!(declared, exported, "no other symbol leaves the shared library");
}

#[test]
fn structures_and_numbers_are_those_of_the_library() {
    macro_rules! layout {
        ($($number:ident)*; $($c:literal $rust:ident { $($field:ident)* })*) => {{
            let mut lines = vec![$(format!("{} {}", stringify!($number), $number)),*];
            $(
                lines.push(format!("{} {}", $c, size_of::<$rust>()));
                $(lines.push(format!("{}.{} {}", $c, stringify!($field), offset_of!($rust, $field)));)*
            )*
            lines
        }};
    }
    let wanted = layout! {
        KEDGEFS_READ KEDGEFS_WRITE KEDGEFS_CREATE KEDGEFS_EXCLUSIVE KEDGEFS_TRUNCATE KEDGEFS_NOREPLACE
        KEDGEFS_EXCHANGE KEDGEFS_NOFOLLOW KEDGEFS_XATTR_CREATE KEDGEFS_XATTR_REPLACE KEDGEFS_NOW
        KEDGEFS_KEEP KEDGEFS_SNAPSHOT KEDGEFS_FORCE KEDGEFS_KEEP_LIMIT KEDGEFS_NAME_MAX;
        "kedgefs_time_t" KedgeTime { sec nsec reserved }
        "kedgefs_stat_t" KedgeStat {
            ino size blocks rdev mode nlink uid gid atime mtime ctime btime reserved
        }
        "kedgefs_statvfs_t" KedgeStatvfs {
            blocks blocks_free blocks_available inodes inodes_free block_size name_max reserved
        }
        "kedgefs_limit_t" KedgeLimit { dir bytes_max bytes files_max files reserved }
        "kedgefs_piece_t" KedgePiece { offset data len }
        "kedgefs_dirent_t" KedgeDirent { ino mode name_len name }
    };
    let printed = Place::new().run("layout", [""; 0]);
    assert_eq!(printed.lines().collect::<Vec<_>>(), wanted);
    // Every number of the header must be in the list above, since only those are compared.
    let numbers = header().lines().filter(|line| line.starts_with("#define KEDGEFS_")).count();
    let listed = wanted.iter().filter(|line| line.starts_with("KEDGEFS_")).count();
    assert_eq!(numbers, listed + 2, "the guard and KEDGEFS_ABI are not in the list");
}

#[test]
fn the_shared_library_has_the_name_of_its_abi() {
    let abi = header().lines().find_map(|line| line.strip_prefix("#define KEDGEFS_ABI ").map(str::to_owned));
    let name = format!("libkedgefs.so.{}", abi.unwrap());
    let build = std::fs::read_to_string(root().join("build.rs")).unwrap();
    assert!(build.contains(&format!("-soname,{name}\"")), "{name} in build.rs");
    let library = std::fs::read(built("libkedgefs_c.so")).unwrap();
    let name = format!("\0{name}\0");
    assert!(library.windows(name.len()).any(|bytes| bytes == name.as_bytes()), "{name}");
}

/// Old C, new C and C++ accept the header by itself.
#[test]
fn compilers_accept_the_header() {
    let place = Place::new();
    let source = place.path("header.c");
    std::fs::write(&source, "#include <kedgefs.h>\nint main(void) { return kedgefs_version() == NULL; }\n")
        .unwrap();
    let include = root().join("include");
    let check = |compiler: &str, args: &[&str]| {
        let mut command = Command::new(compiler);
        command.args(args).args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]).arg(&include);
        ok(command.arg(&source));
    };
    for standard in ["-std=gnu99", "-std=c11", "-std=c17"] {
        check("cc", &[standard, "-pedantic"]);
    }
    match is_there("c++") {
        true => check("c++", &["-x", "c++", "-std=c++11"]),
        false => kedge_base::skip::note("there is no c++: the header was not compiled as C++"),
    }
}

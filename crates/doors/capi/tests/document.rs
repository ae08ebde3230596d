//! The commands and programs of docs/C.md work when a reader copies them, in the order of the page.
//! A block after a line that ends with "(`NAME`):" is a file of that name.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Place, built, is_there, ok, root};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

struct Block {
    language: String,
    file: Option<String>,
    text: String,
}

fn blocks(text: &str) -> Vec<Block> {
    let (mut found, mut before) = (Vec::new(), "");
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            let name = before.strip_suffix("`):").and_then(|text| text.rsplit_once('`')).map(|n| n.1);
            found.push(Block {
                language: language.to_owned(),
                file: name.map(str::to_owned),
                text: body.join("\n") + "\n",
            });
            before = "";
        } else if !line.is_empty() {
            before = line;
        }
    }
    found
}

#[test]
fn the_page_about_c() {
    let workspace = root().join("../../..").canonicalize().unwrap();
    let page = fs::read_to_string(workspace.join("docs/C.md")).unwrap();
    if !is_there("pkg-config") {
        return kedge_base::skip::note("pkg-config is not installed: the commands of docs/C.md did not run");
    }
    let has_python = is_there("python3");
    if !has_python {
        kedge_base::skip::note("python3 is not installed: the program in Python did not run");
    }
    // The checkout, with a stand-in for cargo, because a release build would take minutes. The
    // stand-in puts the libraries that cargo built with this test where the release build puts its
    // own.
    let place = Place::new();
    for name in ["Cargo.toml", "crates"] {
        symlink(workspace.join(name), place.path(name)).unwrap();
    }
    let (bin, home) = (place.path("bin"), place.path("home"));
    fs::create_dir(&bin).unwrap();
    fs::create_dir(&home).unwrap();
    let cargo = format!(
        "#!/bin/sh -eu\ntest \"$*\" = 'build --profile release -p kedgefs-capi'\nmkdir -p \"$CARGO_TARGET_DIR/release\"\n\
         ln -s {} {} \"$CARGO_TARGET_DIR/release/\"\n",
        built("libkedgefs_c.so").display(),
        built("libkedgefs_c.a").display()
    );
    fs::write(bin.join("cargo"), cargo).unwrap();
    fs::set_permissions(bin.join("cargo"), fs::Permissions::from_mode(0o755)).unwrap();

    let mut commands = String::new();
    for block in blocks(&page) {
        match (&block.file, &block.language[..]) {
            (Some(file), "c" | "python") => fs::write(place.path(file), &block.text).unwrap(),
            (None, "sh") if has_python || !block.text.starts_with("python3 ") => commands += &block.text,
            (None, "sh") => {}
            (_, other) => panic!("how does '{other}' run: {}", block.text),
        }
    }
    ok(Command::new("cc")
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"])
        .arg(root().join("include"))
        .arg(place.path("save.c")));
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let printed = ok(Command::new("sh")
        .args(["-euc", &commands])
        .current_dir(place.path(""))
        .env("PATH", path)
        .env("HOME", &home)
        .env("CARGO_TARGET_DIR", place.path("target"))
        .env_remove("DESTDIR"));
    let lines: Vec<&str> = printed.lines().collect();
    let first = format!("kedgefs {} is in {}", env!("CARGO_PKG_VERSION"), home.join(".local").display());
    let mut wanted =
        vec![&first[..], "saved", "the last note: buy milk", "saved", "the last note: buy bread", "saved"];
    wanted.extend(has_python.then_some("buy tea"));
    assert_eq!(lines, wanted);
}

/// A package is built below another root. The file of pkg-config must name the final directory.
#[test]
fn the_library_is_installed_below_another_root() {
    let place = Place::new();
    for name in ["Cargo.toml", "crates"] {
        symlink(root().join("../../..").join(name), place.path(name)).unwrap();
    }
    let release = place.path("target/release");
    fs::create_dir_all(&release).unwrap();
    fs::write(release.join("libkedgefs_c.so"), "shared").unwrap();
    fs::write(release.join("libkedgefs_c.a"), "static").unwrap();
    fs::create_dir(place.path("bin")).unwrap();
    symlink("/bin/true", place.path("bin/cargo")).unwrap();
    let install = |prefix: &str| {
        let path = format!("{}:{}", place.path("bin").display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(place.path("crates/doors/capi/install.sh"));
        command.arg(prefix).env("PATH", path).env("CARGO_TARGET_DIR", place.path("target"));
        common::output_of(command.env("DESTDIR", place.path("package")))
    };
    for _ in 0..2 {
        assert!(install("/usr").status.success());
    }
    let usr = place.path("package/usr");
    for (file, text) in
        [("libkedgefs.so", "shared"), ("libkedgefs.so.0", "shared"), ("libkedgefs.a", "static")]
    {
        assert_eq!(fs::read_to_string(usr.join("lib").join(file)).unwrap(), text, "{file}");
    }
    let header = fs::read_to_string(usr.join("include/kedgefs.h")).unwrap();
    assert_eq!(header, fs::read_to_string(root().join("include/kedgefs.h")).unwrap());
    let config = fs::read_to_string(usr.join("lib/pkgconfig/kedgefs.pc")).unwrap();
    assert!(config.starts_with("prefix=/usr\n") && !config.contains('@'), "{config}");
    assert!(config.contains(&format!("\nVersion: {}\n", env!("CARGO_PKG_VERSION"))), "{config}");
    let refused = install("relative");
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not an absolute path"));
}

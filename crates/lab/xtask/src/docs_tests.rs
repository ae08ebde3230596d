use super::*;

#[test]
fn the_documents_say_what_the_code_says() {
    run(true).unwrap();
}

#[test]
fn a_table_that_differs_is_found_and_mended() {
    let (file, name, make) = PARTS[0];
    let text = std::fs::read_to_string(root().join(file)).unwrap();
    let row = make().unwrap().lines().nth(2).unwrap().to_owned();
    let edited = text.replace(&row, "| edited by hand |");
    assert_ne!(edited, text);
    assert_eq!(render(file, &edited).unwrap(), text);
    // Marks that are missing, doubled, unknown or not closed are errors.
    let mark = begin(name);
    for bad in [
        text.replace(&mark, ""),
        text.replace(&mark, &format!("{mark}\n{END}\n{mark}")),
        format!("{text}{}\n{END}\n", begin("nothing that the code knows")),
        text.replace(END, ""),
    ] {
        assert!(render(file, &bad).is_err());
    }
}

/// docs/SEMANTICS.md, which is for users, names each guarantee of the crash model by its number.
#[test]
fn no_guarantee_is_kept_from_users() {
    let read = |file: &str| std::fs::read_to_string(root().join(file)).unwrap();
    let (model, semantics) = (read("docs/CRASH_MODEL.md"), read("docs/SEMANTICS.md"));
    let rows = model.lines().filter_map(|line| line.strip_prefix("| G")?.split(' ').next());
    let numbers: Vec<u32> = rows.map(|number| number.parse().unwrap()).collect();
    assert_eq!(numbers, (1..=numbers.len() as u32).collect::<Vec<_>>());
    assert!(numbers.len() >= 14);
    for number in numbers {
        let named = [",", ")", "."].iter().any(|end| semantics.contains(&format!("G{number}{end}")));
        assert!(named, "docs/SEMANTICS.md does not name G{number}");
    }
}

/// Each crate's README has the sections that CONTRIBUTING.md ("Where things are") requires.
#[test]
fn each_crate_has_a_readme_with_its_sections() {
    let crates = crate::circles::crates(&root().join("crates")).unwrap();
    assert!(crates.len() > 10);
    for dir in crates {
        let readme = std::fs::read_to_string(dir.join("README.md"))
            .unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        let sections: Vec<&str> = readme.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(sections, ["Invariants", "Seams", "Tests"], "{}", dir.display());
    }
}

/// Each design note has the sections that docs/rfcs/README.md requires, and a row in its table.
#[test]
fn each_design_note_has_its_sections_and_its_row() {
    const SECTIONS: [&str; 5] = ["Decision", "Compatibility", "Crash argument", "Tests", "Alternatives"];
    let dir = root().join("docs/rfcs");
    let index = std::fs::read_to_string(dir.join("README.md")).unwrap();
    let mut names: Vec<String> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "README.md")
        .collect();
    names.sort();
    let rows: Vec<&str> = index
        .lines()
        .filter_map(|line| line.strip_prefix("| [")?.split_once("](")?.1.split_once(')'))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(rows, names);
    for name in names {
        let text = std::fs::read_to_string(dir.join(&name)).unwrap();
        let sections: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("## "))
            .filter(|section| SECTIONS.contains(section))
            .collect();
        assert_eq!(sections, SECTIONS, "{name}");
    }
}

/// The table "Where the code is" of docs/ARCHITECTURE.md has a row for each crate, and no other.
#[test]
fn the_architecture_names_each_crate() {
    let text = std::fs::read_to_string(root().join("docs/ARCHITECTURE.md")).unwrap();
    let table = text.split_once("\n## Where the code is\n").unwrap().1;
    let table = table.split_once("\n\n").unwrap().0;
    let mut rows: Vec<&str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name)
        .collect();
    rows.sort_unstable();
    let crates = crate::circles::crates(&root().join("crates")).unwrap();
    let mut folders: Vec<&str> =
        crates.iter().map(|dir| dir.file_name().unwrap().to_str().unwrap()).collect();
    folders.sort_unstable();
    assert_eq!(rows, folders);
}

/// Files of other projects that the documents name.
const FOREIGN: &[&str] = &["src/pagecache/iobuf.rs"];

/// A source file that a document names in backticks exists: by its path from the root, from the
/// document, or from the folder of a crate (`fs/src/api.rs`).
#[test]
fn documents_name_source_files_that_exist() {
    let sources = sources().unwrap();
    let mut named = 0;
    for document in files().unwrap().into_iter().filter(|file| crate::words::applies_to(file)) {
        let text = std::fs::read_to_string(root().join(&document)).unwrap();
        let folder = Path::new(&document).parent().unwrap();
        for name in text.split('`').skip(1).step_by(2).filter(|name| {
            name.contains('/') && name.ends_with(".rs") && !name.contains(' ') && !FOREIGN.contains(name)
        }) {
            let by_crate = sources.iter().any(|source| source.ends_with(&format!("/{name}")));
            let exists = by_crate || root().join(name).exists() || root().join(folder).join(name).exists();
            assert!(exists, "{document} names {name}");
            named += 1;
        }
    }
    assert!(named > 50, "{named} names");
}

/// Only `kedge-host` among the programs around the engine opens a file system, as its README says.
#[test]
fn only_the_host_library_opens_images() {
    let doors = sources().unwrap().into_iter().filter(|source| source.starts_with("crates/doors/"));
    let opens: Vec<String> = doors
        .filter(|source| source.contains("/src/") && !source.ends_with("_tests.rs"))
        .filter(|source| {
            let text = std::fs::read_to_string(root().join(source)).unwrap();
            ["FileSystem::open", "kedgefs::open_image", "kedge_fsck::check"].iter().any(|call| {
                text.lines().any(|line| !line.trim_start().starts_with("//") && line.contains(call))
            })
        })
        .collect();
    assert_eq!(opens, ["crates/doors/host/src/engine.rs"]);
}

/// Each crate that must be reproducible has a clippy.toml with the longer list, where cargo finds
/// it.
#[test]
fn the_engine_and_its_libraries_have_the_longer_list_of_bans() {
    let list = std::fs::read_to_string(root().join("lints/engine.toml")).unwrap();
    let mut crates = crate::circles::crates(&root().join("crates")).unwrap();
    crates.retain(|dir| {
        let name = dir.file_name().unwrap().to_str().unwrap();
        dir.parent().unwrap().ends_with("engine")
            || ["fsck", "fuse", "host", "nfs", "transfer"].contains(&name)
    });
    assert!(crates.len() >= 13);
    for dir in crates {
        let found = std::fs::read_to_string(dir.join("clippy.toml")).ok();
        assert_eq!(found.as_deref(), Some(&*list), "{}", dir.display());
    }
    // The longer list contains everything that the workspace's list bans.
    let workspace = std::fs::read_to_string(root().join("clippy.toml")).unwrap();
    for line in workspace.lines().filter(|line| line.trim_start().starts_with("{ path")) {
        assert!(list.contains(line.trim()), "{line}");
    }
}

/// `docs/WALKS.md` names files and functions that exist.
#[test]
fn walks_pass_through_functions_that_exist() {
    let text = std::fs::read_to_string(root().join("docs/WALKS.md")).unwrap();
    let mut steps = 0;
    for row in text.lines().filter(|line| line.starts_with("| `crates/")) {
        let mut cells = row.split('`').skip(1).step_by(2);
        let (file, function) = (cells.next().unwrap(), cells.next().unwrap());
        let source = std::fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        let named = [format!("fn {function}("), format!("fn {function}<")];
        assert!(named.iter().any(|name| source.contains(name)), "{file} has no function {function}");
        steps += 1;
    }
    assert!(steps > 20, "{steps} steps");
}

/// If a crate's tests are modules of one program, each file must be named in it. Otherwise it would
/// not be compiled, and nothing would report that.
#[test]
fn each_file_of_tests_is_compiled() {
    let mut modules = 0;
    for dir in crate::circles::crates(&root().join("crates")).unwrap() {
        let manifest = std::fs::read_to_string(dir.join("Cargo.toml")).unwrap();
        let mut programs = folders(&dir.join("tests"));
        if manifest.contains("autotests = false") {
            programs.push(dir.join("tests"));
        }
        for program in programs {
            let Ok(main) = std::fs::read_to_string(program.join("main.rs")) else { continue };
            for entry in std::fs::read_dir(&program).unwrap() {
                let file = entry.unwrap().file_name().into_string().unwrap();
                let Some(name) = file.strip_suffix(".rs").filter(|name| *name != "main") else { continue };
                let is_module = main.lines().any(|line| line == format!("mod {name};"));
                let is_program = manifest.contains(&format!("[[test]]\nname = \"{name}\""));
                assert!(is_module != is_program, "{}: {file}", program.display());
                modules += u32::from(is_module);
            }
        }
    }
    assert!(modules > 100, "{modules} modules");
}

/// The folders in a folder; none if it does not exist.
fn folders(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect()
}

//! The package `kedgefs` passes its own tests (`python/tests`) in a Python that is on the machine,
//! with packages from its registry. With `KEDGE_LONG` the wheel is built, too, and installed in an
//! empty environment.
#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// The packages that the tests import. If one cannot be installed, its tests are skipped.
const PACKAGES: &[&str] = &["pytest", "fsspec", "pandas", "pyarrow", "zarr", "dask"];

/// How the lines about skipped tests begin in the summary of pytest.
const SKIPPED: &str = "SKIPPED ";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

/// The directory of this test's profile in the target directory.
fn built() -> PathBuf {
    let deps = std::env::current_exe().unwrap();
    deps.parent().unwrap().parent().unwrap().to_owned()
}

fn output(command: &mut Command) -> Output {
    let line = format!("{command:?}");
    command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{line}: {e}"))
}

#[track_caller]
fn ok(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = output(command);
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{out}{err}");
    out.into_owned()
}

/// Why Python cannot run the tests here; `None` if it can.
fn missing() -> Option<String> {
    let script = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))";
    let mut probe = Command::new("python3");
    let probed = probe.args(["-c", script]).stdin(Stdio::null()).stderr(Stdio::null()).status();
    let is_there = probed.is_ok_and(|status| status.success());
    (!is_there).then(|| "there is no python3 of version 3.11 or newer with venv and pip".to_owned())
}

/// Makes a Python environment with packages in `dir`.
fn environment(dir: &Path, packages: &[&str]) -> Result<PathBuf, String> {
    let python = dir.join("bin/python");
    if !python.exists() {
        ok(Command::new("python3").args(["-m", "venv"]).arg(dir));
    }
    let installed = output(
        Command::new(&python)
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"])
            .args(packages),
    );
    match installed.status.success() {
        true => Ok(python),
        false => Err(String::from_utf8_lossy(&installed.stderr).trim().to_owned()),
    }
}

/// A Python environment with [`PACKAGES`], which all tests share: pip takes half a minute of
/// processor time.
fn shared_environment() -> Result<PathBuf, String> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    MADE.get_or_init(|| environment(&built().join("python"), PACKAGES)).clone()
}

/// Runs pytest, and reports what it skipped.
fn pytest(python: &Path, kedge: Option<&Path>, path: Option<&Path>) {
    let cache = tempfile::tempdir().unwrap();
    let mut command = Command::new(python);
    command
        .args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--basetemp"])
        .arg(cache.path().join("t"));
    // Keep the bytecode of imported modules, but not beside the sources.
    command.current_dir(root().join("python")).env_remove("PYTHONPATH");
    command.env("PYTHONPYCACHEPREFIX", built().join("python-cache"));
    if let Some(path) = path {
        command.env("PYTHONPATH", path);
    }
    match kedge {
        Some(kedge) => command.env("KEDGE", kedge),
        None => command.env_remove("KEDGE"),
    };
    let printed = ok(&mut command);
    println!("{printed}");
    for line in printed.lines().filter(|line| line.starts_with(SKIPPED)) {
        kedge_base::skip::note(line);
    }
}

/// Lays the package out in a directory as the wheel would install it: its files, the library that
/// cargo has built, and the entry points.
fn lay_out(dir: &Path) {
    let sources = root().join("python/src");
    for package in ["kedgefs", "pytest_kedge_crash"] {
        fs::create_dir(dir.join(package)).unwrap();
        for entry in fs::read_dir(sources.join(package)).unwrap() {
            let entry = entry.unwrap();
            let is_source =
                entry.path().extension().is_some_and(|e| e == OsStr::new("py") || e == OsStr::new("pyi"));
            if is_source || entry.file_name() == OsStr::new("py.typed") {
                symlink(entry.path(), dir.join(package).join(entry.file_name())).unwrap();
            }
        }
    }
    let library = built().join("deps/lib_kedgefs.so");
    assert!(library.exists(), "cargo built no {}", library.display());
    symlink(library, dir.join("kedgefs/_kedgefs.abi3.so")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let about = dir.join(format!("kedgefs-{version}.dist-info"));
    fs::create_dir(&about).unwrap();
    fs::write(about.join("METADATA"), format!("Metadata-Version: 2.1\nName: kedgefs\nVersion: {version}\n"))
        .unwrap();
    let project: toml::Table =
        fs::read_to_string(root().join("python/pyproject.toml")).unwrap().parse().unwrap();
    let mut entries = String::new();
    for (group, names) in project["project"]["entry-points"].as_table().unwrap() {
        entries += &format!("[{group}]\n");
        for (name, place) in names.as_table().unwrap() {
            entries += &format!("{name} = {}\n", place.as_str().unwrap());
        }
    }
    fs::write(about.join("entry_points.txt"), entries).unwrap();
}

/// The program `kedge`, which another package builds.
fn kedge() -> PathBuf {
    let kedge = built().join("kedge");
    if !kedge.exists() {
        ok(Command::new(env!("CARGO")).args(["build", "--locked", "-p", "kedge"]).current_dir(root()));
    }
    kedge
}

#[test]
fn the_tests_of_the_package() {
    if let Some(why) = missing() {
        return kedge_base::skip::note(&format!("{why}: the tests of the Python package did not run"));
    }
    let python = match shared_environment() {
        Ok(python) => python,
        Err(why) => {
            return kedge_base::skip::note(&format!(
                "pip installs no packages, the tests of the Python package did not run: {why}"
            ));
        }
    };
    let place = tempfile::tempdir().unwrap();
    lay_out(place.path());
    pytest(&python, Some(&kedge()), Some(place.path()));
}

/// The blocks of docs/PYTHON.md in order, each with its file name if it is a file.
fn blocks() -> Vec<(Option<String>, String)> {
    let page = fs::read_to_string(root().join("docs/PYTHON.md")).unwrap();
    let (mut found, mut before) = (Vec::new(), "");
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("```") {
            let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            let name =
                before.strip_suffix("`):").and_then(|text| text.rsplit_once('`')).map(|n| n.1.to_owned());
            found.push((name, body.join("\n") + "\n"));
            before = "";
        } else if !line.is_empty() {
            before = line;
        }
    }
    found
}

/// The programs and commands of docs/PYTHON.md work when a reader copies them, in the order of the
/// page. A stand-in replaces `pip install`, which the other test runs.
#[test]
fn the_page_about_python() {
    if let Some(why) = missing() {
        return kedge_base::skip::note(&format!("{why}: the commands of docs/PYTHON.md did not run"));
    }
    let place = tempfile::tempdir().unwrap();
    let python = match shared_environment() {
        Ok(python) => python,
        Err(why) => {
            return kedge_base::skip::note(&format!(
                "pip installs no packages, the commands of docs/PYTHON.md did not run: {why}"
            ));
        }
    };
    let bin = place.path().join("bin");
    fs::create_dir(&bin).unwrap();
    symlink("/bin/true", bin.join("pip")).unwrap();
    symlink(kedge(), bin.join("kedge")).unwrap();
    let (package, home) = (place.path().join("package"), place.path().join("home"));
    fs::create_dir(&package).unwrap();
    fs::create_dir(&home).unwrap();
    lay_out(&package);
    let mut commands = String::new();
    for (name, text) in blocks() {
        match name {
            Some(name) => {
                fs::write(home.join(&name), &text).unwrap();
                match &name[..] {
                    // The page's commands run this program.
                    "note.py" => {}
                    name if name.starts_with("test_") => {
                        commands += "python3 -m pytest -q -p no:cacheprovider\n";
                    }
                    name => commands += &format!("python3 {name}\n"),
                }
            }
            None => commands += &text,
        }
    }
    let (programs, others) = (python.parent().unwrap(), std::env::var("PATH").unwrap());
    let path = format!("{}:{}:{others}", bin.display(), programs.display());
    let mut shell = Command::new("sh");
    shell.args(["-euc", &commands]).current_dir(&home).env("PATH", path).env("PYTHONPATH", &package);
    shell.env("PYTHONPYCACHEPREFIX", built().join("python-cache"));
    let printed = ok(&mut shell);
    for line in ["saved\nthe last note: buy milk\nsaved\nbuy bread", "1 passed"] {
        assert!(printed.contains(line), "{printed}");
    }
    let table = home.join("data.kedge");
    let found = ok(Command::new(kedge()).arg("ls").arg(format!("{}:/tables", table.display())));
    assert_eq!(found.trim(), "t.parquet");
}

/// `pip install ./python` in an empty environment gives the package, the command and the plugin.
#[test]
fn the_wheel_is_built_installed_and_used() {
    if std::env::var_os("KEDGE_LONG").is_none_or(|v| v != "1") {
        return println!("a release build: only in a long run (KEDGE_LONG=1)");
    }
    if let Some(why) = missing() {
        return kedge_base::skip::note(&format!("{why}: the wheel was not built"));
    }
    let place = tempfile::tempdir().unwrap();
    let python = match environment(place.path(), PACKAGES) {
        Ok(python) => python,
        Err(why) => {
            return kedge_base::skip::note(&format!("pip installs no packages, no wheel was built: {why}"));
        }
    };
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    ok(Command::new(&python).args(install).arg(root().join("python")));
    pytest(&python, None, None);
    let version = ok(Command::new(place.path().join("bin/kedge")).arg("--version"));
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
}

//! `kedge install-helpers`, tested with the programs that read the installed files: man(1), the
//! shells, systemd-analyze(1).

use crate::common::{Place, needs_fuse, output_of, tool, until};
use kedge_base::HANG;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory with everything installed below `usr`.
fn installed() -> Place {
    let place = Place::new();
    let prefix = place.path("usr");
    place.kedge(["install-helpers", "--prefix", prefix.to_str().unwrap()]).ok();
    place
}

/// All files below a directory, sorted.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                left.push(entry.path());
            } else {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

#[test]
fn man_renders_every_page_without_a_warning() {
    let place = installed();
    let pages = files(&place.path("usr/share/man"));
    assert!(pages.len() > 15, "{pages:?}");
    for page in pages {
        let mut command = place.command("man");
        command.args(["--warnings", "-E", "UTF-8", "-l"]).arg(&page).env("MANWIDTH", "80");
        // man(1) needs this locale to read the pages as UTF-8.
        command.env("LC_ALL", "C.UTF-8").env_remove("LANGUAGE");
        let out = output_of(command).expect("man is not installed: apt-get install -y man-db");
        let (text, complaints) =
            (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
        assert!(out.status.success() && complaints.is_empty(), "{}: {complaints}", page.display());
        let name = page.file_stem().unwrap().to_str().unwrap();
        for heading in ["NAME", "SEE ALSO"] {
            assert!(text.contains(heading), "{heading} in {}", page.display());
        }
        // man(1) justifies lines, so join the words with single spaces.
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&format!("NAME {name} - ")), "whatis(1) would find {name}: {text}");
        assert!(!text.contains('`'), "no mark of the source is left in {name}: {text}");
    }
}

#[test]
fn the_pages_tell_what_help_tells() {
    let place = installed();
    let page = |name: &str| fs::read_to_string(place.path("usr/share/man/man8").join(name)).unwrap();
    for (name, words) in [
        ("kedge-mkfs.8", ["log\\-size", "label"]),
        ("mount.kedgefs.8", ["cache\\-size", "IMAGE"]),
        ("fsck.kedgefs.8", ["json", "Errors are left"]),
    ] {
        words.iter().for_each(|word| assert!(page(name).contains(word), "{word} in {name}"));
    }
    assert!(!page("mount.kedgefs.8").contains("faults"), "what is for tests is not shown");
}

#[test]
fn shells_complete_subcommands_and_options() {
    let place = installed();
    let usr = place.path("usr").display().to_string();
    let bash = format!(
        "source {usr}/share/bash-completion/completions/kedge
         COMP_WORDS=(kedge mkf) COMP_CWORD=1; _kedge kedge mkf kedge; echo ${{COMPREPLY[@]}}
         COMP_WORDS=(kedge fsck --js) COMP_CWORD=2; _kedge kedge --js fsck; echo ${{COMPREPLY[@]}}"
    );
    let mut command = place.command("bash");
    command.args(["--norc", "-c", &bash]);
    assert_eq!(tool(command, "bash"), "mkfs\n--json\n");

    let zsh = format!(
        "fpath=({usr}/share/zsh/site-functions $fpath); autoload -Uz compinit
         compinit -u -d {usr}/dump; print $_comps[kedge]; autoload +X _kedge && print loaded"
    );
    let mut command = place.command("zsh");
    command.args(["-f", "-c", &zsh]);
    assert_eq!(tool(command, "zsh"), "_kedge\nloaded\n");

    let fish = format!(
        "source {usr}/share/fish/vendor_completions.d/kedge.fish; complete -C 'kedge mkf'; complete -C 'kedge info --js'"
    );
    let mut command = place.command("fish");
    command.args(["--no-config", "-c", &fish]).env("HOME", place.path(""));
    let out = tool(command, "fish");
    let words: Vec<&str> = out.lines().filter_map(|l| l.split('\t').next()).collect();
    assert_eq!(words, ["mkfs", "--json"], "{out}");
}

#[test]
fn systemd_finds_no_fault_in_the_units() {
    let place = installed();
    let usr = place.path("usr");
    for unit in ["lib/systemd/system/kedge@.service", "share/doc/kedge/examples/mnt-data.mount"] {
        let mut command = place.command("systemd-analyze");
        // systemd-analyze also searches for the man pages that the unit names.
        command.args(["verify", "--man=yes"]).arg(usr.join(unit)).env("MANPATH", usr.join("share/man"));
        command.env("LC_ALL", "C");
        let out = output_of(command).expect("apt-get install -y systemd");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        // Ignore complaints about other units of the machine.
        let ours: Vec<&str> =
            said.lines().filter(|l| l.contains("kedge") || l.contains("mnt-data")).collect();
        assert!(out.status.success() && ours.is_empty(), "{unit}: {said}");
    }
    let unit = usr.join("lib/systemd/system/kedge@.service");
    let text = fs::read_to_string(&unit).unwrap();
    assert!(text.contains(&format!("ExecStart={}/bin/kedge daemon", usr.display())), "{text}");
    assert!(text.contains("\nType=notify\n"), "the manager waits for the mounts: {text}");
    // systemd-analyze finds a fault: the check fails for a unit whose program does not exist.
    fs::write(&unit, text.replace("bin/kedge daemon", "bin/gone daemon")).unwrap();
    let mut command = place.command("systemd-analyze");
    command.arg("verify").arg(&unit);
    assert!(!output_of(command).unwrap().status.success());
}

#[test]
fn the_example_of_the_daemon_is_read() {
    let place = installed();
    let example = place.path("usr/share/doc/kedge/examples/data.toml");
    let run = place.kedge(["daemon", example.to_str().unwrap()]);
    // The command fails only at the image, which does not exist.
    assert!(run.code == 1 && run.err.contains("/srv/disk.kedge"), "{}", run.err);
}

#[test]
fn what_others_installed_stays() {
    let place = Place::new();
    let prefix = place.path("usr").display().to_string();
    let install = |more: &[&str]| place.kedge([&["install-helpers", "--prefix", &prefix], more].concat());
    let helper = place.path("usr/sbin/mkfs.kedgefs");
    fs::create_dir_all(helper.parent().unwrap()).unwrap();
    fs::write(&helper, "another's").unwrap();

    install(&[]).refused(1, &["mkfs.kedgefs", "not a link to kedge", "-f"]);
    assert_eq!(files(&place.path("usr")), std::slice::from_ref(&helper), "nothing was written");
    assert!(!install(&["--dry-run", "--force"]).ok().is_empty());
    assert_eq!(files(&place.path("usr")), std::slice::from_ref(&helper), "nothing was written");
    assert!(install(&["--remove"]).ok().is_empty());
    assert_eq!(fs::read(&helper).unwrap(), b"another's");

    install(&["--force"]).ok();
    assert_eq!(fs::read_link(&helper).unwrap(), Path::new("../bin/kedge"));
    // Install again over the existing files. A link to an older program is replaced.
    fs::remove_file(&helper).unwrap();
    symlink("/opt/old/kedge", &helper).unwrap();
    install(&[]).ok();
    assert_eq!(fs::read_link(&helper).unwrap(), Path::new("../bin/kedge"));

    let mine = place.path("usr/share/man/man8/other.8");
    fs::write(&mine, "another's").unwrap();
    install(&["--remove"]).ok();
    assert_eq!(files(&place.path("usr")), [mine], "what was installed is gone, and nothing else");
}

#[test]
fn obstacles_are_named() {
    let place = Place::new();
    place.run("install-helpers --prefix usr").refused(2, &["usr", "absolute"]);
    place.run("install-helpers --prefix /x --sbin sbin").refused(2, &["sbin", "absolute"]);
    fs::write(place.path("file"), "").unwrap();
    let below = place.path("file/usr").display().to_string();
    place.kedge(["install-helpers", "--prefix", &below]).refused(1, &["file/usr"]);
    fs::create_dir_all(place.path("usr/bin/kedge")).unwrap();
    let prefix = place.path("usr").display().to_string();
    place.kedge(["install-helpers", "--prefix", &prefix]).refused(1, &["bin/kedge is a directory"]);
}

#[test]
fn a_package_is_staged_and_its_program_runs() {
    let place = Place::new();
    let root = place.path("stage");
    let words =
        ["install-helpers", "--prefix", "/usr", "--sbin", "/usr/sbin", "--root", root.to_str().unwrap()];
    place.kedge(words).ok();
    // The umask must not hide the files from other users.
    for file in files(&root) {
        let meta = fs::symlink_metadata(&file).unwrap();
        assert!(meta.is_symlink() || meta.permissions().mode() & 0o444 == 0o444, "{file:?}");
    }
    let mut command = Command::new(root.join("usr/sbin/mkfs.kedgefs"));
    command.current_dir(place.path("")).args(["--size", "16M", "disk.kedge"]);
    assert!(tool(command, "kedge").contains("uuid"));
    let unit = fs::read_to_string(root.join("usr/lib/systemd/system/kedge@.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/kedge daemon"), "the path is the installed system's");
}

/// The service manager gets READY=1 when all images are mounted, not before.
#[test]
fn the_service_manager_is_told_when_the_mounts_are_live() {
    needs_fuse!();
    let place = Place::after("mkfs --size 32M disk.kedge");
    fs::create_dir(place.path("mnt")).unwrap();
    fs::write(place.path("d.toml"), "[[mount]]\nimage = \"disk.kedge\"\ndir = \"mnt\"\n").unwrap();
    for line in ["daemon d.toml", "mount --foreground disk.kedge mnt"] {
        let manager = UnixDatagram::bind(place.path("notify")).unwrap();
        manager.set_read_timeout(Some(HANG)).unwrap();
        let mut command = place.command(env!("CARGO_BIN_EXE_kedge"));
        command.args(line.split(' ')).env("NOTIFY_SOCKET", place.path("notify"));
        let mut server = command.spawn().unwrap();
        let mut heard = [0; 64];
        let n = manager.recv(&mut heard).unwrap();
        assert_eq!(&heard[..n], b"READY=1", "{line}");
        // The mount is live.
        fs::write(place.path("mnt/a"), line).unwrap();
        place.unmount();
        assert!(server.wait().unwrap().success(), "{line}");
        fs::remove_file(place.path("notify")).unwrap();
    }
    until("the image is closed", || place.run("fsck disk.kedge").code == 0);
    // If no manager listens, the mount still works.
    let mut command = place.command(env!("CARGO_BIN_EXE_kedge"));
    command.args(["mount", "--foreground", "disk.kedge", "mnt"]).env("NOTIFY_SOCKET", "nonsense");
    let mut server = command.spawn().unwrap();
    until("it is mounted", || {
        assert_eq!(server.try_wait().unwrap(), None, "the server has ended");
        kedge_fuse::mount_at(&place.path("mnt").canonicalize().unwrap()).is_some()
    });
    place.unmount();
    assert!(server.wait().unwrap().success());
}

/// Completions do not offer hidden options, and each page has the sections that its options refer
/// to.
#[test]
fn completions_and_pages_have_what_the_help_has() {
    let place = installed();
    for script in [
        "share/bash-completion/completions/kedge",
        "share/zsh/site-functions/_kedge",
        "share/fish/vendor_completions.d/kedge.fish",
    ] {
        let text = fs::read_to_string(place.path("usr").join(script)).unwrap();
        for shown in ["mkfs", "install-helpers", "takeover", "slow-fsync", "explore"] {
            assert!(text.contains(shown), "{shown} in {script}");
        }
        for hidden in ["bench", "as-daemon", "faults"] {
            assert!(!text.contains(hidden), "{hidden} in {script}");
        }
    }
    let page = fs::read_to_string(place.path("usr/share/man/man8/kedge-mount.8")).unwrap();
    for option in ["commit=SECONDS", "cache_size=SIZE", "volatile"] {
        assert!(page.contains(option), "{option} in {page}");
    }
}

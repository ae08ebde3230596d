//! The commands in the README and in docs/*.md work as described when a reader copies them.
//!
//! The blocks of a section run in order, as printed, in a fresh directory of that section, with the
//! built `kedge` first in PATH. A block after a line that ends with "(`NAME`):" is a file of that
//! name; a `test_….py` is run by pytest. The `run:` steps of a workflow are run. Rust is compiled
//! and run with the tests of documentation (`kedgefs` has the README, `kedge-crash` the page on
//! crash tests). Programs and directories that a document presupposes are in [`GIVEN`]; blocks that
//! cannot run here are in [`ELSEWHERE`], with the reason.

#![allow(clippy::unwrap_used)]

mod common;
use common::{Place, needs_fuse, output_of};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const ELSEWHERE_C: &str = "the page runs as a whole in the tests of kedgefs-capi, which has the library";

const PACKAGES: &str = "needs podman and release builds; cargo xtask installs does it";

const ELSEWHERE_PYTHON: &str =
    "the page runs as a whole in the tests of kedgefs-python, which has the package";

/// Blocks that do not run here: document, first line, reason.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    (
        "docs/CRASH_TESTING.md",
        "kedge crash record --mappings --ack '^saved' -o run.kcr -- ./my-mapped-log",
        "needs a program that maps files; tests/crash/mapped.rs records some in this way",
    ),
    ("README.md", "let mut file = fs.root().create(\"greeting\")?;", "an excerpt of the program below it"),
    ("README.md", "cargo xtask test", "it is what runs this test"),
    (
        "docs/SEMANTICS.md",
        "git clone https://git.kernel.org/pub/scm/fs/xfs/xfstests-dev.git && make -C xfstests-dev",
        "builds xfstests, and runs for most of an hour",
    ),
    (
        "docs/OPERATIONS.md",
        "cargo build --release                        # Rust 1.88 or newer; gives target/release/kedge",
        "writes below /usr/local; tests/command/install.rs does it below another prefix",
    ),
    (
        "docs/SQLITE.md",
        "cargo build --release -p kedge -p kedgefs-sqlite",
        "a release build; the tests of kedgefs-sqlite build the extension",
    ),
    ("docs/SQLITE.md", "import sqlite3", "the tests of kedgefs-sqlite run it with the extension"),
    (
        "docs/SQLITE.md",
        "let mut write = file.atomic()?;",
        "an excerpt; kedgefs --test library atomic makes such writes",
    ),
    (
        "docs/DISTRIBUTED.md",
        "# where the bytes are (Debian: nbdkit, or qemu-utils for qemu-nbd)",
        "needs nbdkit and a second host; tests/command/remote.rs mounts over NBD",
    ),
    (
        "docs/DISTRIBUTED.md",
        "ceph auth get-or-create client.fs mon 'profile rbd' osd 'profile rbd pool=rbd'",
        "needs a Ceph cluster; tests/rbd has one where librbd and Ceph are installed",
    ),
    (
        "docs/NFS.md",
        "kedge serve nfs disk.kedge          # stays in the foreground, on port 2049 of 127.0.0.1",
        "stays in the foreground; tests/command/nfs.rs starts and ends it",
    ),
    (
        "docs/NFS.md",
        "kedge mkfs --size 1G disk.kedge && mkdir mnt",
        "needs an NFS client in the kernel; tests/command/nfs_beside.rs has one of its own",
    ),
    (
        "docs/NFS.md",
        "sudo mount -t nfs -o vers=3,tcp,nolock,port=2049,mountport=2049 127.0.0.1:/ /mnt",
        "needs an NFS client in the kernel",
    ),
    (
        "docs/NFS.md",
        "sudo mount -t nfs -o vers=3,tcp,nolock,port=2049,mountport=2049 127.0.0.1:/monday /mnt",
        "needs an NFS client in the kernel",
    ),
    (
        "docs/PERFORMANCE.md",
        "cargo run --release -p kedge-nfs --example creates -- bench.kedge 2",
        "measurements",
    ),
    (
        "docs/C.md",
        "crates/doors/capi/install.sh \"$HOME/.local\"     # header, libkedgefs.so, libkedgefs.a, kedgefs.pc",
        ELSEWHERE_C,
    ),
    ("docs/C.md", "#include <kedgefs.h>", ELSEWHERE_C),
    ("docs/C.md", "export PKG_CONFIG_PATH=\"$HOME/.local/lib/pkgconfig\"", ELSEWHERE_C),
    (
        "docs/C.md",
        "cc save.c -o save-alone $(pkg-config --cflags kedgefs) \"$HOME/.local/lib/libkedgefs.a\" $(pkg-config --variable=static_libs kedgefs)",
        ELSEWHERE_C,
    ),
    ("docs/C.md", "import ctypes, os, sys", ELSEWHERE_C),
    ("docs/C.md", "python3 note.py \"$HOME/.local/lib/libkedgefs.so\"", ELSEWHERE_C),
    ("docs/PYTHON.md", "pip install ./python", ELSEWHERE_PYTHON),
    ("docs/PYTHON.md", "import sys", ELSEWHERE_PYTHON),
    ("docs/PYTHON.md", "python3 note.py \"buy milk\"", ELSEWHERE_PYTHON),
    ("docs/PYTHON.md", "import kedgefs", ELSEWHERE_PYTHON),
    ("docs/PYTHON.md", "import pandas", ELSEWHERE_PYTHON),
    (
        "docs/NFS.md",
        "apt-get download \"$(apt-cache depends linux-image-amd64 | awk '/Depends:/ { print $2; exit }')\"",
        "a kernel from Debian, in a virtual machine",
    ),
    ("docs/NFS.md", "apt-get download user-mode-linux", "a kernel from Debian, and measurements"),
    ("docs/NFS.md", "ssh -N -L 2049:127.0.0.1:2049 user@server &", "needs a second machine"),
    (
        "docs/NFS.md",
        "sudo kedge serve nfs --listen 192.0.2.1:111 --squash all --anonymous 1000:1000 disk.kedge",
        "needs Windows",
    ),
    (
        "docs/EXPERIMENTS.md",
        "cargo build --release -p kedge -p kedge-bench && cargo build --release -p kedge-fuse --example null",
        "a release build and an hour of measurements",
    ),
    (
        "docs/EXPERIMENTS.md",
        "sudo target/release/kedge-lab bench later --markdown --out docs/results/later.md",
        "measurements",
    ),
    (
        "docs/EXPERIMENTS.md",
        "for e in rename fdatasync checkpoint tree-lock writeback sync; do",
        "an hour of measurements",
    ),
    (
        "docs/EXPERIMENTS.md",
        "cargo build --release -p kedge -p kedge-bench",
        "two builds and an hour of measurements",
    ),
    (
        "docs/PERFORMANCE.md",
        "cargo build --release -p kedge -p kedge-bench",
        "a release build and measurements",
    ),
    (
        "docs/PERFORMANCE.md",
        "target/release/kedge-lab bench baseline --markdown --out docs/results/baseline.md",
        "measurements",
    ),
    (
        "docs/KEEPER.md",
        "KEDGE_KEEPER_DEATHS=10000 cargo test --release \\",
        "ten thousand deaths take an hour; other tests have some",
    ),
    (
        "docs/INSTALL.md",
        "podman run --detach --name disk --device /dev/fuse --cap-add SYS_ADMIN --security-opt apparmor=unconfined --volume /srv:/srv:rshared kedgefs:0.1.0 mount --foreground --create 1G /srv/disk.kedge /srv/mnt",
        PACKAGES,
    ),
    (
        "docs/INSTALL.md",
        "podman run --detach --name disk --volume /srv:/srv kedgefs:0.1.0 serve nfs --any-port /srv/disk.kedge",
        PACKAGES,
    ),
    (
        "docs/INSTALL.md",
        "cargo xtask installs                 # all ways, or some: static arm64 brew nix image deb libraries wheel cargo",
        PACKAGES,
    ),
    (
        "docs/CRASH_TESTING.md",
        "ln -s \"$(command -v kedge)\" lazyfs/build/lazyfs     # instead of building LazyFS",
        "needs the scripts of LazyFS; tests/crash/lazyfs.rs gives the command the same words",
    ),
    (
        "docs/CRASH_TESTING.md",
        "(defn lose-unsynced [db fifo done]",
        "needs Jepsen; tests/crash/lazyfs.rs does the same at the pipes",
    ),
    (
        "docs/CRASH_TESTING.md",
        "truncate -s 16M base; mkfs.ext4 -q base",
        "needs root and loop devices; tests/crash/device.rs does the same with them",
    ),
    (
        "docs/CRASH_TESTING.md",
        "kedge crash bisect v1.0 main --build 'make -j2' --ack '^saved' --check ./check.sh -- ./my-program",
        "needs a repository; tests/crash/commits.rs runs both commands in one",
    ),
    (
        "docs/CRASH_TESTING.md",
        "- uses: OWNER/kedgefs/.github/actions/crash-test@main",
        "needs GitHub; tests/crash/ci.rs runs the steps of the action",
    ),
    (
        "docs/CRASH_TESTING.md",
        "include: { project: GROUP/kedgefs, file: /.gitlab/crash-test.yml }",
        "needs GitLab; tests/crash/ci.rs runs the scripts of the job",
    ),
    (
        "docs/PERFORMANCE.md",
        "sudo target/release/kedge-lab bench scale --markdown --out docs/results/scale.md --svg docs/results/scale.svg",
        "measurements of hours",
    ),
    (
        "docs/PERFORMANCE.md",
        "git worktree add before 5ed6b645 && (cd before && cargo build --release -p kedge)",
        "builds of two versions and measurements",
    ),
    (
        "docs/PERFORMANCE.md",
        "cargo build --release -p kedge -p kedge-bench && cargo build --release -p kedge-fuse --example null",
        "a release build and measurements",
    ),
    (
        "docs/PERFORMANCE.md",
        "echo Y > /sys/module/fuse/parameters/enable_uring",
        "a switch of the kernel, and measurements",
    ),
];

/// The state that a block presupposes: document, first line, commands that make it.
const GIVEN: &[(&str, &str, &str)] = &[
    (
        "README.md",
        "kedge crash record --ack '^saved' -o run.kcr -- ./my-program          # it writes below $KEDGE_DIR",
        "program my-program; program my-check",
    ),
    ("README.md", "alias kedge=$PWD/target/release/kedge", "cargo build --release"),
    (
        "docs/OPERATIONS.md",
        "kedge mkfs --size 4G -L data disk.kedge      # or a block device; -f overwrites what it holds",
        "mkdir mnt",
    ),
    (
        "docs/OPERATIONS.md",
        "kedge mkfs --from rootfs/ root.kedge               # as large as it has to be; --size SIZE for more",
        "mkdir -p rootfs/etc && echo none > rootfs/etc/fstab",
    ),
    (
        "docs/OPERATIONS.md",
        "kedge cp -r src mnt/                           # as cp -a src mnt/",
        "mkdir src && echo file > src/file && kedge mount disk.kedge mnt",
    ),
    (
        "docs/OPERATIONS.md",
        "kedge freeze mnt                         # or --for 60: thaws by itself after 60 seconds",
        "kedge mount --create 64M disk.kedge mnt",
    ),
    (
        "docs/OPERATIONS.md",
        "kedge fsck disk.kedge       # looks at everything, writes nothing",
        "kedge mkfs --size 64M disk.kedge",
    ),
    (
        "docs/OPERATIONS.md",
        "kedge scrub mnt             # beside the mount",
        "kedge mount --create 64M disk.kedge mnt",
    ),
    (
        "docs/OPERATIONS.md",
        "kedge image --scramble disk.kedge report.kedge     # of an image that is not mounted",
        "kedge mkfs --size 64M disk.kedge",
    ),
    (
        "docs/CRASH_TESTING.md",
        "kedge crash mount --create 1G --socket crash.sock image mnt",
        "PATH=$PWD/bin:$PATH; mkdir bin; program bin/my-database",
    ),
    (
        "docs/CRASH_TESTING.md",
        "kedge crash record --ack '^saved' -o run.kcr -- ./my-program",
        "program json-program; mv json-program my-program",
    ),
    (
        "docs/CRASH_TESTING.md",
        "kedge crash explore run.kcr --model ext4 --check ./check.sh --again 2",
        "program check.sh",
    ),
    (
        "docs/CRASH_TESTING.md",
        "kedge crash cluster record cluster.toml --ack '^committed'    # writes the directory run.cluster",
        "program client.py; program server.py; mkdir initial",
    ),
    (
        "docs/CRASH_TESTING.md",
        "kedge crash explore sqlite.kcr --model ext4 --budget 200 --infer 'sqlite3 t.db \"select * from t\"'",
        "kedge crash record --ack '^saved' -o sqlite.kcr -- sh -c 'cd $KEDGE_DIR; sqlite3 t.db \"create table t(a)\"
         for i in 1 2; do sqlite3 t.db \"pragma synchronous=extra; insert into t values($i)\"; echo saved $i; done'",
    ),
    (
        "docs/OPERATIONS.md",
        "kedge cp --reflink=auto -r vms.kedge:/vm vms.kedge:/vm2    # always: or fail",
        "kedge mkfs --size 64M vms.kedge && mkdir vm && head -c 1M /dev/urandom > vm/disk && kedge cp -r vm vms.kedge:/",
    ),
    (
        "docs/SNAPSHOTS.md",
        "kedge snapshot create disk.kedge:/current disk.kedge:/tuesday",
        "kedge mkfs --size 64M disk.kedge && kedge fork disk.kedge:/ disk.kedge:/current",
    ),
    (
        "docs/SNAPSHOTS.md",
        "kedge mount -o tree=current disk.kedge mnt",
        "kedge mkfs --size 64M disk.kedge && kedge fork disk.kedge:/ disk.kedge:/current && mkdir mnt",
    ),
    ("docs/CRASH_TESTING.md", "- run: sudo apt-get install -y fuse3", "program my-program; program check.sh"),
    (
        "docs/CRASH_TESTING.md",
        "def test_save_survives_power_failure(kedge_crash):",
        "program save.py; program check.sh",
    ),
];

/// Blocks whose last command prints these texts and ends with this exit code.
const PRINTS: &[(&str, &str, i32, &[&str])] = &[
    (
        "README.md",
        "kedge mount --create 1G disk.kedge mnt && echo kept > mnt/a && sync mnt/a",
        0,
        &["kept\n", "kedge umount"],
    ),
    (
        "docs/KEEPER.md",
        "kedge mount --create 256M -o keeper disk.kedge mnt",
        0,
        &["told\n", "open\n", "keeper.deaths"],
    ),
    ("README.md", "alias kedge=$PWD/target/release/kedge", 0, &["kept\n", "uuid", "commit", "clean"]),
    (
        "docs/CRASH_TESTING.md",
        "kedge crash explore run.kcr --model ext4 --check ./check.sh",
        1,
        &[
            "A crash after the user was told \"saved two\" (#9) can lose #8 rename(\"doc.tmp\", \"doc\").",
            "fsync(\"doc.tmp\")",
            "fsync(\".\")",
        ],
    ),
    (
        "docs/CRASH_TESTING.md",
        "kedge crash record --ack '^saved' -o run.kcr -- python3 save.py",
        0,
        &["2 marks"],
    ),
    (
        "docs/CRASH_TESTING.md",
        "kedge crash mount --create 1G --socket crash.sock image mnt",
        0,
        &["crash 1 under ext4"],
    ),
    (
        "docs/CRASH_TESTING.md",
        "kedge crash explore run.kcr --model ext4 --check ./check.sh --again 2",
        0,
        &["recoveries changed nothing", "crashed to depth 2"],
    ),
    (
        "docs/CRASH_TESTING.md",
        "kedge crash cluster record cluster.toml --ack '^committed'    # writes the directory run.cluster",
        1,
        &["All nodes lose power after the promise", "can lose the size of", "write(\"log\", 7 bytes"],
    ),
    ("docs/CRASH_TESTING.md", "- run: sudo apt-get install -y fuse3", 0, &["no failure in"]),
    ("docs/CRASH_TESTING.md", "def test_save_survives_power_failure(kedge_crash):", 0, &["1 passed"]),
];

/// The programs that a reader brings: a program that saves correctly; its checker; a database that
/// continues where it stopped and promises only synced rows; a client and the servers of a cluster,
/// which acknowledge entries that they have not synced.
const PROGRAMS: &[(&str, &str)] = &[
    (
        "my-program",
        "#!/bin/sh\nset -e\ncd \"$KEDGE_DIR\"\nfor n in one two; do echo $n > doc.tmp; sync doc.tmp; mv doc.tmp doc; sync .; echo \"saved $n\"; done\n",
    ),
    (
        "json-program",
        "#!/bin/sh\nset -e\ncd \"$KEDGE_DIR\"\necho '[1]' > new; sync new; mv new a.json; sync .; echo saved\n",
    ),
    (
        "my-check",
        "#!/bin/sh\ncase \"$KEDGE_ACKED\" in *two*) test \"$(cat doc)\" = two ;; *one*) test -n \"$(cat doc)\" ;; esac\n",
    ),
    (
        "check.sh",
        "#!/bin/sh\ncase \"$KEDGE_ACKED\" in *two*) test \"$(cat doc)\" = two ;; *one*) test -n \"$(cat doc)\" ;; esac\n",
    ),
    (
        "save.py",
        "import os\nos.chdir(os.environ['KEDGE_DIR'])\nfor text in ['one', 'two']:\n    f = open('doc.tmp', 'w'); f.write(text); f.flush(); os.fsync(f.fileno()); f.close()\n    os.rename('doc.tmp', 'doc')\n    d = os.open('.', os.O_RDONLY); os.fsync(d); os.close(d)\n    print('saved', text, flush=True)\n",
    ),
    (
        "client.py",
        "#!/usr/bin/env python3\nimport socket, time\ndef send(node, entry):\n    while True:\n        try:\n            peer = socket.socket(socket.AF_UNIX)\n            peer.connect(node + '.sock')\n            break\n        except OSError:\n            time.sleep(0.01)\n    peer.sendall(entry.encode())\n    assert peer.recv(2) == b'ok'\nfor n in (1, 2, 3):\n    entry = f'entry{n}\\n'\n    send('a', entry)\n    send('b', entry)\n    print('committed', entry, end='', flush=True)\n    send('c', entry)\n",
    ),
    (
        "server.py",
        "#!/usr/bin/env python3\nimport os, socket, sys\nlog = open(os.environ['KEDGE_DIR'] + '/log', 'ab', buffering=0)\nos.fsync(log.fileno())\ntop = os.open(os.environ['KEDGE_DIR'], os.O_RDONLY)\nos.fsync(top)\nlistener = socket.socket(socket.AF_UNIX)\nlistener.bind(sys.argv[1])\nlistener.listen()\nwhile True:\n    peer, _ = listener.accept()\n    log.write(peer.recv(100))\n    peer.sendall(b'ok')\n    peer.close()\n",
    ),
    (
        "bin/my-database",
        "#!/bin/sh\nset -e\ncd \"$2\"\ntest -e \"$SHOP/started\" && exit\n: > \"$SHOP/started\"\necho row > table; sync table .; exec sleep 60\n",
    ),
];

struct Block {
    document: String,
    section: usize,
    language: String,
    /// The name of the file, if the block is a file.
    file: Option<String>,
    text: String,
}

impl Block {
    fn first(&self) -> &str {
        self.text.lines().next().unwrap_or_default()
    }

    fn is(&self, document: &str, first: &str) -> bool {
        self.document == document && self.first() == first
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

fn documents() -> Vec<String> {
    let pages = fs::read_dir(root().join("docs")).unwrap();
    let names = pages.map(|page| page.unwrap().file_name().into_string().unwrap());
    let mut all: Vec<String> = names.filter(|n| n.ends_with(".md")).map(|n| format!("docs/{n}")).collect();
    all.sort();
    all.insert(0, "README.md".to_owned());
    all
}

fn blocks(document: &str) -> Vec<Block> {
    let text = fs::read_to_string(root().join(document)).unwrap();
    let (mut found, mut section, mut before) = (Vec::new(), 0, String::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            let name = before.strip_suffix("`):").and_then(|text| text.rsplit_once('`')).map(|n| n.1);
            found.push(Block {
                document: document.to_owned(),
                section,
                language: language.to_owned(),
                file: name.map(str::to_owned),
                text: body.join("\n"),
            });
            before.clear();
        } else if !line.is_empty() {
            section += usize::from(line.starts_with("## "));
            before = line.to_owned();
        }
    }
    found
}

fn write_program(path: &Path, text: &str) {
    fs::write(path, format!("{text}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The environment of a section: its directory, and the programs of a machine that is set up as the
/// documents require.
struct Shop {
    place: Place,
    programs: tempfile::TempDir,
}

impl Shop {
    fn new() -> Shop {
        let programs = tempfile::tempdir().unwrap();
        let kedge = env!("CARGO_BIN_EXE_kedge");
        // A stand-in for cargo: it links the programs, which are built already, to the paths where
        // cargo would put them.
        let cargo = format!(
            "#!/bin/sh -eu\ncase \"$*\" in\n'build --release') mkdir -p target/release; ln -sf {kedge} target/release/kedge ;;\n\
             'install --path crates/doors/cli') test -f {root}/crates/doors/cli/Cargo.toml ;;\n\
             'run --release -- '*) shift 3; exec {kedge} \"$@\" ;;\n*) echo \"cargo $*: what is it to do?\" >&2; exit 2 ;;\nesac",
            root = root().display()
        );
        let apt = "#!/bin/sh\ntest \"$*\" = 'install -y fuse3'";
        for (name, text) in [("cargo", &cargo[..]), ("sudo", "#!/bin/sh\nexec \"$@\""), ("apt-get", apt)] {
            write_program(&programs.path().join(name), text);
        }
        std::os::unix::fs::symlink(kedge, programs.path().join("kedge")).unwrap();
        for (name, text) in PROGRAMS {
            write_program(&programs.path().join(format!("given-{}", name.replace('/', "-"))), text);
        }
        Shop { place: Place::new(), programs }
    }

    /// Runs the commands, each of which must succeed, after the commands `given`. Returns the exit
    /// code and the output.
    fn shell(&self, given: &str, commands: &str) -> (i32, String) {
        let program = "program() { cp \"$SHOP/given-$(echo \"$1\" | tr / -)\" \"$1\"; }";
        let path = format!("{}:{}", self.programs.path().display(), std::env::var("PATH").unwrap());
        let mut command = self.place.command("sh");
        command
            .args(["-euc", &format!("{program}\n{given}\n{commands}")])
            .env("PATH", path)
            .env("SHOP", self.programs.path())
            .env("PYTHONPATH", root().join("python/src"))
            .env_remove("KEDGE_LOG");
        let output = output_of(command).unwrap();
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        (output.status.code().unwrap(), text)
    }

    fn run(&self, block: &Block) {
        let given = GIVEN.iter().find(|(document, first, _)| block.is(document, first));
        let given = given.map_or("", |given| given.2);
        let commands = match (&block.file, &block.language[..]) {
            (Some(file), _) => {
                write_program(&self.place.path(file), &block.text);
                match file.starts_with("test_") {
                    true => format!("python3 -m pytest -q -p pytest_kedge_crash -p no:cacheprovider {file}"),
                    false => return,
                }
            }
            (None, "sh") => block.text.clone(),
            (None, "yaml") => steps(&block.text).join("\n"),
            (None, other) => panic!("{}: how does '{other}' run: {}", block.document, block.text),
        };
        if commands.contains("pytest") && !has_pytest() {
            return kedge_base::skip::note("pytest is not installed: the example of the plugin did not run");
        }
        let (code, text) = self.shell(given, &commands);
        let printed = PRINTS.iter().find(|(document, first, _, _)| block.is(document, first));
        let (wanted, words) = printed.map_or((0, &[][..]), |printed| (printed.2, printed.3));
        assert_eq!(code, wanted, "{}:\n{commands}\n{text}", block.document);
        for word in words {
            assert!(text.contains(word), "{}:\n{commands}\n'{word}' in\n{text}", block.document);
        }
    }
}

impl Drop for Shop {
    /// Unmounts a mount that the section has left.
    fn drop(&mut self) {
        if kedge_fuse::mount_at(&self.place.path("mnt")).is_some() {
            let run = self.place.run("umount mnt");
            assert!(run.code == 0 || std::thread::panicking(), "{}", run.err);
        }
    }
}

fn has_pytest() -> bool {
    let mut command = std::process::Command::new("python3");
    command.args(["-c", "import pytest"]);
    output_of(command).is_ok_and(|output| output.status.success())
}

/// The commands of a workflow: those of `- run: COMMAND`, and of `- run: >` with its lines folded
/// into one.
fn steps(workflow: &str) -> Vec<String> {
    let mut steps = Vec::new();
    let mut is_folded = false;
    for line in workflow.lines() {
        if let Some(step) = line.strip_prefix("- run: ") {
            is_folded = step == ">";
            steps.push(if is_folded { String::new() } else { step.to_owned() });
        } else if is_folded && line.starts_with("    ") {
            let step = steps.last_mut().unwrap();
            step.push_str(line.trim());
            step.push(' ');
        } else {
            is_folded = false;
        }
    }
    assert!(!steps.is_empty(), "{workflow}");
    steps
}

fn is_elsewhere(block: &Block) -> bool {
    ELSEWHERE.iter().any(|(document, first, _)| block.is(document, first))
}

/// Whether no shell runs the block: a block of text, or of Rust, which documentation tests run.
fn is_not_for_a_shell(block: &Block) -> bool {
    matches!(&block.language[..], "" | "text" | "rust" | "rust,no_run")
}

fn run_all(document: &str) {
    needs_fuse!();
    let all = blocks(document);
    let sections: BTreeSet<usize> = all.iter().map(|block| block.section).collect();
    let mut count = 0;
    for section in sections {
        let shop = Shop::new();
        for block in all.iter().filter(|b| b.section == section && !is_elsewhere(b) && !is_not_for_a_shell(b))
        {
            shop.run(block);
            count += 1;
        }
    }
    assert!(count > 0, "{document} has no block that runs");
}

#[test]
fn the_readme() {
    run_all("README.md");
}

#[test]
fn running_kedgefs() {
    run_all("docs/OPERATIONS.md");
}

#[test]
fn forks_and_snapshots() {
    run_all("docs/SNAPSHOTS.md");
}

#[test]
fn limits_of_directories() {
    run_all("docs/LIMITS.md");
}

#[test]
fn copies_that_share_blocks() {
    run_all("docs/REFLINK.md");
}

#[test]
fn a_mount_that_survives_its_server() {
    run_all("docs/KEEPER.md");
}

#[test]
fn over_nfs() {
    run_all("docs/NFS.md");
}

#[test]
fn crash_testing() {
    run_all("docs/CRASH_TESTING.md");
    let text = fs::read_to_string(root().join("docs/CRASH_TESTING.md")).unwrap();
    let sentence = PRINTS.iter().find(|p| p.2 == 1).unwrap().3[0];
    assert!(text.contains(sentence), "the document promises another sentence");
}

/// No list names a missing block, no document has commands that no test runs, and each block that
/// does not run here has a reason.
#[test]
fn every_block_runs_or_has_a_reason() {
    let all: Vec<Block> = documents().iter().flat_map(|document| blocks(document)).collect();
    let lists = ELSEWHERE.iter().map(|e| (e.0, e.1)).chain(GIVEN.iter().map(|g| (g.0, g.1)));
    for (document, first) in lists.chain(PRINTS.iter().map(|p| (p.0, p.1))) {
        assert!(all.iter().any(|block| block.is(document, first)), "{document} has no block '{first}'");
    }
    for block in all.iter().filter(|b| b.file.as_ref().is_some_and(|file| !file.starts_with("test_"))) {
        let is_checked = PRINTS.iter().any(|(document, first, _, _)| block.is(document, first));
        assert!(!is_checked, "'{}' is a file and prints nothing", block.first());
    }
    let runs = [
        "README.md",
        "docs/OPERATIONS.md",
        "docs/CRASH_TESTING.md",
        "docs/NFS.md",
        "docs/SNAPSHOTS.md",
        "docs/LIMITS.md",
        "docs/REFLINK.md",
        "docs/KEEPER.md",
    ];
    let commands = ["kedge ", "cargo ", "sudo ", "target/", "ceph ", "pip "];
    for block in &all {
        let is_text = matches!(&block.language[..], "" | "text");
        let is_command = block.text.lines().any(|line| commands.iter().any(|c| line.starts_with(c)));
        assert!(!is_text || !is_command, "{}: is it sh?\n{}", block.document, block.text);
        let is_rust = matches!(&block.language[..], "rust" | "rust,no_run");
        let is_tested = runs.contains(&&block.document[..]);
        assert!(!is_rust || is_tested, "{}: no test compiles\n{}", block.document, block.text);
        let (runs, reason) = (is_tested || is_text, is_elsewhere(block));
        assert!(runs || reason, "{}: nothing runs\n{}", block.document, block.text);
    }
    for (document, first, reason) in ELSEWHERE {
        println!("{document}: '{first}' does not run here: {reason}");
        assert!(reason.len() > 10, "{document}: '{first}' has no reason");
    }
}

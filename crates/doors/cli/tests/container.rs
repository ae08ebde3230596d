//! Mounts in restricted environments: without a loop device, in a user namespace, without
//! privilege, without PATH; and a mount as the store of a container tool. Tests that make mount
//! namespaces are in this program, because such a namespace holds the mounts of all tests that run
//! at the time.

#![allow(clippy::unwrap_used)]

mod common;
use common::{LET_GO, Place, copy_program, kill, needs_fuse, output_of, tool};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

const NEEDS_ROOT: &str = "only root can take its own privileges away";

/// Runs `program` with `args` and the shell `script` under `set -e`; `$K` is kedge. Returns its
/// output and errors.
#[track_caller]
fn shell(place: &Place, program: &str, args: &str, script: &str) -> (String, String) {
    let binary = place.path("kedge");
    if !binary.exists() {
        // Copy the program to a place that an ordinary user can enter.
        copy_program(&binary);
        for path in [place.path(""), binary.clone()] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        }
    }
    let mut command = place.command(program);
    command.args(args.split(' ')).args(["sh", "-c", &format!("set -eu\n{script}")]);
    command.env("K", &binary).env_remove("KEDGE_LOG").env("HOME", "/");
    let out = output_of(command).unwrap();
    let (said, errors) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert!(out.status.success(), "{script}\n{said}{errors}");
    (said, errors)
}

/// A script that writes to a new mount, shows its type, unmounts, and checks the image.
const TOUR: &str = "
    findmnt -no FSTYPE mnt
    $K info --json mnt | grep -c '\"commit\": 1.0' || true
    mkdir mnt/d; echo kept > mnt/d/file; sync mnt/d/file
    $K umount mnt
    $K fsck -f disk.kedge > report
    $K mount $O disk.kedge mnt
    cat mnt/d/file
    $K umount mnt
";

#[test]
fn root_without_loop_devices_gets_a_plain_mount_and_is_told() {
    needs_fuse!(root: NEEDS_ROOT);
    let place = Place::new();
    let script = format!(
        "mount --bind /dev/null /dev/loop-control
        O=
        if $K mount --create 64M -o fuseblk disk.kedge mnt 2> refusal; then exit 1; fi
        grep -c 'no loop device for' refusal
        $K mount --create 64M disk.kedge mnt > said
        {TOUR}"
    );
    let (said, errors) = shell(&place, "unshare", "-m --propagation private", &script);
    assert_eq!(said.lines().collect::<Vec<_>>(), ["1", "fuse.kedgefs", "1", "kept"]);
    let warning = errors.lines().next().unwrap();
    let words = ["kedge: warning: no loop device for", "sync(2)", "kedge umount waits", "commit=1"];
    assert!(words.iter().all(|word| warning.contains(word)), "{errors}");
    assert_eq!(errors.lines().count(), 2, "one line for each mount: {errors}");
}

/// A command that is the first process of its PID namespace, as the entry point of a container is.
/// The seek for data starts a courier, which outlives its server for a moment. Its parent is then
/// the first process, which must wait for it.
#[test]
fn the_first_process_replaces_killed_servers_and_leaves_no_orphan() {
    needs_fuse!(root: NEEDS_ROOT);
    let place = Place::new();
    let script = r#"
        mkdir -p mnt
        unshare --pid --fork --kill-child $K mount --foreground -o keeper \
            --create 64M disk.kedge mnt > said 2>&1 &
        unshare=$!
        until mountpoint -q mnt; do kill -0 $unshare || { cat said; exit 1; }; sleep 0.05; done
        echo kept > mnt/file; sync mnt/file
        children() { cat /proc/${1% }/task/*/children 2> /dev/null || true; }
        first=$(children $unshare)
        for n in 1 2 3; do
            python3 -c "
import os
f = os.open('mnt/sparse', os.O_RDWR | os.O_CREAT)
os.pwrite(f, b'x' * 5000, 500000)
assert os.lseek(f, 0, os.SEEK_DATA) == 499712"
            for parent in $first $(children $first); do
                for child in $(children $parent); do
                    if grep -q -e --kept= /proc/$child/cmdline; then kill -KILL $child; fi
                done
            done
            cat mnt/file
        done
        $K info --json mnt | grep -o '"deaths": 3'
        for n in $(seq 100); do
            orphans=
            for child in $(children $first); do
                if grep -q 'State:.Z' /proc/$child/status; then orphans="$orphans $child"; fi
            done
            test -n "$orphans" || break
            sleep 0.05
        done
        echo "orphans:$orphans"
        umount mnt
        wait $unshare
        $K fsck -f disk.kedge > report"#;
    let (said, errors) = shell(&place, "unshare", "-m --propagation private", script);
    assert_eq!(said, "kept\nkept\nkept\n\"deaths\": 3\norphans:\n");
    assert_eq!(errors, "");
}

/// As below chroot(8) and in an initial RAM disk.
#[test]
fn images_are_made_without_proc() {
    if common::not_root("only root can hide /proc") {
        return;
    }
    let place = Place::new();
    let script = "
        mount -t tmpfs none /proc
        $K mkfs --size 64M disk.kedge > made
        $K mkfs -f --size 96M disk.kedge > again
        $K fsck -f disk.kedge >> again
        $K info --json disk.kedge | grep -c 100663296
        ls -A";
    let (said, errors) = shell(&place, "unshare", "-m --propagation private", script);
    assert_eq!(said, "1\nagain\ndisk.kedge\nkedge\nmade\n", "{errors}");
    assert!(errors.lines().all(|line| line.contains("/proc/self/mountinfo")), "{errors}");
}

/// Mounts by root and by an ordinary user where `/dev/fuse` cannot be opened or does not exist.
#[test]
fn a_fuse_device_that_is_denied_or_missing_gets_advice() {
    needs_fuse!(root: NEEDS_ROOT);
    let place = Place::new();
    let denied = "mount --bind /dev/fuse /dev/fuse; mount -o remount,bind,nodev /dev/fuse";
    let missing = "mount -t tmpfs none /dev; mknod -m 666 /dev/null c 1 3";
    let user = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    for (prepare, advice) in [(denied, "ls -l /dev/fuse"), (missing, "modprobe fuse")] {
        for who in ["env", user] {
            let script =
                format!("{prepare}\nset +e\n{who} $K mount --create 64M disk.kedge mnt; echo code $?; ls");
            let (said, errors) = shell(&place, "unshare", "-m --propagation private", &script);
            assert_eq!(said, "code 1\nkedge\n", "nothing is left: {errors}");
            let words = ["/dev/fuse cannot be opened", advice, "docker run --device /dev/fuse"];
            assert!(words.iter().all(|word| errors.contains(word)), "{who} {prepare}: {errors}");
            assert_eq!(errors.lines().count(), 1, "{errors}");
        }
    }
}

#[test]
fn the_kind_of_mount_can_be_chosen() {
    needs_fuse!(root: NEEDS_ROOT);
    let place = Place::new();
    let script = format!("O='-o fuse'; $K mount --create 64M $O disk.kedge mnt > said\n{TOUR}");
    let (said, errors) = shell(&place, "env", "-u KEDGE_LOG", &script);
    assert_eq!(said.lines().collect::<Vec<_>>(), ["fuse.kedgefs", "1", "kept"]);
    assert_eq!(errors, "", "what was asked for is no surprise");
    let script =
        format!("rm disk.kedge\nO='-o fuseblk'; $K mount --create 64M $O disk.kedge mnt > said\n{TOUR}");
    let (said, errors) = shell(&place, "env", "-u KEDGE_LOG", &script);
    assert_eq!(said.lines().collect::<Vec<_>>(), ["fuseblk.kedgefs", "0", "kept"]);
    assert_eq!(errors, "");
}

#[test]
fn roots_of_user_namespaces_mount() {
    needs_fuse!(root: NEEDS_ROOT);
    let place = Place::new();
    let script = format!("O=; $K mount --create 64M disk.kedge mnt > said\n{TOUR}");
    let (said, errors) = shell(&place, "unshare", "-rm", &script);
    assert_eq!(said.lines().collect::<Vec<_>>(), ["fuse.kedgefs", "1", "kept"]);
    assert!(errors.contains("kedge: warning: "), "{errors}");

    let place = Place::new();
    let args = "--reuid 65534 --regid 65534 --clear-groups unshare -rm";
    let (said, errors) = shell(&place, "setpriv", args, &script);
    assert_eq!(said.lines().collect::<Vec<_>>(), ["fuse.kedgefs", "1", "kept"]);
    assert!(errors.contains("kedge: warning: "), "{errors}");
}

#[test]
fn bubblewrap_gives_enough_to_mount() {
    needs_fuse!(root: NEEDS_ROOT);
    const SANDBOX: &str =
        "bwrap --unshare-user --uid 0 --gid 0 --cap-add ALL --bind / / --dev-bind /dev /dev";
    let script = format!("O=; $K mount --create 64M disk.kedge mnt > said\n{TOUR}");
    for user in ["", "setpriv --reuid 65534 --regid 65534 --clear-groups "] {
        let place = Place::new();
        let words = format!("{user}{SANDBOX}");
        let (program, args) = words.split_once(' ').unwrap();
        let (said, errors) = shell(&place, program, args, &script);
        assert_eq!(said.lines().collect::<Vec<_>>(), ["fuse.kedgefs", "1", "kept"]);
        assert!(errors.contains("kedge: warning: "), "{errors}");
    }
}

#[test]
fn an_ordinary_user_mounts_through_the_helper() {
    needs_fuse!(root: NEEDS_ROOT);
    let place = Place::new();
    let script = format!("O=; $K mount --create 64M disk.kedge mnt > said\n{TOUR}");
    let args = "--reuid 65534 --regid 65534 --clear-groups";
    let (said, errors) = shell(&place, "setpriv", args, &script);
    assert_eq!(said.lines().collect::<Vec<_>>(), ["fuse.kedgefs", "1", "kept"]);
    assert_eq!(errors, "", "it is all that there is for such a user");
}

#[test]
fn an_image_that_is_open_already() {
    needs_fuse!();
    let place = Place::after("mkfs --size 64M disk.kedge");
    let script = "mkdir mnt
        $K mount /dev/fd/3 mnt 3<> disk.kedge
        $K info --json mnt | grep -c '/disk.kedge\"' > count
        $K umount mnt
        exec 3<> disk.kedge
        $K fsck -f /dev/fd/3 > report
        $K info /proc/self/fd/3 | grep -c '^clean *yes'";
    let (said, errors) = shell(&place, "env", "-u KEDGE_LOG", script);
    assert_eq!((said.as_str(), errors.as_str()), ("1\n", ""));
    // The mount table, info and umount identify an image by its name.
    let script = "exec 3<> disk.kedge
        rm disk.kedge
        $K mkfs --size 16M 'disk.kedge (deleted)' > other
        $K mount -o fuse /dev/fd/3 mnt 2>&1 || true";
    let (said, _) = shell(&place, "env", "-u KEDGE_LOG", script);
    assert!(said.contains("/dev/fd/3 has no name by which a mount of it could be known"), "{said}");
}

/// A script that sets podman up in its own mount namespace.
const PODMAN: &str = r#"
    if [ -d /sys/fs/cgroup/unified ]; then
        # Both versions of cgroups at once, which no current runtime takes.
        umount -R -l /sys/fs/cgroup
        mount -t cgroup2 none /sys/fs/cgroup
    fi
    export HOME=$PWD
    P="podman --root $PWD/mnt/graph --runroot $PWD/run --storage-driver overlay
        --cgroup-manager cgroupfs --events-backend none"
"#;

/// A script that makes an image with a shell and the files that a few commands need, copied from
/// this machine.
const FIRST_RUN: &str = r#"
    mkdir -p .config/containers rootfs/bin rootfs/etc/dir
    mkdir rootfs/proc rootfs/sys rootfs/dev rootfs/tmp rootfs/run
    echo '{"default": [{"type": "insecureAcceptAnything"}]}' > .config/containers/policy.json
    for program in sh cat rm mv ls mkdir; do
        path=$(command -v $program)
        cp -L --parents $path $(ldd $path | grep -o '/[^ ]*') rootfs
        cp -L $path rootfs/bin/
    done
    echo below > rootfs/etc/kept
    echo below > rootfs/etc/gone
    echo below > rootfs/etc/dir/inside
    tar -C rootfs -c . | $P import --quiet - localhost/base > id
    $P run --name one --network none --cgroups disabled --log-driver none \
        --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 \
        localhost/base /bin/sh -ec '
            if [ -e /etc/moved ]; then cat /etc/moved /etc/dir/*; ls /etc/dir; exit; fi
            rm /etc/gone; mv /etc/kept /etc/moved
            rm -r /etc/dir; mkdir /etc/dir; echo new > /etc/dir/other'
    $P diff one | grep -e gone -e moved -e kept | sort
    sync -f mnt
"#;

const SECOND_RUN: &str = r"
    $P start --attach one
    find mnt/graph/overlay -name gone -type c | grep -c diff/etc/gone
    $P rm --all > id
    $P rmi --all > id
    ls mnt/graph/overlay/l
";

/// Podman's whole store is on the mount: layers, overlays on them, its database.
#[test]
fn podman_keeps_its_layers_on_a_mount_that_is_killed() {
    needs_fuse!(root: "rootless podman needs more than this test can set up");
    // runc, which podman uses if crun is missing, does not run without cgroups.
    for program in ["podman", "crun"] {
        let found = std::process::Command::new(program).arg("--version").output();
        if found.is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
            return kedge_base::skip::note(&format!("no {program}: apt-get install -y podman crun"));
        }
    }
    let place = Place::after("mount --create 256M disk.kedge mnt");
    let run = |script| shell(&place, "unshare", "-m --propagation private", &format!("{PODMAN}{script}")).0;
    let said = run(FIRST_RUN);
    assert_eq!(said.lines().collect::<Vec<_>>(), ["A /etc/moved", "D /etc/gone", "D /etc/kept"]);
    kill(&place, "mnt");
    place.run("mount disk.kedge mnt").ok();
    let said = run(SECOND_RUN);
    assert_eq!(said.lines().collect::<Vec<_>>(), ["below", "new", "other", "1"], "{said}");
    place.unmount_and_check("disk.kedge");
}

/// A mount made below one directory does not appear below the other, even if their parent directory
/// propagates mounts, as systemd configures it. Then each mount is a peer group of its own.
#[test]
fn a_second_mount_is_no_peer_of_the_first() {
    needs_fuse!(root: "only root can mount a file system twice");
    let place = Place::after("mkfs --size 64M disk.kedge");
    let script = format!(
        "set -eu\n\
         {LET_GO}\
         mkdir top; mount -t tmpfs none top; mount --make-shared top; mkdir top/a top/b\n\
         trap '$K umount top/a; $K umount top/b' EXIT\n\
         group() {{ findmnt -no OPT-FIELDS $1; }}\n\
         $K mount disk.kedge top/a\n\
         $K mount -o nodev disk.kedge top/b\n\
         mkdir top/a/dir; mount -t tmpfs none top/a/dir; touch top/a/dir/file\n\
         test ! -e top/b/dir/file; umount top/a/dir\n\
         findmnt -no OPTIONS top/b | grep -q nodev\n\
         group top/a; group top/b"
    );
    let mut command = place.command("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &script]);
    command.env("K", env!("CARGO_BIN_EXE_kedge"));
    let out = output_of(command).unwrap();
    let (said, errors) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert!(out.status.success(), "{said}{errors}");
    let groups: Vec<&str> = said.lines().map(str::trim).collect();
    assert!(groups.iter().all(|group| group.starts_with("shared:")), "{said}");
    assert!(matches!(groups[..], [a, b] if a != b), "{said}");
    assert_eq!(place.info("disk.kedge")["clean"], true);
}

/// `mount -a` mounts the lines of fstab that are not mounted yet.
#[test]
fn mount_all_of_fstab() {
    needs_fuse!(root: "only root can lay files over /etc");
    let place = Place::new();
    fs::create_dir(place.path("helpers")).unwrap();
    symlink(env!("CARGO_BIN_EXE_kedge"), place.path("helpers/mount.kedgefs")).unwrap();
    let mut table = String::new();
    for name in ["a", "b", "c"] {
        place.run(&format!("mkfs --size 16M {name}.kedge")).ok();
        fs::create_dir(place.path(name)).unwrap();
        let (image, dir) = (place.path(&format!("{name}.kedge")), place.path(name));
        let options = match name {
            "a" => "nofail,commit=3",
            // Options that a user wrote for ext4.
            "b" => "acl,user_xattr,lazytime,errors=remount-ro",
            _ => "noauto",
        };
        table += &format!("{} {} kedgefs {options} 0 0\n", image.display(), dir.display());
    }
    fs::write(place.path("fstab"), table).unwrap();
    let script = "mount --bind $HERE/helpers /sbin
        mount --bind $HERE/fstab /etc/fstab
        trap 'umount $HERE/a $HERE/b' EXIT
        mount -a -t kedgefs
        mount -a -t kedgefs
        echo kept > a/file; sync a/file
        grep \" $HERE/. \" /proc/self/mounts | grep -c kedgefs
        findmnt -no FSTYPE c || echo noauto
        $K info --json a | grep commit";
    let mut command = place.command("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &format!("set -eu\n{LET_GO}{script}")]);
    command.env("K", env!("CARGO_BIN_EXE_kedge")).env("HERE", place.path("").canonicalize().unwrap());
    let said = tool(command, "mount");
    let lines: Vec<&str> = said.lines().map(str::trim).collect();
    assert_eq!(&lines[..2], ["2", "noauto"], "{said}");
    assert!(lines[2].contains("\"commit\"") && lines[2].contains('3'), "{said}");
    assert_eq!(place.run("cat a.kedge:/file").ok(), "kept\n");
}

/// No space on the host: root mounts a small tmpfs that only this test's child sees.
#[test]
fn a_host_without_room_is_named_with_the_name_that_was_given() {
    let place = Place::new();
    if common::not_root("only root can mount a host without room") {
        return;
    }
    fs::create_dir(place.path("from")).unwrap();
    let script = "mount -t tmpfs -o size=1M none from && \
                  (\"$K\" mkfs --size 64M from/new.kedge; \"$K\" mount --create 64M from/new.kedge mnt; ls -A from)";
    let mut command = place.command("unshare");
    command.args(["-m", "sh", "-c", &format!("{LET_GO}{script}")]).env("K", env!("CARGO_BIN_EXE_kedge"));
    let out = output_of(command).unwrap();
    let errors = String::from_utf8(out.stderr).unwrap();
    assert_eq!(errors.matches("create from/new.kedge: ").count(), 2, "{errors}");
    assert_eq!(errors.matches("No space left").count(), 2, "{errors}");
    assert!(!errors.contains(".new"), "{errors}");
    assert_eq!(String::from_utf8(out.stdout).unwrap(), "", "nothing was left");
}

/// With the real mount(8), as for any file system: both directories show the same running file
/// system.
#[test]
fn a_block_device_is_mounted_on_two_directories_by_mount_8() {
    needs_fuse!(root: "only root attaches a loop device and lays a directory over /sbin");
    let place = Place::after("mkfs --size 32M disk.kedge");
    for dir in ["one", "two", "helpers"] {
        fs::create_dir(place.path(dir)).unwrap();
    }
    let helper = place.path("helpers/mount.kedgefs");
    symlink(env!("CARGO_BIN_EXE_kedge"), helper).unwrap();
    let script = r"set -eu
        LOOP=$(losetup --find --show disk.kedge)
        trap 'umount -q two || true; umount -q one || true; umount /sbin; losetup --detach $LOOP' EXIT
        mount --bind helpers /sbin
        mount -t kedgefs $LOOP one 2>&1
        mount -t kedgefs -o defaults,nofail $LOOP two 2>&1
        echo text > one/file
        cat two/file
        umount one
        echo more >> two/file
        [ $(wc -l < two/file) = 2 ] && echo both";
    let mut command = place.command("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &format!("{LET_GO}{script}")]);
    assert_eq!(tool(command, "mount"), "text\nboth\n");
    assert_eq!(place.info("disk.kedge")["clean"], true);
}

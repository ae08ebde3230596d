//! The sections of the man pages that clap does not declare, by page.

use super::Block::{self, Code, Term, Text};

/// The pages in the SEE ALSO section of every page.
pub const SEE_ALSO: &[&str] = &[
    "kedge(8)",
    "kedgefs(5)",
    "kedge-mkfs(8)",
    "kedge-mount(8)",
    "kedge-umount(8)",
    "kedge-fsck(8)",
    "mount(8)",
    "fsync(2)",
];

type Section = (&'static str, &'static [Block]);

const EXIT: Section = (
    "EXIT STATUS",
    &[
        Term("0", "Success."),
        Term("1", "Failure. One line on standard error names what failed and where."),
        Term("2", "Wrong usage. Nothing was touched."),
    ],
);
const EXIT_DIFF: Section = (
    "EXIT STATUS",
    &[
        Term("0", "The trees are the same."),
        Term("1", "They differ."),
        Term("2", "Failure or wrong usage. One line on standard error names what failed and where."),
    ],
);
const EXIT_FSCK: Section = (
    "EXIT STATUS",
    &[
        Term("0", "The image is clean."),
        Term("1", "Errors were corrected."),
        Term("4", "Errors are left."),
        Term("8", "The image could not be checked."),
        Term("16", "Wrong usage."),
    ],
);
const EXIT_JUDGED: Section = (
    "EXIT STATUS",
    &[
        Term("0", "No failure was found."),
        Term("1", "The check fails on a state that a crash may leave."),
        Term("2", "Wrong usage. Nothing was touched."),
        Term("3", NO_VERDICT),
        Term(
            "4",
            "The check fails only on states before the first promise, and no file was there at the \
             start: nothing could be lost yet.",
        ),
    ],
);
const NO_VERDICT: &str = "No verdict: the check fails without any crash or cannot be run, there is no room for a \
                          state, the recording cannot be read, the budget ended before any crash state was \
                          tried, or a signal came before a failure was found.";
const EXIT_REPLAYED: Section = (
    "EXIT STATUS",
    &[
        Term("0", "The check accepts the state, or none was given."),
        Term("1", "The check fails on the state."),
        Term("2", "Wrong usage. Nothing was touched."),
        Term("3", NO_VERDICT),
    ],
);
const EXIT_RECORD: Section = (
    "EXIT STATUS",
    &[
        Term("0", "The command ended with 0."),
        Term("1", "Failure, of the recorder or of the command. The recorder names its own."),
        Term("2", "Wrong usage, or the command's exit code."),
        Term("other", "The exit code of the command; 128 and a number if a signal ended it."),
    ],
);
const ENVIRONMENT: Section = (
    "ENVIRONMENT",
    &[Term(
        "KEDGE_LOG",
        "What is printed on standard error: `error`, `warn` (the default), `info`, `debug`, `trace`, or \
         a filter such as `kedge_store=trace`.",
    )],
);
const MKFS_EXAMPLE: Section = (
    "EXAMPLES",
    &[
        Text("A new image of 4 GiB with a label:"),
        Code("kedge mkfs --size 4G -L data disk.kedge"),
        Text("A whole device:"),
        Code("kedge mkfs /dev/sdX"),
    ],
);
const MOUNT_EXAMPLE: Section = (
    "EXAMPLES",
    &[
        Text("Make an image if there is none, and mount it, as an ordinary user:"),
        Code("kedge mount --create 4G disk.kedge mnt"),
        Text("The same by mount(8), or by a line of fstab(5):"),
        Code(
            "mount -t kedgefs /srv/disk.kedge /mnt/data\n/srv/disk.kedge /mnt/data kedgefs nofail,commit=1 0 2",
        ),
    ],
);
const SERVE_NFS_USERS: Section = (
    "USERS",
    &[
        Text(
            "The protocol has no passwords: a client names its users, and any program that can \
             connect can act as any user. So the server listens on 127.0.0.1 unless `--listen` names \
             another address. To reach it from another machine, forward its port through `ssh`(1).",
        ),
        Term("--squash none", "User 0 of a client is root. The default where only this machine can connect."),
        Term("--squash root", "User 0 and group 0 act as the anonymous user. The default elsewhere."),
        Term("--squash all", "All users act as the anonymous user."),
    ],
);
const SERVE_NFS_NOTES: Section = (
    "NOTES",
    &[
        Text(
            "Changes of names and attributes are durable when the client's call returns; data is when \
             the client has closed or synced the file. SIGTERM, SIGINT and SIGHUP end the server and \
             close the image cleanly. After any other end a client waits for the next start and goes on.",
        ),
        Text(
            "Forks and snapshots are directories, which a client can mount by their paths. `-o tree=PATH` \
             serves one of them alone.",
        ),
        Text("There are no locks between clients: mount with `nolock`. TCP only, version 3 only."),
    ],
);
const SERVE_NFS_EXAMPLE: Section = (
    "EXAMPLES",
    &[
        Text("Serve an image on this machine, and mount it:"),
        Code(
            "kedge serve nfs disk.kedge\n\
             mount -t nfs -o vers=3,tcp,nolock,port=2049,mountport=2049 127.0.0.1:/ /mnt",
        ),
        Text("All files belong to the user that serves, whatever the numbers on the client:"),
        Code("kedge serve nfs --squash all --anonymous $(id -u):$(id -g) disk.kedge"),
    ],
);
const MOUNT_NOTES: Section = (
    "NOTES",
    &[
        Text(
            "The command returns when the mount is live; a process in the background serves it. \
             SIGTERM and SIGINT to that process unmount cleanly.",
        ),
        Text("The mount options are in `kedgefs`(5). An unknown option is refused, not ignored."),
        Text(
            "With `--nfs` the process serves the image over NFS as well, as long as it is mounted; \
             `kedge-serve-nfs`(8) explains `--squash`, `--anonymous` and `--any-port`. The kernel then \
             caches no names and attributes. Not with `volatile`, `keeper`, `writeback_cache` or `--daemon`.",
        ),
        Text(
            "A mount without privilege is a plain fuse mount: the kernel does not pass `sync`(2) and \
             `syncfs`(2) on to it, and `umount`(8) returns before all is written. `kedge umount` waits.",
        ),
    ],
);

const UPGRADE_NOTES: Section = (
    "NOTES",
    &[
        Text(
            "For mounts with the option `keeper`, see `kedgefs`(5). The server of the mount makes everything \
             durable and ends, and this program serves in its place. Programs on the mount wait for some \
             milliseconds, and no call fails.",
        ),
        Text(
            "Nothing happens if this program does not know a feature of the image or the protocol of the \
             keeper. If it does not serve, the program that served before is started again. In both cases \
             the command fails and says why.",
        ),
        Text("The user who made the mount may run it."),
    ],
);
const UPGRADE_EXAMPLE: Section =
    ("EXAMPLES", &[Text("After an upgrade of the package:"), Code("kedge upgrade-server --all")]);

const PAGES: &[(&str, &[Section])] = &[
    ("kedge", &[EXIT, ENVIRONMENT]),
    ("kedge-mkfs", &[EXIT, MKFS_EXAMPLE]),
    ("mkfs.kedgefs", &[EXIT, MKFS_EXAMPLE]),
    ("kedge-mount", &[MOUNT_NOTES, EXIT, ENVIRONMENT, MOUNT_EXAMPLE]),
    ("mount.kedgefs", &[MOUNT_NOTES, EXIT, ENVIRONMENT, MOUNT_EXAMPLE]),
    ("kedge-upgrade-server", &[UPGRADE_NOTES, EXIT, UPGRADE_EXAMPLE]),
    ("kedge-fsck", &[EXIT_FSCK]),
    ("fsck.kedgefs", &[EXIT_FSCK]),
    (
        "kedge-scrub",
        &[
            (
                "NOTES",
                &[
                    Text(
                        "Superblocks, the tree of the newest checkpoint, the maps of free space and the log \
                         are read and verified. File data has no checksums and is not read. Beside a mount \
                         a finding counts only if two passes in a row have it; a mount that replaces its \
                         checkpoint all the time can keep it from being certain, which is exit code 8.",
                    ),
                    Text(
                        "Nothing is written, and no log is replayed. `kedge fsck` checks what a mount would find.",
                    ),
                ],
            ),
            EXIT_FSCK,
        ],
    ),
    ("kedge-serve-nfs", &[SERVE_NFS_USERS, SERVE_NFS_NOTES, EXIT, ENVIRONMENT, SERVE_NFS_EXAMPLE]),
    (
        "kedge-daemon",
        &[
            (
                "FILE FORMAT",
                &[
                    Text("Paths are relative to the file. Sizes are written as `64M`."),
                    Code(
                        "dirty_background = \"64M\"   # written back from here on\n\
                         dirty_hard = \"256M\"         # writers wait from here on\n\n\
                         [[mount]]\n\
                         image = \"/srv/a.kedge\"\n\
                         dir = \"/mnt/a\"\n\
                         options = \"commit=1\"",
                    ),
                ],
            ),
            EXIT,
            ENVIRONMENT,
        ],
    ),
    (
        "kedge-stats",
        &[
            (
                "EXAMPLES",
                &[
                    Text(
                        "For Prometheus, at `http://127.0.0.1:9190/metrics`, for all mounts as they come and go:",
                    ),
                    Code("kedge stats --listen 9190"),
                ],
            ),
            EXIT,
        ],
    ),
    (
        "kedge-limit",
        &[
            (
                "NOTES",
                &[Text(
                    "More than a limit is refused at write(2), fallocate(2) and the creation of a file, with \
                     EDQUOT. df(1) below the directory shows the limit. Only root and the owner of the mount \
                     set it. Links and renames into or out of the directory fail with EXDEV. A directory that \
                     is called `list` is written `./list`.",
                )],
            ),
            EXIT,
            (
                "EXAMPLES",
                &[
                    Text("Limit a directory of a mount, and look at what is left:"),
                    Code("kedge limit --size 5G --files 100k mnt/box\nkedge limit mnt/box"),
                    Text("Remove the limit of bytes:"),
                    Code("kedge limit --size none mnt/box"),
                ],
            ),
        ],
    ),
    (
        "kedge-diff",
        &[
            (
                "OUTPUT",
                &[Text(
                    "A line for each difference: `+` created, `-` deleted, `>` renamed, `=` linked, `!` \
                         unlinked, `M` modified, with what was modified. Paths are relative to the trees. \
                         Access times do not count. With `-0` a renamed file has its old path, a zero byte, \
                         its new path, and a zero byte.",
                )],
            ),
            EXIT_DIFF,
        ],
    ),
    (
        "kedge-send",
        &[
            EXIT,
            (
                "EXAMPLES",
                &[
                    Text("Copy a snapshot into another image, then what has changed until the next one:"),
                    Code(
                        "kedge send a.kedge:/mon | kedge receive b.kedge:/mon\n\
                         kedge send --from a.kedge:/mon a.kedge:/tue | kedge receive b.kedge:/tue",
                    ),
                ],
            ),
        ],
    ),
    (
        "kedge-umount",
        &[
            (
                "NOTES",
                &[Text(
                    "The exit code is 1, too, if the image was not closed cleanly or data could not be \
                     written: the message says of how many files.",
                )],
            ),
            EXIT,
        ],
    ),
    (
        "kedge-crash-explore",
        &[
            (
                "EXAMPLES",
                &[
                    Text("Does a program that keeps its rows in SQLite keep those that it promised?"),
                    Code(
                        "kedge crash record --ack '^saved' -o run.kcr -- ./my-program\n\
                         kedge crash explore run.kcr --checker sqlite --query \"select 'saved ' || id from t\"",
                    ),
                ],
            ),
            (
                "BUDGET",
                &[Text(
                    "The budget limits the search: 10,000 distinct states, if neither states nor time \
                     are given. Explaining failures takes more runs of the check and has a limit of \
                     its own (--explain): by default the budget's time, at least 30 seconds, and no \
                     limit if the budget is a number of states. A missing call is tried on no more \
                     states than the budget allows. If a budget ends first, the report says how many \
                     systematic states were not tried, and what was not explained.",
                )],
            ),
            EXIT_JUDGED,
        ],
    ),
    ("kedge-crash-replay", &[EXIT_REPLAYED]),
    (
        "kedge-crash-cluster",
        &[
            (
                "EXAMPLES",
                &[
                    Text("Does a replicated store keep what it acknowledged if all nodes lose power?"),
                    Code(
                        "kedge crash cluster record cluster.toml --ack '^committed'\n\
                         kedge crash cluster explore --model ext4 --check ./check.sh",
                    ),
                ],
            ),
            EXIT,
        ],
    ),
    (
        "kedge-crash-cluster-record",
        &[
            (
                "DESCRIPTION OF THE CLUSTER",
                &[
                    Text(
                        "The first `command` is that of the whole cluster. It has the directories of all \
                         nodes in `$KEDGE_DIR`, by their names. When it ends, the commands of the nodes \
                         are ended. Each command is optional, but one must be there.",
                    ),
                    Code(
                        "command = \"./client.py\"\n\
                         \n\
                         [[node]]\n\
                         name = \"a\"\n\
                         command = \"exec ./server.py --port 7001\"\n\
                         \n\
                         [[node]]\n\
                         name = \"b\"\n\
                         command = \"exec ./server.py --port 7002\"\n\
                         from = \"initial\"",
                    ),
                    Text(
                        "A node's command has its directory in `$KEDGE_DIR` and its name in \
                         `$KEDGE_NODE`. `from` is its initial content, relative to this file.",
                    ),
                ],
            ),
            EXIT_RECORD,
        ],
    ),
    (
        "kedge-crash-cluster-explore",
        &[
            (
                "ORDER",
                &[Text(
                    "All nodes in the same kind of state come first, then one node that differs from the \
                     others, then two. If a budget ends first, the report says how many systematic \
                     states were not tried.",
                )],
            ),
            (
                "RECOVERIES",
                &[Text(
                    "With `--again` the check runs on a mount for each node, is recorded there, and all \
                     nodes lose power once more while it brings the cluster back.",
                )],
            ),
            EXIT_JUDGED,
        ],
    ),
    ("kedge-crash-cluster-replay", &[EXIT_REPLAYED]),
    (
        "kedge-crash-lazyfs",
        &[
            (
                "NOTES",
                &[
                    Text(
                        "A loss takes the bytes and sizes that no fsync of their file covers; names are \
                         durable at once. With a model of `kedge crash models` names are lost as well. The \
                         root directory has the image `lazyfs.kedge` with what survives. A link called \
                         `lazyfs` to `kedge` is this command.",
                    ),
                    Text(
                        "The commands at `fifo_path` are `lazyfs::clear-cache`, `cache-checkpoint`, \
                         `display-cache-usage`, `unsynced-data-report`, `crash`, `torn-op`, `torn-seq` and \
                         `help`. `finished::clear-cache` is written to `fifo_path_completed`.",
                    ),
                ],
            ),
            EXIT,
            (
                "EXAMPLES",
                &[
                    Text("Mount, and lose what was not synced:"),
                    Code(
                        "kedge crash lazyfs -c default.toml -m /tmp/lazyfs.mnt -r /tmp/lazyfs.root\n\
                         echo lazyfs::clear-cache > /tmp/faults.fifo",
                    ),
                ],
            ),
        ],
    ),
    ("kedge-crash-record", &[EXIT_RECORD]),
    (
        "kedge-crash",
        &[
            (
                "EXAMPLES",
                &[
                    Text("What would a program find after a power failure on ext4?"),
                    Code(
                        "kedge crash record --ack '^saved' -o run.kcr -- ./my-program\n\
                         kedge crash explore run.kcr --model ext4 --check ./my-check",
                    ),
                ],
            ),
            EXIT,
        ],
    ),
];

/// The sections of a page. A page that is not listed has only the exit codes.
pub fn sections(page: &str) -> impl Iterator<Item = Section> {
    let listed = PAGES.iter().find(|(name, _)| *name == page);
    listed.map_or(&[EXIT][..], |(_, sections)| sections).iter().copied()
}

"""Runs the same generated operations in two directories, under many credentials, and compares.

Arguments: the directory on ext4, the one on KedgeFS, a seed, the number of operations. Prints each
difference as a line of JSON, and a summary in the end.

Nothing outside of the two directories is touched: every process that carries out operations has its
directory as its root before it becomes the user, and what looks at the results follows no link.
"""

import ctypes, errno, fcntl, json, mmap, os, pickle, random, signal, socket, stat, struct, sys

LIBC = ctypes.CDLL(None, use_errno=True)
CAPS = {"chown": 0, "dac_override": 1, "dac_read_search": 2, "fowner": 3, "fsetid": 4,
        "linux_immutable": 9, "sys_admin": 21, "mknod": 27}
with open("/proc/self/status") as status:
    ALL = next(int(line.split()[1], 16) for line in status if line.startswith("CapPrm"))
GETFLAGS, SETFLAGS = 0x80086601, 0x40086602
IMMUTABLE, APPEND, NODUMP, NOATIME = 0x10, 0x20, 0x40, 0x80
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"

def but(*names):
    return ALL & ~sum(1 << CAPS[name] for name in names)

def only(*names):
    return ALL & sum(1 << CAPS[name] for name in names)

# Name, uid, gid, supplementary groups, capabilities (None: those of the uid), umask, map of a user namespace.
CREDENTIALS = [
    ("root", 0, 0, [], None, 0o022, None),
    ("root-but-fsetid", 0, 0, [], but("fsetid"), 0o022, None),
    ("root-but-dac", 0, 0, [], but("dac_override", "dac_read_search"), 0o022, None),
    ("root-but-chown", 0, 0, [], but("chown"), 0o022, None),
    ("root-but-fowner", 0, 0, [], but("fowner"), 0o002, None),
    ("root-but-immutable", 0, 0, [], but("linux_immutable"), 0o022, None),
    ("root-but-admin", 0, 0, [], but("sys_admin"), 0o077, None),
    ("root-without", 0, 0, [], 0, 0o022, None),
    ("user", 1000, 1000, [], None, 0o022, None),
    ("user-in-2000", 1000, 1000, [2000], None, 0o002, None),
    ("user-in-many", 1000, 1000, [2000, 3000], None, 0, None),
    ("other", 2000, 2000, [], None, 0o022, None),
    ("other-in-1000", 2000, 1000, [], None, 0o077, None),
    ("user-fsetid", 1000, 1000, [], only("fsetid"), 0o022, None),
    ("other-fowner", 2000, 2000, [], only("fowner"), 0o022, None),
    ("user-chown-dac", 1000, 1000, [], only("chown", "dac_override"), 0o022, None),
    ("namespace-root", 0, 0, [], None, 0o022, [(0, 1000, 1)]),
    ("namespace-root-of-two", 0, 0, [1], None, 0o022, [(0, 1000, 1), (1, 2000, 1)]),
    ("namespace-user", 1, 1, [], 0, 0o027, [(0, 1000, 1), (1, 2000, 1)]),
]

def check(result, what):
    if result < 0:
        e = ctypes.get_errno()
        raise OSError(e, what + ": " + os.strerror(e))
    return result

def set_capabilities(bits):
    header = struct.pack("Ii", 0x20080522, 0)
    low, high = bits & 0xffffffff, bits >> 32
    data = struct.pack("6I", low, low, 0, high, high, 0)
    check(LIBC.syscall(126, header, data), "capset")

def become(credential, base, channel):
    _, uid, gid, groups, capabilities, umask, ids = credential
    if ids:
        check(LIBC.unshare(0x10000000), "unshare")
        channel.send(b"map")
        assert channel.recv(16) == b"mapped"
    os.chroot(base)
    os.chdir("/w") if os.path.isdir("/w") else os.chdir("/")
    if capabilities is not None:
        check(LIBC.prctl(8, 1, 0, 0, 0), "keep capabilities")
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if capabilities is not None:
        set_capabilities(capabilities)
    os.umask(umask)
    # Otherwise root owns the /proc directory of a process that changed its ids, as for a set-id program.
    check(LIBC.prctl(4, 1, 0, 0, 0), "dumpable")

class Opened:
    def __init__(self, path, flags, mode=0o666):
        self.fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, mode)
    def __enter__(self):
        return self.fd
    def __exit__(self, *_):
        os.close(self.fd)

def raw(result):
    if result < 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))
    return result

def set_flags(path, flags):
    with Opened(path, os.O_RDONLY) as fd:
        # Keep the other flags that ext4 sets.
        old = struct.unpack("L", fcntl.ioctl(fd, GETFLAGS, b"\0" * 8))[0] & 0xffffffff
        fcntl.ioctl(fd, SETFLAGS, struct.pack("L", old & ~0xf0 | flags))

def get_flags(path):
    with Opened(path, os.O_RDONLY | os.O_NOFOLLOW) as fd:
        return struct.unpack("L", fcntl.ioctl(fd, GETFLAGS, b"\0" * 8))[0]

def rename2(a, b, flags):
    raw(LIBC.renameat2(-100, os.fsencode(a), -100, os.fsencode(b), flags))

def op_open(path, flags):
    with Opened(path, flags):
        pass

def op_create(path, mode, flags):
    with Opened(path, flags | os.O_CREAT, mode) as fd:
        if flags & os.O_ACCMODE:
            os.write(fd, b"new")

def op_write(path, offset, size, flags):
    with Opened(path, flags | os.O_WRONLY) as fd:
        return os.pwrite(fd, b"w" * size, offset)

def op_splice(path, size):
    with Opened(path, os.O_WRONLY) as fd:
        r, w = os.pipe()
        try:
            os.write(w, b"s" * size)
            return os.splice(r, fd, size, offset_dst=0)
        finally:
            os.close(r)
            os.close(w)

def op_copy(a, b):
    with Opened(a, os.O_RDONLY) as source, Opened(b, os.O_WRONLY) as target:
        return os.copy_file_range(source, target, 64, 0, 0)

def op_sendfile(a, b):
    with Opened(a, os.O_RDONLY) as source, Opened(b, os.O_WRONLY) as target:
        return os.sendfile(target, source, 0, 64)

def op_fallocate(path, mode, offset, size):
    with Opened(path, os.O_WRONLY) as fd:
        raw(LIBC.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(size)))

def op_ftruncate(path, size):
    with Opened(path, os.O_WRONLY) as fd:
        os.ftruncate(fd, size)

def op_store(path):
    with Opened(path, os.O_RDWR) as fd, mmap.mmap(fd, 4) as m:
        m[0:2] = b"mm"
        m.flush()

def op_tmpfile(directory, name, mode):
    with Opened(directory, os.O_TMPFILE | os.O_WRONLY, mode) as fd:
        os.write(fd, b"nameless")
        raw(LIBC.linkat(-100, b"/proc/self/fd/%d" % fd, -100, os.fsencode(name), 0x400)) if name else None

def op_utimes(path, times):
    os.utime(path, ns=times) if times else os.utime(path)

def op_list(path):
    return sorted(os.listxattr(path, follow_symlinks=False))

def op_get(path, name):
    return os.getxattr(path, name)

OPERATIONS = {
    "open": op_open, "create": op_create, "write": op_write, "splice": op_splice, "copy": op_copy,
    "sendfile": op_sendfile, "fallocate": op_fallocate, "ftruncate": op_ftruncate, "store": op_store,
    "tmpfile": op_tmpfile, "utimes": op_utimes, "list": op_list, "get": op_get,
    "mkdir": os.mkdir, "mknod": os.mknod, "symlink": os.symlink, "readlink": os.readlink,
    "link": lambda a, b: os.link(a, b, follow_symlinks=False), "unlink": os.unlink, "rmdir": os.rmdir,
    "rename": rename2, "chmod": os.chmod, "chown": os.chown, "lchown": os.lchown,
    "truncate": os.truncate, "setxattr": lambda p, n, v, f: os.setxattr(p, n, v, f),
    "removexattr": os.removexattr, "chattr": set_flags, "lsattr": lambda p: get_flags(p) & 0xf0,
    "access": os.access, "listdir": lambda p: sorted(os.listdir(p)),
}

def serve(credential, base, channel):
    become(credential, base, channel)
    channel.send(b"ready")
    while True:
        request = channel.recv(1 << 16)
        if not request:
            os._exit(0)
        kind, arguments = pickle.loads(request)
        try:
            answer = (0, OPERATIONS[kind](*arguments))
        except OSError as e:
            answer = (e.errno, None)
        except ValueError as e:
            # An mmap of a file that is too short.
            answer = (0, str(e))
        channel.send(pickle.dumps(answer))

class Worker:
    def __init__(self, credential, base):
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            self.channel.close()
            try:
                serve(credential, base, theirs)
            except BaseException as e:
                sys.stderr.write(f"{credential[0]}: {e!r}\n")
            os._exit(1)
        theirs.close()
        greeting = self.channel.recv(16)
        if greeting == b"map":
            lines = "".join(f"{a} {b} {n}\n" for a, b, n in credential[6])
            for file in ["uid_map", "gid_map"]:
                with open(f"/proc/{self.pid}/{file}", "w") as f:
                    f.write(lines)
            self.channel.send(b"mapped")
            greeting = self.channel.recv(16)
        assert greeting == b"ready", (credential[0], greeting)

    def do(self, kind, arguments):
        self.channel.send(pickle.dumps((kind, arguments)))
        answer = self.channel.recv(1 << 20)
        assert answer, "a worker ended"
        return pickle.loads(answer)

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

def acl(rng):
    entries = [(1, rng.choice([7, 6, 4, 0]), -1)]
    for uid in rng.sample([1000, 2000, 3000], rng.randrange(3)):
        entries.append((2, rng.choice([7, 6, 5, 4, 0]), uid))
    entries.append((4, rng.choice([7, 5, 4, 0]), -1))
    if rng.random() < 0.4:
        entries.append((8, rng.choice([7, 4, 0]), rng.choice([1000, 2000])))
    if len(entries) > 2:
        entries.append((16, rng.choice([7, 6, 4, 0]), -1))
    entries.append((32, rng.choice([7, 5, 4, 0]), -1))
    order = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4, 32: 5}
    entries.sort(key=lambda e: (order[e[0]], e[2]))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *e) for e in entries)

CAPABILITY = struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0)
MODES = [0o644, 0o600, 0o664, 0o666, 0o777, 0o755, 0o2664, 0o2644, 0o6755, 0o4755, 0o2755, 0o2767, 0o6666, 0o000]
DIRECTORY_MODES = [0o755, 0o777, 0o1777, 0o2775, 0o2770, 0o3777, 0o700, 0o1770]
FILES = ["f0", "f1", "f2", "f3"]
DIRECTORIES = ["d0", "d1", "d2", "."]
PATHS = FILES + ["d0/x", "d1/x", "d1/y", "d2/x", "d2/z", "d0", "d1", "d2", "l0", "p0", "n0", "d1/s"]
IDS = [0, 1000, 2000, 3000]

def make_tree(rng, root):
    """Makes the tree of a round; the same for the same state of `rng`."""
    os.mkdir(root)
    os.chmod(root, rng.choice([0o777, 0o755, 0o1777, 0o2777]))
    flags = []
    def dress(path, modes):
        os.chown(path, rng.choice(IDS[:3]), rng.choice(IDS))
        os.chmod(path, rng.choice(modes))
        if rng.random() < 0.25:
            os.setxattr(path, ACCESS, acl(rng))
        if rng.random() < 0.3:
            os.setxattr(path, rng.choice(["user.a", "trusted.a", "security.a"]), b"value")
        if rng.random() < 0.08:
            flags.append((path, rng.choice([IMMUTABLE, APPEND, NODUMP, NOATIME])))
    for name in DIRECTORIES[:3]:
        path = root + "/" + name
        os.mkdir(path)
        dress(path, DIRECTORY_MODES)
        if rng.random() < 0.35:
            os.setxattr(path, DEFAULT, acl(rng))
    for name in FILES + ["d0/x", "d1/x", "d1/y", "d2/x"]:
        path = root + "/" + name
        with Opened(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY) as fd:
            os.write(fd, bytes(rng.choices(range(256), k=rng.choice([0, 5, 100, 5000]))))
        dress(path, MODES)
        if rng.random() < 0.15:
            os.setxattr(path, "security.capability", CAPABILITY)
    os.symlink(rng.choice(["f0", "/w/f1", "d0", "none"]), root + "/l0")
    os.symlink("/w/d2/x", root + "/d1/s")
    os.mkfifo(root + "/p0")
    for path, flag in flags:
        set_flags(path, flag)

def remove_tree(root):
    for top, names, files in os.walk(root, topdown=True):
        for path in [top] + [os.path.join(top, name) for name in files]:
            if stat.S_IFMT(os.lstat(path).st_mode) in (stat.S_IFREG, stat.S_IFDIR):
                set_flags(path, 0)
    for top, names, files in os.walk(root, topdown=False):
        for name in files + [n for n in names if os.path.islink(os.path.join(top, n))]:
            os.unlink(os.path.join(top, name))
        os.rmdir(top)

def look(root):
    """The state of each file, by name."""
    seen, numbers = {}, {}
    def at(path, name):
        st = os.lstat(path)
        kind = stat.S_IFMT(st.st_mode)
        entry = {"mode": st.st_mode, "uid": st.st_uid, "gid": st.st_gid, "nlink": st.st_nlink, "rdev": st.st_rdev,
                 "same": numbers.setdefault(st.st_ino, name)}
        entry["xattrs"] = {n: os.getxattr(path, n, follow_symlinks=False)
                           for n in sorted(os.listxattr(path, follow_symlinks=False))}
        if kind == stat.S_IFLNK:
            entry["target"] = os.readlink(path)
        if kind in (stat.S_IFREG, stat.S_IFDIR):
            entry["flags"] = get_flags(path) & 0xf0
        if kind == stat.S_IFREG:
            entry["size"] = st.st_size
            with Opened(path, os.O_RDONLY | os.O_NOFOLLOW) as fd:
                entry["content"] = os.pread(fd, 1 << 17, 0)
        seen[name] = entry
        if kind == stat.S_IFDIR:
            for child in sorted(os.listdir(path)):
                at(path + "/" + child, name + "/" + child)
    at(root, "")
    return seen

def generate(rng):
    """One operation and its arguments."""
    path, file, directory = rng.choice(PATHS), rng.choice(FILES + ["d1/x", "d1/y", "d2/x", "l0"]), rng.choice(DIRECTORIES)
    name = rng.choice(PATHS + ["n0", "n1", "d0/n", "d1/n", "d2/n"])
    mode = rng.choice(MODES)
    kind = rng.choice(
        ["open"] * 4 + ["create"] * 4 + ["write"] * 5 + ["splice"] * 2 + ["copy", "sendfile"] + ["fallocate"] * 3
        + ["ftruncate"] * 2 + ["store", "tmpfile", "tmpfile", "utimes", "utimes"] + ["list"] * 2 + ["get"] * 2
        + ["mkdir"] * 2 + ["mknod"] * 2 + ["symlink", "readlink"] + ["link"] * 2 + ["unlink"] * 3 + ["rmdir"]
        + ["rename"] * 4 + ["chmod"] * 4 + ["chown"] * 4 + ["lchown"] + ["truncate"] * 3 + ["setxattr"] * 6
        + ["removexattr"] * 4 + ["chattr"] * 2 + ["lsattr"] + ["access"] * 2 + ["listdir"])
    def attribute():
        return rng.choice(["user.a", "user.b", "trusted.a", "trusted.b", "security.a", "security.capability",
                           ACCESS, ACCESS, DEFAULT, DEFAULT])
    def value(name):
        if name in (ACCESS, DEFAULT):
            return acl(rng)
        return CAPABILITY if name == "security.capability" else b"v" * rng.choice([0, 1, 50])
    attr = attribute()
    arguments = {
        "open": lambda: (path, rng.choice([os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC,
                                           os.O_RDWR | os.O_APPEND, os.O_WRONLY | os.O_APPEND,
                                           os.O_RDONLY | os.O_NOATIME, os.O_RDONLY | os.O_TRUNC])),
        "create": lambda: (name, mode, rng.choice([os.O_WRONLY, os.O_RDWR | os.O_EXCL, os.O_WRONLY | os.O_TRUNC, os.O_RDONLY])),
        "write": lambda: (file, rng.choice([0, 3, 4096, 9000]), rng.choice([1, 10, 5000]), rng.choice([0, 0, os.O_APPEND])),
        "splice": lambda: (file, 20),
        "copy": lambda: (rng.choice(FILES), file),
        "sendfile": lambda: (rng.choice(FILES), file),
        "fallocate": lambda: (file, rng.choice([0, 1, 3, 0x10, 0x11]), rng.choice([0, 4096]), rng.choice([1, 4096, 9000])),
        "ftruncate": lambda: (file, rng.choice([0, 10, 5000])),
        "truncate": lambda: (file, rng.choice([0, 10, 5000])),
        "store": lambda: (file,),
        "tmpfile": lambda: (directory, "", mode),
        "utimes": lambda: (path, rng.choice([None, (10 ** 18, 10 ** 18)])),
        "list": lambda: (path,),
        "get": lambda: (path, attr),
        "mkdir": lambda: (name, rng.choice(DIRECTORY_MODES)),
        "mknod": lambda: (name, mode | rng.choice([stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR]), 0x103),
        "symlink": lambda: (rng.choice(["f0", "/w/f1", "none"]), name),
        "readlink": lambda: (path,),
        "link": lambda: (path, name),
        "unlink": lambda: (path,),
        "rmdir": lambda: (path,),
        "rename": lambda: (path, name, rng.choice([0, 0, 1, 2, 4])),
        "chmod": lambda: (path, rng.choice(MODES + DIRECTORY_MODES)),
        "chown": lambda: (path, rng.choice([-1] + IDS), rng.choice([-1] + IDS)),
        "lchown": lambda: (path, rng.choice([-1] + IDS), rng.choice([-1] + IDS)),
        "setxattr": lambda: (path, attr, value(attr), rng.choice([0, 0, 0, 1, 2])),
        "removexattr": lambda: (path, attr),
        "chattr": lambda: (path, rng.choice([0, IMMUTABLE, APPEND, NODUMP, NOATIME])),
        "lsattr": lambda: (path,),
        "access": lambda: (path, rng.choice([os.R_OK, os.W_OK, os.X_OK])),
        "listdir": lambda: (directory,),
    }
    return kind, arguments[kind]()

def word(answer):
    return "ok" if answer[0] == 0 else errno.errorcode[answer[0]]

def text(value):
    return value.hex() if isinstance(value, bytes) else value if isinstance(value, (int, str, list, type(None))) else repr(value)

def differences(kind, answers, trees, around):
    """A key for each kind of difference."""
    theirs, ours = answers
    if around and theirs[0] and ours[0] and theirs[0] != ours[0]:
        return ["both refuse what is flagged"]
    if theirs[0] != ours[0]:
        return [f"{kind}: {word(theirs)}, ours {word(ours)}"]
    if theirs[1] != ours[1]:
        return [f"{kind}: result"]
    if trees[0] == trees[1]:
        return []
    if set(trees[0]) != set(trees[1]):
        return [f"{kind}: names"]
    return sorted({f"{kind}: {field}" for name in trees[0] for field in trees[0][name]
                   if trees[0][name].get(field) != trees[1][name].get(field)})

def flagged(tree, arguments):
    """The flags of the named files (i, a), and whether they or their directories have such flags."""
    def flags(path):
        entry = tree.get("/" + path if path != "." else "", {})
        if "target" in entry:
            entry = tree.get(entry["target"].replace("/w", "", 1) if entry["target"].startswith("/w") else "/" + entry["target"], {})
        return entry.get("flags", 0)
    paths = [a for a in arguments if isinstance(a, str)]
    own = [flags(p) for p in paths]
    around = own + [flags(p.partition("/")[0] if "/" in p else ".") for p in paths]
    named = ("i" if any(f & IMMUTABLE for f in own) else "") + ("a" if any(f & APPEND for f in own) else "")
    return named, any(f & (IMMUTABLE | APPEND) for f in around)

# The last rounds, each in a new tree: operations of root, then a user and an operation. So every run
# includes each known difference.
KNOWN = [
    ([("chown", "f0", 2000, 2000), ("chmod", "f0", 0o4755)], "root-but-fowner", ("chown", "f0", 3000, 3000)),
    ([("chown", "f0", 2000, 2000), ("chmod", "f0", 0o4755)], "root-but-fowner", ("lchown", "f0", 3000, 3000)),
    ([("chown", "f0", 1000, 1000), ("chmod", "f0", 0o6755)], "user", ("chown", "f0", -1, -1)),
    ([("chown", "f0", 2000, 2000), ("chmod", "f0", 0o4755)], "user", ("chown", "f0", -1, -1)),
    ([("chmod", "f0", 0o644), ("setxattr", "f0", "security.capability", CAPABILITY, 0), ("chattr", "f0", APPEND)],
     "root", ("write", "f0", 0, 5, os.O_APPEND)),
    ([("chmod", "f0", 0o6755), ("chattr", "f0", APPEND)], "root-but-fsetid", ("write", "f0", 0, 5, os.O_APPEND)),
    ([("chmod", "f0", 0o644), ("chattr", "f0", IMMUTABLE)], "root", ("access", "f0", os.W_OK)),
    ([("chown", "f0", 0, 0), ("chmod", "f0", 0o600), ("chattr", "f0", IMMUTABLE)], "user", ("write", "f0", 0, 5, 0)),
    ([("chattr", "f0", APPEND)], "root", ("removexattr", "f0", DEFAULT)),
    ([("chattr", "f0", IMMUTABLE)], "root", ("removexattr", "f0", DEFAULT)),
]

class Pair:
    """The two directories and the processes that work in them."""

    def __init__(self, bases):
        self.bases, self.found, self.used, self.done = bases, {}, {}, 0
        self.workers = {(c[0], side): Worker(c, base) for c in CREDENTIALS for side, base in enumerate(bases)}

    def fresh(self, start, prepare=lambda root: None):
        for base in self.bases:
            remove_tree(base + "/w")
            make_tree(random.Random(start), base + "/w")
            prepare(base + "/w/")
        self.trees = [look(base + "/w") for base in self.bases]
        assert self.trees[0] == self.trees[1], ("the trees differ before anything is done", start, self.trees)

    def do(self, credential, kind, names):
        """Whether the two are still equal. The names are those below the tree."""
        own, around = flagged(self.trees[0], names)
        if kind == "symlink":
            arguments = (names[0], "/w/" + names[1])
        else:
            is_path = lambda i, a: isinstance(a, str) and (i == 0 or kind in ("copy", "sendfile", "link", "rename"))
            arguments = tuple("/w/" + a if is_path(i, a) else a for i, a in enumerate(names))
        answers = [self.workers[credential, side].do(kind, arguments) for side in range(2)]
        before, self.trees = self.trees, [look(base + "/w") for base in self.bases]
        self.done += 1
        self.used[kind] = self.used.get(kind, 0) + 1
        what = "chown of nothing" if kind in ("chown", "lchown") and names[1:] == (-1, -1) else kind
        keys = differences(what, answers, self.trees, around)
        for key in keys:
            key += f" ({own})" if own and "flagged" not in key and "nothing" not in key else ""
            self.found[key] = self.found.get(key, 0) + 1
            if self.found[key] <= 3:
                self.show(key, credential, (kind, arguments), answers, before[0])
        return not keys

    def show(self, key, credential, operation, answers, before):
        theirs, ours = self.trees
        differs = {n: [{k: text(v) for k, v in t.get(n, {}).items()} for t in self.trees]
                   for n in set(theirs) | set(ours) if theirs.get(n) != ours.get(n)}
        named = {a: {k: text(v) for k, v in before.get(a[2:], {}).items()}
                 for a in operation[1] if isinstance(a, str) and a.startswith("/w")}
        print(json.dumps({"key": key, "as": credential, "operation": [operation[0], [text(a) for a in operation[1]]],
                          "answers": [[word(a), text(a[1])] for a in answers], "differs": differs, "before": named}))

def main():
    bases, seed, wanted = sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4])
    rng = random.Random(seed)
    for base in bases:
        os.chmod(base, 0o755)
        os.mkdir(base + "/w")
    os.umask(0)
    pair = Pair(bases)
    while pair.done < wanted:
        pair.fresh(rng.getrandbits(64))
        for _ in range(30):
            credential = rng.choice(CREDENTIALS)[0]
            if not pair.do(credential, *generate(rng)):
                break
    for steps, credential, (kind, *names) in KNOWN:
        def prepare(root):
            set_flags(root + "f0", 0)
            for step, path, *arguments in steps:
                OPERATIONS[step](root + path, *arguments)
        pair.fresh(0, prepare)
        pair.do(credential, kind, tuple(names))
    for worker in pair.workers.values():
        worker.end()
    for base in bases:
        remove_tree(base + "/w")
    print(json.dumps({"operations": pair.done, "credentials": len(CREDENTIALS), "kinds": pair.used, "found": pair.found}))

main()

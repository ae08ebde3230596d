// Forks, snapshots, clones, limits and atomic writes.
#include "check.h"

static kedgefs_file_t *open_file(kedgefs_t *fs, const char *path, uint32_t flags) {
    kedgefs_file_t *file;
    OK(kedgefs_file_open(fs, path, flags | KEDGEFS_READ, 0644, &file));
    return file;
}

static void put(kedgefs_t *fs, const char *path, const char *text) {
    kedgefs_file_t *file = open_file(fs, path, KEDGEFS_WRITE | KEDGEFS_CREATE | KEDGEFS_TRUNCATE);
    IS(kedgefs_pwrite(file, text, strlen(text), 0), strlen(text));
    OK(kedgefs_file_close(file));
}

static bool has_text(kedgefs_t *fs, const char *path, const char *text) {
    char found[64] = {0};
    kedgefs_file_t *file = open_file(fs, path, 0);
    IS(kedgefs_pread(file, found, sizeof found - 1, 0), strlen(text));
    OK(kedgefs_file_close(file));
    return strcmp(found, text) == 0;
}

static void trees(kedgefs_t *fs) {
    put(fs, "file", "first");
    OK(kedgefs_mkdir(fs, "dir", 0755));
    OK(kedgefs_fork(fs, "/", "fork", 0));
    OK(kedgefs_fork(fs, "fork", "dir/snap", KEDGEFS_SNAPSHOT));
    put(fs, "fork/file", "second");
    HOLDS(has_text(fs, "file", "first") && has_text(fs, "dir/snap/file", "first"));
    kedgefs_file_t *file;
    OK(kedgefs_file_open(fs, "dir/snap/file", KEDGEFS_WRITE, 0, &file));
    IS(kedgefs_pwrite(file, "x", 1, 0), -EROFS);
    OK(kedgefs_file_close(file));
    IS(kedgefs_fork(fs, "/", "fork", 0), -EEXIST);
    IS(kedgefs_fork(fs, "dir", "x", 0), -EINVAL);
    IS(kedgefs_fork(fs, "none", "x", 0), -ENOENT);
    IS(kedgefs_fork(fs, "/", "x", 2), -EINVAL);
    IS(kedgefs_fork(fs, "/", "/", 0), -EINVAL);
    IS(kedgefs_fork(fs, NULL, "x", 0), -EFAULT);
    IS(kedgefs_fork(NULL, "/", "x", 0), -EBADF);
    OK(kedgefs_roll_back(fs, "dir/snap", "fork"));
    HOLDS(has_text(fs, "fork/file", "first"));
    IS(kedgefs_roll_back(fs, "dir/snap", "none"), -ENOENT);
    IS(kedgefs_roll_back(fs, "fork", "fork"), -EINVAL);
    OK(kedgefs_fork(fs, "fork", "work", 0));
    put(fs, "work/file", "worked");
    put(fs, "fork/other", "meanwhile");
    IS(kedgefs_commit_tree(fs, "work", "fork", 0), -EBUSY);
    IS(kedgefs_commit_tree(fs, "work", "fork", 8), -EINVAL);
    OK(kedgefs_commit_tree(fs, "work", "fork", KEDGEFS_FORCE));
    HOLDS(has_text(fs, "fork/file", "worked"));
    char byte;
    file = open_file(fs, "file", 0);
    put(fs, "file", "changed");
    OK(kedgefs_roll_back(fs, "dir/snap", "/"));
    IS(kedgefs_pread(file, &byte, 1, 0), -ESTALE);
    OK(kedgefs_file_close(file));
    HOLDS(has_text(fs, "file", "first") && has_text(fs, "dir/snap/file", "first"));
    OK(kedgefs_fork(fs, "/", "try", 0));
    put(fs, "try/file", "tried");
    OK(kedgefs_commit_tree(fs, "try", "/", 0));
    HOLDS(has_text(fs, "file", "tried") && has_text(fs, "fork/file", "worked"));
    IS(kedgefs_roll_back(fs, "/", "/"), -EINVAL);
    IS(kedgefs_delete_tree(fs, "dir"), -ENOENT);
    file = open_file(fs, "dir/snap/file", 0);
    OK(kedgefs_delete_tree(fs, "dir/snap"));
    int64_t gone = kedgefs_pread(file, &byte, 1, 0);
    HOLDS(gone == -ESTALE || gone == -ENOENT);
    OK(kedgefs_file_close(file));
    IS(kedgefs_delete_tree(fs, "dir/snap"), -ENOENT);
}

static void clones(kedgefs_t *fs, kedgefs_t *other) {
    static char data[4 * 4096 + 100];
    memset(data, 'd', sizeof data);
    kedgefs_file_t *from = open_file(fs, "source", KEDGEFS_WRITE | KEDGEFS_CREATE);
    IS(kedgefs_pwrite(from, data, sizeof data, 0), sizeof data);
    kedgefs_file_t *to = open_file(fs, "clone", KEDGEFS_WRITE | KEDGEFS_CREATE);
    OK(kedgefs_clone_file(from, to));
    OK(kedgefs_fsync(to));
    kedgefs_stat_t stat;
    OK(kedgefs_fstat(to, &stat));
    IS(stat.size, sizeof data);
    static char found[sizeof data];
    IS(kedgefs_pread(to, found, sizeof found, 0), sizeof found);
    HOLDS(memcmp(found, data, sizeof data) == 0);
    IS(kedgefs_pwrite(to, "changed", 7, 4096), 7);
    OK(kedgefs_clone_range(to, 4096, from, 8192, 4096));
    IS(kedgefs_pread(from, found, 8, 8192), 8);
    HOLDS(memcmp(found, "changedd", 8) == 0);
    IS(kedgefs_clone_range(from, 1, to, 0, 4096), -EINVAL);
    IS(kedgefs_clone_range(from, -4096, to, 0, 4096), -EINVAL);
    IS(kedgefs_clone_range(from, 0, from, 0, 8192), -EINVAL);
    kedgefs_file_t *only_read = open_file(fs, "clone", 0);
    IS(kedgefs_clone_file(from, only_read), -EBADF);
    IS(kedgefs_clone_file(NULL, to), -EBADF);
    kedgefs_file_t *elsewhere = open_file(other, "clone", KEDGEFS_WRITE | KEDGEFS_CREATE);
    IS(kedgefs_clone_file(from, elsewhere), -EXDEV);
    kedgefs_file_t *in_fork = open_file(fs, "fork/clone", KEDGEFS_WRITE | KEDGEFS_CREATE);
    IS(kedgefs_clone_file(from, in_fork), -EXDEV);
    OK(kedgefs_file_close(in_fork));
    OK(kedgefs_file_close(only_read));
    OK(kedgefs_file_close(from));
    OK(kedgefs_file_close(to));
}

static void limits(kedgefs_t *fs) {
    OK(kedgefs_mkdir(fs, "box", 0755));
    kedgefs_limit_t limit;
    IS(kedgefs_limit_of(fs, "box", &limit), 0);
    OK(kedgefs_set_limit(fs, "box", 10000, 3));
    put(fs, "box/a", "a");
    IS(kedgefs_limit_of(fs, "box/a", &limit), 1);
    kedgefs_stat_t stat;
    OK(kedgefs_stat(fs, "box", &stat));
    IS(limit.dir, stat.ino);
    IS(limit.bytes_max, 8192);
    IS(limit.files_max, 3);
    IS(limit.files, 2);
    put(fs, "box/b", "b");
    IS(kedgefs_mkdir(fs, "box/c", 0755), -EDQUOT);
    static char big[3 * 4096];
    kedgefs_file_t *file = open_file(fs, "box/b", KEDGEFS_WRITE);
    int64_t written = kedgefs_pwrite(file, big, sizeof big, 0);
    HOLDS(written == -EDQUOT || written < (int64_t)sizeof big);
    OK(kedgefs_file_close(file));
    OK(kedgefs_set_limit(fs, "box", KEDGEFS_KEEP_LIMIT, 0));
    OK(kedgefs_mkdir(fs, "box/c", 0755));
    IS(kedgefs_limit_of(fs, "box/c", &limit), 1);
    IS(limit.bytes_max, 8192);
    IS(limit.files_max, 0);
    OK(kedgefs_set_limit(fs, "box", 0, KEDGEFS_KEEP_LIMIT));
    IS(kedgefs_limit_of(fs, "box", &limit), 0);
    IS(kedgefs_set_limit(fs, "box", 1, 0), -EINVAL);
    IS(kedgefs_set_limit(fs, "file", 4096, 0), -ENOTDIR);
    IS(kedgefs_set_limit(fs, "none", 4096, 0), -ENOENT);
    IS(kedgefs_limit_of(fs, "none", &limit), -ENOENT);
    IS(kedgefs_limit_of(fs, "box", NULL), -EFAULT);
}

static void atomic(kedgefs_t *fs) {
    kedgefs_file_t *file = open_file(fs, "atomic", KEDGEFS_WRITE | KEDGEFS_CREATE);
    kedgefs_piece_t pieces[] = {{0, "begin", 5}, {10000, "end", 3}, {7, NULL, 0}};
    OK(kedgefs_write_atomic(file, pieces, 3));
    OK(kedgefs_write_atomic(file, NULL, 0));
    kedgefs_stat_t stat;
    OK(kedgefs_fstat(file, &stat));
    IS(stat.size, 10003);
    char found[6] = {0};
    IS(kedgefs_pread(file, found, 5, 0), 5);
    HOLDS(strcmp(found, "begin") == 0);
    // Nothing of a write that is refused is there.
    static char big[2 << 20];
    kedgefs_piece_t too_big[] = {{0, "other", 5}, {0, big, sizeof big}};
    IS(kedgefs_write_atomic(file, too_big, 2), -EFBIG);
    kedgefs_piece_t negative[] = {{0, "other", 5}, {-1, "x", 1}};
    IS(kedgefs_write_atomic(file, negative, 2), -EINVAL);
    kedgefs_piece_t null[] = {{0, NULL, 5}};
    IS(kedgefs_write_atomic(file, null, 1), -EFAULT);
    IS(kedgefs_write_atomic(file, NULL, 1), -EFAULT);
    IS(kedgefs_pread(file, found, 5, 0), 5);
    HOLDS(strcmp(found, "begin") == 0);
    OK(kedgefs_file_close(file));
    file = open_file(fs, "atomic", 0);
    IS(kedgefs_write_atomic(file, pieces, 1), -EBADF);
    OK(kedgefs_file_close(file));
    IS(kedgefs_write_atomic(NULL, pieces, 1), -EBADF);
}

int main(int argc, char **argv) {
    IS(argc, 3);
    OK(kedgefs_create(argv[1], 64 * MIB, NULL));
    OK(kedgefs_create(argv[2], 16 * MIB, NULL));
    kedgefs_t *fs, *other;
    OK(kedgefs_open(argv[1], NULL, &fs));
    OK(kedgefs_open(argv[2], NULL, &other));
    trees(fs);
    clones(fs, other);
    limits(fs);
    atomic(fs);
    OK(kedgefs_close(other));
    // A process that ends now loses nothing of a fork or of an atomic write.
    OK(kedgefs_sync(fs));
    OK(kedgefs_close(fs));
    return 0;
}

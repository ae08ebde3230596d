// Each function, as it is meant to be used: uses IMAGE
#include "check.h"

static void files(kedgefs_t *fs) {
    kedgefs_file_t *file = created(fs, "notes/today");
    IS(kedgefs_pwrite(file, "hello, world", 12, 0), 12);
    OK(kedgefs_fsync(file));
    IS(kedgefs_pwrite(file, "W", 1, 7), 1);
    OK(kedgefs_fdatasync(file));
    char buf[16] = "................";
    IS(kedgefs_pread(file, buf, sizeof buf, 0), 12);
    HOLDS(memcmp(buf, "hello, World....", 16) == 0);
    IS(kedgefs_pread(file, buf, 5, 7), 5);
    HOLDS(memcmp(buf, "World", 5) == 0);
    IS(kedgefs_pread(file, buf, sizeof buf, 12), 0);
    IS(kedgefs_pread(file, NULL, 0, 0), 0);
    IS(kedgefs_pwrite(file, NULL, 0, 0), 0);
    IS(kedgefs_pwrite(file, "end", 3, 100000), 3);
    kedgefs_stat_t stat;
    OK(kedgefs_fstat(file, &stat));
    IS(stat.size, 100003);
    IS(kedgefs_pread(file, buf, 2, 50000), 2);
    HOLDS(buf[0] == 0 && buf[1] == 0);
    OK(kedgefs_ftruncate(file, 5));
    OK(kedgefs_ftruncate(file, 8));
    IS(kedgefs_pread(file, buf, sizeof buf, 0), 8);
    HOLDS(memcmp(buf, "hello\0\0\0", 8) == 0);
    OK(kedgefs_file_close(file));
    // A file without a name stays until it is closed.
    saved(fs, "gone", "still there");
    OK(kedgefs_file_open(fs, "gone", KEDGEFS_READ, 0, &file));
    OK(kedgefs_unlink(fs, "gone"));
    IS(kedgefs_pread(file, buf, 5, 0), 5);
    OK(kedgefs_fstat(file, &stat));
    IS(stat.nlink, 0);
    OK(kedgefs_file_close(file));
    // What is there becomes empty.
    OK(kedgefs_file_open(fs, "notes/today", KEDGEFS_WRITE | KEDGEFS_CREATE | KEDGEFS_TRUNCATE, 0600, &file));
    OK(kedgefs_fstat(file, &stat));
    IS(stat.size, 0);
    IS(stat.mode, S_IFREG | 0644);
    OK(kedgefs_file_close(file));
}

static void names(kedgefs_t *fs) {
    saved(fs, "a", "1");
    saved(fs, "b", "2");
    OK(kedgefs_rename(fs, "a", "b", KEDGEFS_EXCHANGE));
    HOLDS(has(fs, "a", "2") && has(fs, "b", "1"));
    OK(kedgefs_rename(fs, "a", "b", 0));
    HOLDS(has(fs, "b", "2"));
    OK(kedgefs_rename(fs, "b", "/notes/b", KEDGEFS_NOREPLACE));
    OK(kedgefs_fsync_dir(fs, "notes"));
    OK(kedgefs_link(fs, "notes/b", "c"));
    OK(kedgefs_symlink(fs, "notes/b", "link"));
    HOLDS(has(fs, "link", "2"));
    char buf[8] = "........";
    IS(kedgefs_readlink(fs, "link", NULL, 0), 7);
    IS(kedgefs_readlink(fs, "link", buf, sizeof buf), 7);
    HOLDS(strcmp(buf, "notes/b") == 0);
    kedgefs_stat_t stat;
    OK(kedgefs_stat(fs, "link", &stat));
    IS(stat.mode, S_IFREG | 0644);
    IS(stat.nlink, 2);
    IS(stat.uid, geteuid());
    IS(stat.gid, getegid());
    HOLDS(stat.btime.sec > 1700000000 && stat.blocks <= 8 && stat.rdev == 0);
    OK(kedgefs_lstat(fs, "link", &stat));
    HOLDS(S_ISLNK(stat.mode));
    IS(stat.size, 7);
    OK(kedgefs_unlink(fs, "link"));
    OK(kedgefs_unlink(fs, "c"));
}

static void attributes(kedgefs_t *fs) {
    kedgefs_stat_t stat;
    OK(kedgefs_chmod(fs, "notes/b", 0600));
    OK(kedgefs_chown(fs, "notes/b", 7, KEDGEFS_KEEP, 0));
    OK(kedgefs_chown(fs, "notes/b", KEDGEFS_KEEP, 8, KEDGEFS_NOFOLLOW));
    kedgefs_time_t then = {.sec = -5, .nsec = 999999999}, now = {.nsec = KEDGEFS_NOW};
    OK(kedgefs_utimens(fs, "notes/b", &now, &then, 0));
    OK(kedgefs_stat(fs, "notes/b", &stat));
    IS(stat.mode, S_IFREG | 0600);
    IS(stat.uid, 7);
    IS(stat.gid, 8);
    IS(stat.mtime.sec, -5);
    IS(stat.mtime.nsec, 999999999);
    HOLDS(stat.atime.sec > 1700000000);
    kedgefs_time_t before = stat.atime;
    OK(kedgefs_utimens(fs, "notes/b", NULL, &now, 0));
    OK(kedgefs_stat(fs, "notes/b", &stat));
    HOLDS(stat.atime.sec == before.sec && stat.atime.nsec == before.nsec);
    HOLDS(stat.mtime.sec > 1700000000);

    char buf[32];
    OK(kedgefs_setxattr(fs, "notes/b", "user.color", "red", 3, KEDGEFS_XATTR_CREATE));
    OK(kedgefs_setxattr(fs, "notes/b", "user.color", "blue", 4, KEDGEFS_XATTR_REPLACE));
    OK(kedgefs_setxattr(fs, "notes/b", "user.none", NULL, 0, 0));
    IS(kedgefs_getxattr(fs, "notes/b", "user.color", NULL, 0), 4);
    IS(kedgefs_getxattr(fs, "notes/b", "user.color", buf, sizeof buf), 4);
    HOLDS(memcmp(buf, "blue", 4) == 0);
    IS(kedgefs_getxattr(fs, "notes/b", "user.none", buf, sizeof buf), 0);
    IS(kedgefs_listxattr(fs, "notes/b", NULL, 0), 21);
    IS(kedgefs_listxattr(fs, "notes/b", buf, sizeof buf), 21);
    HOLDS(memmem(buf, 21, "user.color", 11) && memmem(buf, 21, "user.none", 10));
    OK(kedgefs_removexattr(fs, "notes/b", "user.color"));
    IS(kedgefs_listxattr(fs, "notes/b", buf, sizeof buf), 10);
}

static void directories(kedgefs_t *fs) {
    OK(kedgefs_mkdir(fs, "many", 0750));
    OK(kedgefs_mkdir(fs, "many/dir", 0755));
    OK(kedgefs_symlink(fs, "x", "many/link"));
    char path[32], seen[600] = {0};
    for (int i = 0; i < 600; i++) {
        snprintf(path, sizeof path, "many/%d", i);
        OK(kedgefs_file_close(created(fs, path)));
    }
    kedgefs_dir_t *dir;
    kedgefs_dirent_t entry;
    int next, count = 0;
    OK(kedgefs_opendir(fs, "many", &dir));
    while ((next = kedgefs_readdir(dir, &entry)) == 1) {
        count++;
        IS(entry.name_len, strlen(entry.name));
        HOLDS(entry.ino != 0);
        if (strcmp(entry.name, "dir") == 0) {
            IS(entry.mode, S_IFDIR);
        } else if (strcmp(entry.name, "link") == 0) {
            IS(entry.mode, S_IFLNK);
        } else {
            IS(entry.mode, S_IFREG);
            IS(seen[atoi(entry.name)]++, 0);
        }
    }
    OK(next);
    IS(count, 602);
    OK(kedgefs_readdir(dir, &entry));
    OK(kedgefs_closedir(dir));
    kedgefs_stat_t stat;
    OK(kedgefs_stat(fs, "/many/", &stat));
    IS(stat.mode, S_IFDIR | 0750);
    IS(stat.nlink, 3);
    OK(kedgefs_rmdir(fs, "many/dir"));
}

int main(int argc, char **argv) {
    IS(argc, 2);
    HOLDS(kedgefs_version()[0] != 0);
    HOLDS(kedgefs_error()[0] == 0);
    OK(kedgefs_create(argv[1], 64 * MIB, "label=C,log_size=8M"));
    kedgefs_t *fs;
    OK(kedgefs_open(argv[1], "commit=60,cache_size=32M,noatime", &fs));
    OK(kedgefs_mkdir(fs, "notes", 0755));
    files(fs);
    names(fs);
    attributes(fs);
    directories(fs);
    OK(kedgefs_set_options(fs, "commit=30,relatime"));
    kedgefs_statvfs_t space;
    OK(kedgefs_statvfs(fs, &space));
    IS(space.block_size, 4096);
    IS(space.blocks, 64 * MIB / 4096);
    HOLDS(space.blocks_free > 0 && space.blocks_free < space.blocks && space.blocks_available <= space.blocks_free);
    HOLDS(space.inodes > 600 && space.inodes_free < space.inodes);
    IS(space.name_max, KEDGEFS_NAME_MAX);
    OK(kedgefs_sync(fs));
    OK(kedgefs_close(fs));

    OK(kedgefs_open(argv[1], "ro", &fs));
    HOLDS(has(fs, "notes/b", "2"));
    OK(kedgefs_close(fs));
    HOLDS(kedgefs_error()[0] == 0);
    printf("%s\n", kedgefs_version());
    return 0;
}

// Each error that a caller can cause: refused IMAGE (other files are made beside it)
#include "check.h"

static char other[4096];

// The path of a file beside the image.
static const char *beside(const char *image, const char *name) {
    snprintf(other, sizeof other, "%s.%s", image, name);
    return other;
}

static void images(const char *image) {
    kedgefs_t *fs = (kedgefs_t *)1;
    IS(kedgefs_create(image, 32 * MIB, NULL), -EEXIST);
    HOLDS(strstr(kedgefs_error(), "kedgefs_create: ") == kedgefs_error());
    HOLDS(strstr(kedgefs_error(), image));
    IS(kedgefs_create(beside(image, "small"), 1000, NULL), -EINVAL);
    IS(kedgefs_create(beside(image, "word"), 32 * MIB, "colour=red"), -EINVAL);
    HOLDS(strstr(kedgefs_error(), "colour=red"));
    IS(kedgefs_create(beside(image, "log"), 32 * MIB, "log_size=red"), -EINVAL);
    IS(kedgefs_create(beside(image, "none/x"), 32 * MIB, NULL), -ENOENT);
    IS(kedgefs_create(NULL, 32 * MIB, NULL), -EFAULT);
    IS(access(beside(image, "small"), F_OK), -1);
    IS(kedgefs_open(beside(image, "none"), NULL, &fs), -ENOENT);
    IS(kedgefs_open("/", NULL, &fs), -EINVAL);
    IS(kedgefs_open("/dev/null", NULL, &fs), -EINVAL);
    IS(kedgefs_open(NULL, NULL, &fs), -EFAULT);
    IS(kedgefs_open(image, NULL, NULL), -EFAULT);
    IS(kedgefs_open(image, "colour=red", &fs), -EINVAL);
    HOLDS(strstr(kedgefs_error(), "unknown mount option colour=red"));
    IS(kedgefs_open(image, "commit=0", &fs), -EINVAL);
    IS(kedgefs_open(image, "\xff", &fs), -EINVAL);
    IS(kedgefs_open(image, "allow_other", &fs), -EINVAL);
    IS(kedgefs_open(image, "workers=4", &fs), -EINVAL);
    IS(kedgefs_open(image, "key-file=/none", &fs), -EINVAL);
    IS(kedgefs_open("nbd://host:x", NULL, &fs), -EINVAL);
    FILE *text = fopen(beside(image, "text"), "w");
    for (int i = 0; i < 100000; i++) fputs("no image ", text);
    OK(fclose(text));
    IS(kedgefs_open(other, NULL, &fs), -EUCLEAN);
    HOLDS(strstr(kedgefs_error(), "no KedgeFS image"));
    HOLDS(fs == (kedgefs_t *)1);
    if (geteuid() == 0) {
        OK(seteuid(65534));
        IS(kedgefs_open(image, NULL, &fs), -EACCES);
        OK(seteuid(0));
    }
}

static void paths(kedgefs_t *fs) {
    kedgefs_file_t *file;
    kedgefs_stat_t stat;
    char name[300];
    memset(name, 'x', sizeof name);
    name[256] = 0;
    OK(kedgefs_mkdir(fs, "d", 0755));
    OK(kedgefs_mkdir(fs, "d/e", 0755));
    saved(fs, "f", "text");
    OK(kedgefs_symlink(fs, "loop", "loop"));
    OK(kedgefs_symlink(fs, "nowhere", "dangling"));

    IS(kedgefs_stat(fs, "none", &stat), -ENOENT);
    HOLDS(strcmp(kedgefs_error(), "kedgefs_stat: none: no such file or directory") == 0);
    IS(kedgefs_stat(fs, "", &stat), -ENOENT);
    IS(kedgefs_stat(fs, "dangling", &stat), -ENOENT);
    IS(kedgefs_stat(fs, "f/x", &stat), -ENOTDIR);
    IS(kedgefs_stat(fs, "f/", &stat), -ENOTDIR);
    IS(kedgefs_stat(fs, "loop", &stat), -ELOOP);
    IS(kedgefs_stat(fs, name, &stat), -ENAMETOOLONG);
    IS(kedgefs_stat(fs, NULL, &stat), -EFAULT);
    IS(kedgefs_stat(fs, "f", NULL), -EFAULT);

    IS(kedgefs_mkdir(fs, "d", 0755), -EEXIST);
    IS(kedgefs_mkdir(fs, "none/d", 0755), -ENOENT);
    IS(kedgefs_mkdir(fs, name, 0755), -ENAMETOOLONG);
    IS(kedgefs_mkdir(fs, "g", 0100755), -EINVAL);
    IS(kedgefs_rmdir(fs, "d"), -ENOTEMPTY);
    IS(kedgefs_rmdir(fs, "f"), -ENOTDIR);
    IS(kedgefs_rmdir(fs, "none"), -ENOENT);
    IS(kedgefs_rmdir(fs, "/"), -EINVAL);
    IS(kedgefs_unlink(fs, "d"), -EISDIR);
    IS(kedgefs_unlink(fs, "none"), -ENOENT);

    IS(kedgefs_rename(fs, "none", "x", 0), -ENOENT);
    IS(kedgefs_rename(fs, "f", "d", KEDGEFS_NOREPLACE), -EEXIST);
    IS(kedgefs_rename(fs, "f", "d", 0), -EISDIR);
    IS(kedgefs_rename(fs, "d", "f", 0), -ENOTDIR);
    IS(kedgefs_rename(fs, "d", "d/e/x", 0), -EINVAL);
    IS(kedgefs_rename(fs, "f", "none", KEDGEFS_EXCHANGE), -ENOENT);
    IS(kedgefs_rename(fs, "f", "x", 3), -EINVAL);
    IS(kedgefs_link(fs, "d", "x"), -EPERM);
    IS(kedgefs_link(fs, "f", "d"), -EEXIST);
    IS(kedgefs_link(fs, "none", "x"), -ENOENT);
    IS(kedgefs_symlink(fs, "", "x"), -ENOENT);
    IS(kedgefs_symlink(fs, "f", "d"), -EEXIST);
    char buf[7];
    IS(kedgefs_readlink(fs, "f", buf, sizeof buf), -EINVAL);
    IS(kedgefs_readlink(fs, "dangling", buf, sizeof buf), -ERANGE);
    IS(kedgefs_readlink(fs, "dangling", NULL, 8), -EFAULT);
    IS(kedgefs_fsync_dir(fs, "f"), -ENOTDIR);
    IS(kedgefs_fsync_dir(fs, "none"), -ENOENT);

    IS(kedgefs_file_open(fs, "none", KEDGEFS_READ, 0, &file), -ENOENT);
    IS(kedgefs_file_open(fs, "d", KEDGEFS_READ, 0, &file), -EISDIR);
    IS(kedgefs_file_open(fs, "f", BOTH | KEDGEFS_CREATE | KEDGEFS_EXCLUSIVE, 0644, &file), -EEXIST);
    IS(kedgefs_file_open(fs, "dangling", BOTH | KEDGEFS_CREATE | KEDGEFS_EXCLUSIVE, 0644, &file), -EEXIST);
    IS(kedgefs_file_open(fs, "f", 0, 0, &file), -EINVAL);
    IS(kedgefs_file_open(fs, "f", KEDGEFS_READ | KEDGEFS_TRUNCATE, 0, &file), -EINVAL);
    IS(kedgefs_file_open(fs, "f", BOTH | KEDGEFS_EXCLUSIVE, 0, &file), -EINVAL);
    IS(kedgefs_file_open(fs, "f", BOTH | 0x100, 0, &file), -EINVAL);
    IS(kedgefs_file_open(fs, "x", BOTH | KEDGEFS_CREATE, 01000644, &file), -EINVAL);
    IS(kedgefs_file_open(fs, "f", KEDGEFS_READ, 0, NULL), -EFAULT);

    kedgefs_dir_t *dir;
    IS(kedgefs_opendir(fs, "f", &dir), -ENOTDIR);
    IS(kedgefs_opendir(fs, "none", &dir), -ENOENT);
    IS(kedgefs_opendir(fs, "d", NULL), -EFAULT);
    OK(kedgefs_opendir(fs, "d", &dir));
    IS(kedgefs_readdir(dir, NULL), -EFAULT);
    OK(kedgefs_closedir(dir));
    IS(kedgefs_statvfs(fs, NULL), -EFAULT);
    IS(kedgefs_set_options(fs, "ro"), -EINVAL);
    IS(kedgefs_set_options(fs, "colour=red"), -EINVAL);
}

static void files(kedgefs_t *fs) {
    kedgefs_file_t *file;
    char buf[16];
    OK(kedgefs_file_open(fs, "f", KEDGEFS_READ, 0, &file));
    IS(kedgefs_pwrite(file, "x", 1, 0), -EBADF);
    IS(kedgefs_ftruncate(file, 0), -EBADF);
    IS(kedgefs_pread(file, buf, 1, -1), -EINVAL);
    IS(kedgefs_pread(file, NULL, 1, 0), -EFAULT);
    IS(kedgefs_pread(file, buf, SIZE_MAX, 0), -EINVAL);
    IS(kedgefs_pread(file, buf, 1, INT64_MAX), 0);
    IS(kedgefs_fstat(file, NULL), -EFAULT);
    OK(kedgefs_file_close(file));
    OK(kedgefs_file_open(fs, "f", KEDGEFS_WRITE, 0, &file));
    IS(kedgefs_pread(file, buf, 1, 0), -EBADF);
    IS(kedgefs_pwrite(file, NULL, 1, 0), -EFAULT);
    IS(kedgefs_pwrite(file, "x", 1, -1), -EINVAL);
    IS(kedgefs_pwrite(file, "x", SIZE_MAX, 0), -EINVAL);
    IS(kedgefs_pwrite(file, "x", 1, INT64_MAX), -EFBIG);
    IS(kedgefs_ftruncate(file, INT64_MAX), -EFBIG);
    IS(kedgefs_ftruncate(file, -1), -EINVAL);
    OK(kedgefs_file_close(file));
    HOLDS(has(fs, "f", "text"));
}

static void attributes(kedgefs_t *fs) {
    static char big[65537];
    char buf[4];
    kedgefs_time_t wrong = {.nsec = 1000000000};
    IS(kedgefs_chmod(fs, "f", 0100644), -EINVAL);
    IS(kedgefs_chmod(fs, "none", 0644), -ENOENT);
    IS(kedgefs_chown(fs, "none", 1, 1, 0), -ENOENT);
    IS(kedgefs_chown(fs, "f", 1, 1, 2), -EINVAL);
    IS(kedgefs_utimens(fs, "f", &wrong, NULL, 0), -EINVAL);
    IS(kedgefs_utimens(fs, "none", NULL, NULL, 0), -ENOENT);
    IS(kedgefs_getxattr(fs, "f", "user.a", buf, sizeof buf), -ENODATA);
    IS(kedgefs_removexattr(fs, "f", "user.a"), -ENODATA);
    IS(kedgefs_setxattr(fs, "f", "user.a", "12345", 5, KEDGEFS_XATTR_REPLACE), -ENODATA);
    OK(kedgefs_setxattr(fs, "f", "user.a", "12345", 5, 0));
    IS(kedgefs_setxattr(fs, "f", "user.a", "12345", 5, KEDGEFS_XATTR_CREATE), -EEXIST);
    IS(kedgefs_setxattr(fs, "f", "user.a", "12345", 5, 7), -EINVAL);
    IS(kedgefs_setxattr(fs, "f", "user.a", big, sizeof big, 0), -E2BIG);
    IS(kedgefs_setxattr(fs, "f", "user.a", NULL, 5, 0), -EFAULT);
    IS(kedgefs_setxattr(fs, "f", NULL, "1", 1, 0), -EFAULT);
    IS(kedgefs_setxattr(fs, "none", "user.a", "1", 1, 0), -ENOENT);
    IS(kedgefs_getxattr(fs, "f", "user.a", buf, sizeof buf), -ERANGE);
    IS(kedgefs_listxattr(fs, "f", buf, sizeof buf), -ERANGE);
    IS(kedgefs_listxattr(fs, "none", NULL, 0), -ENOENT);
}

static void full(const char *image) {
    kedgefs_t *fs = fresh(image, 16 * MIB, NULL);
    kedgefs_file_t *file = created(fs, "fill");
    static char block[1 << 16];
    int64_t at = 0, n;
    while ((n = kedgefs_pwrite(file, block, sizeof block, at)) > 0) at += n;
    IS(n, -ENOSPC);
    HOLDS(at > (int64_t)MIB);
    OK(kedgefs_fsync(file));
    OK(kedgefs_file_close(file));
    OK(kedgefs_unlink(fs, "fill"));
    OK(kedgefs_close(fs));
}

static void links(kedgefs_t *fs) {
    char name[16];
    int made = 1, result;
    do {
        snprintf(name, sizeof name, "d/%d", made);
        result = kedgefs_link(fs, "f", name);
    } while (result == 0 && ++made <= 65000);
    IS(result, -EMLINK);
    IS(made, 65000);
}

static void read_only(const char *image) {
    kedgefs_t *fs;
    kedgefs_file_t *file;
    OK(kedgefs_open(image, "ro", &fs));
    HOLDS(has(fs, "f", "text"));
    IS(kedgefs_mkdir(fs, "x", 0755), -EROFS);
    IS(kedgefs_rmdir(fs, "d/e"), -EROFS);
    IS(kedgefs_unlink(fs, "f"), -EROFS);
    IS(kedgefs_rename(fs, "f", "g", 0), -EROFS);
    IS(kedgefs_link(fs, "f", "g"), -EROFS);
    IS(kedgefs_symlink(fs, "f", "g"), -EROFS);
    IS(kedgefs_chmod(fs, "f", 0600), -EROFS);
    IS(kedgefs_setxattr(fs, "f", "user.a", "1", 1, 0), -EROFS);
    IS(kedgefs_removexattr(fs, "f", "user.a"), -EROFS);
    IS(kedgefs_file_open(fs, "new", BOTH | KEDGEFS_CREATE, 0644, &file), -EROFS);
    OK(kedgefs_file_open(fs, "f", BOTH, 0, &file));
    IS(kedgefs_pwrite(file, "x", 1, 0), -EROFS);
    IS(kedgefs_ftruncate(file, 0), -EROFS);
    OK(kedgefs_close(fs));
}

int main(int argc, char **argv) {
    IS(argc, 2);
    kedgefs_t *fs;
    OK(kedgefs_create(argv[1], 64 * MIB, NULL));
    images(argv[1]);
    OK(kedgefs_open(argv[1], "", &fs));
    paths(fs);
    files(fs);
    attributes(fs);
    links(fs);
    OK(kedgefs_close(fs));
    read_only(argv[1]);
    full(beside(argv[1], "full"));
    return 0;
}

// Handles that are closed, of another kind, or none: handles IMAGE [whole]
// With "whole" the process is not forked.
#include "check.h"
#include <sys/wait.h>

// All calls on a file system refuse the handle.
static void no_file_system(kedgefs_t *fs) {
    kedgefs_file_t *file = NULL;
    kedgefs_dir_t *dir = NULL;
    kedgefs_stat_t stat;
    kedgefs_statvfs_t space;
    char buf[8];
    IS(kedgefs_close(fs), -EBADF);
    IS(kedgefs_sync(fs), -EBADF);
    IS(kedgefs_set_options(fs, "commit=5"), -EBADF);
    IS(kedgefs_statvfs(fs, &space), -EBADF);
    IS(kedgefs_file_open(fs, "f", KEDGEFS_READ, 0, &file), -EBADF);
    IS(kedgefs_mkdir(fs, "d", 0755), -EBADF);
    IS(kedgefs_rmdir(fs, "d"), -EBADF);
    IS(kedgefs_unlink(fs, "f"), -EBADF);
    IS(kedgefs_rename(fs, "f", "g", 0), -EBADF);
    IS(kedgefs_link(fs, "f", "g"), -EBADF);
    IS(kedgefs_symlink(fs, "f", "g"), -EBADF);
    IS(kedgefs_readlink(fs, "f", buf, sizeof buf), -EBADF);
    IS(kedgefs_fsync_dir(fs, "/"), -EBADF);
    IS(kedgefs_opendir(fs, "/", &dir), -EBADF);
    IS(kedgefs_stat(fs, "f", &stat), -EBADF);
    IS(kedgefs_lstat(fs, "f", &stat), -EBADF);
    IS(kedgefs_chmod(fs, "f", 0644), -EBADF);
    IS(kedgefs_chown(fs, "f", 0, 0, 0), -EBADF);
    IS(kedgefs_utimens(fs, "f", NULL, NULL, 0), -EBADF);
    IS(kedgefs_getxattr(fs, "f", "user.a", buf, sizeof buf), -EBADF);
    IS(kedgefs_setxattr(fs, "f", "user.a", "1", 1, 0), -EBADF);
    IS(kedgefs_listxattr(fs, "f", buf, sizeof buf), -EBADF);
    IS(kedgefs_removexattr(fs, "f", "user.a"), -EBADF);
    HOLDS(file == NULL && dir == NULL);
}

static void no_file(kedgefs_file_t *file) {
    char buf[8];
    kedgefs_stat_t stat;
    IS(kedgefs_pread(file, buf, sizeof buf, 0), -EBADF);
    IS(kedgefs_pwrite(file, "x", 1, 0), -EBADF);
    IS(kedgefs_fsync(file), -EBADF);
    IS(kedgefs_fdatasync(file), -EBADF);
    IS(kedgefs_ftruncate(file, 0), -EBADF);
    IS(kedgefs_fstat(file, &stat), -EBADF);
    IS(kedgefs_file_close(file), -EBADF);
}

static void no_directory(kedgefs_dir_t *dir) {
    kedgefs_dirent_t entry;
    IS(kedgefs_readdir(dir, &entry), -EBADF);
    IS(kedgefs_closedir(dir), -EBADF);
}

// A child has the memory of this process, but must not write to the image.
static void in_a_child(const char *image, kedgefs_t *fs, kedgefs_file_t *file, kedgefs_dir_t *dir) {
    pid_t child = fork();
    HOLDS(child >= 0);
    if (child == 0) {
        kedgefs_t *again;
        // A call that is not refused may wait for a thread that the child does not have.
        alarm(60);
        no_file_system(fs);
        HOLDS(strstr(kedgefs_error(), "forked"));
        no_file(file);
        no_directory(dir);
        IS(kedgefs_open(image, NULL, &again), -EBADF);
        IS(kedgefs_create("x", 16 * MIB, NULL), -EBADF);
        _exit(0);
    }
    int status;
    IS(waitpid(child, &status, 0), child);
    OK(status);
}

int main(int argc, char **argv) {
    HOLDS(argc == 2 || argc == 3);
    no_file_system(NULL);
    no_file(NULL);
    no_directory(NULL);
    kedgefs_t *fs = fresh(argv[1], 64 * MIB, NULL);
    kedgefs_file_t *file = created(fs, "f");
    kedgefs_dir_t *dir;
    OK(kedgefs_opendir(fs, "/", &dir));

    // Other kinds, and numbers near valid ones.
    no_file_system((kedgefs_t *)file);
    no_file_system((kedgefs_t *)dir);
    no_file((kedgefs_file_t *)fs);
    no_file((kedgefs_file_t *)dir);
    no_directory((kedgefs_dir_t *)fs);
    no_directory((kedgefs_dir_t *)file);
    no_file((kedgefs_file_t *)((uintptr_t)file + 1));
    no_file((kedgefs_file_t *)((uintptr_t)file + 256));
    no_file((kedgefs_file_t *)UINTPTR_MAX);
    if (argc == 2) in_a_child(argv[1], fs, file, dir);

    // A closed handle stays invalid when its place is used again.
    OK(kedgefs_file_close(file));
    no_file(file);
    kedgefs_file_t *second = created(fs, "g");
    HOLDS(second != file);
    no_file(file);
    IS(kedgefs_pwrite(second, "kept", 4, 0), 4);
    OK(kedgefs_fsync(second));
    OK(kedgefs_closedir(dir));
    no_directory(dir);
    OK(kedgefs_opendir(fs, "/", &dir));

    // A file system takes its files and directories with it, and nothing of another one.
    char path[4096];
    snprintf(path, sizeof path, "%s.other", argv[1]);
    kedgefs_t *other = fresh(path, 16 * MIB, NULL);
    kedgefs_file_t *others = created(other, "h");
    OK(kedgefs_unlink(other, "h"));
    OK(kedgefs_close(fs));
    no_file_system(fs);
    no_file(second);
    no_directory(dir);
    IS(kedgefs_pwrite(others, "x", 1, 0), 1);
    OK(kedgefs_close(other));
    no_file(others);

    OK(kedgefs_open(argv[1], NULL, &fs));
    no_file(second);
    HOLDS(has(fs, "g", "kept"));
    OK(kedgefs_close(fs));
    return 0;
}

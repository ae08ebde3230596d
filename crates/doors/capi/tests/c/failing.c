// A device that fails: failing IMAGE
#include "check.h"
#include <signal.h>
#include <sys/resource.h>

// Lets writes beyond this offset of a file fail with EFBIG.
static void limit(rlim_t bytes) {
    struct rlimit limits;
    OK(getrlimit(RLIMIT_FSIZE, &limits));
    limits.rlim_cur = bytes;
    OK(setrlimit(RLIMIT_FSIZE, &limits));
}

int main(int argc, char **argv) {
    IS(argc, 2);
    signal(SIGXFSZ, SIG_IGN);
    kedgefs_t *fs = fresh(argv[1], 64 * MIB, "commit=300");
    kedgefs_file_t *file = created(fs, "f");
    IS(kedgefs_pwrite(file, "synced", 6, 0), 6);
    OK(kedgefs_fsync(file));

    limit(4096);
    IS(kedgefs_pwrite(file, "SYNCED", 6, 0), 6);
    // No sync confirms what is not on the device, the first time as little as the second.
    for (int i = 0; i < 2; i++) {
        IS(kedgefs_fsync(file), -EIO);
        HOLDS(strlen(kedgefs_error()) > 20);
        IS(kedgefs_fdatasync(file), -EIO);
        IS(kedgefs_fsync_dir(fs, "/"), -EIO);
        IS(kedgefs_sync(fs), -EIO);
    }
    IS(kedgefs_mkdir(fs, "d", 0755), -EIO);
    IS(kedgefs_pwrite(file, "x", 1, 0), -EIO);
    // What is in memory can still be read.
    char buf[8];
    IS(kedgefs_pread(file, buf, sizeof buf, 0), 6);
    IS(kedgefs_close(fs), -EIO);
    IS(kedgefs_close(fs), -EBADF);

    limit(RLIM_INFINITY);
    OK(kedgefs_open(argv[1], NULL, &fs));
    HOLDS(has(fs, "f", "synced"));
    OK(kedgefs_close(fs));
    return 0;
}

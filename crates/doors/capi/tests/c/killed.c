// What was synced before the process is killed: killed write IMAGE prints the number of each file
// that is durable, without end; killed check IMAGE N checks the files up to N.
#include "check.h"

static char content[40000];

// The content of file `n`, which has no zeros.
static size_t fill(int n) {
    size_t len = 1 + (size_t)n * 977 % sizeof content;
    memset(content, 'a' + n % 26, len);
    return len;
}

static void path_of(int n, char path[64]) {
    snprintf(path, 64, "d%d/%d", n % 7, n);
}

static void write_all(const char *image) {
    kedgefs_t *fs;
    char path[64];
    OK(kedgefs_open(image, "commit=300", &fs));
    kedgefs_file_t *log = NULL;
    OK(kedgefs_file_open(fs, "log", BOTH | KEDGEFS_CREATE, 0644, &log));
    kedgefs_stat_t stat;
    OK(kedgefs_fstat(log, &stat));
    // Each file is one byte of the log, so a later run continues.
    for (int n = (int)stat.size;; n++) {
        size_t len = fill(n);
        snprintf(path, sizeof path, "d%d", n % 7);
        int made = kedgefs_mkdir(fs, path, 0755);
        HOLDS(made == 0 || made == -EEXIST);
        kedgefs_file_t *file;
        OK(kedgefs_file_open(fs, "tmp", BOTH | KEDGEFS_CREATE | KEDGEFS_TRUNCATE, 0644, &file));
        IS(kedgefs_pwrite(file, content, len, 0), (int64_t)len);
        OK(kedgefs_fsync(file));
        OK(kedgefs_file_close(file));
        path_of(n, path);
        OK(kedgefs_rename(fs, "tmp", path, 0));
        char *dir = strrchr(path, '/');
        *dir = 0;
        if (n % 2) OK(kedgefs_fsync_dir(fs, path));
        IS(kedgefs_pwrite(log, ".", 1, n), 1);
        OK(kedgefs_fdatasync(log));
        printf("%d\n", n);
        fflush(stdout);
    }
}

static void check_all(const char *image, int last) {
    kedgefs_t *fs;
    char path[64], buf[sizeof content + 1];
    OK(kedgefs_open(image, NULL, &fs));
    kedgefs_stat_t stat;
    OK(kedgefs_stat(fs, "log", &stat));
    HOLDS(stat.size > (uint64_t)last);
    for (int n = 0; n <= last; n++) {
        int64_t len = (int64_t)fill(n);
        kedgefs_file_t *file;
        path_of(n, path);
        OK(kedgefs_file_open(fs, path, KEDGEFS_READ, 0, &file));
        IS(kedgefs_pread(file, buf, sizeof buf, 0), len);
        HOLDS(memcmp(buf, content, (size_t)len) == 0);
        OK(kedgefs_file_close(file));
    }
    OK(kedgefs_close(fs));
}

int main(int argc, char **argv) {
    HOLDS(argc >= 3);
    if (strcmp(argv[1], "write") == 0) {
        write_all(argv[2]);
    }
    IS(argc, 4);
    check_all(argv[2], atoi(argv[3]));
    return 0;
}

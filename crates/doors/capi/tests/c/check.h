// Checks of the test programs: a program ends with 1 at the first call whose result is unexpected,
// and prints the call, the result and the library's text.
#ifndef CHECK_H
#define CHECK_H

#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <kedgefs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef NO_LIBRARY
// The program is not linked to the library.
#define kedgefs_error() ""
#endif

static inline void fail(const char *file, int line, const char *call, int64_t got, int64_t wanted) {
    fprintf(stderr, "%s:%d: %s: %" PRId64 ", not %" PRId64 ": %s\n", file, line, call, got, wanted, kedgefs_error());
    _exit(1);
}

// The call returns this.
#define IS(call, wanted)                                                   \
    do {                                                                   \
        int64_t got_ = (call), wanted_ = (wanted);                         \
        if (got_ != wanted_) fail(__FILE__, __LINE__, #call, got_, wanted_); \
    } while (0)

// The call succeeds.
#define OK(call) IS(call, 0)

// The condition holds.
#define HOLDS(condition) IS(!!(condition), 1)

static const uint64_t MIB = 1 << 20;

// The two flags of most files here.
static const uint32_t BOTH = KEDGEFS_READ | KEDGEFS_WRITE;

#ifndef NO_LIBRARY
// A new image, opened.
static inline kedgefs_t *fresh(const char *image, uint64_t size, const char *options) {
    kedgefs_t *fs = NULL;
    OK(kedgefs_create(image, size, NULL));
    OK(kedgefs_open(image, options, &fs));
    HOLDS(fs != NULL);
    return fs;
}

// A new file, open to be read and written.
static inline kedgefs_file_t *created(kedgefs_t *fs, const char *path) {
    kedgefs_file_t *file = NULL;
    OK(kedgefs_file_open(fs, path, BOTH | KEDGEFS_CREATE | KEDGEFS_EXCLUSIVE, 0644, &file));
    HOLDS(file != NULL);
    return file;
}

// A new file with this text.
static inline void saved(kedgefs_t *fs, const char *path, const char *text) {
    kedgefs_file_t *file = created(fs, path);
    IS(kedgefs_pwrite(file, text, strlen(text), 0), (int64_t)strlen(text));
    OK(kedgefs_file_close(file));
}

// Whether the file has this text.
static inline bool has(kedgefs_t *fs, const char *path, const char *text) {
    char buf[4096];
    kedgefs_file_t *file = NULL;
    OK(kedgefs_file_open(fs, path, KEDGEFS_READ, 0, &file));
    int64_t len = kedgefs_pread(file, buf, sizeof buf, 0);
    OK(kedgefs_file_close(file));
    return len == (int64_t)strlen(text) && memcmp(buf, text, (size_t)len) == 0;
}

#endif

#endif

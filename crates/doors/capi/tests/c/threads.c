// Many threads on one file system: threads IMAGE
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 8, FILES = 40, BLOCK = 3000, ROUNDS = 60 };

static kedgefs_t *fs;
static kedgefs_file_t *shared;

// Saves files as a careful program does, in a directory of its own; each error text is its own.
static void *saves(void *arg) {
    int me = (int)(intptr_t)arg;
    char dir[32], path[64], tmp[64], text[64];
    snprintf(dir, sizeof dir, "t%d", me);
    OK(kedgefs_mkdir(fs, dir, 0755));
    for (int i = 0; i < FILES; i++) {
        snprintf(tmp, sizeof tmp, "t%d/tmp", me);
        snprintf(path, sizeof path, "t%d/%d", me, i);
        snprintf(text, sizeof text, "thread %d, file %d", me, i);
        kedgefs_file_t *file = created(fs, tmp);
        IS(kedgefs_pwrite(file, text, strlen(text), 0), (int64_t)strlen(text));
        OK(kedgefs_fsync(file));
        OK(kedgefs_file_close(file));
        OK(kedgefs_rename(fs, tmp, path, 0));
        HOLDS(has(fs, path, text));
        kedgefs_stat_t stat;
        snprintf(tmp, sizeof tmp, "t%d/none%d", me, i);
        IS(kedgefs_stat(fs, tmp, &stat), -ENOENT);
        HOLDS(strstr(kedgefs_error(), tmp));
        // Its own block of a file that all write.
        char block[BLOCK];
        memset(block, 'a' + me, sizeof block);
        IS(kedgefs_pwrite(shared, block, sizeof block, (int64_t)(i * THREADS + me) * BLOCK), BLOCK);
        if (i % 8 == 0) OK(kedgefs_fdatasync(shared));
    }
    kedgefs_dir_t *list;
    kedgefs_dirent_t entry;
    int count = 0;
    OK(kedgefs_opendir(fs, dir, &list));
    while (kedgefs_readdir(list, &entry) == 1) count++;
    OK(kedgefs_closedir(list));
    IS(count, FILES);
    return NULL;
}

static _Atomic(kedgefs_file_t *) current;
static atomic_int refused, done;

// Uses a handle that another thread closes at any moment.
static void *reads(void *arg) {
    (void)arg;
    char buf[64];
    while (!atomic_load(&done)) {
        int64_t n = kedgefs_pread(atomic_load(&current), buf, sizeof buf, 0);
        if (n == -EBADF) {
            atomic_fetch_add(&refused, 1);
        } else {
            IS(n, 7);
            HOLDS(memcmp(buf, "content", 7) == 0);
        }
    }
    return NULL;
}

// Works until the file system is closed.
static void *writes(void *arg) {
    kedgefs_file_t *file = arg;
    for (int64_t at = 0;; at = (at + BLOCK) % 100000) {
        char block[BLOCK] = {0};
        int64_t n = kedgefs_pwrite(file, block, sizeof block, at);
        if (n == BLOCK) n = kedgefs_fsync(file);
        if (n == -EBADF || n == -EIO) return NULL;
        HOLDS(n == 0);
    }
}

static _Atomic(int64_t) acknowledged[THREADS];

// Appends without a sync until the file system is closed.
static void *appends(void *arg) {
    int me = (int)(intptr_t)arg;
    char path[32], block[100] = {1};
    snprintf(path, sizeof path, "append%d", me);
    kedgefs_file_t *file = NULL;
    OK(kedgefs_file_open(fs, path, BOTH | KEDGEFS_CREATE, 0644, &file));
    for (int64_t at = 0;; at += (int64_t)sizeof block) {
        if (kedgefs_pwrite(file, block, sizeof block, at) != (int64_t)sizeof block) return NULL;
        atomic_store(&acknowledged[me], at + (int64_t)sizeof block);
    }
}

// What a call has written before or during the close is there afterwards.
static void closes_beside_writers(const char *image) {
    pthread_t threads[THREADS];
    for (int round = 0; round < 30; round++) {
        OK(kedgefs_open(image, NULL, &fs));
        for (intptr_t i = 0; i < THREADS; i++) OK(pthread_create(&threads[i], NULL, appends, (void *)i));
        for (int i = 0; i < THREADS; i++) {
            while (atomic_load(&acknowledged[i]) == 0) usleep(100);
        }
        usleep(500);
        OK(kedgefs_close(fs));
        for (int i = 0; i < THREADS; i++) OK(pthread_join(threads[i], NULL));
        OK(kedgefs_open(image, NULL, &fs));
        for (int i = 0; i < THREADS; i++) {
            char path[32];
            kedgefs_stat_t stat;
            snprintf(path, sizeof path, "append%d", i);
            OK(kedgefs_stat(fs, path, &stat));
            HOLDS((int64_t)stat.size >= atomic_load(&acknowledged[i]));
            OK(kedgefs_unlink(fs, path));
            atomic_store(&acknowledged[i], 0);
        }
        OK(kedgefs_close(fs));
    }
}

int main(int argc, char **argv) {
    IS(argc, 2);
    pthread_t threads[THREADS];
    fs = fresh(argv[1], 64 * MIB, NULL);
    shared = created(fs, "shared");
    for (intptr_t i = 0; i < THREADS; i++) OK(pthread_create(&threads[i], NULL, saves, (void *)i));
    for (int i = 0; i < THREADS; i++) OK(pthread_join(threads[i], NULL));
    OK(kedgefs_fsync(shared));
    for (int i = 0; i < THREADS * FILES; i++) {
        char block[BLOCK], wanted[BLOCK];
        memset(wanted, 'a' + i % THREADS, sizeof wanted);
        IS(kedgefs_pread(shared, block, sizeof block, (int64_t)i * BLOCK), BLOCK);
        HOLDS(memcmp(block, wanted, sizeof block) == 0);
    }

    saved(fs, "content", "content");
    kedgefs_file_t *file;
    OK(kedgefs_file_open(fs, "content", KEDGEFS_READ, 0, &file));
    atomic_store(&current, file);
    for (int i = 0; i < THREADS; i++) OK(pthread_create(&threads[i], NULL, reads, NULL));
    for (int i = 0; i < ROUNDS || !atomic_load(&refused); i++) {
        OK(kedgefs_file_close(atomic_load(&current)));
        usleep(200);
        OK(kedgefs_file_open(fs, "content", KEDGEFS_READ, 0, &file));
        atomic_store(&current, file);
        usleep(200);
    }
    atomic_store(&done, 1);
    for (int i = 0; i < THREADS; i++) OK(pthread_join(threads[i], NULL));

    for (intptr_t i = 0; i < THREADS; i++) {
        char path[32];
        snprintf(path, sizeof path, "busy%d", (int)i);
        OK(pthread_create(&threads[i], NULL, writes, created(fs, path)));
    }
    usleep(50000);
    OK(kedgefs_close(fs));
    for (int i = 0; i < THREADS; i++) OK(pthread_join(threads[i], NULL));

    // The image is consistent, and unlocked.
    OK(kedgefs_open(argv[1], NULL, &fs));
    HOLDS(has(fs, "t3/7", "thread 3, file 7"));
    OK(kedgefs_close(fs));
    closes_beside_writers(argv[1]);
    return 0;
}

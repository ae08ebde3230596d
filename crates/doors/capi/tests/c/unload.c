// A program that loads the library while it runs, and lets go of it with an image open:
// unload LIBRARY IMAGE
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>

static void *library;

// The thread that has called the library ends, and with it what it keeps of the library.
static void *uses(void *image) {
    int (*create)(const char *, uint64_t, const char *);
    int (*open)(const char *, const char *, kedgefs_t **);
    int (*mkdir)(kedgefs_t *, const char *, uint32_t);
    *(void **)&create = dlsym(library, "kedgefs_create");
    *(void **)&open = dlsym(library, "kedgefs_open");
    *(void **)&mkdir = dlsym(library, "kedgefs_mkdir");
    HOLDS(create && open && mkdir);
    kedgefs_t *fs;
    HOLDS(create(image, 16 * MIB, NULL) == 0);
    HOLDS(open(image, "commit=1", &fs) == 0);
    HOLDS(mkdir(fs, "d", 0755) == 0);
    return NULL;
}

int main(int argc, char **argv) {
    IS(argc, 3);
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    HOLDS(library);
    pthread_t thread;
    HOLDS(pthread_create(&thread, NULL, uses, argv[2]) == 0);
    HOLDS(pthread_join(thread, NULL) == 0);
    HOLDS(dlclose(library) == 0);
    // The threads of the library go on: one makes the directory durable within a second.
    usleep(2500000);
    return 0;
}

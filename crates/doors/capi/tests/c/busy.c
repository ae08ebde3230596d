// An image that is in use: busy IMAGE
#include "check.h"

int main(int argc, char **argv) {
    IS(argc, 2);
    kedgefs_t *fs = fresh(argv[1], 16 * MIB, NULL), *again;
    IS(kedgefs_open(argv[1], NULL, &again), -EBUSY);
    HOLDS(strstr(kedgefs_error(), "in use"));
    OK(kedgefs_close(fs));
    OK(kedgefs_open(argv[1], NULL, &again));
    OK(kedgefs_close(again));
    return 0;
}

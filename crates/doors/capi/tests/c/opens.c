// The result of opening an image: opens IMAGE OPTIONS prints it, and the text of an error.
#include "check.h"

int main(int argc, char **argv) {
    IS(argc, 3);
    kedgefs_t *fs;
    int result = kedgefs_open(argv[1], argv[2], &fs);
    printf("%d %s\n", result, result ? kedgefs_error() : "");
    if (result == 0) OK(kedgefs_close(fs));
    return 0;
}

// SQLite's own test programs load no extensions. This function, which SQLite calls at the end of its
// initialisation (SQLITE_EXTRA_INIT), makes the VFS of the extension that EXTENSION names the default.
#include "sqlite3.h"
#include <stdio.h>
#include <stdlib.h>

int extension_as_default(const char *unused) {
    (void)unused;
    const char *extension = getenv("EXTENSION");
    if (extension == NULL) return SQLITE_OK;
    sqlite3 *db = NULL;
    char *why = NULL;
    int code = sqlite3_open(":memory:", &db);
    if (code == SQLITE_OK) code = sqlite3_enable_load_extension(db, 1);
    if (code == SQLITE_OK) code = sqlite3_load_extension(db, extension, NULL, &why);
    sqlite3_close(db);
    if (code == SQLITE_OK) code = sqlite3_vfs_register(sqlite3_vfs_find("kedgefs"), 1);
    if (code == SQLITE_OK) return SQLITE_OK;
    // Else the program would go on with the files of the host.
    fprintf(stderr, "%s: %d: %s\n", extension, code, why ? why : "");
    exit(9);
}

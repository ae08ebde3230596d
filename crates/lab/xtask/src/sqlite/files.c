// Functions of SQL for files of the VFS kedgefs: whether one is there, its size, and its removal.
#include "sqlite3ext.h"
SQLITE_EXTENSION_INIT1
#include <stdlib.h>

enum { NAME_MAX_BYTES = 8192 };

static sqlite3_vfs *kedgefs(void) { return sqlite3_vfs_find("kedgefs"); }

// The full name of the argument, as SQLite passes names on; NULL: there is none.
static sqlite3_filename name_of(sqlite3_value *value) {
    char full[NAME_MAX_BYTES];
    const char *text = (const char *)sqlite3_value_text(value);
    sqlite3_filename name = text ? sqlite3_create_filename(text, "", "", 0, NULL) : NULL;
    int code = name ? kedgefs()->xFullPathname(kedgefs(), name, sizeof full, full) : SQLITE_ERROR;
    sqlite3_free_filename(name);
    return code == SQLITE_OK ? sqlite3_create_filename(full, "", "", 0, NULL) : NULL;
}

static void exists(sqlite3_context *context, int count, sqlite3_value **values) {
    (void)count;
    int found = 0;
    sqlite3_filename name = name_of(values[0]);
    // Not SQLITE_ACCESS_EXISTS, for which an empty file is none.
    if (name) kedgefs()->xAccess(kedgefs(), name, SQLITE_ACCESS_READWRITE, &found);
    sqlite3_free_filename(name);
    sqlite3_result_int(context, found);
}

static void delete(sqlite3_context *context, int count, sqlite3_value **values) {
    (void)count;
    sqlite3_filename name = name_of(values[0]);
    if (name) sqlite3_result_int(context, kedgefs()->xDelete(kedgefs(), name, 0));
    sqlite3_free_filename(name);
}

static void size(sqlite3_context *context, int count, sqlite3_value **values) {
    (void)count;
    sqlite3_int64 bytes = -1;
    sqlite3_filename name = name_of(values[0]);
    sqlite3_file *file = calloc(1, (size_t)kedgefs()->szOsFile);
    const int flags = SQLITE_OPEN_READONLY | SQLITE_OPEN_MAIN_DB;
    if (name && file && kedgefs()->xOpen(kedgefs(), name, file, flags, NULL) == SQLITE_OK) {
        file->pMethods->xFileSize(file, &bytes);
        file->pMethods->xClose(file);
    }
    free(file);
    sqlite3_free_filename(name);
    sqlite3_result_int64(context, bytes);
}

int sqlite3_files_init(sqlite3 *db, char **error, const sqlite3_api_routines *api) {
    (void)error;
    SQLITE_EXTENSION_INIT2(api);
    int code = sqlite3_create_function(db, "exists_in", 1, SQLITE_UTF8, NULL, exists, NULL, NULL);
    if (code == SQLITE_OK) code = sqlite3_create_function(db, "delete_in", 1, SQLITE_UTF8, NULL, delete, NULL, NULL);
    if (code == SQLITE_OK) code = sqlite3_create_function(db, "size_in", 1, SQLITE_UTF8, NULL, size, NULL, NULL);
    return code;
}

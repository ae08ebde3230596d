// Prints the sizes, offsets and numbers of the header.
#include <kedgefs.h>
#include <stdio.h>

#define NUMBER(name) printf(#name " %llu\n", (unsigned long long)(name))
#define SIZE(type) printf(#type " %zu\n", sizeof(type))
#define FIELD(type, field) printf(#type "." #field " %zu\n", offsetof(type, field))

int main(void) {
    NUMBER(KEDGEFS_READ);
    NUMBER(KEDGEFS_WRITE);
    NUMBER(KEDGEFS_CREATE);
    NUMBER(KEDGEFS_EXCLUSIVE);
    NUMBER(KEDGEFS_TRUNCATE);
    NUMBER(KEDGEFS_NOREPLACE);
    NUMBER(KEDGEFS_EXCHANGE);
    NUMBER(KEDGEFS_NOFOLLOW);
    NUMBER(KEDGEFS_XATTR_CREATE);
    NUMBER(KEDGEFS_XATTR_REPLACE);
    NUMBER(KEDGEFS_NOW);
    NUMBER(KEDGEFS_KEEP);
    NUMBER(KEDGEFS_SNAPSHOT);
    NUMBER(KEDGEFS_FORCE);
    NUMBER(KEDGEFS_KEEP_LIMIT);
    NUMBER(KEDGEFS_NAME_MAX);
    SIZE(kedgefs_time_t);
    FIELD(kedgefs_time_t, sec);
    FIELD(kedgefs_time_t, nsec);
    FIELD(kedgefs_time_t, reserved);
    SIZE(kedgefs_stat_t);
    FIELD(kedgefs_stat_t, ino);
    FIELD(kedgefs_stat_t, size);
    FIELD(kedgefs_stat_t, blocks);
    FIELD(kedgefs_stat_t, rdev);
    FIELD(kedgefs_stat_t, mode);
    FIELD(kedgefs_stat_t, nlink);
    FIELD(kedgefs_stat_t, uid);
    FIELD(kedgefs_stat_t, gid);
    FIELD(kedgefs_stat_t, atime);
    FIELD(kedgefs_stat_t, mtime);
    FIELD(kedgefs_stat_t, ctime);
    FIELD(kedgefs_stat_t, btime);
    FIELD(kedgefs_stat_t, reserved);
    SIZE(kedgefs_statvfs_t);
    FIELD(kedgefs_statvfs_t, blocks);
    FIELD(kedgefs_statvfs_t, blocks_free);
    FIELD(kedgefs_statvfs_t, blocks_available);
    FIELD(kedgefs_statvfs_t, inodes);
    FIELD(kedgefs_statvfs_t, inodes_free);
    FIELD(kedgefs_statvfs_t, block_size);
    FIELD(kedgefs_statvfs_t, name_max);
    FIELD(kedgefs_statvfs_t, reserved);
    SIZE(kedgefs_limit_t);
    FIELD(kedgefs_limit_t, dir);
    FIELD(kedgefs_limit_t, bytes_max);
    FIELD(kedgefs_limit_t, bytes);
    FIELD(kedgefs_limit_t, files_max);
    FIELD(kedgefs_limit_t, files);
    FIELD(kedgefs_limit_t, reserved);
    SIZE(kedgefs_piece_t);
    FIELD(kedgefs_piece_t, offset);
    FIELD(kedgefs_piece_t, data);
    FIELD(kedgefs_piece_t, len);
    SIZE(kedgefs_dirent_t);
    FIELD(kedgefs_dirent_t, ino);
    FIELD(kedgefs_dirent_t, mode);
    FIELD(kedgefs_dirent_t, name_len);
    FIELD(kedgefs_dirent_t, name);
    return 0;
}

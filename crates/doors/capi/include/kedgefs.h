// KedgeFS as a C library: a crash-consistent journaling file system inside a process, in an image
// file or on a block device. docs/C.md begins with a whole program.
//
// Generated from the code of the library. SPDX-License-Identifier: MIT OR Apache-2.0
//
// Results.  A function returns 0 or a count, or a negative errno: -ENOENT, -ENOSPC. The numbers are
//     those of <errno.h>. errno itself is not set. kedgefs_error returns a text about the error.
//     Each function can also return
//     -EBADF: the handle is closed, of another kind, or NULL, or the process is a child of the one
//     that opened the image;
//     -EFAULT: a pointer that must not be NULL is NULL;
//     -EIO: the device failed, or earlier writes did and the file system has shut down; or the
//     library is broken, which the text says, and the file system has shut down;
//     -EUCLEAN: the image is damaged there;
//     -ENFILE: 1048576 handles of one kind are open, or memory for a thread is missing.
// Durability.  What kedgefs_fsync, kedgefs_fdatasync, kedgefs_fsync_dir or kedgefs_sync confirmed
//     with 0 survives a crash of the process, of the system, and a power cut. Work that none of
//     them covered becomes durable within some seconds (option commit): names and attributes in the
//     order of the calls, the contents of files in no order.
// Threads.  Every function may be called from every thread at any time, with the same handles.
//     Calls on different files run in parallel. No function may be called in a signal handler.
// Strings.  Paths and names are bytes that end with a zero. A path is walked as the kernel does it;
//     it starts at the root of the image, with or without a leading slash. No path leads out of the
//     image. A name has at most 255 bytes, the target of a symbolic link at most 4095.
// Numbers.  Sizes and offsets are bytes. An offset is at least 0. A buffer of length 0 may be NULL.


#ifndef KEDGEFS_H
#define KEDGEFS_H

#include <stddef.h>
#include <stdint.h>

// The version of the interface, which is also in the name of the shared library. Programs built for
// one number do not run with another.
#define KEDGEFS_ABI 0

// For kedgefs_file_open: the file is read.
#define KEDGEFS_READ 1

// For kedgefs_file_open: the file is written.
#define KEDGEFS_WRITE 2

// For kedgefs_file_open, with KEDGEFS_WRITE: the file is created if the name is free.
#define KEDGEFS_CREATE 4

// For kedgefs_file_open, with KEDGEFS_CREATE: the call fails with -EEXIST if the name is taken,
// even by a symbolic link.
#define KEDGEFS_EXCLUSIVE 8

// For kedgefs_file_open, with KEDGEFS_WRITE: an existing file becomes empty.
#define KEDGEFS_TRUNCATE 16

// For kedgefs_rename: the call fails with -EEXIST if the new name is taken.
#define KEDGEFS_NOREPLACE 1

// For kedgefs_rename: the two names, which must both exist, are swapped.
#define KEDGEFS_EXCHANGE 2

// For kedgefs_chown and kedgefs_utimens: a symbolic link at the end of the path is not followed.
#define KEDGEFS_NOFOLLOW 1

// For kedgefs_setxattr: the call fails with -EEXIST if the attribute exists.
#define KEDGEFS_XATTR_CREATE 1

// For kedgefs_setxattr: the call fails with -ENODATA if the attribute does not exist.
#define KEDGEFS_XATTR_REPLACE 2

// For kedgefs_utimens, in place of nanoseconds: the time of the call.
#define KEDGEFS_NOW 4294967295

// For kedgefs_chown: this owner stays as it is.
#define KEDGEFS_KEEP 4294967295

// For kedgefs_fork: nothing in the copy can be changed.
#define KEDGEFS_SNAPSHOT 1

// For kedgefs_commit_tree: the tree is replaced although it was changed since the fork.
#define KEDGEFS_FORCE 1

// For kedgefs_set_limit: this maximum stays as it is.
#define KEDGEFS_KEEP_LIMIT 9223372036854775807

// Bytes of the longest name in a directory, without the terminating zero.
#define KEDGEFS_NAME_MAX 255

// An open directory, made by kedgefs_opendir and freed by kedgefs_closedir. A number, as
// kedgefs_t.
typedef struct kedgefs_dir_t kedgefs_dir_t;

// An open file, made by kedgefs_file_open and freed by kedgefs_file_close. A number, as kedgefs_t.
typedef struct kedgefs_file_t kedgefs_file_t;

// An open file system, made by kedgefs_open and freed by kedgefs_close.
//
// A handle is a number, not an address: never read through it. A handle that is closed, NULL, or
// of another kind is refused with -EBADF.
typedef struct kedgefs_t kedgefs_t;

// Space and inodes of a file system.
typedef struct {
  // Blocks of the image.
  uint64_t blocks;
  // Free blocks, including those that are kept for metadata.
  uint64_t blocks_free;
  // Free blocks that the contents of files can have.
  uint64_t blocks_available;
  // Inodes in use, and those that can still be made.
  uint64_t inodes;
  // Inodes that can still be made, as an estimate: they are made on demand.
  uint64_t inodes_free;
  // Bytes of a block.
  uint32_t block_size;
  // Bytes of the longest name.
  uint32_t name_max;
  // Zeros, for fields of later versions.
  uint64_t reserved[2];
} kedgefs_statvfs_t;

// A point in time.
typedef struct {
  // Seconds since 1970-01-01 00:00 UTC, negative before.
  int64_t sec;
  // Nanoseconds, 0 to 999999999.
  uint32_t nsec;
  // Zeros, for fields of later versions.
  uint32_t reserved;
} kedgefs_time_t;

// Attributes of a file, as stat(2) shows them.
typedef struct {
  // Inode number. Never used again for another file of the image.
  uint64_t ino;
  // Bytes of a file; of a directory its entries.
  uint64_t size;
  // Space that the file has, in units of 512 bytes.
  uint64_t blocks;
  // Number of a device file, else 0.
  uint64_t rdev;
  // Type and permission bits, as st_mode: S_ISDIR and the others apply.
  uint32_t mode;
  // Number of names; of a directory 2 + its subdirectories.
  uint32_t nlink;
  // User.
  uint32_t uid;
  // Group.
  uint32_t gid;
  // Last read, moved as with the mount option relatime.
  kedgefs_time_t atime;
  // Last change of the contents.
  kedgefs_time_t mtime;
  // Last change of contents or attributes.
  kedgefs_time_t ctime;
  // Creation.
  kedgefs_time_t btime;
  // Zeros, for attributes of later versions.
  uint64_t reserved[4];
} kedgefs_stat_t;

// An entry of a directory.
typedef struct {
  // Inode number.
  uint64_t ino;
  // Type of the file, as the type bits of st_mode: S_ISDIR and the others apply.
  uint32_t mode;
  // Bytes of the name, 1 to KEDGEFS_NAME_MAX.
  uint32_t name_len;
  // The name, which ends with a zero. It is bytes, not text of some encoding.
  char name[256];
} kedgefs_dirent_t;

// The limit of a directory.
typedef struct {
  // Inode number of the directory.
  uint64_t dir;
  // Most bytes of file data; 0 if there is no such maximum.
  uint64_t bytes_max;
  // Bytes in use, including those promised to accepted data that is not written yet.
  uint64_t bytes;
  // Most inodes, the directory included; 0 if there is no such maximum.
  uint64_t files_max;
  // Inodes in use.
  uint64_t files;
  // Zeros, for fields of later versions.
  uint64_t reserved[3];
} kedgefs_limit_t;

// A piece of an atomic write.
typedef struct {
  // Offset in the file in bytes, 0 or more.
  int64_t offset;
  // The bytes to write.
  const void *data;
  // The number of bytes to write.
  size_t len;
} kedgefs_piece_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the library, such as "0.1.0".
const char *kedgefs_version(void);

// The text of the last error of the calling thread, in English, for people. Empty if the thread
// had none. A call that succeeds leaves it as it is.
//
// Valid until the next call of this thread that fails. Never NULL.
const char *kedgefs_error(void);

// Makes an image of `size` bytes in a new file, or in a new RBD image (rbd:POOL/IMAGE). The file
// appears under its name when the image in it is complete and durable. Its root directory belongs
// to the effective user and group of the process. kedgefs_open opens it.
//
// `options` is NULL, or a list separated by commas: label=NAME (at most 64 bytes), log_size=SIZE,
// immutable. Sizes are bytes, or written as 64K, 16M, 4G.
//
// Returns 0, or
// -EEXIST: something has that name;
// -EINVAL: size is below 16 MiB, or an option is unknown;
// -ENOENT, -EACCES, -ENOSPC, ...: the host's error.
int kedgefs_create(const char *image, uint64_t size, const char *options);

// Opens an image: a file, a block device, or a URI (file:, nbd:, nbd+unix:, rbd:). If it was not
// closed, its log is replayed first: everything that was synced is there.
//
// `options` is NULL, or a list of mount options separated by commas, as for kedge mount -o: ro,
// commit=SECONDS, cache_size=SIZE, noatime, discard, volatile, offset=BYTES, sizelimit=BYTES,
// key-file=FILE and others. Options of the kernel's side of a mount, such as allow_other, are
// refused. The default cache is a sixteenth of the memory, within 64 MiB and 1 GiB.
//
// While the image is open it is locked, and no other process can open or mount it. New files
// belong to the effective user and group that the process has now. The library checks no
// permissions and applies no umask: the caller is the owner of the image.
//
// A child of this process (fork) cannot use the library any more, until it executes another
// program. Its copies of the handles are refused, and keep the image locked.
//
// Returns 0 and sets *fs, or
// -EBUSY: another process has the image open, or this one has. The call waits up to 15 seconds for
// the end of such a process;
// -EINVAL: an option is unknown, or this is neither file nor block device, or it is too small;
// -EUCLEAN: the image is damaged, which kedge fsck may repair, or it is no image;
// -ENOKEY: the image is encrypted, and there is no option key-file;
// -EROFS: the image can only be read: option ro;
// -ENOSPC: the host has no space to replay the log; option ro replays it in memory;
// -ENOENT, -EACCES, -EIO, ...: the host's error.
int kedgefs_open(const char *image, const char *options, kedgefs_t **fs);

// Makes everything durable, ends the file system and unlocks the image. The handle, and those of
// all its files and directories, are invalid from then on, whatever the call returns. It waits for
// calls of other threads that are under way: what they have written is durable when it returns.
//
// A process that ends without this call loses what was not synced, as in a crash, and nothing
// else.
//
// Returns 0, or
// -EIO: data could not be written, even after retries, and is lost; kedgefs_error says of which
// files. The rest is durable;
// -ENOSPC: the host has no space for the last checkpoint; the next open replays the log.
int kedgefs_close(kedgefs_t *fs);

// Makes everything durable that calls have done before.
//
// Returns 0, or -EIO, -ENOSPC: not all of it is durable.
int kedgefs_sync(kedgefs_t *fs);

// Changes options of an open file system: those that are marked with * in kedge mount --help, such
// as commit=SECONDS, without ro and rw.
//
// Returns 0, or -EINVAL: an option is unknown, or cannot change.
int kedgefs_set_options(kedgefs_t *fs, const char *options);

// Space and inodes, used and free.
int kedgefs_statvfs(kedgefs_t *fs, kedgefs_statvfs_t *result);

// Opens a regular file. Symbolic links are followed.
//
// `flags` is KEDGEFS_READ, KEDGEFS_WRITE or both, and with KEDGEFS_WRITE perhaps KEDGEFS_CREATE,
// KEDGEFS_EXCLUSIVE, KEDGEFS_TRUNCATE. `mode` has the permission bits of a file that is created,
// such as 0644; no umask is applied. A file that loses its last name stays until it is closed.
//
// Returns 0 and sets *file, or
// -ENOENT: no such name, and no KEDGEFS_CREATE;
// -EEXIST: the name is taken, with KEDGEFS_EXCLUSIVE;
// -EISDIR: it is a directory;
// -EINVAL: it is neither file nor directory, or the flags make no sense;
// -ENOTDIR, -ELOOP, -ENAMETOOLONG: the path;
// -ENOSPC, -EROFS: it cannot be created.
int kedgefs_file_open(kedgefs_t *fs,
                      const char *path,
                      uint32_t flags,
                      uint32_t mode,
                      kedgefs_file_t **file);

// Closes a file. Makes nothing durable: kedgefs_fsync does. The handle is invalid from then on. A
// call of another thread that is under way ends as usual.
//
// Returns 0.
int kedgefs_file_close(kedgefs_file_t *file);

// Reads up to `len` bytes at `offset`, 0 or more.
//
// Returns the number of bytes, which is less than `len` only at the end of the file, or
// -EBADF: the file is not open for reading;
// -EINVAL: the offset is negative;
// -EIO: the device failed, or the data is damaged.
int64_t kedgefs_pread(kedgefs_file_t *file, void *buf, size_t len, int64_t offset);

// Writes `len` bytes at `offset`, 0 or more. A file that ends before `offset` is filled with
// zeros. The bytes are durable after kedgefs_fsync, kedgefs_fdatasync or kedgefs_sync.
//
// Returns the number of bytes, which is less than `len` if space or the device failed on the way
// (the call that writes the rest returns the error), or
// -EBADF: the file is not open for writing;
// -EINVAL: the offset is negative;
// -EFBIG: the offset is beyond the largest size of a file;
// -ENOSPC: the image or its host is full;
// -EROFS: the image is open with option ro;
// -EPERM: the file is immutable;
// -EIO: the device failed.
int64_t kedgefs_pwrite(kedgefs_file_t *file, const void *buf, size_t len, int64_t offset);

// Makes data and attributes of the file durable, its name and the directories above it.
//
// Returns 0: a crash from now on loses none of it. Or
// -EIO, -ENOSPC: earlier data could not be written to the device or the host. It is not durable.
// A later call that returns 0 has written it: the library keeps such data and tries again.
int kedgefs_fsync(kedgefs_file_t *file);

// As kedgefs_fsync, but only the data and what is needed to read it: time stamps may be older
// after a crash.
int kedgefs_fdatasync(kedgefs_file_t *file);

// Sets the size of a file: cuts it, or extends it with zeros.
//
// Returns 0, or
// -EBADF: the file is not open for writing;
// -EINVAL: the size is negative;
// -EFBIG: it is beyond the largest size of a file;
// -ENOSPC, -EROFS, -EPERM, -EIO: as kedgefs_pwrite.
int kedgefs_ftruncate(kedgefs_file_t *file, int64_t size);

// Attributes of an open file.
//
// Returns 0 and sets *result.
int kedgefs_fstat(kedgefs_file_t *file, kedgefs_stat_t *result);

// Makes a directory. `mode` has its permission bits, such as 0755; no umask is applied.
//
// Returns 0, or -EEXIST, -ENOENT, -ENOTDIR, -ENAMETOOLONG, -EMLINK, -ENOSPC, -EROFS.
int kedgefs_mkdir(kedgefs_t *fs, const char *path, uint32_t mode);

// Removes an empty directory.
//
// Returns 0, or -ENOENT, -ENOTDIR, -ENOTEMPTY, -EROFS; -EINVAL for "/" and for a path that ends
// with "." or "..".
int kedgefs_rmdir(kedgefs_t *fs, const char *path);

// Removes a name of a file that is not a directory. The file is deleted with its last name, once
// it is no longer open.
//
// Returns 0, or -ENOENT, -EISDIR, -ENOTDIR, -EROFS, -EPERM.
int kedgefs_unlink(kedgefs_t *fs, const char *path);

// Moves a name atomically: no crash leaves both names or neither. Replaces what has the new name,
// unless `flags` is KEDGEFS_NOREPLACE, or KEDGEFS_EXCHANGE. It is durable after kedgefs_fsync of
// the file, kedgefs_fsync_dir of the directory, or kedgefs_sync.
//
// Returns 0, or
// -ENOENT: no such name;
// -EEXIST: the new name is taken, with KEDGEFS_NOREPLACE;
// -ENOTEMPTY, -EISDIR, -ENOTDIR: what has the new name cannot be replaced by this;
// -EINVAL: a directory would move below itself, or a path ends with "." or "..";
// -ENAMETOOLONG, -EMLINK, -ENOSPC, -EROFS, -EPERM.
int kedgefs_rename(kedgefs_t *fs, const char *from, const char *to, uint32_t flags);

// Adds the name `to` to the file at `from`, which is not a directory. A symbolic link at the end
// of `from` is not followed.
//
// Returns 0, or -ENOENT, -EEXIST, -EPERM (a directory), -EMLINK (65000 links), -ENOSPC, -EROFS.
int kedgefs_link(kedgefs_t *fs, const char *from, const char *to);

// Makes a symbolic link at `path`. Its target has 1 to 4095 bytes and is not interpreted. An
// absolute target starts at the root of the image.
//
// Returns 0, or -EEXIST, -ENOENT, -ENAMETOOLONG, -ENOSPC, -EROFS.
int kedgefs_symlink(kedgefs_t *fs, const char *target, const char *path);

// The target of a symbolic link, with a terminating zero.
//
// Returns the length without the zero. With `len` 0 nothing is written, and buf may be NULL. Or
// -ERANGE: the buffer has no room for target and zero;
// -EINVAL: not a symbolic link;
// -ENOENT, -ENOTDIR, -ELOOP.
int64_t kedgefs_readlink(kedgefs_t *fs, const char *path, char *buf, size_t len);

// Makes the entries of a directory durable: names that were made, moved or removed in it.
// kedgefs_fsync of a file covers the file's own name already.
//
// Returns 0, or -ENOENT, -ENOTDIR, -EIO.
int kedgefs_fsync_dir(kedgefs_t *fs, const char *path);

// Opens a directory to list its entries.
//
// Returns 0 and sets *dir, or -ENOENT, -ENOTDIR, -ELOOP, -ENAMETOOLONG.
int kedgefs_opendir(kedgefs_t *fs, const char *path, kedgefs_dir_t **dir);

// The next entry of a directory, in no particular order, without "." and "..". Entries that are
// made or removed meanwhile may or may not be among them.
//
// Returns 1 and sets *entry, or 0 after the last one, or -EIO. After an error there are no further
// entries.
int kedgefs_readdir(kedgefs_dir_t *dir, kedgefs_dirent_t *entry);

// Closes a directory. The handle is invalid from then on.
//
// Returns 0.
int kedgefs_closedir(kedgefs_dir_t *dir);

// Attributes of a file, directory or other node. Symbolic links are followed.
//
// Returns 0 and sets *result, or -ENOENT, -ENOTDIR, -ELOOP, -ENAMETOOLONG.
int kedgefs_stat(kedgefs_t *fs, const char *path, kedgefs_stat_t *result);

// As kedgefs_stat, but of a symbolic link at the end of the path itself.
int kedgefs_lstat(kedgefs_t *fs, const char *path, kedgefs_stat_t *result);

// Sets the permission bits, 0 to 07777. Symbolic links are followed.
//
// Returns 0, or -ENOENT, -ENOTDIR, -ELOOP, -EROFS, -EPERM (immutable).
int kedgefs_chmod(kedgefs_t *fs, const char *path, uint32_t mode);

// Sets user and group, each of which may be KEDGEFS_KEEP. `flags` is 0 or KEDGEFS_NOFOLLOW. The
// set-user-id and set-group-id bits stay: a program that gives files away clears them first.
//
// Returns 0, or -ENOENT, -ENOTDIR, -ELOOP, -EROFS, -EPERM (immutable).
int kedgefs_chown(kedgefs_t *fs, const char *path, uint32_t uid, uint32_t gid, uint32_t flags);

// Sets the times of the last read and of the last change. NULL keeps a time; KEDGEFS_NOW as its
// nanoseconds is the time of the call. `flags` is 0 or KEDGEFS_NOFOLLOW.
//
// Returns 0, or -EINVAL (nanoseconds), -ENOENT, -ENOTDIR, -ELOOP, -EROFS, -EPERM (immutable).
int kedgefs_utimens(kedgefs_t *fs,
                    const char *path,
                    const kedgefs_time_t *atime,
                    const kedgefs_time_t *mtime,
                    uint32_t flags);

// The value of an extended attribute. Names include their namespace, such as user.color. Symbolic
// links are followed, here and in the three functions below.
//
// Returns the length of the value. With `len` 0 nothing is written, and buf may be NULL. Or
// -ERANGE: the buffer is too small;
// -ENODATA: there is no such attribute;
// -ENOENT, -ENOTDIR, -ELOOP.
int64_t kedgefs_getxattr(kedgefs_t *fs, const char *path, const char *name, void *buf, size_t len);

// Sets an extended attribute to `len` bytes, at most 65536. `flags` is 0, KEDGEFS_XATTR_CREATE or
// KEDGEFS_XATTR_REPLACE.
//
// Returns 0, or
// -EEXIST, -ENODATA: as the flags say;
// -E2BIG: the value is too long;
// -EINVAL, -EOPNOTSUPP: the name is not possible;
// -ENOSPC: no space, or the names of the file have more than 65536 bytes;
// -ENOENT, -ENOTDIR, -ELOOP, -EROFS, -EPERM (immutable).
int kedgefs_setxattr(kedgefs_t *fs,
                     const char *path,
                     const char *name,
                     const void *value,
                     size_t len,
                     uint32_t flags);

// The names of all extended attributes, each with a terminating zero, at most 65536 bytes.
//
// Returns their length in all. With `len` 0 nothing is written, and buf may be NULL. Or
// -ERANGE: the buffer is too small;
// -ENOENT, -ENOTDIR, -ELOOP.
int64_t kedgefs_listxattr(kedgefs_t *fs, const char *path, char *buf, size_t len);

// Removes an extended attribute.
//
// Returns 0, or -ENODATA (there is none), -ENOENT, -ENOTDIR, -ELOOP, -EROFS, -EPERM (immutable).
int kedgefs_removexattr(kedgefs_t *fs, const char *path, const char *name);

// Makes the directory `to` a copy of the whole tree at `from`, which shares all blocks with it:
// "/" for the first tree, or a fork or snapshot. With KEDGEFS_SNAPSHOT in `flags`, nothing in the
// copy can be changed. Work of other threads waits meanwhile, reads do not.
//
// Returns 0: the copy is durable. Or
// -EINVAL: `from` is not the root of a tree, or the flags are unknown;
// -EEXIST: `to` is taken;
// -ENOENT, -ENOTDIR: a path;
// -ENOSPC, -EROFS, -EBUSY (frozen).
int kedgefs_fork(kedgefs_t *fs, const char *from, const char *to, uint32_t flags);

// Deletes a fork or a snapshot with all it holds. Open files in it return -ESTALE from then on.
// Its space is freed in the background.
//
// Returns 0: it is durably gone. Or
// -ENOENT: there is no fork or snapshot of this name;
// -ENOTEMPTY: another tree is named in it;
// -ENOSPC, -EROFS, -EBUSY (frozen).
int kedgefs_delete_tree(kedgefs_t *fs, const char *path);

// Replaces the fork at `tree` by a new fork of the tree at `snapshot`, in one step. With "/" as
// `tree` it replaces the first tree: trees that are named in it keep their paths, and calls on
// files of it that are open return -ESTALE from then on.
//
// Returns 0: it is durable. Or
// -EINVAL: `snapshot` is not the root of a tree, or it is `tree`;
// -ENOENT: there is no fork at `tree`;
// -ENOTEMPTY: another tree is named in it, or, with "/", would lose its path;
// -ENOSPC, -EROFS, -EBUSY (frozen).
int kedgefs_roll_back(kedgefs_t *fs, const char *snapshot, const char *tree);

// Replaces the tree at `tree` by the fork at `fork`, which was made from it, in one step. The name
// of the fork is then gone. With KEDGEFS_FORCE in `flags`, `tree` may have been changed since the
// fork.
//
// Returns 0: it is durable. Or
// -EBUSY: `tree` was changed since, or the file system is frozen;
// -EINVAL, -ENOENT, -ENOTEMPTY, -ENOSPC, -EROFS: as kedgefs_roll_back.
int kedgefs_commit_tree(kedgefs_t *fs, const char *fork, const char *tree, uint32_t flags);

// Makes the contents of file `to` those of file `from`, of the same file system and tree, by
// sharing its blocks. No space is taken until one of them is written. Durable after kedgefs_fsync
// of `to`. Other callers and a crash find the old contents or the new ones, except for files with
// many extents, which take several steps that begin with an empty file.
//
// Returns 0, or
// -EBADF: `to` is not open for writing;
// -EXDEV: the files are in two file systems or two trees;
// -EINVAL: only one of them has checksums of its data;
// -ENOSPC, -EROFS, -EPERM, -EIO: as kedgefs_pwrite.
int kedgefs_clone_file(kedgefs_file_t *from, kedgefs_file_t *to);

// Clones `len` bytes at `from_offset` of file `from`, or all bytes from there on if `len` is 0, as
// kedgefs_clone_file does. They replace those at `to_offset` of file `to`. Offsets and length are
// multiples of 4096. The range may instead end at the end of `from`, if in `to` it ends at or
// after the end of that file.
//
// Returns 0, or
// -EINVAL: an offset or the length is negative or no such multiple, or both ranges are in one file
// and overlap;
// and the errors of kedgefs_clone_file.
int kedgefs_clone_range(kedgefs_file_t *from,
                        int64_t from_offset,
                        kedgefs_file_t *to,
                        int64_t to_offset,
                        int64_t len);

// Limits the bytes of file data and the number of inodes at and below a directory: from then on
// what would need more fails with -EDQUOT. 0 removes a maximum, KEDGEFS_KEEP_LIMIT leaves it as it
// is. Bytes are rounded down to whole blocks.
//
// Returns 0: it is durable. Or
// -ENOTDIR: it is no directory;
// -EINVAL: less than a block, or more than 32 limits inside one another;
// -EMLINK: a file has another name outside of the directory;
// -ENOENT, -ENOSPC, -EROFS, -EBUSY (frozen).
int kedgefs_set_limit(kedgefs_t *fs, const char *path, uint64_t bytes_max, uint64_t files_max);

// The nearest limit at or above a file or directory.
//
// Returns 1 and sets *limit; 0 if there is none; or -ENOENT, -ENOTDIR.
int kedgefs_limit_of(kedgefs_t *fs, const char *path, kedgefs_limit_t *limit);

// Writes `count` pieces to a file so that they become durable together: after a crash the file has
// all of them or none. They are durable when the call returns 0. All pieces together have at most
// 896 KiB, less with a small log.
//
// Returns 0, or
// -EBADF: the file is not open for writing;
// -EINVAL: an offset is negative;
// -EFBIG: the pieces are too large;
// -ENOSPC, -EDQUOT, -EROFS, -EPERM: the file is as it was;
// -EIO: the log could not be written. The file system is shut down, and the next open finds all
// pieces or none.
int kedgefs_write_atomic(kedgefs_file_t *file, const kedgefs_piece_t *pieces, size_t count);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KEDGEFS_H */

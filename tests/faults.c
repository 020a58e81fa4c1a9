// Fails the n-th call that changes files below a folder, or kills the process.
//
// Loaded with LD_PRELOAD; faults_arm begins to count. What is counted: opens for
// writing, writes, syncs, changes of names and sizes, maps and closes of files
// and folders below the folder, and large allocations if these are asked for.
// Not counted: what a static or a hidden call of a library reaches the kernel
// by, such as the writes of stdio, whose fwrite and fclose are counted instead.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_FILES 65536
#define REAL(name)                                      \
  static __typeof__(name)* real;                        \
  if (!real) real = (__typeof__(name)*)dlsym(RTLD_NEXT, #name)

static char folder[PATH_MAX];
static size_t folder_size;
static _Atomic int armed, is_tracked[MAX_FILES];
static _Atomic long count;
static long failing, min_bytes;  // 0 = files; else allocations of so many bytes
static int error, stays;         // error 0 = kill; whether later calls fail too
static char last[256];

// Begins to count calls below a folder. The n-th one fails with an errno, or
// with 0 kills the process; n = 0 only counts. With `stay` all later calls that
// need room fail, too.
void faults_arm(const char* path, long n, int with, int stay, long bytes) {
  snprintf(folder, sizeof folder, "%s", path);
  folder_size = strlen(folder);
  failing = n, error = with, stays = stay, min_bytes = bytes, count = 0;
  armed = 1;
}

long faults_disarm(void) {
  armed = 0;
  return count;
}

// Which call failed.
const char* faults_last(void) { return last; }

static void die(void) {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

static int is_due(const char* call, int needs_room) {
  long number = ++count;
  int due = number == failing || (stays && needs_room && number > failing);
  if (!failing || !due) return 0;
  if (number == failing) snprintf(last, sizeof last, "%s", call);
  return 1;
}

// Whether this call is to fail; does not return if the process is killed.
static int fails(const char* call, int needs_room) {
  if (!is_due(call, needs_room)) return 0;
  if (!error) die();
  errno = error;
  return 1;
}

static int is_below(int at, const char* path) {
  char whole[2 * PATH_MAX];
  if (!armed || min_bytes || !path) return 0;
  if (path[0] != '/') {
    char link[64];
    if (at == AT_FDCWD) {
      if (!getcwd(whole, PATH_MAX)) return 0;
    } else {
      snprintf(link, sizeof link, "/proc/self/fd/%d", at);
      ssize_t size = readlink(link, whole, PATH_MAX - 1);
      if (size < 0) return 0;
      whole[size] = 0;
    }
    size_t size = strlen(whole);
    snprintf(whole + size, sizeof whole - size, "/%s", path);
    path = whole;
  }
  return !strncmp(path, folder, folder_size);
}

static int is_mine(int file) {
  return armed && !min_bytes && file >= 0 && file < MAX_FILES &&
         is_tracked[file];
}

static int tracked(int file) {
  if (file >= 0 && file < MAX_FILES) is_tracked[file] = 1;
  return file;
}

#define WRITES(flags) (((flags) & O_ACCMODE) != O_RDONLY || ((flags) & O_CREAT))
#define MODE(flags, after)                                  \
  mode_t mode = 0;                                          \
  if ((flags) & (O_CREAT | __O_TMPFILE)) {                  \
    va_list rest;                                           \
    va_start(rest, after);                                  \
    mode = va_arg(rest, mode_t);                            \
    va_end(rest);                                           \
  }

// Files that are only read are tracked, for maps and syncs, and opened.
#define OPEN(name)                                                   \
  int name(const char* path, int flags, ...) {                       \
    REAL(name);                                                      \
    MODE(flags, flags)                                               \
    if (!is_below(AT_FDCWD, path)) return real(path, flags, mode);   \
    if (WRITES(flags) && fails(#name, 1)) return -1;                 \
    return tracked(real(path, flags, mode));                         \
  }
#define OPENAT(name)                                                 \
  int name(int at, const char* path, int flags, ...) {               \
    REAL(name);                                                      \
    MODE(flags, flags)                                               \
    if (!is_below(at, path)) return real(at, path, flags, mode);     \
    if (WRITES(flags) && fails(#name, 1)) return -1;                 \
    return tracked(real(at, path, flags, mode));                     \
  }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

// What compilers put in place of these where they check the arguments.
#define CHECKED(name, plain)                                         \
  int name(const char* path, int flags) {                            \
    REAL(name);                                                      \
    if (!is_below(AT_FDCWD, path)) return real(path, flags);         \
    if (WRITES(flags) && fails(#plain, 1)) return -1;                \
    return tracked(real(path, flags));                               \
  }
#define CHECKED_AT(name, plain)                                      \
  int name(int at, const char* path, int flags) {                    \
    REAL(name);                                                      \
    if (!is_below(at, path)) return real(at, path, flags);           \
    if (WRITES(flags) && fails(#plain, 1)) return -1;                \
    return tracked(real(at, path, flags));                           \
  }
extern int __open_2(const char*, int);
extern int __open64_2(const char*, int);
extern int __openat_2(int, const char*, int);
extern int __openat64_2(int, const char*, int);
CHECKED(__open_2, open)
CHECKED(__open64_2, open)
CHECKED_AT(__openat_2, openat)
CHECKED_AT(__openat64_2, openat)

#define CREAT(name)                                                  \
  int name(const char* path, mode_t mode) {                          \
    REAL(name);                                                      \
    if (!is_below(AT_FDCWD, path)) return real(path, mode);          \
    return fails(#name, 1) ? -1 : tracked(real(path, mode));         \
  }
CREAT(creat)
CREAT(creat64)

// A process that is killed has written half, and so has a full disk.
ssize_t write(int file, const void* data, size_t size) {
  REAL(write);
  if (!is_mine(file) || !is_due("write", 1)) return real(file, data, size);
  if (!error || error == ENOSPC) real(file, data, size / 2);
  if (!error) die();
  errno = error;
  return -1;
}

#define PWRITE(name, offset_type)                                          \
  ssize_t name(int file, const void* data, size_t size, offset_type to) {  \
    REAL(name);                                                            \
    if (!is_mine(file) || !is_due(#name, 1))                               \
      return real(file, data, size, to);                                   \
    if (!error || error == ENOSPC) real(file, data, size / 2, to);         \
    if (!error) die();                                                     \
    errno = error;                                                         \
    return -1;                                                             \
  }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

// Calls on a file, on one path, on two.
#define ON_FILE(name, needs_room, params, args)                      \
  int name params {                                                  \
    REAL(name);                                                      \
    if (is_mine(file) && fails(#name, needs_room)) return -1;        \
    return real args;                                                \
  }
#define ON_PATH(name, at, needs_room, params, args)                  \
  int name params {                                                  \
    REAL(name);                                                      \
    if (is_below(at, path) && fails(#name, needs_room)) return -1;   \
    return real args;                                                \
  }
ON_FILE(fsync, 1, (int file), (file))
ON_FILE(fdatasync, 1, (int file), (file))
ON_FILE(ftruncate, 1, (int file, off_t size), (file, size))
ON_FILE(ftruncate64, 1, (int file, off64_t size), (file, size))
ON_FILE(fallocate, 1, (int file, int mode, off_t from, off_t size),
        (file, mode, from, size))
ON_PATH(truncate, AT_FDCWD, 1, (const char* path, off_t size), (path, size))
ON_PATH(truncate64, AT_FDCWD, 1, (const char* path, off64_t size),
        (path, size))
ON_PATH(mkdir, AT_FDCWD, 1, (const char* path, mode_t mode), (path, mode))
ON_PATH(mkdirat, at, 1, (int at, const char* path, mode_t mode),
        (at, path, mode))
ON_PATH(rmdir, AT_FDCWD, 0, (const char* path), (path))
ON_PATH(unlink, AT_FDCWD, 0, (const char* path), (path))
ON_PATH(unlinkat, at, 0, (int at, const char* path, int flags),
        (at, path, flags))
ON_PATH(link, AT_FDCWD, 1, (const char* from, const char* path), (from, path))
ON_PATH(symlink, AT_FDCWD, 1, (const char* from, const char* path),
        (from, path))
ON_PATH(rename, AT_FDCWD, 1, (const char* from, const char* path),
        (from, path))
ON_PATH(renameat, at, 1,
        (int from_at, const char* from, int at, const char* path),
        (from_at, from, at, path))
ON_PATH(renameat2, at, 1,
        (int from_at, const char* from, int at, const char* path,
         unsigned flags),
        (from_at, from, at, path, flags))

// These return the error.
#define ALLOCATE(name, type)                                         \
  int name(int file, type from, type size) {                         \
    REAL(name);                                                      \
    if (is_mine(file) && fails(#name, 1)) return error;              \
    return real(file, from, size);                                   \
  }
ALLOCATE(posix_fallocate, off_t)
ALLOCATE(posix_fallocate64, off64_t)

ssize_t writev(int file, const struct iovec* parts, int num) {
  REAL(writev);
  return is_mine(file) && fails("writev", 1) ? -1 : real(file, parts, num);
}

#define COPY(name, params, args)                                     \
  ssize_t name params {                                              \
    REAL(name);                                                      \
    return is_mine(file) && fails(#name, 1) ? -1 : real args;        \
  }
COPY(sendfile, (int file, int from, off_t* at, size_t size),
     (file, from, at, size))
COPY(sendfile64, (int file, int from, off64_t* at, size_t size),
     (file, from, at, size))
COPY(copy_file_range,
     (int from, off64_t* from_at, int file, off64_t* at, size_t size,
      unsigned flags),
     (from, from_at, file, at, size, flags))

#define MMAP(name, type)                                                  \
  void* name(void* at, size_t size, int kind, int flags, int file,        \
             type from) {                                                 \
    REAL(name);                                                           \
    if (is_mine(file) && fails(#name, 0)) return MAP_FAILED;              \
    return real(at, size, kind, flags, file, from);                       \
  }
MMAP(mmap, off_t)
MMAP(mmap64, off64_t)

// The file is closed all the same, as Linux does.
int close(int file) {
  REAL(close);
  int mine = is_mine(file);
  if (file >= 0 && file < MAX_FILES) is_tracked[file] = 0;
  if (!mine || !is_due("close", 0)) return real(file);
  if (!error) die();
  real(file);
  errno = error;
  return -1;
}

#define FOPEN(name)                                                       \
  FILE* name(const char* path, const char* mode) {                        \
    REAL(name);                                                           \
    if (!is_below(AT_FDCWD, path)) return real(path, mode);               \
    if (!(mode[0] == 'r' && !strchr(mode, '+')) && fails(#name, 1))       \
      return NULL;                                                        \
    FILE* made = real(path, mode);                                        \
    if (made) tracked(fileno(made));                                      \
    return made;                                                          \
  }
FOPEN(fopen)
FOPEN(fopen64)

size_t fwrite(const void* data, size_t size, size_t num, FILE* file) {
  REAL(fwrite);
  if (!armed || !is_mine(fileno(file)) || !is_due("fwrite", 1))
    return real(data, size, num, file);
  if (!error) {
    real(data, size, num / 2, file);
    fflush(file);
    die();
  }
  errno = error;
  return 0;
}

int fflush(FILE* file) {
  REAL(fflush);
  if (armed && file && is_mine(fileno(file)) && fails("fflush", 1)) return EOF;
  return real(file);
}

int fclose(FILE* file) {
  REAL(fclose);
  int number = armed ? fileno(file) : -1, mine = is_mine(number);
  if (number >= 0 && number < MAX_FILES) is_tracked[number] = 0;
  if (!mine || !is_due("fclose", 0)) return real(file);
  if (!error) die();
  real(file);
  errno = error;
  return EOF;
}

// Large allocations. The real ones are glibc's: dlsym would allocate.
extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);

static int lacks(size_t size) {
  return armed && min_bytes && size >= (size_t)min_bytes &&
         fails("malloc", 1);
}

void* malloc(size_t size) { return lacks(size) ? NULL : __libc_malloc(size); }

void* calloc(size_t num, size_t size) {
  return lacks(num * size) ? NULL : __libc_calloc(num, size);
}

void* realloc(void* old, size_t size) {
  return lacks(size) ? NULL : __libc_realloc(old, size);
}

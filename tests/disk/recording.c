/* Records the changes of all files below a directory, for tests of power loss. Preloaded (LD_PRELOAD).

DISK_RECORD names the file of records, DISK_BELOW the directory. A record is a line: kind, path, numbers, and for
writes the length of the data, which follow the line. Shared memory (-shm, by mmap) is not recorded: SQLite rebuilds it.
*/

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST 4096

static char *paths[MOST]; /* paths of open files, by descriptor */
static char appends[MOST];
static int record = -1;
static const char *below;
static size_t below_length;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (real == NULL) real = (type (*)(__VA_ARGS__)) dlsym(RTLD_NEXT, name)

static ssize_t put(const void *data, size_t length) {
    REAL(ssize_t, "write", int, const void *, size_t);
    return real(record, data, length);
}

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("DISK_RECORD");
    below = getenv("DISK_BELOW");
    if (file == NULL || below == NULL) return;
    below_length = strlen(below);
    int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...)) dlsym(RTLD_NEXT, "open");
    record = real(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static const char *relative(const char *path) {
    if (record < 0 || path == NULL || strncmp(path, below, below_length) != 0) return NULL;
    if (path[below_length] == 0) return ".";
    return path[below_length] == '/' ? path + below_length + 1 : NULL;
}

static void note(const char *kind, const char *path, const char *other, long long first, const void *data, size_t length) {
    char line[2 * PATH_MAX + 100];
    int size = snprintf(line, sizeof line, "%s\t%s\t%s\t%lld\t%zu\n", kind, path, other, first, length);
    pthread_mutex_lock(&mutex);
    put(line, size);
    if (length) put(data, length);
    pthread_mutex_unlock(&mutex);
}

static const char *path_of(int file) {
    return file >= 0 && file < MOST ? paths[file] : NULL;
}

static int opened(int file, const char *path, int flags, int existed, int error) {
    const char *name = relative(path);
    if (file >= 0 && file < MOST) {
        free(paths[file]);
        paths[file] = name == NULL ? NULL : strdup(name);
        appends[file] = (flags & O_APPEND) != 0;
        if (name != NULL && (flags & O_CREAT) && !existed) note("create", name, "", 0, NULL, 0);
        if (name != NULL && (flags & O_TRUNC) && existed) note("truncate", name, "", 0, NULL, 0);
    }
    errno = error;
    return file;
}

#define OPEN(function, base) \
    int function(const char *path, int flags, ...) { \
        REAL(int, base, const char *, int, ...); \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); } \
        int existed = access(path, F_OK) == 0; \
        int file = real(path, flags, mode); \
        return opened(file, path, flags, existed, errno); \
    }

OPEN(open, "open")
OPEN(open64, "open64")

int openat(int at, const char *path, int flags, ...) {
    REAL(int, "openat", int, const char *, int, ...);
    mode_t mode = 0;
    if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }
    int existed = access(path, F_OK) == 0;
    int file = real(at, path, flags, mode);
    return opened(file, path, flags, existed, errno);
}

int close(int file) {
    REAL(int, "close", int);
    if (file >= 0 && file < MOST) { free(paths[file]); paths[file] = NULL; }
    return real(file);
}

int dup2(int file, int other) {
    REAL(int, "dup2", int, int);
    if (other >= 0 && other < MOST) { free(paths[other]); paths[other] = path_of(file) ? strdup(path_of(file)) : NULL; }
    return real(file, other);
}

int dup3(int file, int other, int flags) {
    REAL(int, "dup3", int, int, int);
    if (other >= 0 && other < MOST) { free(paths[other]); paths[other] = path_of(file) ? strdup(path_of(file)) : NULL; }
    return real(file, other, flags);
}

ssize_t write(int file, const void *data, size_t length) {
    REAL(ssize_t, "write", int, const void *, size_t);
    const char *path = path_of(file);
    if (path == NULL || record < 0) return real(file, data, length);
    struct stat about;
    long long place = appends[file] && fstat(file, &about) == 0 ? about.st_size : lseek(file, 0, SEEK_CUR);
    ssize_t done = real(file, data, length);
    int error = errno;
    if (done > 0) note("write", path, "", place, data, done);
    errno = error;
    return done;
}

#define PWRITE(function) \
    ssize_t function(int file, const void *data, size_t length, off_t place) { \
        REAL(ssize_t, #function, int, const void *, size_t, off_t); \
        ssize_t done = real(file, data, length, place); \
        int error = errno; \
        if (done > 0 && path_of(file)) note("write", path_of(file), "", place, data, done); \
        errno = error; \
        return done; \
    }

PWRITE(pwrite)
PWRITE(pwrite64)

#define ON_FILE(function, kind) \
    int function(int file) { \
        REAL(int, #function, int); \
        int done = real(file); \
        int error = errno; \
        if (done == 0 && path_of(file)) note(kind, path_of(file), "", 0, NULL, 0); \
        errno = error; \
        return done; \
    }

ON_FILE(fsync, "sync")
ON_FILE(fdatasync, "sync")

#define TRUNCATE(function) \
    int function(int file, off_t length) { \
        REAL(int, #function, int, off_t); \
        int done = real(file, length); \
        int error = errno; \
        if (done == 0 && path_of(file)) note("truncate", path_of(file), "", length, NULL, 0); \
        errno = error; \
        return done; \
    }

TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

int posix_fallocate(int file, off_t place, off_t length) {
    REAL(int, "posix_fallocate", int, off_t, off_t);
    int done = real(file, place, length);
    if (done == 0 && path_of(file)) note("truncate", path_of(file), "", place + length, NULL, 0);
    return done;
}

int posix_fallocate64(int file, off_t place, off_t length) {
    REAL(int, "posix_fallocate64", int, off_t, off_t);
    int done = real(file, place, length);
    if (done == 0 && path_of(file)) note("truncate", path_of(file), "", place + length, NULL, 0);
    return done;
}

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    int done = real(from, to);
    int error = errno;
    if (done == 0 && relative(from) && relative(to)) note("rename", relative(from), relative(to), 0, NULL, 0);
    errno = error;
    return done;
}

int renameat(int at, const char *from, int to_at, const char *to) {
    REAL(int, "renameat", int, const char *, int, const char *);
    int done = real(at, from, to_at, to);
    int error = errno;
    if (done == 0 && relative(from) && relative(to)) note("rename", relative(from), relative(to), 0, NULL, 0);
    errno = error;
    return done;
}

int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    int done = real(path);
    int error = errno;
    if (done == 0 && relative(path)) note("remove", relative(path), "", 0, NULL, 0);
    errno = error;
    return done;
}

int unlinkat(int at, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    int done = real(at, path, flags);
    int error = errno;
    if (done == 0 && relative(path)) note("remove", relative(path), "", 0, NULL, 0);
    errno = error;
    return done;
}

int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t);
    int done = real(path, mode);
    int error = errno;
    if (done == 0 && relative(path)) note("directory", relative(path), "", 0, NULL, 0);
    errno = error;
    return done;
}

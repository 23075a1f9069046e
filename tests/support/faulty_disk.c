/* LD_PRELOAD library: a disk that fails at a numbered call, under the control of another process.
 *
 * The file FAULTY_DISK_CONTROL is mapped and shared; its fields are those of `struct control`. Calls of the chosen
 * kinds on files whose paths begin with FAULTY_DISK_PREFIX are counted, and of these the calls first, first + 1, ..
 * (`count` of them) fail with `error`, or write a part (`half`). A failed write has written nothing; a failed sync
 * has synced, since nothing can be relied on after either.
 *
 * Calls that the C library makes by itself, as for FILE streams, are not seen.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

enum { WRITE = 1, SYNC = 2, SIZE = 4, OPEN = 8, NAME = 16, READ = 32 };

struct control {
    uint32_t kinds; /* counted, and so failed; 0: none */
    int32_t error;  /* errno of a failed call */
    uint64_t first; /* number of the first call that fails, from 1 on; 0: none fails */
    uint64_t count; /* number of calls that fail */
    uint64_t calls; /* counted so far */
    uint64_t failed;
    uint32_t half; /* writes do not fail: they write half of their bytes */
};

static struct control *control;
static const char *prefix;

__attribute__((constructor)) static void start(void)
{
    const char *path = getenv("FAULTY_DISK_CONTROL");
    int fd = path ? REAL(open)(path, O_RDWR | O_CLOEXEC) : -1;
    prefix = getenv("FAULTY_DISK_PREFIX");
    if (fd < 0 || !prefix)
        return;
    void *map = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    control = map == MAP_FAILED ? NULL : map;
}

/* Counts a call; whether it has to fail. */
static int counted(uint32_t kind)
{
    uint64_t number = __atomic_add_fetch(&control->calls, 1, __ATOMIC_SEQ_CST);
    uint64_t first = __atomic_load_n(&control->first, __ATOMIC_SEQ_CST);
    if (!first || number < first || number - first >= control->count || (control->half && kind != WRITE))
        return 0;
    __atomic_add_fetch(&control->failed, 1, __ATOMIC_SEQ_CST);
    return 1;
}

static int chosen(uint32_t kind)
{
    return control && __atomic_load_n(&control->kinds, __ATOMIC_SEQ_CST) & kind;
}

static int fails_path(const char *path, uint32_t kind)
{
    return chosen(kind) && !strncmp(path, prefix, strlen(prefix)) && counted(kind);
}

static int fails(int fd, uint32_t kind)
{
    char link[64], path[PATH_MAX];
    struct stat st;
    if (!chosen(kind) || fstat(fd, &st) || !(S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0)
        return 0;
    path[n] = 0;
    return !strncmp(path, prefix, strlen(prefix)) && counted(kind);
}

#define FAIL                                                                                                 \
    do {                                                                                                     \
        errno = control->error;                                                                              \
        return -1;                                                                                           \
    } while (0)

static size_t half_of(size_t size)
{
    return size > 1 ? size / 2 : size;
}

#define WRITES(call, part)                                                                                   \
    do {                                                                                                     \
        if (!fails(fd, WRITE))                                                                               \
            return call;                                                                                     \
        if (control->half)                                                                                   \
            return part;                                                                                     \
        FAIL;                                                                                                \
    } while (0)

ssize_t write(int fd, const void *bytes, size_t size)
{
    WRITES(REAL(write)(fd, bytes, size), REAL(write)(fd, bytes, half_of(size)));
}

ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t offset)
{
    WRITES(REAL(pwrite64)(fd, bytes, size, offset), REAL(pwrite64)(fd, bytes, half_of(size), offset));
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset)
{
    return pwrite64(fd, bytes, size, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    WRITES(REAL(writev)(fd, parts, count), REAL(write)(fd, parts[0].iov_base, half_of(parts[0].iov_len)));
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{
    WRITES(REAL(pwritev)(fd, parts, count, offset),
           REAL(pwrite64)(fd, parts[0].iov_base, half_of(parts[0].iov_len), offset));
}

ssize_t sendfile64(int to, int from, off64_t *offset, size_t size)
{
    int fd = to;
    WRITES(REAL(sendfile64)(to, from, offset, size), REAL(sendfile64)(to, from, offset, half_of(size)));
}

ssize_t sendfile(int to, int from, off_t *offset, size_t size)
{
    return sendfile64(to, from, offset, size);
}

ssize_t copy_file_range(int from, off64_t *at, int fd, off64_t *to, size_t size, unsigned flags)
{
    WRITES(REAL(copy_file_range)(from, at, fd, to, size, flags),
           REAL(copy_file_range)(from, at, fd, to, half_of(size), flags));
}

#define FAILS_FD(kind, call)                                                                                 \
    do {                                                                                                     \
        if (fails(fd, kind))                                                                                 \
            FAIL;                                                                                            \
        return call;                                                                                         \
    } while (0)

ssize_t read(int fd, void *bytes, size_t size)
{
    FAILS_FD(READ, REAL(read)(fd, bytes, size));
}

ssize_t pread64(int fd, void *bytes, size_t size, off64_t offset)
{
    FAILS_FD(READ, REAL(pread64)(fd, bytes, size, offset));
}

ssize_t pread(int fd, void *bytes, size_t size, off_t offset)
{
    return pread64(fd, bytes, size, offset);
}

#define SYNCS(call)                                                                                          \
    do {                                                                                                     \
        int result = call;                                                                                   \
        if (fails(fd, SYNC))                                                                                 \
            FAIL;                                                                                            \
        return result;                                                                                       \
    } while (0)

int fsync(int fd)
{
    SYNCS(REAL(fsync)(fd));
}

int fdatasync(int fd)
{
    SYNCS(REAL(fdatasync)(fd));
}

int msync(void *address, size_t size, int flags)
{
    int result = REAL(msync)(address, size, flags);
    if (chosen(SYNC) && counted(SYNC))
        FAIL;
    return result;
}

int ftruncate64(int fd, off64_t size)
{
    FAILS_FD(SIZE, REAL(ftruncate64)(fd, size));
}

int ftruncate(int fd, off_t size)
{
    return ftruncate64(fd, size);
}

int posix_fallocate64(int fd, off64_t offset, off64_t size)
{
    return fails(fd, SIZE) ? control->error : REAL(posix_fallocate64)(fd, offset, size);
}

int posix_fallocate(int fd, off_t offset, off_t size)
{
    return posix_fallocate64(fd, offset, size);
}

int fallocate64(int fd, int mode, off64_t offset, off64_t size)
{
    FAILS_FD(SIZE, REAL(fallocate64)(fd, mode, offset, size));
}

int fallocate(int fd, int mode, off_t offset, off_t size)
{
    return fallocate64(fd, mode, offset, size);
}

#define FAILS_PATH(path, kind, call)                                                                         \
    do {                                                                                                     \
        if (fails_path(path, kind))                                                                          \
            FAIL;                                                                                            \
        return call;                                                                                         \
    } while (0)

#define OPENS(name)                                                                                          \
    int name(const char *path, int flags, ...)                                                               \
    {                                                                                                        \
        va_list rest;                                                                                        \
        va_start(rest, flags);                                                                               \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;                            \
        va_end(rest);                                                                                        \
        FAILS_PATH(path, (flags & O_ACCMODE) == O_RDONLY ? READ : OPEN, REAL(name)(path, flags, mode));      \
    }

OPENS(open)
OPENS(open64)

#define OPENS_AT(name)                                                                                       \
    int name(int folder, const char *path, int flags, ...)                                                   \
    {                                                                                                        \
        va_list rest;                                                                                        \
        va_start(rest, flags);                                                                               \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;                            \
        va_end(rest);                                                                                        \
        FAILS_PATH(path, (flags & O_ACCMODE) == O_RDONLY ? READ : OPEN,                                      \
                   REAL(name)(folder, path, flags, mode));                                                   \
    }

OPENS_AT(openat)
OPENS_AT(openat64)

int rename(const char *from, const char *to)
{
    FAILS_PATH(to, NAME, REAL(rename)(from, to));
}

int renameat(int here, const char *from, int there, const char *to)
{
    FAILS_PATH(to, NAME, REAL(renameat)(here, from, there, to));
}

int link(const char *from, const char *to)
{
    FAILS_PATH(to, NAME, REAL(link)(from, to));
}

int linkat(int here, const char *from, int there, const char *to, int flags)
{
    FAILS_PATH(to, NAME, REAL(linkat)(here, from, there, to, flags));
}

int unlink(const char *path)
{
    FAILS_PATH(path, NAME, REAL(unlink)(path));
}

int unlinkat(int folder, const char *path, int flags)
{
    FAILS_PATH(path, NAME, REAL(unlinkat)(folder, path, flags));
}

int mkdir(const char *path, mode_t mode)
{
    FAILS_PATH(path, NAME, REAL(mkdir)(path, mode));
}

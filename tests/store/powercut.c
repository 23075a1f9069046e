/* LD_PRELOAD library: records, in order, all calls that change files below a folder or make such changes
 * durable, so that a test can reconstruct the contents of the disk after a power cut at any moment.
 *
 * The journal is a sequence of records:   type (1 byte)  file (u64)  offset (u64)  size (u64)  bytes
 *
 *   W  data written to a file, not yet durable        D  the same through an O_SYNC or O_DSYNC descriptor
 *   T  file truncated/extended to `offset`            S  the file was synced: all before is durable
 *   N  a name was created (bytes: path)               R  renamed (bytes: old path, NUL, new path)
 *   P  a folder was synced (bytes: path)              A  an acknowledgement (bytes: text)
 *
 * `file` is the inode number. All calls are passed through unchanged. Writes through a memory map would not be
 * recorded, so msync, which the store does not use, ends the process.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int journal = -1;
static char folder[PATH_MAX];

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void put(char type, uint64_t file, uint64_t offset, const void *bytes, uint64_t size)
{
    unsigned char head[25];
    head[0] = (unsigned char)type;
    memcpy(head + 1, &file, 8);
    memcpy(head + 9, &offset, 8);
    memcpy(head + 17, &size, 8);
    struct iovec parts[2] = {{head, sizeof head}, {(void *)bytes, size}};
    if (REAL(writev)(journal, parts, 2) != (ssize_t)(sizeof head + size))
        abort();
}

/* Path of a descriptor below the folder, and whether it is one. */
static int watched(int fd, char *path, struct stat *st)
{
    char link[64];
    if (journal < 0 || fd == journal || fstat(fd, st))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    if (n <= 0)
        return 0;
    path[n] = 0;
    return !strncmp(path, folder, strlen(folder)) && !strstr(path, "lock");
}

/* Called by the test's process: start to record, and record an acknowledgement. */
void powercut_watch(const char *path, const char *journal_path)
{
    snprintf(folder, sizeof folder, "%s", path);
    journal = REAL(open)(journal_path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
}

void powercut_acknowledge(const char *text)
{
    pthread_mutex_lock(&lock);
    put('A', 0, 0, text, strlen(text));
    pthread_mutex_unlock(&lock);
}

static void wrote(int fd, off_t offset, const struct iovec *parts, int count, size_t total)
{
    char path[PATH_MAX];
    struct stat st;
    if (!watched(fd, path, &st) || !S_ISREG(st.st_mode))
        return;
    char type = fcntl(fd, F_GETFL) & (O_DSYNC | O_SYNC) ? 'D' : 'W';
    for (int i = 0; i < count && total > 0; i++) {
        size_t size = parts[i].iov_len < total ? parts[i].iov_len : total;
        put(type, st.st_ino, offset, parts[i].iov_base, size);
        offset += size;
        total -= size;
    }
}

/* Every call is recorded and made under one lock, so the journal's order is the order of the calls. */
#define RECORDED(result, call, record)                                                                       \
    do {                                                                                                     \
        pthread_mutex_lock(&lock);                                                                           \
        result = call;                                                                                       \
        if (result >= 0)                                                                                     \
            record;                                                                                          \
        pthread_mutex_unlock(&lock);                                                                         \
    } while (0)

ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t offset)
{
    ssize_t n;
    struct iovec part = {(void *)bytes, size};
    RECORDED(n, REAL(pwrite64)(fd, bytes, size, offset), wrote(fd, offset, &part, 1, n));
    return n;
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset)
{
    return pwrite64(fd, bytes, size, offset);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{
    ssize_t n;
    RECORDED(n, REAL(pwritev)(fd, parts, count, offset), wrote(fd, offset, parts, count, n));
    return n;
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    ssize_t n;
    off_t offset = lseek(fd, 0, SEEK_CUR);
    RECORDED(n, REAL(writev)(fd, parts, count), wrote(fd, offset, parts, count, n));
    return n;
}

ssize_t write(int fd, const void *bytes, size_t size)
{
    ssize_t n;
    off_t offset = journal < 0 ? 0 : lseek(fd, 0, SEEK_CUR);
    struct iovec part = {(void *)bytes, size};
    RECORDED(n, REAL(write)(fd, bytes, size), wrote(fd, offset, &part, 1, n));
    return n;
}

static void cut(int fd, off_t size, int only_longer)
{
    char path[PATH_MAX];
    struct stat st;
    if (watched(fd, path, &st) && S_ISREG(st.st_mode) && (!only_longer || size >= st.st_size))
        put('T', st.st_ino, size, "", 0);
}

int ftruncate64(int fd, off64_t size)
{
    int rc;
    RECORDED(rc, REAL(ftruncate64)(fd, size), cut(fd, size, 0));
    return rc;
}

int ftruncate(int fd, off_t size)
{
    return ftruncate64(fd, size);
}

int posix_fallocate64(int fd, off64_t offset, off64_t size)
{
    int rc;
    RECORDED(rc, -REAL(posix_fallocate64)(fd, offset, size), cut(fd, offset + size, 1));
    return -rc;
}

int posix_fallocate(int fd, off_t offset, off_t size)
{
    return posix_fallocate64(fd, offset, size);
}

static void synced(int fd)
{
    char path[PATH_MAX];
    struct stat st;
    if (!watched(fd, path, &st))
        return;
    if (S_ISDIR(st.st_mode))
        put('P', 0, 0, path, strlen(path));
    else
        put('S', st.st_ino, 0, "", 0);
}

int fsync(int fd)
{
    int rc;
    RECORDED(rc, REAL(fsync)(fd), synced(fd));
    return rc;
}

int fdatasync(int fd)
{
    int rc;
    RECORDED(rc, REAL(fdatasync)(fd), synced(fd));
    return rc;
}

int msync(void *address, size_t size, int flags)
{
    if (journal >= 0)
        abort();
    return REAL(msync)(address, size, flags);
}

static void named(int fd, int flags)
{
    char path[PATH_MAX];
    struct stat st;
    if ((flags & O_CREAT) && watched(fd, path, &st) && S_ISREG(st.st_mode))
        put('N', st.st_ino, 0, path, strlen(path));
}

static int open_any(const char *path, int flags, mode_t mode)
{
    int fd;
    RECORDED(fd, REAL(open64)(path, flags, mode), named(fd, flags));
    return fd;
}

#define OPEN(name)                                                                                           \
    int name(const char *path, int flags, ...)                                                               \
    {                                                                                                        \
        va_list rest;                                                                                        \
        va_start(rest, flags);                                                                               \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;                            \
        va_end(rest);                                                                                        \
        return open_any(path, flags, mode);                                                                  \
    }

OPEN(open)
OPEN(open64)

int rename(const char *from, const char *to)
{
    int rc;
    char both[2 * PATH_MAX];
    size_t size = strlen(from) + 1 + strlen(to);
    snprintf(both, sizeof both, "%s", from);
    snprintf(both + strlen(from) + 1, PATH_MAX, "%s", to);
    RECORDED(rc, REAL(rename)(from, to), if (journal >= 0 && !strncmp(to, folder, strlen(folder)))
             put('R', 0, 0, both, size));
    return rc;
}

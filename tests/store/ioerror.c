/* LD_PRELOAD library: lets calls that change a data file fail with EIO, as on a failing or removed disk.
 *
 *   ioerror_arm(kinds, count)   the next `count` calls of these kinds fail; 0 = none
 *   ioerror_seen()              number of failed calls
 *
 * Kinds:  1  data written          (nothing is written)
 *         2  synced                (the sync is done, but reported as failed)
 *         4  written through a synchronous descriptor, as meta pages are (nothing is written)
 *         8  the same, but the data is written before the error
 *        16  with 4 or 8: after the first failure of that kind, 1 and 2 fail, too
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

enum { DATA = 1, SYNC = 2, META = 4, META_WRITTEN = 8, AFTER_META = 16 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int kinds, left, seen; /* AFTER_META adds DATA and SYNC to `kinds` */

void ioerror_arm(int which, int count)
{
    pthread_mutex_lock(&lock);
    kinds = which;
    left = count;
    seen = 0;
    pthread_mutex_unlock(&lock);
}

int ioerror_seen(void)
{
    pthread_mutex_lock(&lock);
    int n = seen;
    pthread_mutex_unlock(&lock);
    return n;
}

static int is_data_file(int fd)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0)
        return 0;
    path[n] = 0;
    return n > 9 && !strcmp(path + n - 9, "/data.mdb");
}

/* Returns the kind in `which` that fails now; 0 = none. */
static int fails(int fd, int which)
{
    if (!left || !(kinds & which) || !is_data_file(fd))
        return 0;
    pthread_mutex_lock(&lock);
    int hit = left > 0 ? kinds & which : 0;
    if (hit) {
        left--;
        seen++;
        if (kinds & AFTER_META && hit & (META | META_WRITTEN))
            kinds |= DATA | SYNC;
    }
    pthread_mutex_unlock(&lock);
    return hit;
}

static int write_kinds(int fd)
{
    return fcntl(fd, F_GETFL) & (O_DSYNC | O_SYNC) ? META | META_WRITTEN : DATA;
}

#define WRITE(call)                                                                                          \
    do {                                                                                                     \
        int hit = fails(fd, write_kinds(fd));                                                                \
        if (!hit)                                                                                            \
            return call;                                                                                     \
        if (hit & META_WRITTEN)                                                                              \
            (void)!call;                                                                                     \
        errno = EIO;                                                                                         \
        return -1;                                                                                           \
    } while (0)

ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t offset)
{
    WRITE(REAL(pwrite64)(fd, bytes, size, offset));
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset)
{
    return pwrite64(fd, bytes, size, offset);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{
    WRITE(REAL(pwritev)(fd, parts, count, offset));
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    WRITE(REAL(writev)(fd, parts, count));
}

ssize_t write(int fd, const void *bytes, size_t size)
{
    WRITE(REAL(write)(fd, bytes, size));
}

#define SYNC_CALL(call)                                                                                      \
    do {                                                                                                     \
        int rc = call;                                                                                       \
        if (!fails(fd, SYNC))                                                                                \
            return rc;                                                                                       \
        errno = EIO;                                                                                         \
        return -1;                                                                                           \
    } while (0)

int fsync(int fd)
{
    SYNC_CALL(REAL(fsync)(fd));
}

int fdatasync(int fd)
{
    SYNC_CALL(REAL(fdatasync)(fd));
}

int msync(void *address, size_t size, int flags)
{
    if (left && kinds & SYNC) { /* the store does not write through the map */
        errno = EIO;
        return -1;
    }
    return REAL(msync)(address, size, flags);
}

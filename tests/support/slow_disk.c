/* Loaded with LD_PRELOAD: every call that makes data durable takes SLOW_DISK_MS milliseconds longer
 * (default 50), as on a busy or a spinning disk. Nothing else is changed. For `make test-disturbed`.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void wait_for_disk(void)
{
    const char *setting = getenv("SLOW_DISK_MS");
    long ms = setting ? atol(setting) : 50;
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) && errno == EINTR) {
    }
}

int fsync(int fd)
{
    wait_for_disk();
    return REAL(fsync)(fd);
}

int fdatasync(int fd)
{
    wait_for_disk();
    return REAL(fdatasync)(fd);
}

int msync(void *start, size_t size, int flags)
{
    wait_for_disk();
    return REAL(msync)(start, size, flags);
}

/* LD_PRELOAD library: a wall clock that another process sets, as an administrator or a time server does.
 *
 * The file SHIFTED_CLOCK_CONTROL is mapped and shared; it has the nanoseconds (int64) that the wall clock is ahead of
 * the machine's. Clocks of elapsed time are unchanged. Waits until a moment of the wall clock are made until that
 * moment as it was set when they began; with a real clock they would follow it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int64_t *ahead;

__attribute__((constructor)) static void start(void)
{
    const char *path = getenv("SHIFTED_CLOCK_CONTROL");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *map = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    ahead = map == MAP_FAILED ? NULL : map;
}

static int64_t shift(void)
{
    return ahead ? __atomic_load_n(ahead, __ATOMIC_SEQ_CST) : 0;
}

static struct timespec shifted(struct timespec at, int64_t by)
{
    int64_t all = (int64_t)at.tv_sec * 1000000000 + at.tv_nsec + by;
    return (struct timespec){all / 1000000000, all % 1000000000};
}

int clock_gettime(clockid_t id, struct timespec *now)
{
    static __typeof__(&clock_gettime) real;
    if (!real)
        real = REAL(clock_gettime);
    int result = real(id, now);
    if (!result && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE || id == CLOCK_TAI))
        *now = shifted(*now, shift());
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec at;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &at))
        return -1;
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (now)
        *now = at.tv_sec;
    return at.tv_sec;
}

/* A moment of the wall clock, which is decades after the epoch, as the kernel's clock shows it. */
static const struct timespec *unshifted(const struct timespec *at, struct timespec *real)
{
    if (!at || at->tv_sec < 1000000000)
        return at;
    *real = shifted(*at, -shift());
    return real;
}

int pthread_cond_timedwait(pthread_cond_t *restrict c, pthread_mutex_t *restrict m,
                           const struct timespec *restrict at)
{
    struct timespec real;
    return REAL(pthread_cond_timedwait)(c, m, unshifted(at, &real));
}

int pthread_cond_clockwait(pthread_cond_t *c, pthread_mutex_t *m, clockid_t id, const struct timespec *at)
{
    struct timespec real;
    return REAL(pthread_cond_clockwait)(c, m, id, id == CLOCK_REALTIME ? unshifted(at, &real) : at);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict m, const struct timespec *restrict at)
{
    struct timespec real;
    return REAL(pthread_mutex_timedlock)(m, unshifted(at, &real));
}

int sem_timedwait(sem_t *restrict s, const struct timespec *restrict at)
{
    struct timespec real;
    return REAL(sem_timedwait)(s, unshifted(at, &real));
}

int sem_clockwait(sem_t *restrict s, clockid_t id, const struct timespec *restrict at)
{
    struct timespec real;
    return REAL(sem_clockwait)(s, id, id == CLOCK_REALTIME ? unshifted(at, &real) : at);
}

/* abseil waits on futexes, until a moment of the wall clock. */
long syscall(long number, ...)
{
    static long (*call)(long, ...);
    struct timespec real;
    long a[6];
    va_list rest;
    if (!call)
        call = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    va_start(rest, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_futex && a[1] & FUTEX_CLOCK_REALTIME)
        a[3] = (long)unshifted((const struct timespec *)a[3], &real);
    return call(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

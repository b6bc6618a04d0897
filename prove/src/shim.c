/* For LD_PRELOAD: a disk, a wall clock and connections that fail at will. The file SHIM_FILE has
   sixteen numbers of eight bytes, which may change at any time:
   0  by how many milliseconds a sync takes longer
   1  the errno with which syncs fail, 0 for none
   2  how many syncs fail with it; -1 for all
   3  the errno with which files refuse to be written or to grow, 0 for none
   4  by how many nanoseconds the wall clock is ahead
   5  the port of the peer whose connections fail
   6  how many writes to it fail
   7  how many reads from it fail
   8  with which errno they do
   Without dlsym, so that it works under jemalloc. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { SLOW, SYNC_ERRNO, SYNCS, FULL, AHEAD, PORT, WRITES, READS, LINK_ERRNO, WORDS = 16 };

static int64_t well[WORDS];
static volatile int64_t *word = well;

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("SHIM_FILE");
    int file = name ? (int)syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(NULL, sizeof well, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    syscall(SYS_close, file);
    if (found != MAP_FAILED) word = found;
}

/* Takes one of a number of failures; -1 never ends. */
static int take(int slot) {
    int64_t left = word[slot];
    while (left > 0) {
        if (__sync_bool_compare_and_swap(&word[slot], left, left - 1)) return 1;
        left = word[slot];
    }
    return left < 0;
}

static int sync_fails(void) {
    /* In small steps, so that a disk that is well again is so at once. */
    for (int64_t slept = 0; slept < word[SLOW]; slept += 10) {
        struct timespec step = {0, 10 * 1000 * 1000};
        nanosleep(&step, NULL);
    }
    int64_t error = word[SYNC_ERRNO];
    if (!error || !take(SYNCS)) return 0;
    errno = (int)error;
    return 1;
}

int fdatasync(int file) { return sync_fails() ? -1 : (int)syscall(SYS_fdatasync, file); }

int fsync(int file) { return sync_fails() ? -1 : (int)syscall(SYS_fsync, file); }

/* Only regular files have room that can be short. */
static int is_full(int file) {
    struct stat about;
    int before = errno, error = (int)word[FULL];
    if (!error || fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) {
        errno = before;
        return 0;
    }
    errno = error;
    return 1;
}

static int link_fails(int socket, int slot) {
    if (!word[slot]) return 0;
    struct sockaddr_in peer;
    socklen_t length = sizeof peer;
    int before = errno;
    int hit = getpeername(socket, (struct sockaddr *)&peer, &length) == 0
        && peer.sin_family == AF_INET && ntohs(peer.sin_port) == word[PORT] && take(slot);
    errno = hit ? (int)word[LINK_ERRNO] : before;
    return hit;
}

ssize_t pwrite(int file, const void *bytes, size_t length, off_t from) {
    return is_full(file) ? -1 : syscall(SYS_pwrite64, file, bytes, length, from);
}

ssize_t pwrite64(int file, const void *bytes, size_t length, off_t from) {
    return is_full(file) ? -1 : syscall(SYS_pwrite64, file, bytes, length, from);
}

int ftruncate(int file, off_t length) {
    return is_full(file) ? -1 : (int)syscall(SYS_ftruncate, file, length);
}

int ftruncate64(int file, off_t length) {
    return is_full(file) ? -1 : (int)syscall(SYS_ftruncate, file, length);
}

ssize_t write(int file, const void *bytes, size_t length) {
    if (is_full(file) || link_fails(file, WRITES)) return -1;
    return syscall(SYS_write, file, bytes, length);
}

ssize_t writev(int file, const struct iovec *pieces, int count) {
    if (is_full(file) || link_fails(file, WRITES)) return -1;
    return syscall(SYS_writev, file, pieces, count);
}

ssize_t send(int socket, const void *bytes, size_t length, int flags) {
    if (link_fails(socket, WRITES)) return -1;
    return syscall(SYS_sendto, socket, bytes, length, flags, 0, 0);
}

ssize_t recv(int socket, void *bytes, size_t length, int flags) {
    if (link_fails(socket, READS)) return -1;
    return syscall(SYS_recvfrom, socket, bytes, length, flags, 0, 0);
}

ssize_t read(int file, void *bytes, size_t length) {
    if (link_fails(file, READS)) return -1;
    return syscall(SYS_read, file, bytes, length);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (syscall(SYS_clock_gettime, clock, now) != 0) return -1;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) {
        int64_t nanos = now->tv_sec * INT64_C(1000000000) + now->tv_nsec + word[AHEAD];
        now->tv_sec = nanos / INT64_C(1000000000);
        now->tv_nsec = nanos % INT64_C(1000000000);
    }
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}

/* For LD_PRELOAD: a disk that is slow, or fails. The file DISK_FILE has three numbers of eight bytes:
   how many milliseconds a sync takes longer, with which errno it then fails (0: it does not), and
   whether only those of the database do, and not those of its log. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *disk;

__attribute__((constructor)) static void begin(void) {
    static int64_t well[3];
    const char *name = getenv("DISK_FILE");
    int file = name ? (int)syscall(SYS_openat, AT_FDCWD, name, O_RDONLY) : -1;
    void *found = file < 0 ? MAP_FAILED : mmap(NULL, 24, PROT_READ, MAP_SHARED, file, 0);
    disk = found == MAP_FAILED ? well : (volatile int64_t *)found;
}

static int is_database(int file) {
    static const char end[] = "/locks.sqlite";
    char link[32], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path), ends = sizeof end - 1;
    return length >= ends && memcmp(path + length - ends, end, ends) == 0;
}

/* In small steps, so that a disk that is well again is so at once. */
static int fails(int file) {
    if (disk && disk[2] && !is_database(file)) return 0;
    for (int64_t slept = 0; disk && slept < disk[0]; slept += 10) {
        struct timespec step = {0, 10 * 1000 * 1000};
        nanosleep(&step, NULL);
    }
    if (disk && disk[1]) errno = (int)disk[1];
    return disk && disk[1];
}

int fdatasync(int file) { return fails(file) ? -1 : (int)syscall(SYS_fdatasync, file); }

int fsync(int file) { return fails(file) ? -1 : (int)syscall(SYS_fsync, file); }

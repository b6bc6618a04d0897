/* For LD_PRELOAD: a disk that is slow, or fails. The file DISK_FILE has two numbers of eight bytes:
   how many milliseconds a sync takes longer, and with which errno it then fails (0: it does not). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *disk;

__attribute__((constructor)) static void begin(void) {
    static int64_t well[2];
    const char *name = getenv("DISK_FILE");
    int file = name ? (int)syscall(SYS_openat, AT_FDCWD, name, O_RDONLY) : -1;
    void *found = file < 0 ? MAP_FAILED : mmap(NULL, 16, PROT_READ, MAP_SHARED, file, 0);
    disk = found == MAP_FAILED ? well : (volatile int64_t *)found;
}

/* In small steps, so that a disk that is well again is so at once. */
static int fails(void) {
    for (int64_t slept = 0; disk && slept < disk[0]; slept += 10) {
        struct timespec step = {0, 10 * 1000 * 1000};
        nanosleep(&step, NULL);
    }
    if (disk && disk[1]) errno = (int)disk[1];
    return disk && disk[1];
}

int fdatasync(int file) { return fails() ? -1 : (int)syscall(SYS_fdatasync, file); }

int fsync(int file) { return fails() ? -1 : (int)syscall(SYS_fsync, file); }

/* For LD_PRELOAD: one write of the process to the port FAIL_PORT fails with ETIMEDOUT each time that
   there is a file FAIL_FILE, which it removes. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int fails(int socket) {
    const char *file = getenv("FAIL_FILE"), *port = getenv("FAIL_PORT");
    struct sockaddr_in peer;
    socklen_t length = sizeof peer;
    int before = errno;
    int hit = file && port && getpeername(socket, (struct sockaddr *)&peer, &length) == 0
        && peer.sin_family == AF_INET && ntohs(peer.sin_port) == atoi(port) && unlink(file) == 0;
    errno = hit ? ETIMEDOUT : before;
    return hit;
}

ssize_t send(int socket, const void *bytes, size_t length, int flags) {
    if (fails(socket)) return -1;
    return syscall(SYS_sendto, socket, bytes, length, flags, 0, 0);
}

ssize_t write(int file, const void *bytes, size_t length) {
    if (fails(file)) return -1;
    return syscall(SYS_write, file, bytes, length);
}

ssize_t writev(int file, const struct iovec *pieces, int count) {
    if (fails(file)) return -1;
    return syscall(SYS_writev, file, pieces, count);
}

/* The floor of a proxy on one core: the least that the system takes for the same bytes. Level-triggered events of epoll, no parsing, no timers,
 * no limits. Loopback only.
 *
 *   floor copy PORT UPSTREAM_PORT     forwards with one read and one write, from each client to a connection of its own
 *   floor splice PORT UPSTREAM_PORT   forwards with splice(2) through one pipe in each direction
 *   floor respond PORT STATUS         responds to each read with this status and 128 bytes
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum mode { COPY = 'c', SPLICE = 's', RESPOND = 'r' };

/* Of each descriptor: the other end, the pipe towards it, what the pipe holds, and whether no more follows. */
static struct {
    int peer, pipe[2];
    long held;
    int ended;
} end_of[65536];
static char buffer[65536], response[512];
static int response_length;

static struct sockaddr_in local(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static void watch(int epoll, int fd, unsigned events) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event event = {.events = events, .data.fd = fd};
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

static void drop(int fd) {
    int ends[2] = {fd, end_of[fd].peer};
    for (int i = 0; i < 2; i++) {
        if (!ends[i]) continue;
        if (end_of[ends[i]].pipe[1]) {
            close(end_of[ends[i]].pipe[0]);
            close(end_of[ends[i]].pipe[1]);
            end_of[ends[i]].pipe[1] = 0;
        }
        close(ends[i]);
        end_of[ends[i]].peer = 0;
    }
}

/* Each of these moves what is available, and returns 0 if the connection has ended. */

static int copy(int from) {
    ssize_t read_bytes = read(from, buffer, sizeof buffer);
    if (read_bytes <= 0) return read_bytes < 0 && errno == EAGAIN;
    return write(end_of[from].peer, buffer, read_bytes) == read_bytes;
}

static int respond(int client) {
    ssize_t read_bytes = read(client, buffer, sizeof buffer);
    if (read_bytes <= 0) return read_bytes < 0 && errno == EAGAIN;
    return write(client, response, response_length) == response_length;
}

static int forward_spliced(int from) {
    int to = end_of[from].peer;
    for (;;) {
        if (!end_of[from].ended) {
            ssize_t moved = splice(from, 0, end_of[from].pipe[1], 0, 1 << 20, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
            if (moved == 0) end_of[from].ended = 1;
            if (moved < 0 && errno != EAGAIN) return 0;
            if (moved > 0) end_of[from].held += moved;
        }
        if (!end_of[from].held) {
            if (end_of[from].ended) shutdown(to, SHUT_WR);
            return !(end_of[from].ended && end_of[to].ended);
        }
        ssize_t moved = splice(end_of[from].pipe[0], 0, to, 0, end_of[from].held, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
        if (moved < 0) return errno == EAGAIN;
        end_of[from].held -= moved;
    }
}

/* Opens the upstream connection of a client. Returns 0 if that fails. */
static int open_upstream(int epoll, int client, int port, int splices) {
    int upstream = socket(AF_INET, SOCK_STREAM, 0), ends[2] = {client, upstream};
    struct sockaddr_in to = local(port);
    if (connect(upstream, (void *)&to, sizeof to)) return close(upstream), 0;
    fcntl(upstream, F_SETFL, O_NONBLOCK);
    for (int i = 0; i < 2; i++) {
        end_of[ends[i]].peer = ends[!i];
        end_of[ends[i]].held = end_of[ends[i]].ended = 0;
        if (splices && pipe2(end_of[ends[i]].pipe, O_NONBLOCK)) exit(3);
        watch(epoll, ends[i], splices ? EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET : EPOLLIN);
    }
    return 1;
}

static void accept_all(int epoll, int listener, enum mode mode, int upstream_port) {
    int client;
    while ((client = accept4(listener, 0, 0, SOCK_NONBLOCK)) >= 0) {
        end_of[client].peer = 0;
        if (mode == RESPOND)
            watch(epoll, client, EPOLLIN);
        else if (!open_upstream(epoll, client, upstream_port, mode == SPLICE))
            close(client);
    }
}

static int handle(int fd, enum mode mode) {
    if (mode == RESPOND) return respond(fd);
    /* The connection ended with an earlier event of the same turn. */
    int other = end_of[fd].peer;
    if (!other) return 1;
    return mode == COPY ? copy(fd) : forward_spliced(fd) && forward_spliced(other);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    enum mode mode = argv[1][0];
    response_length = snprintf(response, sizeof response, "HTTP/1.1 %s X\r\ncontent-length: 128\r\n\r\n%0128d", argv[3], 0);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1, epoll = epoll_create1(0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = local(atoi(argv[2]));
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 1024)) return perror("listen"), 1;
    watch(epoll, listener, EPOLLIN);
    signal(SIGPIPE, SIG_IGN);
    for (struct epoll_event events[64];;) {
        int count = epoll_wait(epoll, events, 64, -1);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == listener)
                accept_all(epoll, listener, mode, atoi(argv[3]));
            else if (!handle(fd, mode))
                drop(fd);
        }
    }
}

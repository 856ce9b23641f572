/* The floor of a proxy for large bodies: forwards bytes between each client and an upstream connection of its own with splice(2), through one
 * pipe in each direction, so that no byte is copied to user space. `splice PORT UPSTREAM_PORT`; loopback only. */
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

/* Of each descriptor: the other end, the pipe towards it, what the pipe holds, and whether no more follows. */
static struct {
    int peer, pipe[2];
    long held;
    int ended;
} end_of[65536];

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
    int peer = end_of[fd].peer;
    if (!peer) return;
    for (int i = 0; i < 2; i++) {
        int one = i ? peer : fd;
        close(end_of[one].pipe[0]);
        close(end_of[one].pipe[1]);
        close(one);
        end_of[one].peer = 0;
    }
}

/* Moves what is available from one end to the other. Returns 0 if the connection has ended. */
static int forward(int from) {
    int to = end_of[from].peer;
    for (;;) {
        ssize_t read = 0;
        if (!end_of[from].ended) {
            read = splice(from, 0, end_of[from].pipe[1], 0, 1 << 20, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
            if (read == 0) end_of[from].ended = 1;
            if (read < 0 && errno != EAGAIN) return 0;
            if (read > 0) end_of[from].held += read;
        }
        if (!end_of[from].held) {
            if (end_of[from].ended) shutdown(to, SHUT_WR);
            return !(end_of[from].ended && end_of[to].ended);
        }
        ssize_t written = splice(end_of[from].pipe[0], 0, to, 0, end_of[from].held, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
        if (written < 0) return errno == EAGAIN;
        end_of[from].held -= written;
    }
}

static void accept_all(int epoll, int listener, int upstream_port) {
    int client;
    while ((client = accept4(listener, 0, 0, SOCK_NONBLOCK)) >= 0) {
        int upstream = socket(AF_INET, SOCK_STREAM, 0), ends[2] = {client, upstream};
        struct sockaddr_in to = local(upstream_port);
        if (connect(upstream, (void *)&to, sizeof to)) {
            close(client);
            close(upstream);
            continue;
        }
        fcntl(upstream, F_SETFL, O_NONBLOCK);
        for (int i = 0; i < 2; i++) {
            end_of[ends[i]].peer = ends[!i];
            end_of[ends[i]].held = end_of[ends[i]].ended = 0;
            if (pipe2(end_of[ends[i]].pipe, O_NONBLOCK)) exit(3);
            watch(epoll, ends[i], EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1, epoll = epoll_create1(0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = local(atoi(argv[1]));
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 1024)) return perror("listen"), 1;
    watch(epoll, listener, EPOLLIN);
    signal(SIGPIPE, SIG_IGN);
    for (struct epoll_event events[64];;) {
        int count = epoll_wait(epoll, events, 64, -1);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                accept_all(epoll, listener, atoi(argv[2]));
                continue;
            }
            if (!end_of[fd].peer) continue;
            int other = end_of[fd].peer;
            int goes_on = !(events[i].events & (EPOLLERR)) && forward(fd) && forward(other);
            if (!goes_on) drop(fd);
        }
    }
}

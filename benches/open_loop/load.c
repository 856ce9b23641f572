/* Open-loop load over HTTP/1.1: requests are due at random times (a Poisson process), whether earlier ones have been answered or not.
 *
 *   load PORT UPSTREAM_PORT RATE SECONDS CONNECTIONS SEED
 *
 * Sends to PORT, and is the upstream as well: it responds to each read on UPSTREAM_PORT with 128 bytes. So nothing but the proxy waits for a
 * processor, and this program never sleeps: a timer would be late by more than what is measured. A request waits for a connection if all of them
 * are busy. Each has another `x-key`.
 *
 * Prints the requests, those with another status than 200, the responses a second, and percentiles of the time from when a request was due to its
 * whole response, in microseconds: 50, 99, 99.9 and 99.99. Loopback only.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 4096, RESPONSE_SIZE = 4096 };

static const char request[] = "GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx-key: %08lx\r\n\r\n";

static struct {
    int fd, filled;
    uint64_t due;
    char response[RESPONSE_SIZE];
} connections[MAX_CONNECTIONS];
static int idle[MAX_CONNECTIONS], idle_count;
/* Due times of requests, and latencies, in nanoseconds. */
static uint64_t *due, *latencies;
static long answered, failed;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static int fail(const char *what) {
    perror(what);
    exit(1);
}

static void open_connection(int index, int port, int epoll) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (fd < 0 || connect(fd, (void *)&address, sizeof address)) fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    connections[index].fd = fd;
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = index};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) fail("epoll_ctl");
    idle[idle_count++] = index;
}

/* Whether the whole response has been read: its header section, and the bytes that `content-length` declares. */
static int is_complete(char *response, int filled) {
    char *end = memmem(response, filled, "\r\n\r\n", 4);
    if (!end) return 0;
    *end = 0;
    char *length = strcasestr(response, "\r\ncontent-length:");
    long declared = length ? atol(length + 17) : 0;
    *end = '\r';
    return filled >= end + 4 - response + declared;
}

static void receive(int index) {
    char *response = connections[index].response;
    int room = RESPONSE_SIZE - connections[index].filled;
    ssize_t count = recv(connections[index].fd, response + connections[index].filled, room, MSG_DONTWAIT);
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) fail("a response");
    connections[index].filled += count;
    if (!is_complete(response, connections[index].filled)) return;
    failed += strncmp(response + 9, "200", 3) != 0;
    latencies[answered++] = now() - connections[index].due;
    idle[idle_count++] = index;
}

static void respond(int fd) {
    static const char response[] = "HTTP/1.1 200 OK\r\ncontent-length: 128\r\n\r\n"
                                   "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
                                   "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    static char ignored[65536];
    ssize_t count = recv(fd, ignored, sizeof ignored, MSG_DONTWAIT);
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0 || send(fd, response, sizeof response - 1, MSG_NOSIGNAL) != sizeof response - 1) close(fd);
}

/* Events of the upstream have the descriptor above this bit. */
enum { UPSTREAM = 1 << 20 };

static int listen_on(int port, int epoll) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd < 0 || bind(fd, (void *)&address, sizeof address) || listen(fd, 4096)) fail("listen");
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = UPSTREAM + fd};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) fail("epoll_ctl");
    return fd;
}

static void accept_all(int listener, int epoll) {
    int fd, one = 1;
    while ((fd = accept4(listener, 0, 0, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = UPSTREAM + fd};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) fail("epoll_ctl");
    }
}

static int compare(const void *one, const void *other) {
    uint64_t left = *(const uint64_t *)one, right = *(const uint64_t *)other;
    return (left > right) - (left < right);
}

int main(int argc, char **argv) {
    if (argc != 7) return 2;
    double rate = atof(argv[3]), seconds = atof(argv[4]);
    int count = atoi(argv[5]), epoll = epoll_create1(0), listener = listen_on(atoi(argv[2]), epoll);
    if (count < 1 || count > MAX_CONNECTIONS) return 2;
    srand48(atol(argv[6]));
    long total = rate * seconds;
    due = malloc(total * sizeof *due);
    latencies = malloc(total * sizeof *latencies);
    if (!due || !latencies) fail("memory");
    for (int i = 0; i < count; i++) open_connection(i, atoi(argv[1]), epoll);
    double at = now() + 1e8;
    for (long i = 0; i < total; i++) due[i] = at += -log(1 - drand48()) / rate * 1e9;
    struct epoll_event events[256];
    for (long next = 0; answered < total;) {
        uint64_t time = now();
        while (next < total && idle_count && due[next] <= time) {
            int index = idle[--idle_count];
            connections[index].due = due[next++];
            connections[index].filled = 0;
            char bytes[sizeof request + 16];
            int length = snprintf(bytes, sizeof bytes, request, mrand48() & 0xffffffff);
            if (send(connections[index].fd, bytes, length, MSG_NOSIGNAL) != length) fail("send");
        }
        int ready = epoll_wait(epoll, events, 256, 0);
        for (int i = 0; i < ready; i++) {
            unsigned source = events[i].data.u32;
            if (source < UPSTREAM)
                receive(source);
            else if (source - UPSTREAM == (unsigned)listener)
                accept_all(listener, epoll);
            else
                respond(source - UPSTREAM);
        }
    }
    double elapsed = now() - due[0];
    qsort(latencies, total, sizeof *latencies, compare);
    printf("%ld %ld %.0f", total, failed, total / elapsed * 1e9);
    double percentiles[] = {50, 99, 99.9, 99.99};
    for (int i = 0; i < 4; i++) printf(" %.1f", latencies[(long)(total * percentiles[i] / 100)] / 1e3);
    printf("\n");
}

/* A server whose process has much that memory does not show: registers, threads, signals, descriptors, mappings. How
 * much of each, and in which state, is chosen by $SEED. Each part tells whether it is as it was: a request is answered
 * with what is wrong, or with "as it was". */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <immintrin.h>
#include <linux/capability.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/rseq.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define MAPPINGS 500
#define DESCRIPTORS 985
#define WAITERS 3

static uint64_t state;
static char wrong[4096];

static uint32_t chosen(uint32_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

static void tell(const char *what, long is, long was) {
    size_t length = strlen(wrong);
    if (is != was) snprintf(wrong + length, sizeof wrong - length, "%s is %ld and was %ld\n", what, is, was);
}

static void need(long result, const char *what) {
    if (result >= 0) return;
    perror(what);
    exit(1);
}

static void wait_at(int *word) {
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == 0) syscall(SYS_futex, word, FUTEX_WAIT, 0, NULL, NULL, 0);
}

static long wake(int *word) {
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
    return syscall(SYS_futex, word, FUTEX_WAKE, 1000, NULL, NULL, 0);
}

static pthread_t start(void *(*run)(void *), void *with, const char *name) {
    pthread_t thread;
    need(-pthread_create(&thread, NULL, run, with), "pthread_create");
    need(-pthread_setname_np(thread, name), "pthread_setname_np");
    return thread;
}

/* Registers: vectors, rounding, and the x87's stack, over a system call that waits. */
static int vectors_go;
static unsigned char vectors_before[16][32], vectors_after[16][32];
static uint32_t mxcsr, mxcsr_after;
static uint16_t control, control_after;
static double x87_before = 1.0 / 3, x87_after;
static pthread_t vectors_thread;

#define EACH(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(10) M(11) M(12) M(13) M(14) M(15)
#define LOAD(n) "vmovdqu " #n "*32(%[before]), %%ymm" #n "\n"
#define STORE(n) "vmovdqu %%ymm" #n ", " #n "*32(%[after])\n"

/* What only AVX-512 has: sixteen vectors more, of which one is held here, and masks. */
static unsigned char wide_before[64], wide_after[64];
static uint32_t masks_before, masks_after;

static void *hold_vectors(void *unused) {
    (void)unused;
    int is_wide = __builtin_cpu_supports("avx512f");
    register long timeout __asm__("r10") = 0;
    if (is_wide)
        __asm__ volatile("vmovdqu64 (%0), %%zmm31\n kmovw %1, %%k7" : : "r"(wide_before), "r"(masks_before) : "memory");
    __asm__ volatile("ldmxcsr %[mxcsr]\n fldcw %[control]\n fldl %[x87]\n" EACH(LOAD)
                     "1: mov $202, %%eax\n xor %%esi, %%esi\n xor %%edx, %%edx\n syscall\n"
                     "cmpl $0, (%%rdi)\n je 1b\n" EACH(STORE)
                     "fstpl %[x87_after]\n stmxcsr %[mxcsr_after]\n fnstcw %[control_after]\n fninit\n vzeroupper\n"
                     : [x87_after] "=m"(x87_after), [mxcsr_after] "=m"(mxcsr_after), [control_after] "=m"(control_after)
                     : [before] "r"(vectors_before), [after] "r"(vectors_after), "D"(&vectors_go), "r"(timeout),
                       [x87] "m"(x87_before), [mxcsr] "m"(mxcsr), [control] "m"(control)
                     : "rax", "rcx", "rsi", "rdx", "r11", "memory", "cc");
    if (is_wide)
        __asm__ volatile("vmovdqu64 %%zmm31, (%1)\n kmovw %%k7, %0" : "=r"(masks_after) : "r"(wide_after) : "memory");
    else memcpy(wide_after, wide_before, sizeof wide_after), masks_after = masks_before;
    return NULL;
}

static void vectors_prepare(void) {
    for (size_t n = 0; n < sizeof vectors_before; n++)
        ((unsigned char *)vectors_before)[n] = (unsigned char)chosen(256);
    for (size_t n = 0; n < sizeof wide_before; n++) wide_before[n] = (unsigned char)chosen(256);
    masks_before = chosen(1 << 16);
    mxcsr = 0x1f80 | chosen(4) << 13;
    control = (uint16_t)(0x37f | chosen(4) << 10);
    vectors_thread = start(hold_vectors, NULL, "vectors");
}

static void vectors_check(void) {
    wake(&vectors_go);
    pthread_join(vectors_thread, NULL);
    tell("vectors", memcmp(vectors_before, vectors_after, sizeof vectors_before), 0);
    tell("wide vector", memcmp(wide_before, wide_after, sizeof wide_before), 0);
    tell("masks", masks_after, masks_before);
    tell("mxcsr", mxcsr_after & ~0x3fu, mxcsr);
    tell("x87's control", control_after, control);
    tell("x87's stack", x87_after == x87_before, 1);
}

/* Futexes with waiters, and a robust lock whose owner ends without giving it back. */
static int waiters_go, owner_go, waiters;
static pthread_mutex_t robust;
static pthread_t owner_thread;

static void *wait_for_futex(void *word) {
    wait_at(word);
    return NULL;
}

static void *own(void *unused) {
    (void)unused;
    pthread_mutex_lock(&robust);
    wait_at(&owner_go);
    return NULL;
}

static void futexes_prepare(void) {
    static const char *const names[WAITERS] = {"a waiter", "of fifteen char", "()"};
    waiters = 1 + (int)chosen(WAITERS);
    for (int n = 0; n < waiters; n++) start(wait_for_futex, &waiters_go, names[n]);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&robust, &attributes);
    owner_thread = start(own, NULL, "owner");
}

static void futexes_check(void) {
    /* In a copy this thread may run before others have gone on to wait. They wait again as long as the word is 0. */
    long waiting = 0;
    for (int n = 0; n < 5000 && waiting < waiters; n++) {
        if (n > 0) usleep(1000);
        waiting = syscall(SYS_futex, &waiters_go, FUTEX_WAKE, 1000, NULL, NULL, 0);
    }
    tell("waiters", waiting, waiters);
    wake(&waiters_go);
    tell("a lock that is held", pthread_mutex_trylock(&robust), EBUSY);
    wake(&owner_go);
    pthread_join(owner_thread, NULL);
    tell("a lock whose owner has ended", pthread_mutex_lock(&robust), EOWNERDEAD);
}

/* Signals: masks of threads, one that is pending, an alternate stack with a handler that is at work on it. */
static int handler_go, masked_go, masked_right;
static unsigned char alternate[64 << 10];
static volatile int was_on_alternate, is_on_alternate;
static pthread_t masked_thread, handling_thread;
static sigset_t mask;

static int on_alternate(void) {
    unsigned char here;
    return &here >= alternate && &here < alternate + sizeof alternate;
}

static void handle(int number) {
    (void)number;
    was_on_alternate = on_alternate();
    wait_at(&handler_go);
    stack_t now;
    sigaltstack(NULL, &now);
    is_on_alternate = on_alternate() && now.ss_flags == SS_ONSTACK && now.ss_sp == alternate &&
                      now.ss_size == sizeof alternate;
}

static void *be_in_a_handler(void *unused) {
    (void)unused;
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    need(sigaltstack(&stack, NULL), "sigaltstack");
    pthread_kill(pthread_self(), SIGUSR1);
    return NULL;
}

static void *be_masked(void *unused) {
    (void)unused;
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    wait_at(&masked_go);
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    masked_right = 1;
    for (int number = 1; number < 64; number++) masked_right &= sigismember(&now, number) == sigismember(&mask, number);
    return NULL;
}

static void signals_prepare(void) {
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK | SA_RESTART};
    sigfillset(&action.sa_mask);
    sigaction(SIGUSR1, &action, NULL);
    sigemptyset(&mask);
    for (int number = 34; number < 64; number++)
        if (chosen(2)) sigaddset(&mask, number);
    sigaddset(&mask, SIGUSR2);
    masked_thread = start(be_masked, NULL, "masked");
    handling_thread = start(be_in_a_handler, NULL, "handler");
    need(kill(getpid(), SIGUSR2), "kill");
}

static void signals_check(void) {
    sigset_t pending;
    sigpending(&pending);
    tell("pending", sigismember(&pending, SIGUSR2), 1);
    struct sigaction pipes;
    sigaction(SIGPIPE, NULL, &pipes);
    tell("what SIGPIPE does", (long)pipes.sa_handler, (long)SIG_DFL);
    wake(&masked_go);
    pthread_join(masked_thread, NULL);
    tell("mask", masked_right, 1);
    wake(&handler_go);
    pthread_join(handling_thread, NULL);
    tell("alternate stack", was_on_alternate && is_on_alternate, 1);
}

/* Epoll: one reported and not armed any more, one whose edge was told, one that waits, one that is exclusive, one for
 * one edge. Another epoll watches this one. */
#define POLLED 5
static int poll_fd, outer_fd, ready[POLLED];

static void polls_prepare(void) {
    static const uint32_t events[POLLED] = {EPOLLIN | EPOLLONESHOT, EPOLLIN | EPOLLET, EPOLLIN,
                                            EPOLLIN | EPOLLEXCLUSIVE, EPOLLIN | EPOLLET | EPOLLONESHOT};
    need(poll_fd = epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
    for (int n = 0; n < POLLED; n++) {
        need(ready[n] = eventfd(n < 2, EFD_NONBLOCK), "eventfd");
        struct epoll_event event = {.events = events[n], .data.u64 = 0x1234567800000000u + (unsigned)n};
        need(epoll_ctl(poll_fd, EPOLL_CTL_ADD, ready[n], &event), "epoll_ctl");
    }
    struct epoll_event told[POLLED], inner = {.events = EPOLLIN, .data.u64 = 77};
    need(epoll_wait(poll_fd, told, POLLED, 0) - 2, "epoll_wait");
    need(outer_fd = epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
    need(epoll_ctl(outer_fd, EPOLL_CTL_ADD, poll_fd, &inner), "epoll_ctl");
}

static void polls_check(void) {
    struct epoll_event told[POLLED];
    uint64_t one = 1;
    /* An edge that was told may be told again: so does stock CRIU. */
    int count = epoll_wait(poll_fd, told, POLLED, 0);
    for (int n = 0; n < count; n++) tell("told early", (long)told[n].data.u64, 0x1234567800000001);
    for (int n = 0; n < POLLED; n++) need(write(ready[n], &one, 8), "write");
    tell("epolls that are ready", epoll_wait(outer_fd, told, POLLED, 0), 1);
    tell("which", (long)told[0].data.u64, 77);
    long seen = 0;
    count = epoll_wait(poll_fd, told, POLLED, 0);
    for (int n = 0; n < count; n++) seen |= 1 << (told[n].data.u64 & 0xf);
    tell("told", seen, 0x1e);
}

/* Descriptors: counters, pipes with something in them, one of them full, pairs, timers. */
struct held {
    int fd, other, value;
    enum { COUNTER, PIPE, PAIR, TIMER, SAME } kind;
};
static struct held held[DESCRIPTORS];
static int count_held, full_pipe[2];
static long full_bytes;

static void descriptors_prepare(void) {
    static const char text[PAGE] = "so many bytes";
    for (int used = 0; used < DESCRIPTORS - 3; count_held++) {
        struct held *one = &held[count_held];
        *one = (struct held){.kind = chosen(5), .value = 1 + (int)chosen(99)};
        int ends[2];
        switch (one->kind) {
        case COUNTER:
            need(one->fd = eventfd((unsigned)one->value, chosen(2) ? EFD_CLOEXEC : EFD_NONBLOCK), "eventfd");
            break;
        case PIPE:
            need(pipe2(ends, chosen(2) ? O_CLOEXEC : O_NONBLOCK), "pipe");
            need(write(ends[1], text, (size_t)one->value), "write");
            one->fd = ends[0], one->other = ends[1], used++;
            break;
        case PAIR: {
            int is_stream = (int)chosen(2);
            need(socketpair(AF_UNIX, is_stream ? SOCK_STREAM : SOCK_SEQPACKET, 0, ends), "socketpair");
            need(write(ends[1], text, (size_t)one->value), "write");
            /* Half-read. */
            char first;
            if (is_stream && one->value > 1) one->value -= (int)read(ends[0], &first, 1);
            one->fd = ends[0], one->other = ends[1], used++;
            break;
        }
        case TIMER:
            need(one->fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), "timerfd_create");
            struct itimerspec in = {.it_value.tv_sec = 3600 + one->value, .it_interval.tv_sec = one->value};
            need(timerfd_settime(one->fd, 0, &in, NULL), "timerfd_settime");
            break;
        case SAME:
            need(one->fd = fcntl(0, chosen(2) ? F_DUPFD_CLOEXEC : F_DUPFD, 3), "dup");
            break;
        }
        used++;
    }
    need(pipe2(full_pipe, O_NONBLOCK), "pipe2");
    for (ssize_t more; (more = write(full_pipe[1], text, sizeof text)) > 0;) full_bytes += more;
}

static void descriptors_check(void) {
    static char text[PAGE];
    for (int n = 0; n < count_held; n++) {
        struct held *one = &held[n];
        uint64_t counter = 0;
        struct itimerspec left;
        switch (one->kind) {
        case COUNTER:
            tell("bytes of a counter", read(one->fd, &counter, 8), 8);
            tell("counter", (long)counter, one->value);
            break;
        case PIPE:
        case PAIR:
            tell("bytes on their way", read(one->fd, text, sizeof text), one->value);
            break;
        case TIMER:
            need(timerfd_gettime(one->fd, &left), "timerfd_gettime");
            tell("timer", left.it_value.tv_sec > one->value && left.it_interval.tv_sec == one->value, 1);
            break;
        case SAME:
            tell("duplicate", fcntl(one->fd, F_GETFD) >= 0, 1);
            break;
        }
    }
    tell("room in a full pipe", write(full_pipe[1], text, 1), -1);
    for (ssize_t more; (more = read(full_pipe[0], text, sizeof text)) > 0;) full_bytes -= more;
    tell("bytes of a full pipe", full_bytes, 0);
}

/* Mappings that the kernel keeps apart. */
static struct {
    unsigned char *at;
    size_t pages;
    unsigned char with;
    int access;
} mappings[MAPPINGS];

/* One that grows downwards when it is touched below, as stacks do. */
static unsigned char *growing;

static void mappings_prepare(void) {
    unsigned char *reserved = mmap(NULL, 1024 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(reserved == MAP_FAILED ? -1 : 0, "mmap");
    munmap(reserved, 1024 * PAGE);
    growing = mmap(reserved + 1020 * PAGE, 4 * PAGE, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED_NOREPLACE, -1, 0);
    need(growing == MAP_FAILED ? -1 : 0, "mmap");
    memset(growing, 7, 4 * PAGE);

    static const int accesses[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE, PROT_READ | PROT_EXEC};
    size_t room = MAPPINGS * 5 * PAGE;
    unsigned char *at = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(at == MAP_FAILED ? -1 : 0, "mmap");
    munmap(at, room);
    for (int n = 0; n < MAPPINGS; n++) {
        size_t pages = 1 + chosen(3);
        int how = chosen(8) ? MAP_PRIVATE : MAP_SHARED;
        mappings[n].at = mmap(at, pages * PAGE, PROT_READ | PROT_WRITE, how | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
                              0);
        need(mappings[n].at == at ? 0 : -1, "mmap");
        mappings[n].pages = pages;
        mappings[n].with = (unsigned char)chosen(256);
        mappings[n].access = accesses[chosen(4)];
        memset(at, mappings[n].with, pages * PAGE);
        if (chosen(4) == 0) madvise(at, pages * PAGE, chosen(2) ? MADV_DONTFORK : MADV_DONTDUMP);
        need(mprotect(at, pages * PAGE, mappings[n].access), "mprotect");
        at += (pages + 1) * PAGE;
    }
}

static void mappings_check(void) {
    for (int n = 0; n < 4 * PAGE; n++) tell("a growing mapping's byte", growing[n], 7);
    growing[-PAGE] = 7;
    tell("a page below it", growing[-1], 0);
    for (int n = 0; n < MAPPINGS; n++) {
        if (!(mappings[n].access & PROT_READ))
            need(mprotect(mappings[n].at, mappings[n].pages * PAGE, PROT_READ), "mprotect");
        for (size_t at = 0; at < mappings[n].pages * PAGE; at++)
            if (mappings[n].at[at] != mappings[n].with)
                return tell("a mapping's byte", mappings[n].at[at], mappings[n].with);
    }
}

/* Restartable sequences, where the C library has registered them: a second registration of the same is refused as
 * such. */
static void rseq_check(void) {
    if (__rseq_size == 0) return;
    struct rseq *area = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
    long again = syscall(SYS_rseq, area, 32, 0, RSEQ_SIG);
    tell("a second registration", again < 0 ? errno : 0, EBUSY);
    tell("processor", area->cpu_id < 4096, 1);
}

/* With $WATCH, reads the rights of all threads of all processes all the time, from the first instruction of a copy on.
 * It opens nothing: a checkpoint takes no file of the kernel's. */
static int watch_ends;
static unsigned long long rights;
static pthread_t watching_thread;

static long permitted(int id, unsigned long long *rights) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, id};
    struct __user_cap_data_struct data[2] = {0};
    long result = syscall(SYS_capget, &header, data);
    *rights = data[0].permitted | (unsigned long long)data[1].permitted << 32;
    return result;
}

static void *watch(void *unused) {
    (void)unused;
    unsigned long long has;
    int first = getpid();
    while (!__atomic_load_n(&watch_ends, __ATOMIC_ACQUIRE))
        for (int id = first; id < first + 32; id++)
            /* Init, what it forks for a moment, and the CRIU that takes a checkpoint are other users: no signal reaches
             * them. */
            if (permitted(id, &has) == 0 && has != 0 && kill(id, 0) == 0) rights |= has;
    return NULL;
}

static void watch_check(void) {
    if (!getenv("WATCH")) return;
    __atomic_store_n(&watch_ends, 1, __ATOMIC_RELEASE);
    pthread_join(watching_thread, NULL);
    unsigned long long own;
    tell("rights that can be read", permitted(0, &own), 0);
    tell("rights of a thread", (long)rights, 0);
}

static void name_check(void) {
    char name[16];
    prctl(PR_GET_NAME, name);
    tell("name", strcmp(name, "the first"), 0);
}

static void check_all(void) {
    watch_check();
    name_check();
    rseq_check();
    vectors_check();
    futexes_check();
    signals_check();
    polls_check();
    descriptors_check();
    mappings_check();
}

int main(void) {
    const char *port = getenv("PORT"), *seed = getenv("SEED");
    state = seed ? strtoull(seed, NULL, 10) : 1;
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &blocked, NULL);
    prctl(PR_SET_NAME, "the first");
    int parent[2];
    need(pipe(parent), "pipe");
    pid_t child = fork();
    need(child, "fork");
    if (child == 0) {
        prctl(PR_SET_NAME, "child");
        setpgid(0, 0);
        if (fork() == 0) {
            prctl(PR_SET_NAME, "of its own");
            setsid();
        }
        for (;;) pause();
    }
    vectors_prepare();
    futexes_prepare();
    signals_prepare();
    polls_prepare();
    descriptors_prepare();
    mappings_prepare();
    if (getenv("WATCH")) watching_thread = start(watch, NULL, "watch");
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((uint16_t)atoi(port ? port : "8080"));
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    need(bind(listener, (struct sockaddr *)&address, sizeof address), "bind");
    need(listen(listener, 64), "listen");
    static char request[8192], head[200];
    for (;;) {
        int client = accept(listener, NULL, NULL);
        if (client < 0) continue;
        memset(request, 0, sizeof request);
        for (size_t length = 0; !strstr(request, "\r\n\r\n") && length < sizeof request - 1;) {
            ssize_t more = read(client, request + length, sizeof request - 1 - length);
            if (more <= 0) break;
            length += (size_t)more;
        }
        if (!*request) {
            close(client);
            continue;
        }
        check_all();
        const char *text = *wrong ? wrong : "as it was\n";
        int size = snprintf(head, sizeof head, "HTTP/1.1 200 -\r\ncontent-length: %zu\r\nconnection: close\r\n\r\n",
                            strlen(text));
        if (write(client, head, (size_t)size) < 0 || write(client, text, strlen(text)) < 0) perror("write");
        close(client);
    }
}

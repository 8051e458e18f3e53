/* Stacks: a thread's, one that grows down, and one for signals. */
#define _GNU_SOURCE
#include "checks.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define DEPTH 48
#define PAGES 32
#define SIGNAL_PAGES 16
/* Where the kernel puts nothing by itself: what it grows into must be free. */
#define FAR ((unsigned char *)0x210000000000)

static struct area growing, signals;
static volatile sig_atomic_t handled;
static sem_t go_up, gone_up;
static volatile long wrong_frame = -1;

/* Goes down, waits at the bottom, and looks at every frame on the way up. */
static __attribute__((noinline)) void deep(size_t depth) {
    unsigned char frame[2 * PAGE];
    for (size_t i = 0; i < sizeof frame; i++) frame[i] = (unsigned char)(depth * 31 + i);
    __asm__ volatile("" ::"r"(frame) : "memory");
    if (depth < DEPTH) {
        deep(depth + 1);
    } else {
        sem_wait(&go_up);
    }
    __asm__ volatile("" ::"r"(frame) : "memory");
    for (size_t i = 0; i < sizeof frame; i++)
        if (frame[i] != (unsigned char)(depth * 31 + i)) wrong_frame = (long)depth;
}

/* Stands deep in its stack while the snapshot is taken. */
static void *stand_deep(void *unused) {
    deep(DEPTH / 2);
    /* Deeper than before the snapshot: where the stack was never touched. */
    sem_post(&go_up);
    deep(0);
    sem_post(&gone_up);
    return unused;
}

static void on_signal(int number) {
    unsigned char local[3 * PAGE], *stack = signals.at;
    memset(local, number, sizeof local);
    __asm__ volatile("" ::"r"(local) : "memory");
    handled = local[2 * PAGE] == number && (unsigned char *)local > stack &&
              (unsigned char *)local < stack + SIGNAL_PAGES * PAGE;
}

void stacks_prepare(void) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED_NOREPLACE;
    growing = (struct area){mmap(FAR, PAGES * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0), PAGES, 21};
    if (growing.at != FAR) _Exit(4);
    for (size_t n = 0; n < PAGES; n++) fill_page(growing.at + n * PAGE, 21, n);
    signals = new_area(22, SIGNAL_PAGES);
    stack_t stack = {.ss_sp = signals.at, .ss_size = SIGNAL_PAGES * PAGE};
    sigaltstack(&stack, NULL);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, NULL);
    sem_init(&go_up, 0, 0);
    sem_init(&gone_up, 0, 0);
    pthread_t thread;
    pthread_create(&thread, NULL, stand_deep, NULL);
    pthread_detach(thread);
}

static const char *of_a_thread(void) {
    sem_post(&go_up);
    sem_wait(&gone_up);
    return wrong_frame >= 0 ? at_page("frame", wrong_frame) : NULL;
}

static const char *grows_down(void) {
    long wrong = wrong_page(&growing, 0, PAGES);
    if (wrong >= 0) return at_page("as it was", wrong);
    for (int n = 1; n <= 4; n++) {
        unsigned char *below = growing.at - n * PAGE;
        if (!is_zero(below)) return at_page("grown below", n);
        fill_page(below, 23, (size_t)n);
    }
    for (int n = 1; n <= 4; n++)
        if (!is_page(growing.at - n * PAGE, 23, (size_t)n)) return at_page("written below", n);
    return NULL;
}

/* The kernel itself writes the signal's frame, to pages that are still missing. */
static const char *signal_on_it(void) {
    handled = 0;
    raise(SIGUSR1);
    if (!handled) return "the handler did not run on its stack";
    long wrong = wrong_page(&signals, 0, SIGNAL_PAGES / 2);
    return wrong >= 0 ? at_page("below what the handler used", wrong) : NULL;
}

const struct check stack_checks[] = {
    {"thread-stack", of_a_thread},
    {"grows-down", grows_down},
    {"signal", signal_on_it},
    {0},
};

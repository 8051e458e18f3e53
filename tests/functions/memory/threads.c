/* Several threads meet the same missing pages. */
#define _GNU_SOURCE
#include "checks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#define PAGES 256
#define THREADS 8

static struct area shared, dropped, half;
static pthread_barrier_t together;
static _Atomic long wrong;

void threads_prepare(void) {
    shared = new_area(11, PAGES);
    dropped = new_area(12, PAGES);
    half = new_area(13, PAGES);
}

static const char *run(void *(*work)(void *), int threads) {
    pthread_t all[THREADS];
    wrong = -1;
    pthread_barrier_init(&together, NULL, (unsigned)threads);
    for (long n = 0; n < threads; n++) pthread_create(&all[n], NULL, work, (void *)n);
    for (int n = 0; n < threads; n++) pthread_join(all[n], NULL);
    pthread_barrier_destroy(&together);
    return wrong >= 0 ? at_page("seen by a thread", wrong) : NULL;
}

/* All at one page at once; half of them write, each its own word. */
static void *touch(void *number) {
    uint64_t me = (uint64_t)(uintptr_t)number;
    for (size_t n = 0; n < PAGES; n++) {
        unsigned char *page = shared.at + n * PAGE, expected[PAGE];
        fill_page(expected, shared.seed, n);
        pthread_barrier_wait(&together);
        if (me % 2) {
            atomic_store((_Atomic uint64_t *)(page + me * 8), me);
        } else if (((volatile uint64_t *)page)[100] != ((uint64_t *)expected)[100]) {
            wrong = (long)n;
        }
        pthread_barrier_wait(&together);
        for (uint64_t thread = 1; thread < THREADS; thread += 2) memcpy(expected + thread * 8, &thread, 8);
        if (memcmp(page, expected, PAGE)) wrong = (long)n;
    }
    return NULL;
}

static const char *one_page(void) { return run(touch, THREADS); }

/* One gives pages up while the other has them filled: it sees the old page or zeros; afterwards there are zeros. */
static void *discard(void *number) {
    for (size_t n = 0; n < PAGES; n++) {
        unsigned char *page = dropped.at + n * PAGE, expected[PAGE];
        fill_page(expected, dropped.seed, n);
        pthread_barrier_wait(&together);
        if (number) {
            madvise(page, PAGE, MADV_DONTNEED);
        } else {
            uint64_t first = *(volatile uint64_t *)page;
            if (first && first != *(uint64_t *)expected) wrong = (long)n;
        }
        pthread_barrier_wait(&together);
        if (!is_zero(page)) wrong = (long)n;
    }
    return NULL;
}

static const char *discarded_while_filled(void) { return run(discard, 2); }

/* One unmaps the upper half while the others read the lower. */
static void *unmap(void *number) {
    pthread_barrier_wait(&together);
    if (number) {
        for (size_t n = 0; n < PAGES / 2; n++)
            if (!is_page(half.at + n * PAGE, half.seed, n)) wrong = (long)n;
    } else {
        for (size_t n = PAGES - 1; n >= PAGES / 2; n--) munmap(half.at + n * PAGE, PAGE);
    }
    return NULL;
}

static const char *unmapped_beside(void) { return run(unmap, 4); }

const struct check thread_checks[] = {
    {"one-page", one_page},
    {"discard", discarded_while_filled},
    {"unmap", unmapped_beside},
    {0},
};

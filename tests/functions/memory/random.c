/* Random operations on memory from before the snapshot, by several threads, each with a part of its own: what comes of
 * them depends on the seed alone, so that a restored process and one that was never checkpointed can be compared byte
 * by byte. */
#define _GNU_SOURCE
#include "checks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PARTS 4
#define PAGES 512
#define MOST 16
#define BASE ((unsigned char *)0x220000000000)
#define IN_CHILD 6
#define BREAK_PAGES 64

enum access { GONE, NONE, READ, WRITE };
static const int protection[] = {0, PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE};

struct part {
    unsigned char *at;
    unsigned char access[PAGES];
    uint64_t random;
    /* What was read, and what children had. */
    uint64_t seen;
    const char *wrong;
};

static struct part parts[PARTS];
static int operations;

static uint64_t draw(struct part *part, uint64_t below) {
    part->random = part->random * 6364136223846793005u + 1442695040888963407u;
    return (part->random >> 33) % below;
}

static void see(struct part *part, uint64_t value) { part->seen = (part->seen ^ value) * 0x100000001b3u; }

static unsigned char *page(struct part *part, size_t number) { return part->at + number * PAGE; }

void random_prepare(void) {
    void *all = mmap(BASE, (size_t)PARTS * PAGES * PAGE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (all != BASE) {
        perror("mmap of what is for random operations");
        exit(1);
    }
    for (size_t n = 0; n < PARTS; n++) {
        parts[n].at = BASE + n * PAGES * PAGE;
        memset(parts[n].access, WRITE, PAGES);
        /* Some are full, some hardly, some were never touched. */
        for (size_t p = 0; p < PAGES; p++) {
            if (p % 3 == 0) fill_page(page(&parts[n], p), 1000 + n, p);
            if (p % 3 == 1) page(&parts[n], p)[p % PAGE] = (unsigned char)(p | 1);
        }
    }
}

static const char *map_again(struct part *part, size_t number, size_t count) {
    void *at = page(part, number);
    if (mmap(at, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at)
        return "mmap";
    memset(part->access + number, WRITE, count);
    return NULL;
}

static const char *move(struct part *part, size_t from, size_t to, size_t count) {
    for (size_t n = 0; n < count; n++) {
        if (part->access[from + n] == GONE || from + n == to + n) continue;
        void *at = page(part, to + n);
        if (mremap(page(part, from + n), PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at) != at)
            return "mremap to another place";
        part->access[to + n] = part->access[from + n];
        part->access[from + n] = GONE;
    }
    return NULL;
}

/* A page grows over what is not mapped behind it, and gives half of that back. */
static const char *grow(struct part *part, size_t number, size_t count) {
    size_t room = 0;
    while (room < count && number + 1 + room < PAGES && part->access[number + 1 + room] == GONE) room++;
    if (part->access[number] == GONE || room == 0) return NULL;
    unsigned char *at = page(part, number);
    if (mremap(at, PAGE, (1 + room) * PAGE, 0) != at) return "mremap in place";
    size_t kept = room - room / 2;
    if (mremap(at, (1 + room) * PAGE, (1 + kept) * PAGE, 0) != at) return "mremap to less";
    memset(part->access + number + 1, part->access[number], kept);
    return NULL;
}

static uint64_t sum(struct part *part) {
    uint64_t all = 0;
    for (size_t p = 0; p < PAGES; p++) {
        all = all * 31 + part->access[p];
        if (part->access[p] < READ) continue;
        for (size_t i = 0; i < PAGE / 8; i++)
            all = (all ^ ((const volatile uint64_t *)page(part, p))[i]) * 0x100000001b3u;
    }
    return all;
}

static const char *operate(struct part *part, int may_fork);

/* A child goes on for a while with its copy and tells what it has then; the parent keeps its own. */
static const char *branch(struct part *part) {
    int ends[2];
    uint64_t told = 0;
    if (pipe(ends)) return "pipe";
    pid_t child = fork();
    if (child == 0) {
        for (int n = 0; n < IN_CHILD; n++)
            if (operate(part, 0)) _exit(1);
        told = sum(part);
        _exit(write(ends[1], &told, sizeof told) == sizeof told ? 0 : 1);
    }
    close(ends[1]);
    ssize_t length = child < 0 ? -1 : read(ends[0], &told, sizeof told);
    close(ends[0]);
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) != child || status || length != sizeof told) return "a child failed";
    see(part, told);
    return NULL;
}

static const char *operate(struct part *part, int may_fork) {
    size_t first = draw(part, PAGES), count = 1 + draw(part, MOST), other = draw(part, PAGES);
    if (count > PAGES - first) count = PAGES - first;
    uint64_t kind = draw(part, 13), value = draw(part, UINT64_MAX);
    switch (kind) {
    case 0 ... 2:
        for (size_t p = first; p < first + count; p++)
            if (part->access[p] == WRITE) ((uint64_t *)page(part, p))[value % (PAGE / 8)] = value + p;
        return NULL;
    case 3 ... 4:
        for (size_t p = first; p < first + count; p++)
            if (part->access[p] >= READ) see(part, ((volatile uint64_t *)page(part, p))[value % (PAGE / 8)]);
        return NULL;
    case 5:
        for (size_t p = first; p < first + count; p++)
            if (part->access[p] != GONE && madvise(page(part, p), PAGE, MADV_DONTNEED)) return "madvise";
        return NULL;
    case 6:
        memset(part->access + first, GONE, count);
        return munmap(page(part, first), count * PAGE) ? "munmap" : NULL;
    case 7:
        return map_again(part, first, count);
    case 8: {
        unsigned char access = (unsigned char)(NONE + value % 3);
        for (size_t p = first; p < first + count; p++) {
            if (part->access[p] == GONE) continue;
            if (mprotect(page(part, p), PAGE, protection[access])) return "mprotect";
            part->access[p] = access;
        }
        return NULL;
    }
    case 9:
        return other + count <= PAGES ? move(part, first, other, count) : NULL;
    case 10:
        return grow(part, first, count);
    case 11:
        /* Filled ahead by the kernel's own hand. */
        for (size_t p = first; p < first + count; p++)
            if (part->access[p] >= READ && madvise(page(part, p), PAGE, MADV_WILLNEED)) return "madvise ahead";
        return NULL;
    default:
        return may_fork && value % 4 == 0 ? branch(part) : NULL;
    }
}

static void *run(void *of) {
    struct part *part = of;
    for (int n = 0; n < operations && !part->wrong; n++) part->wrong = operate(part, 1);
    return NULL;
}

/* The break grows, shrinks and grows again: what was given back is zero. */
static const char *use_break(struct part *part) {
    unsigned char *start = sbrk(0);
    if (sbrk(BREAK_PAGES * PAGE) != start) return "sbrk";
    for (size_t p = 0; p < BREAK_PAGES; p++) start[p * PAGE + draw(part, PAGE)] = (unsigned char)draw(part, 256);
    if (sbrk(-(BREAK_PAGES / 2) * PAGE) == (void *)-1 || sbrk(BREAK_PAGES / 2 * PAGE) == (void *)-1) return "sbrk back";
    for (size_t i = 0; i < BREAK_PAGES * PAGE; i++) see(part, start[i]);
    return sbrk(-BREAK_PAGES * PAGE) == (void *)-1 ? "sbrk back at last" : NULL;
}

const char *random_run(uint64_t seed, int count) {
    pthread_t threads[PARTS];
    operations = count;
    for (size_t n = 0; n < PARTS; n++) {
        parts[n].random = seed * PARTS + n + 1;
        parts[n].wrong = NULL;
        draw(&parts[n], 2);
    }
    const char *wrong = use_break(&parts[0]);
    if (wrong) return wrong;
    for (size_t n = 0; n < PARTS; n++)
        if (pthread_create(&threads[n], NULL, run, &parts[n])) return "no thread";
    for (size_t n = 0; n < PARTS; n++) pthread_join(threads[n], NULL);
    for (size_t n = 0; n < PARTS; n++)
        if (parts[n].wrong) return parts[n].wrong;
    return NULL;
}

void random_tell(int to, int (*tell)(int, const void *, size_t)) {
    for (size_t n = 0; n < PARTS; n++) {
        tell(to, &parts[n].seen, sizeof parts[n].seen);
        tell(to, parts[n].access, PAGES);
        for (size_t p = 0; p < PAGES; p++) {
            if (parts[n].access[p] == GONE) continue;
            mprotect(page(&parts[n], p), PAGE, PROT_READ | PROT_WRITE);
            parts[n].access[p] = WRITE;
            tell(to, page(&parts[n], p), PAGE);
        }
    }
}

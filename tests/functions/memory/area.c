/* Memory with known contents. */
#define _GNU_SOURCE
#include "checks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t word(uint64_t seed, size_t page, size_t index) {
    uint64_t x = seed * 0x9e3779b97f4a7c15u + page * 0xbf58476d1ce4e5b9u + index;
    x ^= x >> 31;
    return x * 0x94d049bb133111ebu;
}

void fill_page(unsigned char *page, uint64_t seed, size_t number) {
    for (size_t i = 0; i < PAGE / 8; i++) ((uint64_t *)page)[i] = word(seed, number, i);
}

int is_page(const unsigned char *page, uint64_t seed, size_t number) {
    for (size_t i = 0; i < PAGE / 8; i++)
        if (((const volatile uint64_t *)page)[i] != word(seed, number, i)) return 0;
    return 1;
}

int is_zero(const unsigned char *page) {
    for (size_t i = 0; i < PAGE / 8; i++)
        if (((const volatile uint64_t *)page)[i]) return 0;
    return 1;
}

struct area new_area(uint64_t seed, size_t pages) {
    unsigned char *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    for (size_t n = 0; n < pages; n++) fill_page(at + n * PAGE, seed, n);
    return (struct area){at, pages, seed};
}

long wrong_page(const struct area *area, size_t from, size_t to) {
    for (size_t n = from; n < to; n++)
        if (!is_page(area->at + n * PAGE, area->seed, n)) return (long)n;
    return -1;
}

long nonzero_page(const struct area *area, size_t from, size_t to) {
    for (size_t n = from; n < to; n++)
        if (!is_zero(area->at + n * PAGE)) return (long)n;
    return -1;
}

const char *at_page(const char *what, long page) {
    static _Thread_local char text[200];
    snprintf(text, sizeof text, "%s: page %ld", what, page);
    return text;
}

const char *in_child(const char *(*check)(void)) {
    static char said[256];
    int ends[2];
    if (pipe(ends)) return "no pipe";
    pid_t child = fork();
    if (child == 0) {
        const char *wrong = check();
        if (wrong && write(ends[1], wrong, strlen(wrong)) < 0) _exit(2);
        _exit(wrong ? 1 : 0);
    }
    close(ends[1]);
    ssize_t length = read(ends[0], said, sizeof said - 1);
    said[length > 0 ? length : 0] = 0;
    close(ends[0]);
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child) return "no child";
    if (status == 0) return NULL;
    if (length <= 0) snprintf(said, sizeof said, "the child ended with status %#x", (unsigned)status);
    return said;
}

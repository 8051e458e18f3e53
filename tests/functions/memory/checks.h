/* What a process may do to its memory, checked byte by byte after a restore. Each check has memory of its own that was
 * filled before the snapshot; it answers NULL if all is well, else what is wrong. */
#ifndef CHECKS_H
#define CHECKS_H
#include <stddef.h>
#include <stdint.h>

#define PAGE 4096

struct area {
    unsigned char *at;
    size_t pages;
    uint64_t seed;
};

/* area.c */
void fill_page(unsigned char *page, uint64_t seed, size_t number);
int is_page(const unsigned char *page, uint64_t seed, size_t number);
int is_zero(const unsigned char *page);
struct area new_area(uint64_t seed, size_t pages);
/* The first page of `from..to` that does not hold its pattern, or -1. */
long wrong_page(const struct area *area, size_t from, size_t to);
/* The first page of `from..to` that is not zero, or -1. */
long nonzero_page(const struct area *area, size_t from, size_t to);
/* "what: page N", kept until the next call of this thread. */
const char *at_page(const char *what, long page);
/* Runs `check` in a child: what it says is wrong, or how the child ended. */
const char *in_child(const char *(*check)(void));

struct check {
    const char *name;
    const char *(*run)(void);
};

/* The checks of each file, ended by one without a name; `*_prepare` is called once, before the snapshot. */
extern const struct check mapping_checks[], thread_checks[], stack_checks[], heap_checks[];
void mappings_prepare(void), threads_prepare(void), stacks_prepare(void), heap_prepare(void);

/* random.c: does so many operations by this seed; then tells what was read, what is mapped how, and every page. */
void random_prepare(void);
const char *random_run(uint64_t seed, int count);
void random_tell(int to, int (*tell)(int, const void *, size_t));

#endif

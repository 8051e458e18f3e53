/* One thread changes its mappings. */
#define _GNU_SOURCE
#include "checks.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES 64

static struct area freed, shielded, grown, moved, broken, mine, wiped;

static unsigned char *brk_to(unsigned char *end) { return (unsigned char *)syscall(SYS_brk, end); }

static unsigned char *map_fresh(unsigned char *at, size_t pages, int protection, int flags) {
    return mmap(at, pages * PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

void mappings_prepare(void) {
    freed = new_area(1, PAGES);
    shielded = new_area(2, PAGES);
    /* Where the kernel puts nothing by itself, so that there is room behind it. */
    unsigned char *far = (unsigned char *)0x200000000000;
    grown = (struct area){map_fresh(far, PAGES, PROT_READ | PROT_WRITE, MAP_FIXED_NOREPLACE), PAGES, 3};
    for (size_t n = 0; n < PAGES; n++) fill_page(grown.at + n * PAGE, 3, n);
    moved = new_area(4, PAGES);
    mine = new_area(6, PAGES);
    wiped = new_area(7, PAGES);
    madvise(wiped.at, PAGES * PAGE, MADV_WIPEONFORK);
    /* Above what the allocator has; it does not move the break any more from here on. */
    unsigned char *start = (unsigned char *)(((uintptr_t)brk_to(NULL) + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    broken = (struct area){start, PAGES, 5};
    if (brk_to(start + PAGES * PAGE) != start + PAGES * PAGE) _exit(3);
    for (size_t n = 0; n < PAGES; n++) fill_page(start + n * PAGE, 5, n);
}

/* Either the kernel refuses it and nothing is lost, or each page is as it was or zero; what is written then stays. */
static const char *free_lazily(void) {
    int refused = madvise(freed.at, PAGES / 2 * PAGE, MADV_FREE);
    if (refused && errno != EINVAL) return "madvise fails with another error than EINVAL";
    for (size_t n = 0; n < PAGES / 2; n++) {
        const unsigned char *page = freed.at + n * PAGE;
        if (!is_page(page, freed.seed, n) && (refused || !is_zero(page))) return at_page("freed", (long)n);
    }
    long wrong = wrong_page(&freed, PAGES / 2, PAGES);
    if (wrong >= 0) return at_page("beside the freed", wrong);
    for (size_t n = 0; n < PAGES; n++) fill_page(freed.at + n * PAGE, freed.seed, n);
    wrong = wrong_page(&freed, 0, PAGES);
    return wrong >= 0 ? at_page("written after", wrong) : NULL;
}

static const char *protect(void) {
    size_t bytes = PAGES * PAGE;
    if (mprotect(shielded.at, bytes, PROT_READ)) return "mprotect to read only";
    /* Before anything of it was read. */
    pid_t child = fork();
    if (child == 0) {
        *(volatile unsigned char *)shielded.at = 1;
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV) return "a write to read-only memory is no SIGSEGV";
    long wrong = wrong_page(&shielded, 0, PAGES / 2);
    if (wrong >= 0) return at_page("read only", wrong);
    if (mprotect(shielded.at, bytes, PROT_NONE) || mprotect(shielded.at, bytes, PROT_READ | PROT_WRITE))
        return "mprotect to nothing and back";
    wrong = wrong_page(&shielded, 0, PAGES);
    return wrong >= 0 ? at_page("after no access", wrong) : NULL;
}

static const char *grow_in_place(void) {
    if (mremap(grown.at, PAGES * PAGE, 2 * PAGES * PAGE, 0) != grown.at) return "it did not grow where it is";
    long wrong = nonzero_page(&grown, PAGES, 2 * PAGES);
    if (wrong >= 0) return at_page("grown", wrong);
    wrong = wrong_page(&grown, 0, PAGES);
    return wrong >= 0 ? at_page("before the grown", wrong) : NULL;
}

static const char *move(void) {
    unsigned char *old = moved.at, *room = map_fresh(NULL, 2 * PAGES, PROT_NONE, 0);
    moved.at = mremap(old, PAGES * PAGE, 2 * PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room);
    if (moved.at != room) return "it did not move";
    if (map_fresh(old, PAGES, PROT_READ | PROT_WRITE, MAP_FIXED_NOREPLACE) != old) return "the old place is not free";
    struct area vacated = {old, PAGES, 0};
    long wrong = wrong_page(&moved, 0, PAGES);
    if (wrong >= 0) return at_page("moved", wrong);
    wrong = nonzero_page(&moved, PAGES, 2 * PAGES);
    if (wrong >= 0) return at_page("grown in the move", wrong);
    wrong = nonzero_page(&vacated, 0, PAGES);
    return wrong >= 0 ? at_page("where it was", wrong) : NULL;
}

static const char *program_break(void) {
    unsigned char *end = broken.at + PAGES * PAGE;
    if (brk_to(NULL) != end) return "somebody else has moved the break";
    if (brk_to(end + 16 * PAGE) != end + 16 * PAGE) return "it does not grow";
    long wrong = nonzero_page(&broken, PAGES, PAGES + 16);
    if (wrong >= 0) return at_page("grown", wrong);
    /* Down into what the snapshot has, and up again. */
    brk_to(broken.at + PAGES / 2 * PAGE);
    if (brk_to(end) != end) return "it does not grow again";
    wrong = nonzero_page(&broken, PAGES / 2, PAGES);
    if (wrong >= 0) return at_page("given up and grown again", wrong);
    wrong = wrong_page(&broken, 0, PAGES / 2);
    return wrong >= 0 ? at_page("kept", wrong) : NULL;
}

static const char *child_changes(void) {
    size_t quarter = PAGES / 4;
    madvise(mine.at, quarter * PAGE, MADV_DONTNEED);
    long wrong = nonzero_page(&mine, 0, quarter);
    if (wrong >= 0) return at_page("dropped in the child", wrong);
    unsigned char *second = mine.at + quarter * PAGE;
    munmap(second, quarter * PAGE);
    if (map_fresh(second, quarter, PROT_READ | PROT_WRITE, MAP_FIXED) != second) return "no new mapping in the child";
    wrong = nonzero_page(&mine, quarter, 2 * quarter);
    if (wrong >= 0) return at_page("mapped anew in the child", wrong);
    unsigned char *room = map_fresh(NULL, quarter, PROT_NONE, 0);
    mremap(second + quarter * PAGE, quarter * PAGE, quarter * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room);
    for (size_t n = 0; n < quarter; n++)
        if (!is_page(room + n * PAGE, mine.seed, 2 * quarter + n)) return at_page("moved in the child", (long)n);
    wrong = wrong_page(&mine, 3 * quarter, PAGES);
    return wrong >= 0 ? at_page("kept in the child", wrong) : NULL;
}

static const char *grandchild(void) { return in_child(child_changes); }

static const char *children(void) {
    const char *wrong_there = in_child(child_changes);
    if (!wrong_there) wrong_there = in_child(grandchild);
    if (wrong_there) return wrong_there;
    long wrong = wrong_page(&mine, 0, PAGES);
    return wrong >= 0 ? at_page("in the parent", wrong) : NULL;
}

static const char *is_wiped(void) {
    long wrong = nonzero_page(&wiped, 0, PAGES);
    return wrong >= 0 ? at_page("not wiped in the child", wrong) : NULL;
}

/* A copy of the process is to it what a child is: what it asked to be wiped in children is not in the snapshot. */
static const char *wipe_on_fork(void) {
    for (size_t n = 0; n < PAGES; n++) {
        unsigned char *page = wiped.at + n * PAGE;
        if (!is_zero(page) && !is_page(page, wiped.seed, n)) return at_page("neither kept nor wiped", (long)n);
        fill_page(page, wiped.seed, n);
    }
    const char *wrong_there = in_child(is_wiped);
    if (wrong_there) return wrong_there;
    long wrong = wrong_page(&wiped, 0, PAGES);
    return wrong >= 0 ? at_page("in the parent", wrong) : NULL;
}

const struct check mapping_checks[] = {
    {"free", free_lazily},  {"protect", protect},   {"grow", grow_in_place}, {"move", move},
    {"brk", program_break}, {"children", children}, {"wipe", wipe_on_fork},  {0},
};

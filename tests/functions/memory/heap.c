/* The allocator the program runs with, under stress: objects from before the snapshot among new ones. */
#include "checks.h"

#include <pthread.h>
#include <stdlib.h>

#define OBJECTS 4000
#define THREADS 4
#define ROUNDS 30000

struct object {
    size_t size;
    uint64_t seed;
    unsigned char *at;
};

static struct object objects[THREADS][OBJECTS];

static uint64_t next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void write_from(struct object *object, size_t from) {
    for (size_t i = from; i < object->size; i++) object->at[i] = (unsigned char)(object->seed + i * 7);
}

static void make(struct object *object, uint64_t *random) {
    /* Most are small, some large enough to be mappings of their own. */
    object->size = 16 + next(random) % (next(random) % 50 ? 600 : 300000);
    object->seed = next(random);
    object->at = malloc(object->size);
    write_from(object, 0);
}

static int is_whole(const struct object *object, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (object->at[i] != (unsigned char)(object->seed + i * 7)) return 0;
    return 1;
}

void heap_prepare(void) {
    for (uint64_t thread = 0; thread < THREADS; thread++) {
        uint64_t random = thread + 1;
        for (size_t n = 0; n < OBJECTS; n++) make(&objects[thread][n], &random);
        /* Holes. */
        for (size_t n = 0; n < OBJECTS; n += 3) {
            free(objects[thread][n].at);
            make(&objects[thread][n], &random);
        }
    }
}

static void *stress(void *argument) {
    struct object *mine = argument;
    uint64_t random = (uint64_t)(mine - objects[0]) + 99;
    for (size_t round = 0; round < ROUNDS; round++) {
        struct object *object = &mine[next(&random) % OBJECTS];
        if (!is_whole(object, object->size)) return "an object has changed";
        if (next(&random) % 4 == 0) {
            size_t before = object->size, size = before / 2 + next(&random) % before + 1;
            size_t kept = size < before ? size : before;
            object->at = realloc(object->at, size);
            object->size = size;
            if (!is_whole(object, kept)) return "an object has changed in realloc";
            write_from(object, kept);
            continue;
        }
        free(object->at);
        if (next(&random) % 8 == 0) {
            unsigned char *zeros = calloc(1, 5 * PAGE);
            for (size_t i = 0; i < 5 * PAGE; i++)
                if (((volatile unsigned char *)zeros)[i]) return "calloc gave something";
            free(zeros);
        }
        make(object, &random);
    }
    for (size_t n = 0; n < OBJECTS; n++)
        if (!is_whole(&mine[n], mine[n].size)) return "an object has changed in the end";
    return NULL;
}

static const char *allocator(void) {
    pthread_t threads[THREADS];
    void *wrong = NULL, *said;
    for (size_t n = 0; n < THREADS; n++) pthread_create(&threads[n], NULL, stress, objects[n]);
    for (size_t n = 0; n < THREADS; n++) {
        pthread_join(threads[n], &said);
        wrong = said ? said : wrong;
    }
    return wrong;
}

const struct check heap_checks[] = {{"allocator", allocator}, {0}};

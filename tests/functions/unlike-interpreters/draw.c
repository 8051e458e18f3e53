// Of what the base has: OpenSSL, shared, libuuid and the C library. Built without their headers.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

extern int RAND_bytes(unsigned char *, int);
extern int RAND_priv_bytes(unsigned char *, int);
extern void uuid_generate(unsigned char *);

static const char *hex(const unsigned char *bytes, int length) {
    static char text[4][40];
    static int next;
    char *begin = text[next++ % 4];
    for (int i = 0; i < length; i++) sprintf(begin + 2 * i, "%02x", bytes[i]);
    return begin;
}

int main(void) {
    char line[16];
    while (fgets(line, sizeof line, stdin)) {
        unsigned char public[8], private[8], kernel[8], uuid[16];
        RAND_bytes(public, sizeof public);
        RAND_priv_bytes(private, sizeof private);
        if (getrandom(kernel, sizeof kernel, 0) != sizeof kernel) return 1;
        uuid_generate(uuid);
        printf("{\"RAND_bytes\": \"%s\", \"RAND_priv_bytes\": \"%s\", \"getrandom\": \"%s\", "
               "\"uuid_generate\": \"%s\", ",
               hex(public, 8), hex(private, 8), hex(kernel, 8), hex(uuid, 16));
        printf("\"arc4random\": %u, \"lrand48\": %ld}\n", arc4random(), lrand48());
        fflush(stdout);
    }
    return 0;
}

/* Serves one request at a time on $PORT: GET /NAME runs a check, GET / lists them, GET /random/SEED/N does random
 * operations and answers with all that came of them. */
#define _GNU_SOURCE
#include "checks.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const struct check *const all[] = {mapping_checks, thread_checks, stack_checks, heap_checks};
#define FILES (sizeof all / sizeof *all)

static const struct check *find(const char *name) {
    for (size_t file = 0; file < FILES; file++)
        for (const struct check *check = all[file]; check->name; check++)
            if (strcmp(check->name, name) == 0) return check;
    return NULL;
}

static void list(char *text, size_t room) {
    for (size_t file = 0; file < FILES; file++)
        for (const struct check *check = all[file]; check->name; check++) {
            strncat(text, check->name, room - strlen(text) - 1);
            strncat(text, "\n", room - strlen(text) - 1);
        }
}

static int tell(int to, const void *bytes, size_t length) {
    for (const char *at = bytes; length > 0;) {
        ssize_t more = write(to, at, length);
        if (more <= 0) return -1;
        at += more;
        length -= (size_t)more;
    }
    return 0;
}

/* Ends with the connection: how much there is to tell is not known before. */
static void answer_random(int client, unsigned long seed, int count) {
    const char *wrong = random_run(seed, count);
    dprintf(client, "HTTP/1.1 %d -\r\nconnection: close\r\n\r\n%s", wrong ? 500 : 200, wrong ? wrong : "");
    if (!wrong) random_tell(client, tell);
}

static void answer(int client) {
    char request[8192], name[64] = "", text[1024] = "", head[200];
    size_t length = 0;
    request[0] = 0;
    while (!strstr(request, "\r\n\r\n") && length < sizeof request - 1) {
        ssize_t more = read(client, request + length, sizeof request - 1 - length);
        if (more <= 0) return;
        request[length += (size_t)more] = 0;
    }
    sscanf(request, "%*s /%63[^ ?]", name);
    unsigned long seed;
    int count;
    if (sscanf(name, "random/%lu/%d", &seed, &count) == 2) return answer_random(client, seed, count);
    const struct check *check = find(name);
    int status = check || !*name ? 200 : 404;
    if (check) {
        const char *wrong = check->run();
        status = wrong ? 500 : 200;
        snprintf(text, sizeof text, "%s: %s\n", name, wrong ? wrong : "ok");
    } else {
        list(text, sizeof text);
    }
    int size = snprintf(head, sizeof head, "HTTP/1.1 %d -\r\ncontent-length: %zu\r\nconnection: close\r\n\r\n", status,
                        strlen(text));
    if (write(client, head, (size_t)size) < 0 || write(client, text, strlen(text)) < 0) perror("write");
}

int main(void) {
    heap_prepare();
    threads_prepare();
    stacks_prepare();
    const char *port = getenv("PORT");
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((uint16_t)atoi(port ? port : "8080"));
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&address, sizeof address)) {
        perror("bind");
        return 1;
    }
    random_prepare();
    /* The last: this thread, whose allocations move the break, makes none from here on. */
    mappings_prepare();
    if (listen(listener, 64)) {
        perror("listen");
        return 1;
    }
    for (;;) {
        int client = accept(listener, NULL, NULL);
        if (client < 0) continue;
        answer(client);
        close(client);
    }
}

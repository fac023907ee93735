/*
 * Preloaded into perftest's programs, which are otherwise as Debian has them: their first PSN, which they draw by lrand48,
 * is the one in FIRST_PSN, and what they sleep to let the other side get ready, which takes most of their time, is short.
 *
 * With CAME ("WHAT BYTES QUEUE_PAIRS MESSAGES lat|bw") the program's memory is looked at when it is done with it: what came
 * last into the first place of each queue pair from Ringway, which fills its own memory as perftest does, with the C library's
 * rand() seeded with the time in seconds. WHAT is `messages`, which the other side has written; `polled`, the same but for
 * the last byte, which counts; `read`, which this side has read; `sums` and `words`, the old values of FETCH_ADDs of 1 and of
 * CMP_SWAPs that change nothing.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* perftest's memory: for each queue pair a piece to send from, then for each one to receive in, through which short messages
 * cycle by whole cache lines, but for those of latency tests. */
enum { PIECE_LEAST = 4096, LINE = 64, CLOCK_S = 10 };

static time_t begin;

__attribute__((constructor)) static void note_time(void) { begin = time(NULL); }

long lrand48(void) {
    const char *psn = getenv("FIRST_PSN");
    static long next = 0x5a5a5a;
    return psn ? strtol(psn, NULL, 0) : (next = next * 1103515245 + 12345) & 0xffffff;
}

unsigned sleep(unsigned seconds) {
    usleep(seconds * 20000);
    return 0;
}

/* The first bytes of rand(), which has a state of its own here. */
static void fill(uint8_t *bytes, size_t count, unsigned seed) {
    struct random_data data = {0};
    char state[128];
    initstate_r(seed, state, sizeof state, &data);
    for (size_t at = 0; at < count; at++) {
        int32_t value;
        random_r(&data, &value);
        bytes[at] = value;
    }
}

struct came {
    char what[16];
    size_t bytes, queue_pairs, messages, piece, step, places;
};

/* Whether the first place of a piece holds what some place of the other side's piece does, or an atomic made of it. */
static int is_right(const struct came *came, const uint8_t *here, const uint8_t *there) {
    size_t bytes = came->bytes - (*came->what == 'p');
    for (size_t place = 0; place < came->places; place++) {
        const uint8_t *expected = there + place * came->step;
        uint64_t found, filled;
        memcpy(&found, here, sizeof found);
        memcpy(&filled, expected, sizeof filled);
        switch (*came->what) {
        case 's': if (found - filled < came->messages) return 1; break;
        case 'w': if (found == filled) return 1; break;
        default: if (!memcmp(here, expected, bytes)) return 1;
        }
    }
    return 0;
}

/* How many queue pairs' pieces hold what came from memory that was filled like this. */
static size_t right_pieces(const struct came *came, const uint8_t *memory, const uint8_t *filled) {
    int arrived = *came->what == 'm' || *came->what == 'p';
    size_t index = 0;
    for (; index < came->queue_pairs; index++) {
        size_t sending = index * came->piece, receiving = (came->queue_pairs + index) * came->piece;
        if (!is_right(came, memory + (arrived ? receiving : sending), filled + (arrived ? sending : receiving))) break;
    }
    return index;
}

static void check(const char *asked, const struct ibv_mr *region) {
    struct came came;
    char kind[4];
    if (sscanf(asked, "%15s %zu %zu %zu %3s", came.what, &came.bytes, &came.queue_pairs, &came.messages, kind) != 5) abort();
    came.piece = came.bytes > PIECE_LEAST ? came.bytes : PIECE_LEAST;
    came.step = came.bytes > LINE ? (came.bytes + LINE - 1) / LINE * LINE : LINE;
    came.places = *kind == 'b' && came.bytes <= PIECE_LEAST / 2 ? PIECE_LEAST / came.step : 1;
    size_t length = 2 * came.queue_pairs * came.piece, most = 0;
    uint8_t *filled = malloc(length);
    if (length > region->length) abort();
    for (int apart = -CLOCK_S; apart <= CLOCK_S && most < came.queue_pairs; apart++) {
        fill(filled, length, begin + apart);
        size_t right = right_pieces(&came, region->addr, filled);
        if (right > most) most = right;
    }
    free(filled);
    fprintf(stderr, "what came is right for %zu of %zu queue pairs\n", most, came.queue_pairs);
    if (most != came.queue_pairs) _exit(3);
}

int ibv_dereg_mr(struct ibv_mr *region) {
    static int (*real)(struct ibv_mr *);
    const char *asked = getenv("CAME");
    if (!real) real = (int (*)(struct ibv_mr *))dlvsym(RTLD_NEXT, "ibv_dereg_mr", "IBVERBS_1.1");
    if (asked) check(asked, region);
    return real(region);
}

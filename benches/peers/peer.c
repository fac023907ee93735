/*
 * Times one collective of an MPI library the way `ringway perf` times ours: the same sizes, the same touching of
 * buffers between calls, the same statistics, the same JSON. README.md says how the numbers are to be read.
 *
 *   mpicc.openmpi -O3 -march=native -o peer.openmpi peer.c
 *   mpirun.openmpi -n 2 ./peer.openmpi allreduce both 0.2 4 1024 65536
 *
 * Arguments: operation; out, in or both; seconds to spend on each size and form; sizes in bytes. A size is one rank's
 * vector of floats; for all_gather, reduce_scatter and all_to_all it is the total over all ranks. Results are checked
 * once per size and form; the exit status is 1 when an element was wrong.
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum operation { ALLREDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, OPERATIONS };
static const char *const NAMES[OPERATIONS] = {"allreduce",  "reduce",         "broadcast",
                                              "all_gather", "reduce_scatter", "all_to_all"};

/* From this size on every call is timed by itself, after a barrier; below, loops of many calls are. Between nodes all
 * are timed by themselves: PEER_ALIGN_FROM_BYTES=0. */
#define ALIGN_FROM_BYTES 4096
#define LOOP_US 50.0
#define LOOP_CALLS_MIN 20
#define SAMPLES_MIN 5
#define SAMPLES_MAX 5000
#define PARTS 10
#define PATIENCE 3
#define WARMUP 10
#define CACHE_LINE_FLOATS 16

static int rank, ranks;

struct call {
    enum operation operation;
    int in_place;
    size_t block;            /* floats of a rank's block, or of the vector */
    size_t sends, receives;  /* floats of this rank's input and output; in place, of the parts of the one buffer */
    float *input, *output;   /* in place, the same */
};

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Page-aligned memory, in huge pages where the kernel gives them. `stagger` keeps buffers out of the same cache sets. */
static float *memory(size_t bytes, size_t stagger) {
    size_t room = (bytes + stagger + (4u << 20)) & ~(size_t)((2u << 20) - 1);
    char *at = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("peer: mmap");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    if (getenv("PEER_HUGE")) madvise(at, room, MADV_HUGEPAGE);
    memset(at, 0, room);
    return (float *)(at + stagger);
}

static void run(const struct call *c) {
    const void *from = c->in_place ? MPI_IN_PLACE : c->input;
    int n = (int)c->block;
    switch (c->operation) {
    case ALLREDUCE:
        MPI_Allreduce(from, c->output, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case REDUCE:
        /* In place concerns the root alone; the others' input is what they have. */
        MPI_Reduce(c->in_place && rank != 0 ? c->output : from, rank == 0 ? c->output : NULL, n, MPI_FLOAT, MPI_SUM,
                   0, MPI_COMM_WORLD);
        break;
    case BROADCAST:
        MPI_Bcast(c->output, n, MPI_FLOAT, 0, MPI_COMM_WORLD);
        break;
    case ALL_GATHER:
        MPI_Allgather(from, n, MPI_FLOAT, c->output, n, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case REDUCE_SCATTER:
        MPI_Reduce_scatter_block(from, c->output, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case ALL_TO_ALL:
        MPI_Alltoall(from, n, MPI_FLOAT, c->output, n, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    default:
        break;
    }
}

/* How far two processors are apart: nanoseconds that a cache line takes from one to the other and back. A virtual machine's
 * processors move about, and only times with the same distance compare. PEER_CPUS names the two: `0,1`. */
#define TRIPS 100
#define BATCHES 16

static _Alignas(128) _Atomic unsigned long line;

static void answer(unsigned long awaited) {
    while (atomic_load_explicit(&line, memory_order_acquire) != awaited) __builtin_ia32_pause();
    atomic_store_explicit(&line, awaited + 1, memory_order_release);
}

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void *there(void *cpu) {
    pin(*(int *)cpu);
    for (unsigned long i = 0; i < TRIPS * BATCHES; i++) answer(2 * i);
    return NULL;
}

static double fastest_ns;

static void *here(void *cpu) {
    pin(*(int *)cpu);
    fastest_ns = 1e9;
    for (unsigned long i = 0; i < BATCHES; i++) {
        double begun = now_us();
        for (unsigned long j = 0; j < TRIPS; j++) answer(2 * (i * TRIPS + j) + 1);
        double ns = (now_us() - begun) * 1e3 / TRIPS;
        fastest_ns = ns < fastest_ns ? ns : fastest_ns;
    }
    return NULL;
}

/* On rank 0; zero where it is not to be measured. */
static double round_trip_ns(void) {
    int cpus[2];
    const char *named = getenv("PEER_CPUS");
    if (rank != 0 || !named || sscanf(named, "%d,%d", &cpus[0], &cpus[1]) != 2) return 0;
    pthread_t threads[2];
    atomic_store(&line, 0);
    pthread_create(&threads[0], NULL, there, &cpus[1]);
    pthread_create(&threads[1], NULL, here, &cpus[0]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    return fastest_ns;
}

/* What an application does between calls: it reads what it got and writes what it sends. */
static void touch(const struct call *c) {
    for (size_t i = 0; i < c->receives; i += CACHE_LINE_FLOATS) {
        float value = c->output[i];
        __asm__ volatile("" : : "x"(value));
    }
    float *from = c->input;
    for (size_t i = 0; i < c->sends; i++) from[i] = 1.0f;
    __asm__ volatile("" : : "r"(from) : "memory");
}

/* Small integers, so that sums are exact in any order. */
static float value_of(int r, size_t index) { return (float)((index * 7 + (size_t)r * 5 + (size_t)(r * r)) % 64); }

static float sum_at(size_t index) {
    float sum = 0;
    for (int r = 0; r < ranks; r++) sum += value_of(r, index);
    return sum;
}

static void prepare(struct call *c, enum operation operation, int in_place, size_t floats, float *a, float *b) {
    size_t block = operation >= ALL_GATHER ? floats / (size_t)ranks : floats, total = block * (size_t)ranks;
    *c = (struct call){operation, in_place, block, block, block, in_place ? b : a, b};
    if (operation == REDUCE && rank != 0) c->receives = 0;
    if (operation == BROADCAST) c->sends = rank == 0 ? block : 0;
    if (operation == ALL_GATHER) c->receives = total;
    if (operation == REDUCE_SCATTER) c->sends = total;
    if (operation == ALL_TO_ALL) c->sends = c->receives = total;
    /* A rank's own block lies, in place, where the result has it. */
    if (operation == ALL_GATHER && in_place) c->input = c->output + (size_t)rank * block;
}

/* Runs the call once on known values; how many elements of this rank's result are wrong. */
static unsigned long check(const struct call *c) {
    size_t first = (size_t)rank * c->block;
    unsigned long wrong = 0;
    for (size_t i = 0; i < c->receives; i++) c->output[i] = -1.0f;
    for (size_t i = 0; i < c->sends; i++) c->input[i] = value_of(rank, i);
    run(c);
    for (size_t i = 0; i < c->receives; i++) {
        size_t source = i / c->block, at = i % c->block;
        float expected = 0;
        switch (c->operation) {
        case ALLREDUCE:
        case REDUCE: expected = sum_at(i); break;
        case BROADCAST: expected = value_of(0, i); break;
        case ALL_GATHER: expected = value_of((int)source, at); break;
        case REDUCE_SCATTER: expected = sum_at(first + i); break;
        case ALL_TO_ALL: expected = value_of((int)source, first + at); break;
        default: break;
        }
        wrong += c->output[i] != expected;
    }
    unsigned long total = 0;
    MPI_Allreduce(&wrong, &total, 1, MPI_UNSIGNED_LONG, MPI_SUM, MPI_COMM_WORLD);
    return total;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The slowest rank's microseconds of `count` samples, sorted; there for rank 0. */
static double *time_calls(const struct call *c, size_t bytes, double seconds, size_t *count) {
    double begun, each = 1e9, slowest_each;
    for (int i = 0; i < WARMUP; i++) {
        touch(c);
        begun = now_us();
        run(c);
        /* The fastest call tells what one takes: others may have been interrupted. */
        double took = now_us() - begun;
        each = took < each ? took : each;
    }
    /* All ranks must decide alike, or they would call different numbers of times. */
    MPI_Allreduce(&each, &slowest_each, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    double fitting = seconds * 1e6 / (slowest_each > 0.05 ? slowest_each : 0.05);
    const char *from = getenv("PEER_ALIGN_FROM_BYTES");
    int align = bytes >= (from ? strtoul(from, NULL, 10) : ALIGN_FROM_BYTES);
    size_t loop = align ? 1 : (size_t)(LOOP_US / (slowest_each > 0.05 ? slowest_each : 0.05));
    if (!align && loop < LOOP_CALLS_MIN) loop = LOOP_CALLS_MIN;
    *count = (size_t)(fitting / (double)loop);
    if (*count < SAMPLES_MIN) *count = SAMPLES_MIN;
    if (*count > SAMPLES_MAX) *count = SAMPLES_MAX;
    size_t part = (*count + PARTS - 1) / PARTS;
    double started = now_us();
    double *mine = malloc(*count * sizeof *mine), *slowest = malloc(*count * sizeof *slowest);
    for (size_t sample = 0; sample < *count; sample++) {
        if (align) {
            touch(c);
            MPI_Barrier(MPI_COMM_WORLD);
            begun = now_us();
            run(c);
        } else {
            MPI_Barrier(MPI_COMM_WORLD);
            begun = now_us();
            for (size_t i = 0; i < loop; i++) {
                touch(c);
                run(c);
            }
        }
        mine[sample] = (now_us() - begun) / (double)loop;
        /* Whoever touches its buffers first would take the processor from others that are about to read the clock. */
        if (align) MPI_Barrier(MPI_COMM_WORLD);
        /* A machine where others work makes calls take much longer than the first ones said. */
        if ((sample + 1) % part == 0 && sample + 1 >= SAMPLES_MIN) {
            double spent = now_us() - started, most;
            MPI_Allreduce(&spent, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
            if (most > PATIENCE * seconds * 1e6) *count = sample + 1;
        }
    }
    MPI_Reduce(mine, slowest, (int)*count, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    free(mine);
    if (rank == 0) qsort(slowest, *count, sizeof *slowest, ascending);
    return slowest;
}

static double quantile(const double *sorted, size_t count, double q) {
    size_t at = (size_t)((double)count * q + 0.999999);
    return sorted[at == 0 ? 0 : (at > count ? count : at) - 1];
}

/* The first line of the library's own version, without characters that JSON would need escaped. */
static void library(char *into) {
    int length = 0;
    MPI_Get_library_version(into, &length);
    for (char *at = into; *at; at++) {
        if (*at == '\n' || *at == ',' || *at == '"' || *at == '\\') *at = 0;
        else if (*at == '\t') *at = ' ';
    }
}

static unsigned long measure(enum operation operation, int in_place, size_t bytes, double seconds, float *a, float *b) {
    struct call c;
    prepare(&c, operation, in_place, bytes / sizeof(float), a, b);
    size_t real = c.block * sizeof(float) * (operation >= ALL_GATHER ? (size_t)ranks : 1), count = 0;
    unsigned long wrong = check(&c);
    double before = round_trip_ns();
    double *t = time_calls(&c, real, seconds, &count);
    double after = round_trip_ns();
    if (rank == 0) {
        char name[MPI_MAX_LIBRARY_VERSION_STRING];
        library(name);
        printf("{\"library\":\"%s\",\"operation\":\"%s\",\"bytes\":%zu,\"ranks\":%d,\"in_place\":%s,\"samples\":%zu,"
               "\"time_us\":{\"min\":%.4f,\"p50\":%.4f,\"p99\":%.4f,\"max\":%.4f},\"errors\":%lu",
               name, NAMES[operation], real, ranks, in_place ? "true" : "false", count, quantile(t, count, 0),
               quantile(t, count, 0.5), quantile(t, count, 0.99), quantile(t, count, 1), wrong);
        if (before > 0) printf(",\"round_trip_ns\":[%.1f,%.1f]", before, after);
        printf("}\n");
        fflush(stdout);
    }
    free(t);
    return wrong;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int operation = 0;
    while (argc > 1 && operation < OPERATIONS && strcmp(argv[1], NAMES[operation]) != 0) operation++;
    if (argc < 5 || operation == OPERATIONS) {
        if (rank == 0) fprintf(stderr, "usage: peer OPERATION out|in|both SECONDS BYTES...\n");
        MPI_Finalize();
        return 2;
    }
    int out = strcmp(argv[2], "in") != 0, in = strcmp(argv[2], "out") != 0;
    double seconds = atof(argv[3]);
    size_t largest = 0;
    for (int i = 4; i < argc; i++) {
        size_t bytes = strtoul(argv[i], NULL, 10);
        if (bytes > largest) largest = bytes;
    }
    float *a = memory(largest, 0), *b = memory(largest, 8256);
    unsigned long wrong = 0;
    for (int i = 4; i < argc; i++) {
        size_t bytes = strtoul(argv[i], NULL, 10);
        /* A broadcast has one buffer here. */
        if (out && operation != BROADCAST) wrong += measure(operation, 0, bytes, seconds, a, b);
        if (in || operation == BROADCAST) wrong += measure(operation, 1, bytes, seconds, a, b);
    }
    MPI_Finalize();
    return wrong != 0;
}

/*
 * Everything that perftest cannot be asked for, through libibverbs: SENDs and WRITEs with immediates, compare-and-swap that
 * swaps, fences, messages of all lengths, bytes that are all checked, and a WRITE that must be refused. The other side is
 * devices/perftest/examples/verbs_peer.rs, which does the same; both take turns as the one that posts requests.
 *
 * verbs_peer DEVICE GID_INDEX MTU ROUNDS FIRST_PSN PORT here|there QUEUE_PAIRS
 *      waits for the other side on a TCP port; `here` and `there` say whose WRITE is refused. Each queue pair has a process and a
 *      connection of its own.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEYS = 108, SLOT = 16384, SLOTS = 64, RECEIVES = 8, DEPTH = 16, OPERATIONS = 8 };

/* Where things are in each side's memory. */
enum {
    SOURCES = 0,                        /* what is sent, or has been read: a slot for each round */
    TARGETS = SOURCES + SLOTS * SLOT,   /* what the other side writes */
    INCOMING = TARGETS + SLOTS * SLOT,  /* receives */
    READABLE = INCOMING + RECEIVES * SLOT,
    RESULTS = READABLE + SLOT,          /* what atomics bring */
    COUNTER = RESULTS + SLOTS * 8,
    SWAPPED = COUNTER + 8,
    MEMORY = SWAPPED + 8,
};

static struct ibv_cq *completions;
static struct ibv_qp *pair;
static struct ibv_mr *region;
static uint8_t memory[MEMORY] __attribute__((aligned(4096)));
static int connection, mtu_bytes;
static uint64_t their_address;
static uint32_t their_key;

static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "verbs_peer: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    exit(1);
}

/* Byte `at` of what the one side (0: this program, 1: Ringway) sends in a round, or lets be read (round -1). */
static uint8_t pattern(int side, int64_t round, uint32_t at) {
    return (uint8_t)(round * 131 + at * 7 + (at >> 8) * 13 + side * 101 + 29);
}

static uint32_t length_of(int64_t round) {
    const uint32_t lengths[] = {0, 1, 7, mtu_bytes - 1, mtu_bytes, mtu_bytes + 1, 2 * mtu_bytes, 3 * mtu_bytes + 5, 64, 10000};
    return lengths[(round * 3 + round / 10) % 10];
}

static uint32_t immediate_of(int64_t round) { return (uint32_t)(round * 2654435761u); }

static void expect_bytes(const char *what, int64_t round, const uint8_t *found, int side, int64_t of, uint32_t length) {
    for (uint32_t at = 0; at < length; at++)
        if (found[at] != pattern(side, of, at))
            die("%s of round %ld: byte %u of %u is %02x and must be %02x", what, (long)round, at, length, found[at],
                pattern(side, of, at));
}

static void take(struct ibv_wc *completion) {
    int count;
    while ((count = ibv_poll_cq(completions, 1, completion)) == 0) sched_yield();
    if (count < 0) die("polling failed");
}

static void post_receive(int64_t number) {
    struct ibv_sge sge = {(uintptr_t)memory + INCOMING + (number % RECEIVES) * SLOT, SLOT, region->lkey};
    struct ibv_recv_wr request = {.wr_id = number, .sg_list = &sge, .num_sge = 1}, *bad;
    memset((void *)sge.addr, 0xee, SLOT);
    if (ibv_post_recv(pair, &request, &bad)) die("a receive was refused");
}

static void post(struct ibv_send_wr *request, uint64_t at, uint32_t length) {
    struct ibv_sge sge = {(uintptr_t)memory + at, length, region->lkey};
    struct ibv_send_wr *bad;
    request->sg_list = &sge;
    request->num_sge = length > 0;
    if (ibv_post_send(pair, request, &bad)) die("a request was refused: %s", strerror(errno));
}

/* Both sides say that they are here. */
static void barrier(void) {
    char theirs = 0;
    if (read(connection, &theirs, 1) != 1 || write(connection, "!", 1) != 1) die("the other side is gone");
}

static uint64_t expected_counter, expected_word;

/* Posts the requests of a round; returns how many. The last is signalled. */
static int request(int64_t round) {
    uint64_t source = SOURCES + (round % SLOTS) * SLOT, target = TARGETS + (round % SLOTS) * SLOT;
    uint32_t length = length_of(round);
    struct ibv_send_wr one = {.wr_id = round, .send_flags = IBV_SEND_SIGNALED};
    one.wr.rdma.rkey = their_key;
    one.wr.rdma.remote_addr = their_address + target;
    for (uint32_t at = 0; at < length; at++) memory[source + at] = pattern(0, round, at);
    switch (round % OPERATIONS) {
    case 0: one.opcode = IBV_WR_SEND; break;
    case 1: one.opcode = IBV_WR_SEND_WITH_IMM; one.imm_data = htonl(immediate_of(round)); break;
    case 2: one.opcode = IBV_WR_RDMA_WRITE; one.send_flags = 0; break;
    case 3: one.opcode = IBV_WR_RDMA_WRITE_WITH_IMM; one.imm_data = htonl(immediate_of(round)); break;
    case 4:
        one.opcode = IBV_WR_RDMA_READ;
        one.wr.rdma.remote_addr = their_address + READABLE;
        memset(memory + source, 0, SLOT);
        break;
    case 5:
        one.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
        one.wr.atomic.rkey = their_key;
        one.wr.atomic.remote_addr = their_address + COUNTER;
        one.wr.atomic.compare_add = round;
        post(&one, RESULTS + (round % SLOTS) * 8, 8);
        return 1;
    case 6:
        one.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
        one.wr.atomic.rkey = their_key;
        one.wr.atomic.remote_addr = their_address + SWAPPED;
        /* Every other one expects the wrong thing, and must change nothing. */
        one.wr.atomic.compare_add = expected_word + round / OPERATIONS % 2;
        one.wr.atomic.swap = round * 0x0101010101010101u;
        post(&one, RESULTS + (round % SLOTS) * 8, 8);
        return 1;
    case 7:
        /* What a READ brings is sent at once: only the fence makes that right. */
        memset(memory + source, 0, SLOT);
        one.opcode = IBV_WR_RDMA_READ;
        one.send_flags = 0;
        one.wr.rdma.remote_addr = their_address + READABLE;
        post(&one, source, length);
        one.opcode = IBV_WR_SEND_WITH_IMM;
        one.send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE | IBV_SEND_SOLICITED;
        one.imm_data = htonl(immediate_of(round));
        post(&one, source, length);
        return 2;
    }
    post(&one, source, length);
    return 1;
}

static void check_result(int64_t round) {
    uint64_t found;
    memcpy(&found, memory + RESULTS + (round % SLOTS) * 8, 8);
    switch (round % OPERATIONS) {
    case 4: expect_bytes("the READ", round, memory + SOURCES + (round % SLOTS) * SLOT, 1, -1, length_of(round)); break;
    case 5:
        if (found != expected_counter) die("FETCH_ADD of round %ld brought %lx and not %lx", (long)round, found, expected_counter);
        expected_counter += round;
        break;
    case 6:
        if (found != expected_word) die("CMP_SWAP of round %ld brought %lx and not %lx", (long)round, found, expected_word);
        if (round / OPERATIONS % 2 == 0) expected_word = round * 0x0101010101010101u;
        break;
    }
}

/* This side posts, the other answers. */
static void requester(int64_t rounds) {
    int64_t posted = 0, done = 0;
    int outstanding = 0;
    expected_counter = expected_word = 0;
    while (done < rounds) {
        /* What a CMP_SWAP is to expect follows from the one before. Behind a fence nothing is posted before that is through:
         * when rxe (of Linux 6.1) sends what has a fence again, it has it wait for READs and atomics that came later as
         * well, and so for ever. */
        while (posted < rounds && outstanding + 2 <= DEPTH && posted - done < OPERATIONS - 1 &&
            (posted == done || posted % OPERATIONS != 0)) {
            outstanding += request(posted);
            posted++;
        }
        struct ibv_wc completion;
        take(&completion);
        if (done % OPERATIONS == 2) done++, outstanding--; /* A silent WRITE. */
        if (completion.status) die("round %ld: %s", (long)completion.wr_id, ibv_wc_status_str(completion.status));
        if ((int64_t)completion.wr_id != done) die("round %ld completed when %ld was next", (long)completion.wr_id, (long)done);
        check_result(done);
        outstanding -= done % OPERATIONS == 7 ? 2 : 1;
        done++;
    }
}

static int takes_receive(int64_t round) {
    int operation = round % OPERATIONS;
    return operation == 0 || operation == 1 || operation == 3 || operation == 7;
}

/* The other side posts; this one looks at what comes. Receives are posted when what came has been looked at, so that the
 * other side is never more than a few rounds ahead. */
static void responder(int64_t rounds) {
    int64_t number = RECEIVES;
    for (int64_t round = 0; round < rounds; round++) {
        uint32_t length = length_of(round);
        if (!takes_receive(round)) continue;
        struct ibv_wc completion;
        take(&completion);
        if (completion.status) die("receive of round %ld: %s", (long)round, ibv_wc_status_str(completion.status));
        const uint8_t *came = memory + INCOMING + (completion.wr_id % RECEIVES) * SLOT;
        int write = round % OPERATIONS == 3, plain = round % OPERATIONS == 0;
        if (completion.opcode != (write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV))
            die("round %ld came as opcode %d", (long)round, completion.opcode);
        if (completion.byte_len != length) die("round %ld has %u bytes, not %u", (long)round, completion.byte_len, length);
        if (!plain && (!(completion.wc_flags & IBV_WC_WITH_IMM) || ntohl(completion.imm_data) != immediate_of(round)))
            die("round %ld has the immediate %x, not %x", (long)round, ntohl(completion.imm_data), immediate_of(round));
        if (plain && completion.wc_flags & IBV_WC_WITH_IMM) die("round %ld has an immediate", (long)round);
        if (write) {
            expect_bytes("the WRITE", round - 1, memory + TARGETS + ((round - 1) % SLOTS) * SLOT, 1, round - 1, length_of(round - 1));
            expect_bytes("the WRITE_WITH_IMM", round, memory + TARGETS + (round % SLOTS) * SLOT, 1, round, length);
        } else if (round % OPERATIONS == 7) {
            expect_bytes("the fenced SEND", round, came, 0, -1, length);
        } else {
            expect_bytes("the SEND", round, came, 1, round, length);
        }
        post_receive(number++);
    }
}

static int listen_at(int port) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(port)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&any, sizeof any) || listen(listener, 16)) die("port %d: %s", port, strerror(errno));
    return listener;
}

static void connect_pair(const char *name, int gid_index, uint32_t first_psn, int listener) {
    int count;
    struct ibv_device **devices = ibv_get_device_list(&count), *device = NULL;
    for (int i = 0; i < count; i++)
        if (!strcmp(ibv_get_device_name(devices[i]), name)) device = devices[i];
    if (!device) die("there is no device %s", name);
    struct ibv_context *context = ibv_open_device(device);
    struct ibv_pd *domain = ibv_alloc_pd(context);
    completions = ibv_create_cq(context, 256, NULL, NULL, 0);
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    region = ibv_reg_mr(domain, memory, MEMORY, access);
    struct ibv_qp_init_attr wanted = {.send_cq = completions, .recv_cq = completions, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 2 * DEPTH, .max_recv_wr = 2 * RECEIVES, .max_send_sge = 1, .max_recv_sge = 1}};
    pair = ibv_create_qp(domain, &wanted);
    union ibv_gid gid;
    if (!region || !pair || ibv_query_gid(context, 1, gid_index, &gid)) die("%s cannot be used", name);

    connection = accept(listener, NULL, NULL);
    char theirs[KEYS], mine[KEYS];
    for (int have = 0, more; have < KEYS; have += more)
        if ((more = read(connection, theirs + have, KEYS - have)) <= 0) die("the other side is gone");
    int end = sprintf(mine, "%04x:%04x:%06x:%06x:%08x:%016lx:", 0, 16, pair->qp_num, first_psn, region->rkey, (uint64_t)memory);
    for (int i = 0; i < 16; i++) end += sprintf(mine + end, "%02x:", gid.raw[i]);
    sprintf(mine + end, "%08x:", 0);
    if (write(connection, mine, KEYS) != KEYS) die("the other side is gone");

    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access};
    if (ibv_modify_qp(pair, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)) die("INIT");
    unsigned lid, reads, number, psn;
    if (sscanf(theirs, "%x:%x:%x:%x:%x:%lx:", &lid, &reads, &number, &psn, &their_key, &their_address) != 6) die("keys: %s", theirs);
    attributes = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .dest_qp_num = number, .rq_psn = psn, .max_dest_rd_atomic = 16,
        .min_rnr_timer = 1, .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = gid_index, .hop_limit = 64}}};
    for (int i = 0; i < 16; i++) attributes.ah_attr.grh.dgid.raw[i] = strtoul(theirs + 50 + 3 * i, NULL, 16);
    while (128 << attributes.path_mtu < mtu_bytes) attributes.path_mtu++;
    if (ibv_modify_qp(pair, &attributes, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)) die("RTR: %s", strerror(errno));
    attributes = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = first_psn,
        .max_rd_atomic = reads};
    if (ibv_modify_qp(pair, &attributes, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
        IBV_QP_MAX_QP_RD_ATOMIC)) die("RTS: %s", strerror(errno));
}

/* A WRITE with a key that is not the other side's, and one behind it. */
static void be_refused(void) {
    struct ibv_send_wr one = {.wr_id = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
    one.wr.rdma.rkey = their_key ^ 0xff00;
    one.wr.rdma.remote_addr = their_address;
    struct ibv_wc completion;
    post(&one, SOURCES, 100);
    take(&completion);
    /* The peer says no once and is silent then: where that can be lost, nothing more comes. */
    int lost = completion.status == IBV_WC_RETRY_EXC_ERR && getenv("LOSSY");
    if (!lost && completion.status != IBV_WC_REM_ACCESS_ERR) die("a wrong key: %s", ibv_wc_status_str(completion.status));
    post(&one, SOURCES, 100);
    for (int expected = 0; expected <= RECEIVES; expected++) {
        take(&completion);
        if (completion.status != IBV_WC_WR_FLUSH_ERR) die("after a refusal: %s", ibv_wc_status_str(completion.status));
    }
}

/* The other side's WRITE has a wrong key: the receives are flushed. */
static void refuse(void) {
    struct ibv_wc completion;
    for (int expected = 0; expected < RECEIVES; expected++) {
        take(&completion);
        if (completion.status != IBV_WC_WR_FLUSH_ERR) die("having refused: %s", ibv_wc_status_str(completion.status));
    }
}

int main(int count, char **arguments) {
    if (count != 9) die("DEVICE GID_INDEX MTU ROUNDS FIRST_PSN PORT here|there QUEUE_PAIRS");
    mtu_bytes = atoi(arguments[3]);
    int64_t rounds = atol(arguments[4]);
    int listener = listen_at(atoi(arguments[6])), queue_pairs = atoi(arguments[8]), index = 0;
    /* Children have the numbers before the last, which is this process's. */
    while (++index < queue_pairs)
        if (fork() == 0) break;
    connect_pair(arguments[1], atoi(arguments[2]), strtoul(arguments[5], NULL, 0) + index - 1, listener);
    for (uint32_t at = 0; at < SLOT; at++) memory[READABLE + at] = pattern(0, -1, at);
    for (int64_t number = 0; number < RECEIVES; number++) post_receive(number);
    barrier();
    responder(rounds);
    barrier();
    uint64_t *words = (uint64_t *)(memory + COUNTER);
    printf("answered %ld rounds; the counter is %lu\n", (long)rounds, words[0]);
    requester(rounds);
    barrier();
    printf("posted %ld rounds; the counter is %lu\n", (long)rounds, expected_counter);
    if (!strcmp(arguments[7], "here"))
        be_refused();
    else
        refuse();
    barrier();
    int failed = 0;
    for (int status; index == queue_pairs && wait(&status) > 0;) failed |= status != 0;
    return failed;
}

/* Programs, frames and mailboxes that nobody would send, for the address and undefined-behaviour sanitizers; see fuzz_core.py.
 *
 * A program is changed at random. What the executor accepts is run: over sockets, where the frames of its peers are right, or
 * changed, cut short, or noise, plain or sealed with the right key; and over segments of peers that say anything. What was not
 * changed must arrive, and what was changed must not.
 */
#include "../src/choreo/run/execute/core/module.c"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>

#define MOST_BYTES ((size_t)3 << 20) /* of an array or scratch: larger programs are checked, and not run */
#define MOST_SENT ((size_t)64 << 10) /* to one peer: nobody reads it */
#define MOST_WORLD 8
#define SLOT_BYTES ((size_t)4 << 10)

#include "fuzz_programs.h"

typedef struct { char *data; size_t length, room; } Bytes;

/* Endpoints. */

static char *new_segment(int world, size_t *bytes) {
    *bytes = staging_offset(world, 0, INT32_MAX) + STAGING_SLOTS * SLOT_BYTES;
    char *segment = aligned_alloc(64, *bytes);
    memset(segment, 0, *bytes);
    return segment;
}

static Endpoint *new_endpoint(int rank, int world) {
    static uint64_t serial;
    static char *buffer, *buffers; /* one endpoint at a time */
    Endpoint *here = calloc(1, sizeof(*here));
    size_t bytes;
    here->rank = rank; here->world = world; here->serial = ++serial;
    here->spins = 1;
    here->patience.ns = SPIN_NS;
    here->own.buf = new_segment(world, &bytes);
    here->own.len = (Py_ssize_t)bytes;
    here->header = here->own.buf;
    here->stage_at = staging_offset(world, 0, INT32_MAX);
    here->stage_bytes = STAGING_SLOTS * SLOT_BYTES; here->slot_bytes = SLOT_BYTES;
    here->polled_peers = calloc((size_t)world, sizeof(*here->polled_peers));
    here->polled_ranks = calloc((size_t)world, sizeof(int));
    here->polled_streams = calloc((size_t)world * MAX_STREAMS, sizeof(*here->polled_streams));
    here->buffer = buffer ? buffer : (buffer = malloc(BUFFER_BYTES));
    here->stream_buffers = buffers ? buffers : (buffers = malloc(MAX_STREAMS * BUFFER_BYTES));
    here->peers = calloc((size_t)world, sizeof(Peer));
    here->call = 1 + below(1000);
    for (int peer = 0; peer < world; peer++) here->peers[peer].pidfd = -1;
    return here;
}

static void free_endpoint(Endpoint *here) {
    for (int peer = 0; peer < here->world; peer++) {
        Peer *other = &here->peers[peer];
        for (int i = 0; i < other->num_streams; i++) {
            close(other->streams[i].fd);
            free(other->streams[i].queue); free(other->streams[i].numbers);
            free_seal(other->streams[i].seal);
        }
        free(other->streams); free(other->map.buf);
    }
    free(here->peers); free(here->polled_streams);
    free(here->polled_ranks); free(here->polled_peers); free(here->own.buf); free(here->scratch); free(here);
}

/* What a peer sends. */

static void append(Bytes *bytes, const void *data, size_t length) {
    if (bytes->length + length > bytes->room) bytes->data = realloc(bytes->data, bytes->room = 2 * (bytes->length + length));
    if (length) memcpy(bytes->data + bytes->length, data, length);
    bytes->length += length;
}

/* A range as it is on the wire: as it is, or in records. */
static void append_range(Bytes *bytes, Cipher *cipher, const char *data, size_t length) {
    if (!cipher) { append(bytes, data, length); return; }
    for (size_t at = 0, part; at < length; at += part) {
        char record[RECORD_BYTES + TAG_BYTES];
        part = length - at < RECORD_BYTES ? length - at : RECORD_BYTES;
        if (!seal_record(cipher, data + at, part, record)) fail("a record cannot be sealed");
        append(bytes, record, part + TAG_BYTES);
    }
}

static int change_frame(Frame *frame) {
    Frame before = *frame;
    switch (below(6)) {
        case 0: frame->magic = (uint32_t)odd_number(); break;
        case 1: frame->number = (uint32_t)odd_number(); break;
        case 2: frame->call = odd_number(); break;
        case 3: frame->signature = odd_number(); break;
        case 4: frame->length = odd_number(); break;
        default: ((unsigned char *)frame)[below(sizeof(*frame))] ^= (unsigned char)(1 << below(8));
    }
    return memcmp(&before, frame, sizeof(before)) != 0;
}

/* All that the peers of this rank send, from what its program receives; says whether anything was changed. */
static int fill_streams(Endpoint *here, const Program *program, uint64_t chain, const char *payload, int sealed, int hostile, int *theirs, int *open_ends) {
    int changed = 0;
    Bytes streams[MOST_WORLD][MAX_STREAMS] = {{{0}}};
    Cipher ciphers[MOST_WORLD][MAX_STREAMS] = {{{0}}};
    char key[KEY_BYTES];
    for (int peer = 0; peer < here->world; peer++)
        for (int i = 0; i < here->peers[peer].num_streams && sealed; i++) {
            memset(key, peer * MAX_STREAMS + i + 1, sizeof(key));
            uint64_t records = chance(10) ? 1 + below(4) : REKEY_RECORDS;
            here->peers[peer].streams[i].seal = new_seal(i & 1, key, key, records);
            if (!here->peers[peer].streams[i].seal || !open_cipher(&ciphers[peer][i], i & 1, key, records, 1)) fail("there is no cipher");
        }
    for (size_t at = 0; at < program->num_ops; at++) {
        const Op *op = &program->ops[at];
        if (op->kind != RECEIVE && op->kind != TO_SCRATCH) continue;
        int stripes = op->length <= SMALL_BYTES ? 1 : count_stripes(op->length, here->peers[op->peer].num_streams);
        for (int i = 0; i < stripes; i++) {
            size_t length = stripe_length(op->length, stripes, i);
            Frame frame = {FRAME, op->number, here->call, chain, length};
            Cipher *cipher = sealed ? &ciphers[op->peer][i] : NULL;
            if (hostile && chance(20)) changed |= change_frame(&frame);
            count.frames++;
            append_range(&streams[op->peer][i], cipher, (const char *)&frame, sizeof(frame));
            append_range(&streams[op->peer][i], cipher, payload, length);
        }
    }
    for (int peer = 0; peer < here->world; peer++)
        for (int i = 0; i < here->peers[peer].num_streams; i++) {
            Bytes *bytes = &streams[peer][i];
            int ends[2], room = 8 << 20;
            if (hostile && bytes->length && chance(15)) { bytes->length = below(bytes->length); changed = 1; }
            else if (hostile && bytes->length && sealed && chance(15)) { bytes->data[below(bytes->length)] ^= (char)(1 << below(8)); changed = 1; }
            else if (hostile && chance(10)) { /* noise at its end is never read */
                char noise[64];
                for (size_t j = 0; j < sizeof(noise); j++) noise[j] = (char)draw();
                append(bytes, noise, sizeof(noise));
            }
            if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends)) fail("there is no socket");
            if (bytes->length > (size_t)100 << 10) setsockopt(ends[1], SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room));
            for (size_t sent = 0; sent < bytes->length;) {
                ssize_t got = send(ends[1], bytes->data + sent, bytes->length - sent, MSG_NOSIGNAL);
                if (got <= 0) { changed = 1; break; }
                sent += (size_t)got;
            }
            shutdown(ends[1], SHUT_WR);
            here->peers[peer].streams[i].fd = ends[0];
            theirs[(*open_ends)++] = ends[1]; /* nobody reads there what this rank sends */
            free(bytes->data);
            free_cipher(&ciphers[peer][i]);
        }
    return changed;
}

static int fits_here(const Program *program) {
    uint64_t sent = 0;
    for (size_t i = 0; i < program->num_ops; i++) {
        if (program->ops[i].kind == SEND && (sent += program->ops[i].length) > MOST_SENT) return 0;
        if (program->ops[i].kind != SEND && program->ops[i].length > MOST_BYTES) return 0;
    }
    return program->work <= MOST_BYTES && program->input <= MOST_BYTES && program->scratch <= MOST_BYTES && program->bytes <= 4 * MOST_BYTES;
}

/* Does the range of this operation still hold what was received into it? Not if a later one writes there too. */
static int is_last_there(const Program *program, size_t at) {
    const Op *op = &program->ops[at];
    for (size_t i = at + 1; i < program->num_ops; i++) {
        const Op *later = &program->ops[i];
        if (later->kind != SEND && later->kind != TO_SCRATCH && later->at < op->at + op->length && op->at < later->at + later->length) return 0;
    }
    return 1;
}

static void run_over_sockets(Program *program, int rank) {
    Endpoint *here = new_endpoint(rank, program->world);
    int theirs[MOST_WORLD * MAX_STREAMS], open_ends = 0, sealed = libcrypto.library && chance(50), hostile = only_frames || chance(70);
    for (int peer = 0; peer < here->world; peer++)
        if (peer != rank) {
            here->peers[peer].num_streams = chance(60) ? 1 : 1 + (int)below(MAX_STREAMS);
            here->peers[peer].streams = calloc((size_t)here->peers[peer].num_streams, sizeof(Stream));
            for (int i = 0; i < here->peers[peer].num_streams; i++) here->peers[peer].streams[i].fd = -1;
        }
    size_t item = chance(80) ? 4 : 1;
    if (!check_endpoint(here, program) && program->grain % item == 0 && fits_here(program)) {
        uint64_t signature = draw(), chain = (here->chain ^ signature) * CHAIN_FACTOR;
        size_t longest = 0;
        for (size_t i = 0; i < program->num_ops; i++) if (program->ops[i].length > longest) longest = program->ops[i].length;
        char *payload = malloc(longest + 1), *work = malloc(program->work ? program->work : 1), *input = malloc(program->input ? program->input : 1);
        memset(payload, 7, longest + 1);
        memset(work, 1, program->work);
        memset(input, 2, program->input);
        here->scratch = malloc(program->scratch ? program->scratch : 1);
        here->scratch_room = program->scratch;
        memset(here->scratch, 0, program->scratch);
        int changed = fill_streams(here, program, chain, payload, sealed, hostile, theirs, &open_ends);
        double began = now_s();
        Task task = {.program = program, .input = input, .work = work, .began_s = began, .deadline_s = began + 5,
                     .kernel = item == 4 ? KERNELS[F32][SUM] : KERNELS[U8][SUM], .item = item};
        describe_arrays(here, &task, 0);
        int outcome = run_call(here, &task, signature, 0);
        count.run++;
        count.sealed += (uint64_t)sealed;
        count.completed += !outcome;
        count.refused += outcome != 0;
        if (outcome == TIMED_OUT) fail("a wait that ends with the deadline only");
        if (!changed && outcome) fail("what was not changed is refused");
        if (changed && !outcome) fail("what was changed is taken");
        for (size_t i = 0; i < program->num_ops && !outcome; i++) {
            const Op *op = &program->ops[i];
            if (op->kind == RECEIVE && !(op->flags & REDUCE) && op->length && is_last_there(program, i) && memcmp(work + op->at, payload, op->length))
                fail("what was received is not what was sent");
        }
        free(payload); free(work); free(input);
    }
    while (open_ends) close(theirs[--open_ends]);
    free_endpoint(here);
}

/* A peer of this host whose segment says anything. */
static void run_over_segments(Program *program, int rank) {
    Endpoint *here = new_endpoint(rank, program->world);
    uint64_t signature = draw(), chain = (here->chain ^ signature) * CHAIN_FACTOR;
    for (int peer = 0; peer < here->world; peer++) {
        size_t bytes;
        Peer *other = &here->peers[peer];
        if (peer == rank) continue;
        char *segment = new_segment(here->world, &bytes);
        other->map.buf = segment; other->map.len = (Py_ssize_t)bytes;
        other->header = (const Header *)segment;
        other->to_us = (const Channel *)(segment + sizeof(Header)) + rank;
        other->from_us = (Channel *)((char *)here->own.buf + sizeof(Header)) + peer;
        other->pid = (int)getpid();
        Channel *channel = (Channel *)(segment + sizeof(Header)) + rank;
        Mailbox *mailbox = &channel->mailboxes[here->call % WINDOW];
        mailbox->ready = channel->consumed = UINT64_MAX >> 1; /* nothing is waited for */
        mailbox->chain = chance(90) ? chain : draw();
        mailbox->modes = chance(50) ? below(4) | below(4) << 8 | below(4) << 16 | below(STAGING_SLOTS) << SLOT_BIT : draw();
        for (int i = 0; i < 2; i++) mailbox->addresses[i] = chance(50) ? below(bytes + 100) : odd_number();
        if (chance(20)) for (size_t i = 0; i < sizeof(Header); i++) segment[i] = (char)draw();
        ((Header *)segment)->returned = UINT64_MAX >> 1;
        if (chance(10)) { channel->outcome = (uint32_t)below(12); channel->outcome_call = odd_number(); }
    }
    int stages = chance(50);
    if (!check_endpoint(here, program) && !(stages ? program->exposed : program->staged) && program->grain % 4 == 0 && fits_here(program)) {
        char *work = malloc(program->work ? program->work : 1), *input = malloc(program->input ? program->input : 1);
        memset(work, 1, program->work);
        memset(input, 2, program->input);
        here->scratch = malloc(program->scratch ? program->scratch : 1);
        here->scratch_room = program->scratch;
        memset(here->scratch, 0, program->scratch);
        double began = now_s();
        Task task = {.program = program, .input = input, .work = work, .began_s = began, .deadline_s = began + 0.05,
                     .uncached = chance(20), .kernel = KERNELS[F32][SUM], .item = 4};
        describe_arrays(here, &task, stages);
        int outcome = run_call(here, &task, signature, stages);
        count.mailboxes++;
        if (outcome == TIMED_OUT) fail("a mailbox that is ready is waited for");
        free(work); free(input);
    }
    free_endpoint(here);
}

static void *load(FILE *file, size_t size) {
    void *data = malloc(size ? size : 1);
    if (size && fread(data, 1, size, file) != size) exit(3);
    return data;
}

int main(int argc, char **argv) {
    FILE *file = argc > 4 ? fopen(argv[1], "rb") : NULL;
    uint64_t bases, most = argc > 4 ? strtoull(argv[2], NULL, 10) : 0;
    if (!file || fread(&bases, 8, 1, file) != 1) return 2;
    uint64_t frames = argc > 5 ? strtoull(argv[5], NULL, 10) : 0;
    only_frames = frames > 0;
    random_state = strtoull(argv[3], NULL, 10) * 0x9E3779B97F4A7C15ULL | 1;
    Py_InitializeEx(0);
    PyObject *path = Py_BuildValue("(s)", argv[4]), *loaded = load_libcrypto(NULL, path);
    if (!loaded) PyErr_Print();
    Base *base = calloc(bases, sizeof(*base));
    for (uint64_t i = 0; i < bases; i++) {
        if (fread(&base[i], 8, 6, file) != 6) return 3;
        base[i].op = load(file, base[i].ops * sizeof(Op));
        base[i].guard = load(file, base[i].guards * sizeof(Guard));
        base[i].sent = load(file, 4 * base[i].world);
        base[i].received = load(file, 4 * base[i].world);
    }
    for (; only_frames ? count.frames < frames : count.cases < most; count.cases++) {
        const Base *one = &base[below(bases)];
        Program *program = make_program(one);
        if (!check_program(program)) {
            count.accepted++;
            fuse_reductions(program);
            if (!assign_inline(program)) fail("there is no memory");
            if (only_frames || chance(60)) run_over_sockets(program, (int)one->rank);
            else run_over_segments(program, (int)one->rank);
        }
        free_program(program);
        if (count.cases % 1000000 == 999999) fprintf(stderr, "%llu cases\n", (unsigned long long)count.cases + 1);
    }
    printf("%llu programs: %llu accepted; %llu run over sockets (%llu sealed): %llu ended well, %llu refused, of %llu frames; %llu over segments\n",
           (unsigned long long)count.cases, (unsigned long long)count.accepted, (unsigned long long)count.run, (unsigned long long)count.sealed,
           (unsigned long long)count.completed, (unsigned long long)count.refused, (unsigned long long)count.frames, (unsigned long long)count.mailboxes);
    return 0;
}

/* Runs a rank's program (program.py) over shared memory and sockets, with the GIL released. `twin.py` does the same in
 * Python. docs/explanation/running.md says how it works; in short:
 *
 * Every rank writes only its own segment; the others map it read-only. In the segment of rank i, channel j holds two
 * counters: how many messages i has made ready for j, and how many of j's messages i has consumed. A receiver waits until
 * the sender's counter reaches the number of its message, then reads the data where the sender has it. So nobody can be
 * harmed by a rank that wakes up after it was given up. Peers on other machines are reached through sockets.
 *
 * The staging is eight slots, and calls take them in turn. A call begins only when everything sent from its slot has been
 * consumed: eight calls ago, which also keeps a call's descriptor (there are eight) until all who were sent something have
 * read it. A large call is cut into parts, which use its slot and the one beside it alternately.
 *
 * Every wait ends: by what is waited for, by the deadline, by the death of a peer, because a peer gave up or left, or by a
 * signal. What a peer's segment or socket says is never used as a length or a place without being checked.
 */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "_kernels.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "programs are little-endian, and a futex is the low half of its counter; the twin runs here"
#endif

#define MAGIC 0x31306F65726F6843ULL /* "Choreo01" */
#define FRAME 0x4D415246U           /* "FRAM" */
#define GOODBYE 0x21455942U         /* "BYE!": number is the outcome, signature the culprit */
#define NOTE 0x45544F4EU            /* "NOTE": call has been reduced (number 0), or returned from (1) */
#define MAX_STREAMS 8
#define CALLS 8
#define SLOTS 8
#define PAGE 4096
#define SLICE ((size_t)128 << 10) /* what is read at once before it is reduced */
#define BLOCK ((size_t)32 << 10)  /* several sources are reduced block by block, so that the sum stays in cache */
#define TOGETHER 64               /* sources at most */
#define LOOK_S 0.02               /* how often a waiting rank looks whether the others are well */
#define SIGNALS_S 0.05            /* and whether a signal is waiting for Python */
#define AWAKE_S 0.0005            /* how long it keeps its core */
#define FAR ((size_t)16 << 20)    /* an array that caches do not hold */

enum { SEND, RECEIVE, TO_SCRATCH, FROM_SCRATCH, KEEP, PART, KINDS };
enum { REDUCE = 1, LAST = 2, THEIR_INPUT = 4, OWN_INPUT = 8, EXPOSED = 16, HELD = 32, ALL_FLAGS = 63 };
enum { STAGED, REGISTERED, PRIVATE };
enum { FINE, TIMED_OUT, PEER_DIED, PEER_GAVE_UP, MISMATCHED, BROKEN, INTERRUPTED, LEFT };

/* ---- what lies in a segment ---- */

typedef struct {
    _Atomic uint64_t number; /* 0: never used, or being changed */
    _Atomic uint64_t signature;
    /* STAGED: not to be read; REGISTERED: an offset in the segment; PRIVATE: an address */
    _Atomic uint64_t input_mode, work_mode, input, work, unused[2];
} Call;

typedef struct {
    uint64_t magic;
    uint32_t rank, world;
    uint64_t bytes, stage_at, stage_bytes, heap_at;
    _Atomic uint32_t gave_up; /* why this rank stopped, one of the outcomes above, or LEFT if it was done */
    _Atomic uint32_t culprit;
    _Atomic uint64_t gave_up_in; /* the call in which it did, or after which it left */
    _Atomic uint32_t asleep;
    uint32_t unused;
    char pad[PAGE - 72 - CALLS * 64];
    Call calls[CALLS];
} Header;

typedef struct {
    _Atomic uint64_t ready;
    char pad[56];
    _Atomic uint64_t consumed;
    char pad_too[56];
} Channel;

typedef struct {
    uint8_t kind, flags;
    uint16_t peer;
    uint32_t number, step, guards;
    uint64_t first_guard, at, base, there, staged, length;
} Op;

typedef struct { uint32_t peer, number; } Guard;

typedef struct { uint32_t magic, number; uint64_t call, signature, length; } Frame;

typedef struct {
    int fd;
    struct iovec *queue; /* ranges to write */
    uint32_t *numbers;   /* of the messages that they belong to */
    size_t room, queued, written;
} Stream;

typedef struct {
    const Header *header; /* NULL: not on this machine */
    const Channel *channels;
    Py_buffer map;
    int pidfd, pid; /* pidfd: of a peer elsewhere, its control connection */
    int num_streams;
    Stream *streams;
    uint64_t sent, received;        /* messages before this call */
    uint64_t posted;                /* the last message that was made ready */
    uint64_t sent_by[SLOTS];        /* the last message sent from each slot */
    uint64_t freed;                 /* the last message that it was seen to have consumed */
    uint64_t verified;              /* the last call of which it was seen that both do the same */
    uint64_t checked;               /* the call whose descriptor was read */
    uint64_t mode[2], place[2];     /* of that descriptor: of work and of input */
    uint32_t told, told_culprit;    /* what it said before it went, through its socket */
    uint64_t told_in, noted[2];
} Peer;

typedef struct {
    PyObject_HEAD
    int rank, world, spins, mapped, busy, generation, in_main;
    uint64_t serial;
    Py_buffer own;
    Header *header;
    Channel *channels;
    size_t stage_at, stage_bytes, slot_bytes;
    Peer *peers;
    struct pollfd *watched, *wires;
    int *whose, pending; /* pending: streams that have something to write */
    char *scratch, *slice, *slices;
    size_t scratch_room;
    uint64_t call, done, calls[CALLS], signatures[CALLS]; /* the last calls, by their number modulo CALLS */
    double looked, signalled;
    unsigned long main_thread;
    PyThreadState *state;
    int culprit, failed_op;
} Endpoint;

typedef struct {
    PyObject_HEAD
    int world, staged, exposed; /* whether anything local is handed over this way; known once it has been checked */
    Op *ops;
    Guard *guards;
    uint32_t *sent, *received, *together; /* together: how many operations from here on reduce into the same range */
    Frame *frames; /* of sends through sockets; they live until the queue is written */
    size_t num_ops, num_guards;
    uint64_t scratch, input, work, grain; /* bytes; grain: what every reduced length is a multiple of */
    uint64_t checked_for;                 /* the serial number of the endpoint it was checked for */
} Program;

typedef struct {
    const Program *program;
    char *input, *work, *stage; /* the slot of staging that is in use */
    size_t slot, slot_at;
    int far; /* the result goes past the caches */
    double began, deadline;
    Kernel kernel;
    size_t item;
} Task;

static int generation; /* of forks: an endpoint is of no use to a child */
static void count_fork(void) { generation++; }

/* ---- waiting ---- */

static double now_s(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void publish(_Atomic uint64_t *counter, uint64_t value, const Header *to) {
    /* An exchange is a full barrier: either we see that they sleep, or they see the counter before they do. */
    atomic_exchange_explicit(counter, value, memory_order_seq_cst);
    if (atomic_load_explicit(&to->asleep, memory_order_seq_cst))
        syscall(SYS_futex, (uint32_t *)counter, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static int gave_up(Endpoint *here, int outcome, int culprit) {
    here->culprit = culprit;
    if (atomic_load(&here->header->gave_up)) return outcome;
    atomic_store(&here->header->culprit, (uint32_t)culprit);
    atomic_store(&here->header->gave_up_in, here->call);
    atomic_store(&here->header->gave_up, (uint32_t)outcome);
    return outcome;
}

/* Who gave up in a later call, or left after this one, has done its part of this one. */
static int ends(uint32_t outcome, uint64_t in, uint64_t call) { return outcome == LEFT ? in < call : outcome && in <= call; }

static int stopped(const Header *theirs, uint64_t call) {
    uint32_t outcome = atomic_load_explicit(&theirs->gave_up, memory_order_acquire);
    return ends(outcome, atomic_load_explicit(&theirs->gave_up_in, memory_order_relaxed), call);
}

/* Did a peer make the calls that we made, as far as it has come? */
static int same_calls(Endpoint *here, Peer *other) {
    uint64_t first = here->call >= CALLS ? here->call - CALLS + 1 : 1;
    for (uint64_t call = other->verified < first ? first : other->verified + 1; call <= here->call; call++) {
        const Call *theirs = &other->header->calls[call % CALLS];
        uint64_t number = atomic_load_explicit(&theirs->number, memory_order_acquire);
        if (number < call) return 1;
        if (number == call && here->calls[call % CALLS] == call) {
            uint64_t signature = atomic_load_explicit(&theirs->signature, memory_order_relaxed);
            atomic_thread_fence(memory_order_acquire);
            if (atomic_load_explicit(&theirs->number, memory_order_relaxed) == call &&
                signature != here->signatures[call % CALLS])
                return 0;
        }
        other->verified = call;
    }
    return 1;
}

static int look_at_control(Endpoint *here, int peer);

/* Has anybody died, stopped or left? Everybody is looked at, not only the one that is waited for; a death says most. */
static int look_around(Endpoint *here, int *culprit) {
    static const int weight[] = {[FINE] = 0, [PEER_GAVE_UP] = 1, [MISMATCHED] = 2, [PEER_DIED] = 3};
    int found = FINE, count = 0;
    for (int peer = 0; peer < here->world; peer++)
        if (here->peers[peer].pidfd >= 0) {
            here->watched[count] = (struct pollfd){here->peers[peer].pidfd, POLLIN, 0};
            here->whose[count++] = peer;
        }
    if (count && poll(here->watched, (nfds_t)count, 0) <= 0) count = 0;
    for (int peer = 0, next = 0; peer < here->world; peer++) {
        Peer *other = &here->peers[peer];
        int outcome = FINE, dead = 0;
        while (next < count && here->whose[next] < peer) next++;
        if (next < count && here->whose[next] == peer) dead = here->watched[next].revents != 0;
        if (peer == here->rank) continue;
        if (!other->header) outcome = dead ? look_at_control(here, peer) : FINE;
        else {
            if (!same_calls(here, other)) outcome = MISMATCHED;
            else if (stopped(other->header, here->call)) outcome = PEER_GAVE_UP;
            else if (dead && !atomic_load(&other->header->gave_up)) outcome = PEER_DIED;
        }
        if (weight[outcome] > weight[found]) { found = outcome; *culprit = peer; }
    }
    return found;
}

/* In every slow loop: the deadline, the others, and signals. */
static int still_well(Endpoint *here, int peer, double deadline, int *culprit) {
    double time = now_s();
    *culprit = peer;
    if (time - here->looked > LOOK_S) {
        here->looked = time;
        int outcome = look_around(here, culprit);
        if (outcome) return outcome;
    }
    if (time > deadline) return TIMED_OUT;
    if (here->in_main && time - here->signalled > SIGNALS_S) {
        here->signalled = time;
        PyEval_RestoreThread(here->state);
        int raised = PyErr_CheckSignals();
        here->state = PyEval_SaveThread();
        *culprit = here->rank;
        if (raised) return INTERRUPTED;
    }
    return FINE;
}

static int any_queued(const Endpoint *here);
static int push_sockets(Endpoint *here, int reading, unsigned streams, int milliseconds);

static void sleep_on(Endpoint *here, const _Atomic uint64_t *counter, uint64_t value) {
    atomic_exchange_explicit(&here->header->asleep, 1, memory_order_seq_cst);
    uint64_t seen = atomic_load_explicit(counter, memory_order_seq_cst);
    if (seen < value) { /* the low half: it would have to grow by 2**32 between two looks to be missed */
        struct timespec most = {0, 10000000};
        syscall(SYS_futex, (uint32_t *)counter, FUTEX_WAIT, (uint32_t)seen, &most, NULL, 0);
    }
    atomic_store_explicit(&here->header->asleep, 0, memory_order_release);
}

static int wait_for(Endpoint *here, const _Atomic uint64_t *counter, uint64_t value, int peer, double deadline) {
    for (int spin = 0; spin < here->spins; spin++) {
        if (atomic_load_explicit(counter, memory_order_acquire) >= value) return FINE;
        relax();
    }
    double began = 0;
    for (int round = 0;; round++) {
        if (atomic_load_explicit(counter, memory_order_acquire) >= value) return FINE;
        if (round % 16 == 15) {
            int culprit, outcome = still_well(here, peer, deadline, &culprit);
            /* A peer may have done its part of this call before it died or stopped. */
            if (outcome && outcome != INTERRUPTED && atomic_load_explicit(counter, memory_order_acquire) >= value) return FINE;
            if (outcome) return gave_up(here, outcome, culprit);
            double time = now_s();
            if (!began) began = time;
            int tired = time - began > AWAKE_S;
            if (any_queued(here)) {
                if ((outcome = push_sockets(here, -1, 0, tired))) return outcome;
            } else if (tired) {
                sleep_on(here, counter, value);
            }
            if (tired) { round = 14; continue; }
        }
        sched_yield();
    }
}

/* ---- running a program ---- */

static int wait_written(Endpoint *here, int peer, uint32_t number, double deadline);

static int wait_guards(Endpoint *here, const Task *task, const Op *op) {
    for (uint32_t i = 0; i < op->guards; i++) {
        Guard guard = task->program->guards[op->first_guard + i];
        Peer *other = &here->peers[guard.peer];
        int outcome = FINE;
        if (other->header)
            outcome = wait_for(here, &other->channels[here->rank].consumed, other->sent + guard.number, (int)guard.peer,
                               task->deadline);
        else
            outcome = wait_written(here, (int)guard.peer, guard.number, task->deadline);
        if (outcome) return outcome;
    }
    return FINE;
}

static void put(const Task *task, const Op *op, const char *data, size_t at, size_t length) {
    char *to = task->work + op->at + at;
    if (!(op->flags & REDUCE)) { copy_bytes(to, data, length); return; }
    const char *base = ((op->flags & OWN_INPUT) ? task->input : task->work) + op->base + at;
    task->kernel(to, base, data, length / task->item);
}

/* The first message of a call from a peer: is it doing the same as we, and where does it have its data? */
static int check_peer(Endpoint *here, int peer) {
    Peer *other = &here->peers[peer];
    const Call *theirs = &other->header->calls[here->call % CALLS];
    if (!same_calls(here, other)) return gave_up(here, MISMATCHED, peer);
    /* It has sent us a message of this call, so the descriptor stays as it is until we have consumed it. */
    if (atomic_load_explicit(&theirs->number, memory_order_acquire) != here->call) return gave_up(here, BROKEN, peer);
    other->mode[0] = atomic_load_explicit(&theirs->work_mode, memory_order_relaxed);
    other->mode[1] = atomic_load_explicit(&theirs->input_mode, memory_order_relaxed);
    other->place[0] = atomic_load_explicit(&theirs->work, memory_order_relaxed);
    other->place[1] = atomic_load_explicit(&theirs->input, memory_order_relaxed);
    other->checked = here->call;
    return FINE;
}

typedef struct { const char *data; uint64_t address; int staged; } Source; /* data NULL: in the memory of another process */

/* Wait for a message in shared memory, and find where it is. */
static int arrive(Endpoint *here, const Task *task, const Op *op, Source *source) {
    int peer = op->peer, outcome, in_input = (op->flags & THEIR_INPUT) != 0;
    Peer *other = &here->peers[peer];
    if ((outcome = wait_for(here, &other->channels[here->rank].ready, other->received + op->number, peer, task->deadline)))
        return outcome;
    if (other->checked != here->call && (outcome = check_peer(here, peer))) return outcome;
    if ((outcome = wait_guards(here, task, op))) return outcome;
    uint64_t mode = other->mode[in_input], place = other->place[in_input] + op->there, room = (uint64_t)other->map.len;
    *source = (Source){NULL, place, 0};
    if (mode == PRIVATE) return FINE;
    if (mode == STAGED) {
        if (op->staged > here->slot_bytes || op->length > here->slot_bytes - op->staged) return gave_up(here, BROKEN, peer);
        place = here->stage_at + task->slot_at + op->staged;
    } else if (mode != REGISTERED) {
        return gave_up(here, BROKEN, peer);
    }
    if (place > room || op->length > room - place) return gave_up(here, BROKEN, peer);
    source->data = (const char *)other->map.buf + place;
    source->staged = mode == STAGED;
    return FINE;
}

static int read_memory(Endpoint *here, int peer, char *into, uint64_t address, size_t length) {
    Peer *other = &here->peers[peer];
    while (length) {
        size_t part = length < ((size_t)8 << 20) ? length : (size_t)8 << 20;
        struct iovec mine = {into, part}, theirs = {(void *)(uintptr_t)address, part};
        errno = 0;
        ssize_t got = process_vm_readv(other->pid, &mine, 1, &theirs, 1, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return gave_up(here, errno == ESRCH ? PEER_DIED : BROKEN, peer);
        into += got;
        address += (uint64_t)got;
        length -= (size_t)got;
    }
    return FINE;
}

/* The number of a process that died may belong to another by now: what was read counts only if it lives. */
static int still_there(Endpoint *here, int peer) {
    struct pollfd watched = {here->peers[peer].pidfd, POLLIN, 0};
    return watched.fd >= 0 && poll(&watched, 1, 0) == 1 ? gave_up(here, PEER_DIED, peer) : FINE;
}

static int take(Endpoint *here, const Task *task, const Op *op, Source source, size_t at, size_t length) {
    int scratch = op->kind == TO_SCRATCH, outcome;
    if (source.data) {
        if (scratch) copy_bytes(here->scratch + op->at + at, source.data + at, length);
        else if (task->far && !(op->flags & REDUCE)) stream_bytes(task->work + op->at + at, source.data + at, length, !source.staged);
        else put(task, op, source.data + at, at, length);
        return FINE;
    }
    if (scratch) return read_memory(here, op->peer, here->scratch + op->at + at, source.address + at, length);
    if (!(op->flags & REDUCE)) return read_memory(here, op->peer, task->work + op->at + at, source.address + at, length);
    for (size_t end = at + length; at < end; at += SLICE) {
        size_t part = end - at < SLICE ? end - at : SLICE;
        if ((outcome = read_memory(here, op->peer, here->slice, source.address + at, part))) return outcome;
        put(task, op, here->slice, at, part);
    }
    return FINE;
}

#include "_sockets.h"

/* One message range; or several in a row that are reduced into the same range, in their order, so with the same bits. */
static int receive(Endpoint *here, const Task *task, const Op *ops, size_t count) {
    Source sources[TOGETHER];
    int outcome = FINE, private = 0;
    if (!here->peers[ops->peer].header) return receive_from_socket(here, task, ops);
    for (size_t i = 0; i < count; i++) {
        if ((outcome = arrive(here, task, &ops[i], &sources[i]))) return outcome;
        private |= !sources[i].data;
    }
    size_t length = ops->length, block = count == 1 ? length : private ? SLICE : BLOCK;
    for (size_t at = 0; at < length && !outcome; at += block)
        for (size_t i = 0; i < count && !outcome; i++)
            outcome = take(here, task, &ops[i], sources[i], at, length - at < block ? length - at : block);
    for (size_t i = 0; i < count && !outcome; i++) {
        Peer *other = &here->peers[ops[i].peer];
        if (!sources[i].data && (outcome = still_there(here, ops[i].peer))) break;
        if (ops[i].flags & LAST) publish(&here->channels[ops[i].peer].consumed, other->received + ops[i].number, other->header);
    }
    return outcome;
}

static int send_range(Endpoint *here, const Task *task, const Op *op) {
    Peer *other = &here->peers[op->peer];
    const char *from = op->length ? ((op->flags & OWN_INPUT) ? task->input : task->work) + op->at : NULL;
    if (!other->header) return send_parts(here, task, op, from);
    if (!(op->flags & (EXPOSED | HELD)) && op->length) copy_bytes(task->stage + op->staged, from, op->length);
    if (op->flags & LAST) {
        other->posted = other->sent + op->number;
        publish(&here->channels[op->peer].ready, other->posted, other->header);
    }
    return FINE;
}

/* Wait until a slot may be written again, and take it. */
static int take_slot(Endpoint *here, Task *task, size_t slot) {
    for (int peer = 0; peer < here->world; peer++) {
        Peer *other = &here->peers[peer];
        if (!other->header || other->sent_by[slot] <= other->freed) continue;
        const _Atomic uint64_t *consumed = &other->channels[here->rank].consumed;
        int outcome = wait_for(here, consumed, other->sent_by[slot], peer, task->deadline);
        if (outcome) return outcome;
        other->freed = atomic_load_explicit(consumed, memory_order_relaxed);
    }
    task->slot = slot;
    task->slot_at = slot * here->slot_bytes;
    task->stage = (char *)here->own.buf + here->stage_at + task->slot_at;
    return FINE;
}

static void leave_slot(Endpoint *here, size_t slot) {
    for (int peer = 0; peer < here->world; peer++) here->peers[peer].sent_by[slot] = here->peers[peer].posted;
}

static int run_ops(Endpoint *here, Task *task) {
    const Program *program = task->program;
    for (size_t at = 0; at < program->num_ops;) {
        const Op *op = &program->ops[at];
        size_t count = program->together[at];
        int outcome = FINE;
        here->failed_op = (int)at;
        switch (op->kind) {
            case SEND: outcome = send_range(here, task, op); break;
            case RECEIVE:
            case TO_SCRATCH:
                for (size_t i = 1; i < count; i++)
                    if (!here->peers[op[i].peer].header || !here->peers[op->peer].header) count = 1;
                outcome = receive(here, task, op, count);
                break;
            case FROM_SCRATCH:
                outcome = wait_guards(here, task, op);
                if (!outcome && op->length) put(task, op, here->scratch + op->there, 0, op->length);
                break;
            case PART: /* a wait for whoever still reads the slot, not for the peer of an operation */
                here->failed_op = -1;
                leave_slot(here, task->slot);
                outcome = take_slot(here, task, task->slot ^ 1);
                break;
            default:
                if (!op->length) break;
                if (task->far) stream_bytes(task->work + op->at, task->input + op->base, op->length, program->exposed);
                else copy_bytes(task->work + op->at, task->input + op->base, op->length);
        }
        if (outcome) return outcome;
        at += count;
    }
    here->failed_op = -1;
    return FINE;
}

/* What must have happened before the caller may touch its arrays again, and believe what is in them. */
static int finish(Endpoint *here, const Task *task, int exposes) {
    for (int peer = 0; peer < here->world; peer++) {
        Peer *other = &here->peers[peer];
        uint32_t sent = task->program->sent[peer];
        int outcome = FINE;
        if (other->header && exposes && sent)
            outcome = wait_for(here, &other->channels[here->rank].consumed, other->sent + sent, peer, task->deadline);
        if (!outcome && here->pending) outcome = wait_written(here, peer, UINT32_MAX, task->deadline);
        if (outcome) return outcome;
    }
    /* A rank that slept through the end of this call may have read what others have overwritten since; they said before
     * that they had given up. */
    atomic_thread_fence(memory_order_acquire);
    for (int peer = 0; peer < here->world; peer++) {
        Peer *other = &here->peers[peer];
        if (!other->header) continue;
        if (stopped(other->header, here->call)) return gave_up(here, PEER_GAVE_UP, peer);
        /* With whom nothing was exchanged has no part in the result; and its descriptor is a line to fetch. */
        int exchanged = task->program->sent[peer] || task->program->received[peer];
        if (exchanged && !same_calls(here, other)) return gave_up(here, MISMATCHED, peer);
    }
    return FINE;
}

/* Wait until nobody needs what this call is going to overwrite, and tell what it is. */
static int begin(Endpoint *here, Task *task, uint64_t signature, const uint64_t *mode, const uint64_t *place) {
    uint64_t last = here->call % CALLS;
    here->calls[last] = here->call;
    here->signatures[last] = signature;
    if (task->began - here->looked > LOOK_S) {
        int culprit, outcome;
        here->looked = task->began;
        if ((outcome = look_around(here, &culprit))) return gave_up(here, outcome, culprit);
    }
    int outcome = take_slot(here, task, here->call % SLOTS);
    if (outcome) return outcome;
    Call *slot = &here->header->calls[last];
    atomic_store_explicit(&slot->number, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&slot->signature, signature, memory_order_relaxed);
    atomic_store_explicit(&slot->work_mode, mode[0], memory_order_relaxed);
    atomic_store_explicit(&slot->input_mode, mode[1], memory_order_relaxed);
    atomic_store_explicit(&slot->work, place[0], memory_order_relaxed);
    atomic_store_explicit(&slot->input, place[1], memory_order_relaxed);
    atomic_store_explicit(&slot->number, here->call, memory_order_release);
    return FINE;
}

static int run_call(Endpoint *here, Task *task, uint64_t signature, const uint64_t *mode, const uint64_t *place, int stages) {
    here->failed_op = -1;
    int outcome = begin(here, task, signature, mode, place);
    if (!outcome) outcome = run_ops(here, task);
    if (!outcome) outcome = finish(here, task, !stages);
    if (outcome) {
        say_goodbye(here, (uint32_t)outcome, (uint64_t)here->culprit, here->call);
        forget_queues(here);
        return outcome;
    }
    for (int peer = 0; peer < here->world; peer++) {
        Peer *other = &here->peers[peer];
        other->sent += task->program->sent[peer];
        other->received += task->program->received[peer];
    }
    leave_slot(here, task->slot);
    here->done = here->call;
    return FINE;
}

/* ---- programs, as Python makes them ---- */

static int within(uint64_t at, uint64_t length, uint64_t room) { return at <= room && length <= room - at; }

static void reach(uint64_t *room, uint64_t at, uint64_t length) {
    if (length && at + length > *room) *room = at + length;
}

/* Is every operation one, does it stay inside scratch and guards, and do the messages of each peer follow each other? */
static const char *study(Program *program) {
    uint32_t world = (uint32_t)program->world, *open = calloc(4 * (size_t)world, sizeof(*open));
    if (!open) return "there is no memory for this program";
    uint32_t *sends = open, *receives = open + world, *half_sent = open + 2 * world, *half_received = open + 3 * world;
    const char *wrong = NULL;
    const uint64_t most = INT64_MAX / 4;
    program->grain = 0;
    for (size_t i = 0; i < program->num_ops && !wrong; i++) {
        const Op *op = &program->ops[i];
        uint64_t *own = (op->flags & OWN_INPUT) ? &program->input : &program->work;
        int incoming = op->kind == RECEIVE || op->kind == TO_SCRATCH, last = (op->flags & LAST) != 0;
        if (op->kind >= KINDS || op->flags & ~ALL_FLAGS || op->peer >= world) { wrong = "an operation is not one"; break; }
        if (op->at > most || op->base > most || op->there > most || op->staged > most || op->length > most ||
            (op->kind == TO_SCRATCH && !within(op->at, op->length, program->scratch)) ||
            (op->kind == FROM_SCRATCH && !within(op->there, op->length, program->scratch)) ||
            !within(op->first_guard, op->guards, program->num_guards)) {
            wrong = "an operation goes beyond its arrays, scratch or guards";
            break;
        }
        if (op->kind == SEND || incoming) {
            uint32_t *count = op->kind == SEND ? sends : receives, *half = op->kind == SEND ? half_sent : half_received;
            if (op->number != count[op->peer] + 1) wrong = "messages do not follow each other";
            half[op->peer] = !last;
            count[op->peer] += (uint32_t)last;
        }
        for (uint32_t j = 0; j < op->guards && !wrong; j++) {
            Guard guard = program->guards[op->first_guard + j];
            if (guard.peer >= world || guard.number > sends[guard.peer]) wrong = "a guard waits for what is not sent";
        }
        if (op->kind == SEND) reach(own, op->at, op->length);
        if (op->kind == RECEIVE || op->kind == FROM_SCRATCH || op->kind == KEEP) reach(&program->work, op->at, op->length);
        if (op->kind == KEEP) reach(&program->input, op->base, op->length);
        if ((op->kind == RECEIVE || op->kind == FROM_SCRATCH) && op->flags & REDUCE) {
            reach(own, op->base, op->length);
            program->grain |= op->length;
        }
        program->together[i] = 1;
    }
    for (uint32_t peer = 0; peer < world && !wrong; peer++)
        if (sends[peer] != program->sent[peer] || receives[peer] != program->received[peer] || half_sent[peer] || half_received[peer])
            wrong = "a program says that it sends or receives what it does not";
    free(open);
    return wrong;
}

/* Which operations in a row can be done together: each but the first reduces into what the one before has left. */
static void join(Program *program) {
    for (size_t i = 0; i < program->num_ops; i += program->together[i]) {
        const Op *first = &program->ops[i];
        size_t end = i + 1;
        if (first->kind == RECEIVE && first->flags & REDUCE && first->length > 2 * BLOCK)
            for (; end < program->num_ops && end - i < TOGETHER; end++) {
                const Op *op = &program->ops[end];
                if (op->kind != RECEIVE || !(op->flags & REDUCE) || op->flags & OWN_INPUT || op->at != first->at ||
                    op->base != op->at || op->length != first->length || op->step != first->step)
                    break;
            }
        program->together[i] = (uint32_t)(end - i);
    }
}

static void *copy_of(const Py_buffer *view) {
    void *copy = malloc(view->len ? (size_t)view->len : 1);
    if (copy && view->len) memcpy(copy, view->buf, (size_t)view->len);
    return copy;
}

static int program_init(Program *program, PyObject *args, PyObject *Py_UNUSED(keywords)) {
    /* operations, guards, messages sent and received by peer: all as bytes; bytes of scratch */
    Py_buffer ops, guards, sent, received;
    unsigned long long scratch;
    if (program->ops) { PyErr_SetString(PyExc_ValueError, "a program does not change"); return -1; }
    if (!PyArg_ParseTuple(args, "y*y*y*y*K", &ops, &guards, &sent, &received, &scratch)) return -1;
    const char *wrong = NULL;
    if (ops.len % (Py_ssize_t)sizeof(Op) || guards.len % (Py_ssize_t)sizeof(Guard) || sent.len % 4 || !sent.len || sent.len != received.len ||
        sent.len / 4 > UINT16_MAX || scratch > INT64_MAX / 4 || (size_t)ops.len / sizeof(Op) > INT32_MAX)
        wrong = "a program's columns do not fit each other";
    else {
        program->num_ops = (size_t)ops.len / sizeof(Op);
        program->num_guards = (size_t)guards.len / sizeof(Guard);
        program->world = (int)(sent.len / 4);
        program->scratch = scratch;
        program->ops = copy_of(&ops);
        program->guards = copy_of(&guards);
        program->sent = copy_of(&sent);
        program->received = copy_of(&received);
        program->together = calloc(program->num_ops + 1, sizeof(uint32_t));
        if (!program->ops || !program->guards || !program->sent || !program->received || !program->together)
            wrong = "there is no memory for this program";
        else if (!(wrong = study(program))) join(program);
    }
    PyBuffer_Release(&ops);
    PyBuffer_Release(&guards);
    PyBuffer_Release(&sent);
    PyBuffer_Release(&received);
    if (wrong) { program->world = 0; PyErr_SetString(PyExc_ValueError, wrong); return -1; }
    return 0;
}

static void program_dealloc(Program *program) {
    free(program->ops);
    free(program->guards);
    free(program->sent);
    free(program->received);
    free(program->together);
    free(program->frames);
    PyTypeObject *type = Py_TYPE(program);
    type->tp_free((PyObject *)program);
    Py_DECREF(type);
}

/* Can this endpoint reach everybody in the way that the program thinks? */
static const char *suits(const Endpoint *here, Program *program) {
    int sockets = 0;
    if (program->world != here->world) return "a program is for another number of ranks";
    program->staged = program->exposed = 0;
    for (size_t i = 0; i < program->num_ops; i++) {
        const Op *op = &program->ops[i];
        const Peer *other = &here->peers[op->peer];
        if (op->kind == KEEP || op->kind == FROM_SCRATCH || op->kind == PART) continue;
        if (op->peer == here->rank || (!other->header && !other->num_streams)) return "a program talks to a rank that cannot be reached";
        if (op->kind != SEND) continue;
        if (!other->header) {
            if (!(op->flags & EXPOSED)) return "what goes through a socket cannot be staged";
            sockets = 1;
        } else if (op->flags & EXPOSED) {
            program->exposed = 1;
        } else {
            program->staged = 1;
            if (!within(op->staged, op->length, here->slot_bytes)) return "a program goes beyond the staging";
        }
    }
    if (sockets && !program->frames) {
        program->frames = malloc(program->num_ops * MAX_STREAMS * sizeof(Frame));
        if (!program->frames) return "there is no memory for frames";
    }
    program->checked_for = here->serial;
    return NULL;
}

/* ---- endpoints ---- */

static PyTypeObject *program_type;

/* Where an array is: its address, and how peers may read it. */
static void place_of(const Endpoint *here, const Py_buffer *view, int stages, uint64_t *mode, uint64_t *place) {
    uintptr_t at = (uintptr_t)view->buf, segment = (uintptr_t)here->own.buf;
    *mode = STAGED;
    *place = 0;
    if (stages || !view->buf) return;
    int inside = at >= segment && at < segment + (uintptr_t)here->own.len;
    *mode = inside ? REGISTERED : PRIVATE;
    *place = inside ? at - segment : at;
}

static const char *unfit(Endpoint *here, Program *program, const Py_buffer *views, uint64_t dtype, uint64_t operation, int stages) {
    if (dtype >= TYPES || operation >= OPERATIONS || !KERNELS[dtype][operation])
        return "this operation is not defined for this type";
    if (program->checked_for != here->serial) {
        const char *wrong = suits(here, program);
        if (wrong) return wrong;
    }
    if (stages ? program->exposed : program->staged) return "a program stages what this call exposes, or the other way round";
    if ((views[0].buf ? (uint64_t)views[0].len : 0) < program->work || (views[1].buf ? (uint64_t)views[1].len : 0) < program->input)
        return "a program goes beyond its arrays";
    if (program->grain % ITEM[dtype]) return "a program cuts elements in two";
    if (program->scratch > here->scratch_room) {
        char *larger = realloc(here->scratch, program->scratch);
        if (!larger) return "there is no memory for scratch";
        here->scratch = larger;
        here->scratch_room = program->scratch;
    }
    return NULL;
}

static PyObject *endpoint_run(Endpoint *here, PyObject *const *args, Py_ssize_t count) {
    /* call, signature, program, input, work, dtype, operation, timeout, whether data is staged */
    if (count != 9) { PyErr_SetString(PyExc_TypeError, "run takes 9 arguments"); return NULL; }
    if (!here->peers) { PyErr_SetString(PyExc_ValueError, "this communicator is closed"); return NULL; }
    if (here->generation != generation) {
        PyErr_SetString(PyExc_RuntimeError, "this communicator was made before a fork, and belongs to the parent");
        return NULL;
    }
    if (here->busy) { PyErr_SetString(PyExc_RuntimeError, "another thread is in a call of this communicator"); return NULL; }
    if (!PyObject_TypeCheck(args[2], program_type)) { PyErr_SetString(PyExc_TypeError, "run takes a Program"); return NULL; }
    Program *program = (Program *)args[2];
    uint64_t number[9] = {0};
    for (int i = 0; i < 9; i++)
        if (i < 2 || i == 5 || i == 6) {
            number[i] = PyLong_AsUnsignedLongLong(args[i]);
            if (number[i] == (uint64_t)-1 && PyErr_Occurred()) {
                if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return NULL;
                PyErr_SetString(PyExc_ValueError, "a number is negative or too large");
                return NULL;
            }
        }
    double timeout = PyFloat_AsDouble(args[7]);
    if (timeout == -1.0 && PyErr_Occurred()) return NULL;
    int stages = PyObject_IsTrue(args[8]), one = args[3] == args[4];
    if (stages < 0) return NULL;
    if (number[0] <= here->call || timeout != timeout) {
        PyErr_SetString(PyExc_ValueError, "calls are numbered upwards from 1, and their timeout is a number");
        return NULL;
    }
    if (atomic_load(&here->header->gave_up)) /* a call failed: nothing can be relied on any more */
        return Py_BuildValue("iii", (int)atomic_load(&here->header->gave_up), (int)atomic_load(&here->header->culprit), -1);
    Py_buffer views[2] = {{0}, {0}}; /* work, input */
    if (args[4] != Py_None && PyObject_GetBuffer(args[4], &views[0], PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)) return NULL;
    if (!one && args[3] != Py_None && PyObject_GetBuffer(args[3], &views[1], PyBUF_C_CONTIGUOUS)) {
        PyBuffer_Release(&views[0]);
        return NULL;
    }
    if (one) { views[1].buf = views[0].buf; views[1].len = views[0].len; }
    uint64_t mode[2], place[2];
    for (int i = 0; i < 2; i++) place_of(here, &views[i], stages, &mode[i], &place[i]);
    PyObject *result = NULL;
    const char *wrong = unfit(here, program, views, number[5], number[6], stages);
    if (wrong) PyErr_SetString(PyExc_ValueError, wrong);
    else {
        double began = now_s();
        Task task = {.program = program, .input = views[1].buf, .work = views[0].buf, .began = began, .deadline = began + timeout,
                     .far = (size_t)views[0].len >= FAR, .kernel = KERNELS[number[5]][number[6]], .item = ITEM[number[5]]};
        here->call = number[0];
        here->in_main = PyThread_get_thread_ident() == here->main_thread;
        here->busy = 1;
        here->state = PyEval_SaveThread();
        int outcome = run_call(here, &task, number[1], mode, place, stages);
        PyEval_RestoreThread(here->state);
        here->busy = 0;
        if (outcome == FINE) result = Py_NewRef(Py_None);
        else if (outcome != INTERRUPTED) result = Py_BuildValue("iii", outcome, here->culprit, here->failed_op);
    }
    PyBuffer_Release(&views[0]);
    PyBuffer_Release(&views[1]);
    return result;
}

static void free_streams(Peer *other) {
    for (int i = 0; i < other->num_streams; i++) {
        free(other->streams[i].queue);
        free(other->streams[i].numbers);
    }
    free(other->streams);
    other->num_streams = 0;
    other->streams = NULL;
}

static void let_go(Endpoint *here) {
    int ours = here->generation == generation; /* rather than a copy that a fork has made */
    if (here->peers && here->header && ours) {
        if (!atomic_load(&here->header->gave_up)) {
            here->call = here->done;
            gave_up(here, LEFT, here->rank);
            say_goodbye(here, LEFT, (uint64_t)here->rank, here->done);
        }
    }
    if (here->peers)
        for (int peer = 0; peer < here->world; peer++) {
            Peer *other = &here->peers[peer];
            if (other->header) PyBuffer_Release(&other->map);
            if (other->pidfd >= 0) close(other->pidfd);
            free_streams(other);
        }
    free(here->peers);
    free(here->watched);
    free(here->whose);
    free(here->scratch);
    free(here->slice);
    free(here->slices);
    free(here->wires);
    here->slices = NULL;
    here->wires = NULL;
    here->peers = NULL;
    here->watched = NULL;
    here->whose = NULL;
    here->scratch = here->slice = NULL;
    here->scratch_room = 0;
    here->world = 0;
    here->header = NULL;
    if (here->mapped) PyBuffer_Release(&here->own);
    here->mapped = 0;
}

static PyObject *endpoint_close(Endpoint *here, PyObject *Py_UNUSED(ignored)) {
    if (here->busy && here->generation == generation) {
        PyErr_SetString(PyExc_RuntimeError, "another thread is in a call of this communicator");
        return NULL;
    }
    let_go(here);
    Py_RETURN_NONE;
}

static void endpoint_dealloc(Endpoint *here) {
    let_go(here);
    PyTypeObject *type = Py_TYPE(here);
    type->tp_free((PyObject *)here);
    Py_DECREF(type);
}

/* Bytes before the staging; 0 if a segment of this length cannot hold it all. */
static size_t staging_at(int world, unsigned long long stage_bytes, Py_ssize_t length) {
    if (world <= 0 || world > UINT16_MAX) return 0;
    size_t at = PAGE + (sizeof(Channel) * (size_t)world + PAGE - 1) / PAGE * PAGE;
    return stage_bytes <= INT64_MAX / 4 && (size_t)length >= at && stage_bytes <= (size_t)length - at ? at : 0;
}

static int is_of(const Py_buffer *map, const Endpoint *here, int rank) {
    const Header *header = map->buf;
    return (uintptr_t)map->buf % 64 == 0 && header->magic == MAGIC && header->rank == (uint32_t)rank &&
           header->world == (uint32_t)here->world && header->stage_bytes == here->stage_bytes && header->bytes == (uint64_t)map->len;
}

static int open_streams(Peer *other, PyObject *descriptors) {
    Py_ssize_t count = PyTuple_GET_SIZE(descriptors);
    if (count > MAX_STREAMS) { PyErr_Format(PyExc_ValueError, "a peer has at most %d streams", MAX_STREAMS); return -1; }
    if (!count) return 0;
    other->streams = calloc((size_t)count, sizeof(Stream));
    if (!other->streams) { PyErr_NoMemory(); return -1; }
    for (; other->num_streams < count; other->num_streams++) {
        long descriptor = PyLong_AsLong(PyTuple_GET_ITEM(descriptors, other->num_streams));
        if (descriptor < 0 || descriptor > INT32_MAX) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a stream is a descriptor");
            return -1;
        }
        other->streams[other->num_streams].fd = (int)descriptor;
    }
    return 0;
}

static int endpoint_init(Endpoint *here, PyObject *args, PyObject *Py_UNUSED(keywords)) {
    /* rank, world, own segment, its staging (bytes of all slots), peers, spins. A peer is (segment, pid, pidfd, ()),
     * or elsewhere (None, pid, control connection, streams). */
    static uint64_t serial;
    PyObject *own, *peers;
    int rank, world, spins;
    unsigned long long stage_bytes;
    if (here->mapped || here->peers) { PyErr_SetString(PyExc_ValueError, "an endpoint is made once"); return -1; }
    if (!PyArg_ParseTuple(args, "iiOKO!i", &rank, &world, &own, &stage_bytes, &PyList_Type, &peers, &spins)) return -1;
    if (rank < 0 || rank >= world || PyList_GET_SIZE(peers) != world) {
        PyErr_SetString(PyExc_ValueError, "there must be one peer a rank");
        return -1;
    }
    if (PyObject_GetBuffer(own, &here->own, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)) return -1;
    here->mapped = 1;
    here->generation = generation;
    here->rank = rank;
    here->world = world;
    here->spins = spins;
    here->stage_bytes = stage_bytes;
    here->slot_bytes = stage_bytes / SLOTS / 64 * 64;
    here->stage_at = staging_at(world, stage_bytes, here->own.len);
    if (!here->stage_at || !is_of(&here->own, here, rank)) {
        PyErr_SetString(PyExc_ValueError, "the own segment has not been prepared for this communicator");
        return -1;
    }
    here->channels = (Channel *)((char *)here->own.buf + PAGE);
    PyObject *threading = PyImport_ImportModule("threading");
    PyObject *thread = threading ? PyObject_CallMethod(threading, "main_thread", NULL) : NULL;
    PyObject *ident = thread ? PyObject_GetAttrString(thread, "ident") : NULL;
    Py_XDECREF(threading);
    Py_XDECREF(thread);
    if (!ident) return -1;
    here->main_thread = PyLong_AsUnsignedLong(ident);
    Py_DECREF(ident);
    if (PyErr_Occurred()) return -1;
    here->watched = calloc((size_t)world, sizeof(*here->watched));
    here->whose = calloc((size_t)world, sizeof(*here->whose));
    here->slice = malloc(SLICE);
    here->peers = calloc((size_t)world, sizeof(Peer));
    if (!here->watched || !here->whose || !here->slice || !here->peers) { PyErr_NoMemory(); return -1; }
    for (int peer = 0; peer < world; peer++) here->peers[peer].pidfd = -1;
    size_t num_streams = 0;
    for (int peer = 0; peer < world; peer++) {
        Peer *other = &here->peers[peer];
        PyObject *map, *streams, *item = PyList_GET_ITEM(peers, peer);
        int pid, pidfd;
        if (!PyTuple_Check(item)) { PyErr_SetString(PyExc_TypeError, "a peer is a tuple"); return -1; }
        if (!PyArg_ParseTuple(item, "OiiO!", &map, &pid, &pidfd, &PyTuple_Type, &streams)) return -1;
        if (peer == rank) continue;
        if (map != Py_None) {
            if (PyObject_GetBuffer(map, &other->map, PyBUF_C_CONTIGUOUS)) return -1;
            if (staging_at(world, stage_bytes, other->map.len) != here->stage_at || !is_of(&other->map, here, peer)) {
                PyErr_Format(PyExc_ValueError, "the segment of rank %d is not one of this communicator", peer);
                PyBuffer_Release(&other->map);
                return -1;
            }
            other->header = other->map.buf;
            other->channels = (const Channel *)((const char *)other->map.buf + PAGE);
        }
        other->pid = pid;
        if (!other->header && open_streams(other, streams)) return -1;
        num_streams += (size_t)other->num_streams;
    }
    if (num_streams) {
        here->wires = calloc(num_streams, sizeof(*here->wires));
        here->slices = malloc(MAX_STREAMS * SLICE);
        if (!here->wires || !here->slices) { PyErr_NoMemory(); return -1; }
    }
    /* Only now, when nothing can fail any more, do the descriptors of the processes become ours to close. */
    for (int peer = 0; peer < world; peer++) {
        PyObject *pidfd = PyTuple_GET_ITEM(PyList_GET_ITEM(peers, peer), 2);
        if (peer != rank) here->peers[peer].pidfd = (int)PyLong_AsLong(pidfd);
    }
    here->serial = ++serial;
    here->header = here->own.buf;
    return 0;
}

static PyObject *endpoint_told(Endpoint *here, PyObject *args) {
    /* Why a peer gave up, whom it blames, and in which call; None if it has not said so. */
    int peer;
    if (!PyArg_ParseTuple(args, "i", &peer)) return NULL;
    if (peer < 0 || peer >= here->world) { PyErr_SetString(PyExc_IndexError, "there is no such rank"); return NULL; }
    const Peer *other = &here->peers[peer];
    const Header *header = peer == here->rank ? here->header : other->header;
    uint32_t outcome = header ? atomic_load(&header->gave_up) : other->told;
    if (!outcome) Py_RETURN_NONE;
    uint32_t culprit = header ? atomic_load(&header->culprit) : other->told_culprit;
    return Py_BuildValue("iiK", (int)outcome, (int)culprit, (unsigned long long)(header ? atomic_load(&header->gave_up_in) : other->told_in));
}

static PyObject *endpoint_noted(Endpoint *here, PyObject *args) {
    /* The last calls that a peer elsewhere has said it has the result of, and has returned from. */
    int peer;
    if (!PyArg_ParseTuple(args, "i", &peer)) return NULL;
    if (peer < 0 || peer >= here->world) { PyErr_SetString(PyExc_IndexError, "there is no such rank"); return NULL; }
    const uint64_t *noted = here->peers[peer].noted;
    return Py_BuildValue("KK", (unsigned long long)noted[0], (unsigned long long)noted[1]);
}

static PyObject *prepare(PyObject *Py_UNUSED(self), PyObject *args) {
    /* Write the header of an own segment, so that peers may open it. */
    PyObject *own;
    int rank, world;
    unsigned long long stage_bytes;
    if (!PyArg_ParseTuple(args, "OiiK", &own, &rank, &world, &stage_bytes)) return NULL;
    Py_buffer view;
    if (PyObject_GetBuffer(own, &view, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)) return NULL;
    size_t at = staging_at(world, stage_bytes, view.len);
    int fine = at && rank >= 0 && rank < world && (uintptr_t)view.buf % 64 == 0;
    if (fine) {
        Header *header = view.buf;
        header->rank = (uint32_t)rank;
        header->world = (uint32_t)world;
        header->bytes = (uint64_t)view.len;
        header->stage_at = at;
        header->stage_bytes = stage_bytes;
        header->heap_at = at + stage_bytes;
        atomic_thread_fence(memory_order_release);
        header->magic = MAGIC;
    }
    PyBuffer_Release(&view);
    if (!fine) { PyErr_SetString(PyExc_ValueError, "the segment is too small, or the rank is none of the world's"); return NULL; }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"prepare", prepare, METH_VARARGS, "Write the header of an own segment."},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef methods[] = {
    {"told", (PyCFunction)endpoint_told, METH_VARARGS, "Why a rank gave up."},
    {"noted", (PyCFunction)endpoint_noted, METH_VARARGS, "Which calls a rank elsewhere has the result of, and returned from."},
    {"run", (PyCFunction)(void (*)(void))endpoint_run, METH_FASTCALL, "Run a program; None, or (outcome, culprit, operation)."},
    {"close", (PyCFunction)endpoint_close, METH_NOARGS, "Leave, and let go of the segments."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot endpoint_slots[] = {
    {Py_tp_new, PyType_GenericNew}, {Py_tp_init, endpoint_init}, {Py_tp_dealloc, endpoint_dealloc},
    {Py_tp_methods, methods}, {Py_tp_doc, "One rank's end of a communicator."}, {0, NULL},
};
static PyType_Slot program_slots[] = {
    {Py_tp_new, PyType_GenericNew}, {Py_tp_init, program_init}, {Py_tp_dealloc, program_dealloc},
    {Py_tp_doc, "What one rank does in a call, checked once."}, {0, NULL},
};
static PyType_Spec endpoint_spec = {"choreo.run._core.Endpoint", sizeof(Endpoint), 0, Py_TPFLAGS_DEFAULT, endpoint_slots};
static PyType_Spec program_spec = {"choreo.run._core.Program", sizeof(Program), 0, Py_TPFLAGS_DEFAULT, program_slots};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_core", "Runs programs.", -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__core(void) {
    _Static_assert(sizeof(Header) == PAGE && sizeof(Channel) == 128 && sizeof(Op) == 64 && sizeof(Call) == 64, "layout");
    _Static_assert(sizeof(Frame) == 32 && sizeof(Guard) == 8 && ATOMIC_LLONG_LOCK_FREE == 2, "layout");
    PyObject *made = PyModule_Create(&module);
    if (!made) return NULL;
    PyObject *endpoint = PyType_FromSpec(&endpoint_spec), *program = PyType_FromSpec(&program_spec);
    program_type = (PyTypeObject *)Py_XNewRef(program); /* for as long as the process lives */
    if (!endpoint || !program || PyModule_AddObjectRef(made, "Endpoint", endpoint) || PyModule_AddObjectRef(made, "Program", program) ||
        pthread_atfork(NULL, NULL, count_fork))
        Py_CLEAR(made);
    Py_XDECREF(endpoint);
    Py_XDECREF(program);
    return made;
}

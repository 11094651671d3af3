/* Runs a rank's program (program.py) over shared memory and sockets, with the GIL released. `twin.py` does the same in
 * Python. docs/explanation/running.md says how it works; in short:
 *
 * Every rank writes only its own segment; the others map it read-only. In the segment of rank i, channel j has what i says
 * to j: a letter for each of the last eight calls, and which of j's messages i has consumed. A letter is one cache line:
 * which messages of the call i has made ready for j, what calls i has made so far, where i has its data, or the data itself
 * if the first message is small. A receiver waits until the letter's counter reaches its message, then reads the data where
 * the sender has it. So nobody can be harmed by a rank that wakes up after it was given up. Peers on other machines are
 * reached through sockets.
 *
 * All that ranks have called is in one number, the chain: every call's signature is mixed into it. Ranks that ever made
 * different calls have different chains from then on, so the next letter between them tells, however late it comes.
 *
 * The staging is eight slots, and calls take them, like letters, in turn. A call begins only when all have returned from the
 * one eight calls ago. A large call is cut into parts, which use its slot and the one beside
 * it alternately; there, and where data is exposed, the counters of consumed messages say what may be overwritten.
 *
 * Every wait ends: by what is waited for, by the deadline, by the death of a peer, because a peer gave up or left, or by a
 * signal. What a peer's segment or socket says is never used as a length or a place without being checked.
 */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>
#include <structmember.h>
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

#define MAGIC 0x32306F65726F6843ULL /* "Choreo02" */
#define FRAME 0x4D415246U           /* "FRAM" */
#define GOODBYE 0x21455942U         /* "BYE!": number is the outcome, signature the culprit */
#define NOTE 0x45544F4EU            /* "NOTE": call has been reduced (number 0), or returned from (1) */
#define MAX_STREAMS 8
#define CALLS 8
#define SLOTS 8
#define LETTER 40                 /* bytes of data in a letter */
#define NUMBERED 24               /* bits of a message's number within its call; the call is above them */
#define MIX 0x9E3779B97F4A7C15ULL /* odd, so that chains that differ stay so */
#define ENCLOSED ((uint64_t)1 << 16)
#define COUNTED ((uint64_t)2 << 16)
#define PAGE 4096
#define SLICE ((size_t)128 << 10) /* what is read at once before it is reduced */
#define BLOCK ((size_t)32 << 10)  /* several sources are reduced block by block, so that the sum stays in cache */
#define TOGETHER 64               /* sources at most */
#define LOOK_S 0.02               /* how often a waiting rank looks whether the others are well */
#define SIGNALS_S 0.05            /* and whether a signal is waiting for Python */
#define AWAKE_S 0.0005            /* how long it keeps its core */
#define LEAST_SPINS 20            /* where it may spin at all */
#define SPREAD_S 0.005            /* how often it goes to another core at most */
#define SPREAD_CALLS 16           /* in which calls it looks for one, where all must share cores */
#define ROUNDS 16                 /* how many times it yields before it looks at the clock and lets go of the interpreter */
#define MUCH ((size_t)64 << 10)   /* bytes in a call for which it lets go of the interpreter at once */
#define NAP_NS 2000000            /* it sleeps no longer at once, since it could have missed that it was woken */
#define FAR ((size_t)8 << 20)     /* an array that caches do not hold */

enum { SEND, RECEIVE, TO_SCRATCH, FROM_SCRATCH, KEEP, PART, KINDS };
enum { REDUCE = 1, LAST = 2, THEIR_INPUT = 4, OWN_INPUT = 8, EXPOSED = 16, HELD = 32, ALL_FLAGS = 63 };
enum { STAGED, REGISTERED, PRIVATE };
enum { FINE, TIMED_OUT, PEER_DIED, PEER_GAVE_UP, MISMATCHED, BROKEN, INTERRUPTED, LEFT };

/* ---- what lies in a segment ---- */

typedef struct {
    _Atomic uint64_t number; /* 0: never used, or being changed */
    _Atomic uint64_t signature, chain;
    uint64_t unused[5];
} Call;

typedef struct {
    uint64_t magic;
    uint32_t rank, world;
    uint64_t bytes, stage_at, stage_bytes, heap_at;
    _Atomic uint32_t gave_up; /* why this rank stopped, one of the outcomes above, or LEFT if it was done */
    _Atomic uint32_t culprit;
    _Atomic uint64_t gave_up_in; /* the call in which it did, or after which it left */
    char pad[64];
    _Atomic uint64_t returned; /* the last call that it has returned from: of that, it reads nothing any more */
    _Atomic uint32_t core;     /* where it ran then, plus 1 */
    char pad_too[PAGE - 140 - CALLS * 64];
    Call calls[CALLS];
} Header;

/* `modes` is of work (bits 0 to 7) and of input (8 to 15), whether the first message is here (ENCLOSED), and whether the
 * sender waits until its messages have been consumed (COUNTED). REGISTERED: a place is an offset in the segment; PRIVATE: an
 * address; STAGED: there is none. */
typedef struct {
    _Atomic uint64_t ready;
    uint64_t chain, modes;
    union { uint64_t places[2]; char data[LETTER]; };
} Letter;

/* After the letters what else a peer needs while all is well, so that it need not look at the header. */
typedef struct {
    Letter letters[CALLS];
    _Atomic uint64_t consumed;
    _Atomic uint64_t gave_up_in; /* as in the header */
    _Atomic uint32_t gave_up;
    _Atomic uint32_t asleep; /* it sleeps until this peer says something */
    char pad[40];
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
    const Channel *to_us; /* what it says to us */
    Channel *from_us;
    uint64_t returned;          /* the last call that it was seen to have returned from */
    uint64_t checked, lettered; /* the last calls whose letter was read, and written */
    uint64_t modes, place[2];   /* of the letter that was read */
    uint64_t posted, parted[2]; /* the last message that was made ready, by now and in the last parts */
    uint64_t verified;          /* the last call of which it was seen that both do the same */
    Py_buffer map;
    int pidfd, pid; /* pidfd: of a peer elsewhere, its control connection */
    int num_streams;
    Stream *streams;
    uint32_t told, told_culprit;    /* what it said before it went, through its socket */
    uint64_t told_in, noted[2];
} Peer;

typedef struct {
    PyObject_HEAD
    int rank, world, spins, patience, mapped, busy, generation, in_main, in_python;
    uint64_t serial;
    Py_buffer own;
    Header *header;
    size_t stage_at, stage_bytes, slot_bytes;
    Peer *peers;
    struct pollfd *watched, *wires;
    int *whose, pending; /* pending: streams that have something to write */
    char *scratch, *slice, *slices;
    size_t scratch_room;
    uint64_t call, done, chain, calls[CALLS], chains[CALLS]; /* the last calls, by their number modulo CALLS */
    uint64_t used[SLOTS], returned; /* the last call that sent something from each slot, and from which all have returned */
    double looked, signalled, moved;
    unsigned long main_thread;
    PyThreadState *state;
    int culprit, failed_op;
    uint64_t modes, place[2]; /* what our letters of this call say */
    uint64_t read_in_place;   /* the last call in which a sender waited until its array had been read */
} Endpoint;

typedef struct {
    PyObject_HEAD
    int world, parts;    /* parts: whether there are several */
    int staged, exposed, wired; /* whether anything is handed over this way; known once it has been checked */
    Op *ops;
    Guard *guards;
    uint32_t *sent, *received, *together; /* together: how many operations from here on reduce into the same range */
    uint16_t *partners;                   /* the peers that it exchanges something with */
    uint32_t num_partners;
    uint8_t *enclosed;                    /* where in a letter a range is, plus 1; 0: in none, or, of what is received, nowhere */
    uint64_t bytes;                       /* that are moved */
    Frame *frames; /* of sends through sockets; they live until the queue is written */
    size_t num_ops, num_guards;
    uint64_t scratch, input, work, grain; /* bytes; grain: what every reduced length is a multiple of */
    uint64_t work_at;                     /* where in the logical vector the work array begins */
    uint64_t checked_for;                 /* the serial number of the endpoint it was checked for */
} Program;

typedef struct {
    const Program *program;
    char *input, *work, *stage; /* the slot of staging that is in use */
    size_t slot, slot_at;
    int far; /* the result goes past the caches */
    int parts; /* that have begun after the first */
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

/* Without a full barrier, which would wait for every line that was written to arrive here: in the few nanoseconds in which
 * a peer falls asleep it can be missed, and wakes by itself soon after. */
static inline void wake_if_asleep(const Peer *other, _Atomic uint64_t *counter) {
    if (atomic_load_explicit(&other->to_us->asleep, memory_order_relaxed))
        syscall(SYS_futex, (uint32_t *)counter, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static inline void publish(_Atomic uint64_t *counter, uint64_t value, const Peer *other) {
    atomic_store_explicit(counter, value, memory_order_release);
    wake_if_asleep(other, counter);
}

static int gave_up(Endpoint *here, int outcome, int culprit) {
    here->culprit = culprit;
    if (atomic_load(&here->header->gave_up)) return outcome;
    atomic_store(&here->header->culprit, (uint32_t)culprit);
    atomic_store(&here->header->gave_up_in, here->call);
    atomic_store(&here->header->gave_up, (uint32_t)outcome);
    for (int peer = 0; peer < here->world; peer++) {
        Channel *channel = here->peers[peer].from_us;
        if (!channel) continue;
        atomic_store(&channel->gave_up_in, here->call);
        atomic_store(&channel->gave_up, (uint32_t)outcome);
    }
    return outcome;
}

/* Who gave up in a later call, or left after this one, has done its part of this one. */
static int ends(uint32_t outcome, uint64_t in, uint64_t call) { return outcome == LEFT ? in < call : outcome && in <= call; }

static inline int stopped(const Channel *to_us, uint64_t call) {
    uint32_t outcome = atomic_load_explicit(&to_us->gave_up, memory_order_acquire);
    return outcome && ends(outcome, atomic_load_explicit(&to_us->gave_up_in, memory_order_relaxed), call);
}

/* Did a peer make the calls that we made, as far as it has come? */
static int same_calls(Endpoint *here, Peer *other) {
    uint64_t first = here->call >= CALLS ? here->call - CALLS + 1 : 1;
    for (uint64_t call = other->verified < first ? first : other->verified + 1; call <= here->call; call++) {
        const Call *theirs = &other->header->calls[call % CALLS];
        uint64_t number = atomic_load_explicit(&theirs->number, memory_order_acquire);
        if (number < call) return 1;
        if (number == call && here->calls[call % CALLS] == call) {
            uint64_t chain = atomic_load_explicit(&theirs->chain, memory_order_relaxed);
            atomic_thread_fence(memory_order_acquire);
            if (atomic_load_explicit(&theirs->number, memory_order_relaxed) == call && chain != here->chains[call % CALLS]) return 0;
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
            else if (stopped(other->to_us, here->call)) outcome = PEER_GAVE_UP;
            else if (dead && !atomic_load(&other->to_us->gave_up)) outcome = PEER_DIED;
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

/* Let other threads of this process run. */
static void let_go_of_interpreter(Endpoint *here) {
    if (!here->state && here->in_python) here->state = PyEval_SaveThread();
}

static int any_queued(const Endpoint *here);
static int push_sockets(Endpoint *here, int reading, unsigned streams, int milliseconds);

static void sleep_on(Endpoint *here, const _Atomic uint64_t *counter, uint64_t value, int peer) {
    _Atomic uint32_t *asleep = &here->peers[peer].from_us->asleep;
    atomic_exchange_explicit(asleep, 1, memory_order_seq_cst);
    uint64_t seen = atomic_load_explicit(counter, memory_order_seq_cst);
    if (seen < value) { /* the low half: it would have to grow by 2**32 between two looks to be missed */
        struct timespec most = {0, NAP_NS};
        syscall(SYS_futex, (uint32_t *)counter, FUTEX_WAIT, (uint32_t)seen, &most, NULL, 0);
    }
    atomic_store_explicit(asleep, 0, memory_order_release);
}

/* Spin, as long as that has been worth it lately: where both are on one core nothing comes while we do. */
static int spin_for(Endpoint *here, const _Atomic uint64_t *counter, uint64_t value) {
    for (int spin = 0; spin < here->patience; spin++) {
        if (atomic_load_explicit(counter, memory_order_acquire) >= value) {
            here->patience = 2 * here->patience < here->spins ? 2 * here->patience : here->spins;
            return 1;
        }
        relax();
    }
    here->patience = here->patience / 2 > LEAST_SPINS ? here->patience / 2 : here->spins < LEAST_SPINS ? here->spins : LEAST_SPINS;
    return 0;
}

/* The scheduler may leave ranks on one core for long while another has fewer; who waits there goes to that one, and may then
 * run wherever it could before. Ranks on one core do so one at a time: each has its turn for some calls. */
static void spread(Endpoint *here) {
    int core = sched_getcpu(), crowd = 1, place = 0;
    if (core < 0 || core >= CPU_SETSIZE) return;
    for (int peer = 0; peer < here->world; peer++) {
        const Header *theirs = here->peers[peer].header;
        if (!theirs || atomic_load_explicit(&theirs->core, memory_order_relaxed) != (uint32_t)core + 1) continue;
        crowd++;
        place += peer < here->rank;
    }
    if (crowd == 1 || here->call / SPREAD_CALLS % (unsigned)crowd != (unsigned)place) return;
    double time = now_s();
    cpu_set_t all, one;
    if (time - here->moved < SPREAD_S || sched_getaffinity(0, sizeof(all), &all)) return;
    here->moved = time;
    int ranks[CPU_SETSIZE] = {0}, best = core;
    ranks[core] = 1;
    for (int peer = 0; peer < here->world; peer++) {
        const Header *theirs = here->peers[peer].header;
        uint32_t where = theirs ? atomic_load_explicit(&theirs->core, memory_order_relaxed) : 0;
        if (where && where <= CPU_SETSIZE) ranks[where - 1]++;
    }
    for (int other = 0; other < CPU_SETSIZE; other++)
        if (CPU_ISSET(other, &all) && ranks[other] < ranks[best]) best = other;
    if (ranks[best] + 2 > ranks[core]) return; /* it would only be crowded there */
    CPU_ZERO(&one);
    CPU_SET(best, &one);
    if (!sched_setaffinity(0, sizeof(one), &one)) sched_setaffinity(0, sizeof(all), &all);
}

static int wait_longer(Endpoint *here, const _Atomic uint64_t *counter, uint64_t value, int peer, double deadline) {
    if (spin_for(here, counter, value)) return FINE;
    if (here->spins > LEAST_SPINS || here->call % SPREAD_CALLS == 0) spread(here);
    double began = 0;
    for (int round = 0;; round++) {
        if (atomic_load_explicit(counter, memory_order_acquire) >= value) return FINE;
        if (round % ROUNDS == ROUNDS - 1) {
            let_go_of_interpreter(here);
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
                sleep_on(here, counter, value, peer);
            }
            if (tired) { round = ROUNDS - 2; continue; }
        }
        sched_yield();
    }
}

static inline int wait_for(Endpoint *here, const _Atomic uint64_t *counter, uint64_t value, int peer, double deadline) {
    if (atomic_load_explicit(counter, memory_order_acquire) >= value) return FINE;
    return wait_longer(here, counter, value, peer, deadline);
}

/* ---- running a program ---- */

static inline uint64_t numbered(const Endpoint *here, uint64_t number) { return here->call << NUMBERED | number; }

static int wait_written(Endpoint *here, int peer, uint32_t number, double deadline);

static int wait_guards(Endpoint *here, const Task *task, const Op *op) {
    for (uint32_t i = 0; i < op->guards; i++) {
        Guard guard = task->program->guards[op->first_guard + i];
        Peer *other = &here->peers[guard.peer];
        int outcome = FINE;
        if (other->header)
            outcome = wait_for(here, &other->to_us->consumed, numbered(here, guard.number), (int)guard.peer, task->deadline);
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

/* The first message of a call from a peer: is it doing the same as we, and where does it have its data? What is in the
 * letter stays there until we have returned from this call. */
static int read_letter(Endpoint *here, int peer, const Letter *letter) {
    Peer *other = &here->peers[peer];
    if (letter->chain != here->chain) return gave_up(here, MISMATCHED, peer);
    other->modes = letter->modes;
    if (!(other->modes & ENCLOSED)) {
        other->place[0] = letter->places[0];
        other->place[1] = letter->places[1];
    }
    if (other->modes & COUNTED) here->read_in_place = here->call;
    other->checked = here->call;
    return FINE;
}

typedef struct { const char *data; uint64_t address; int staged; } Source; /* data NULL: in the memory of another process */

/* Wait for a message in shared memory, and find where it is. */
static int arrive(Endpoint *here, const Task *task, const Op *op, Source *source) {
    int peer = op->peer, outcome;
    Peer *other = &here->peers[peer];
    const Letter *letter = &other->to_us->letters[here->call % CALLS];
    if ((outcome = wait_for(here, &letter->ready, numbered(here, op->number), peer, task->deadline))) return outcome;
    if (other->checked != here->call && (outcome = read_letter(here, peer, letter))) return outcome;
    if (op->guards && (outcome = wait_guards(here, task, op))) return outcome;
    if (!op->length) { *source = (Source){"", 0, 1}; return FINE; }
    int in_input = (op->flags & THEIR_INPUT) != 0;
    uint64_t mode = other->modes >> 8 * in_input & 255, place, room = (uint64_t)other->map.len;
    if (mode == STAGED) {
        source->staged = 1;
        if (other->modes & ENCLOSED && op->number == 1) {
            unsigned at = task->program->enclosed[op - task->program->ops];
            if (!at) return gave_up(here, BROKEN, peer);
            source->data = letter->data + at - 1;
            return FINE;
        }
        if (op->staged > here->slot_bytes || op->length > here->slot_bytes - op->staged) return gave_up(here, BROKEN, peer);
        place = here->stage_at + task->slot_at + op->staged;
    } else {
        if (other->modes & ENCLOSED || mode > PRIVATE) return gave_up(here, BROKEN, peer);
        place = other->place[in_input] + op->there;
        *source = (Source){NULL, place, 0};
        if (mode == PRIVATE) return FINE;
    }
    if (place > room || op->length > room - place) return gave_up(here, BROKEN, peer);
    source->data = (const char *)other->map.buf + place;
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
        if (ops[i].flags & LAST && other->modes & COUNTED) publish(&other->from_us->consumed, numbered(here, ops[i].number), other);
    }
    return outcome;
}

static int send_range(Endpoint *here, const Task *task, const Op *op) {
    Peer *other = &here->peers[op->peer];
    const char *from = op->length ? ((op->flags & OWN_INPUT) ? task->input : task->work) + op->at : NULL;
    if (!other->header) return send_parts(here, task, op, from);
    Letter *letter = &other->from_us->letters[here->call % CALLS];
    unsigned enclosed = task->program->enclosed[op - task->program->ops];
    if (enclosed) {
        if (op->length) memcpy(letter->data + enclosed - 1, from, op->length);
    } else if (!(op->flags & (EXPOSED | HELD)) && op->length) {
        (task->far ? fetch_bytes : copy_bytes)(task->stage + op->staged, from, op->length);
    }
    if (!(op->flags & LAST)) return FINE;
    if (other->lettered != here->call) {
        letter->chain = here->chain;
        letter->modes = here->modes | (enclosed ? ENCLOSED : 0);
        if (!enclosed) memcpy(letter->places, here->place, sizeof(letter->places));
        other->lettered = here->call;
    }
    other->posted = numbered(here, op->number);
    publish(&letter->ready, other->posted, other);
    return FINE;
}

static void set_slot(const Endpoint *here, Task *task, size_t slot) {
    task->slot = slot;
    task->slot_at = slot * here->slot_bytes;
    task->stage = (char *)here->own.buf + here->stage_at + task->slot_at;
}

/* Wait until a slot, and the letters that go with it, may be written again, and take it. */
static int take_slot(Endpoint *here, Task *task, size_t slot) {
    uint64_t all = UINT64_MAX;
    for (int peer = 0; here->used[slot] > here->returned && peer < here->world; peer++) {
        Peer *other = &here->peers[peer];
        if (!other->header) continue;
        if (here->used[slot] > other->returned) {
            const _Atomic uint64_t *returned = &other->header->returned;
            int outcome = wait_for(here, returned, here->used[slot], peer, task->deadline);
            if (outcome) return outcome;
            other->returned = atomic_load_explicit(returned, memory_order_acquire);
        }
        if (other->returned < all) all = other->returned;
    }
    if (here->used[slot] > here->returned) here->returned = all;
    set_slot(here, task, slot);
    return FINE;
}

/* The next part takes the other of two slots, when what was sent from there in this call has been consumed. */
static int begin_part(Endpoint *here, Task *task) {
    size_t next = task->slot ^ 1;
    for (int peer = 0; peer < here->world; peer++) {
        Peer *other = &here->peers[peer];
        if (!other->header) continue;
        other->parted[task->slot & 1] = other->posted;
        if (!task->parts || other->parted[next & 1] <= numbered(here, 0)) continue;
        int outcome = wait_for(here, &other->to_us->consumed, other->parted[next & 1], peer, task->deadline);
        if (outcome) return outcome;
    }
    if (!task->parts++) return take_slot(here, task, next);
    set_slot(here, task, next);
    return FINE;
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
                outcome = begin_part(here, task);
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
    const Program *program = task->program;
    for (uint32_t i = 0; i < program->num_partners; i++) {
        int peer = program->partners[i], outcome = FINE;
        Peer *other = &here->peers[peer];
        uint32_t sent = program->sent[peer];
        if (other->header && exposes && sent)
            outcome = wait_for(here, &other->to_us->consumed, numbered(here, sent), peer, task->deadline);
        if (!outcome && here->pending) outcome = wait_written(here, peer, UINT32_MAX, task->deadline);
        if (outcome) return outcome;
    }
    /* A rank that slept through the end of this call may have read what others have overwritten since; they said before
     * that they had given up. */
    atomic_thread_fence(memory_order_acquire);
    int in_place = exposes || here->read_in_place == here->call; /* then it may have come to us through others */
    for (uint32_t i = 0; i < (in_place ? (uint32_t)here->world : program->num_partners); i++) {
        int peer = in_place ? (int)i : program->partners[i];
        const Channel *to_us = here->peers[peer].to_us;
        if (to_us && stopped(to_us, here->call)) return gave_up(here, PEER_GAVE_UP, peer);
    }
    return FINE;
}

/* Wait until nobody needs what this call is going to overwrite, and tell what it is. */
static int begin(Endpoint *here, Task *task, uint64_t signature) {
    uint64_t last = here->call % CALLS;
    here->calls[last] = here->call;
    here->chains[last] = here->chain = (here->chain ^ signature) * MIX;
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
    atomic_store_explicit(&slot->chain, here->chain, memory_order_relaxed);
    atomic_store_explicit(&slot->number, here->call, memory_order_release);
    return FINE;
}

static int run_call(Endpoint *here, Task *task, uint64_t signature, int stages) {
    here->failed_op = -1;
    int outcome = begin(here, task, signature);
    if (!outcome) outcome = run_ops(here, task);
    if (!outcome) outcome = finish(here, task, !stages);
    if (outcome) {
        say_goodbye(here, (uint32_t)outcome, (uint64_t)here->culprit, here->call);
        forget_queues(here);
        return outcome;
    }
    atomic_store_explicit(&here->header->core, (uint32_t)sched_getcpu() + 1, memory_order_relaxed);
    atomic_store_explicit(&here->header->returned, here->call, memory_order_release);
    size_t slot = here->call % SLOTS;
    /* Who waits for that is calls ahead, and can wait a few more. */
    for (int peer = 0; here->call % (CALLS / 2) == 0 && peer < here->world; peer++)
        if (here->peers[peer].header) wake_if_asleep(&here->peers[peer], &here->header->returned);
    here->used[slot] = here->call;
    if (task->parts) here->used[slot ^ 1] = here->call;
    here->done = here->call;
    return FINE;
}

#include "_program.h"

/* ---- endpoints ---- */

static PyTypeObject *program_type;

static int is_registered(const Endpoint *here, const void *data) {
    return (uintptr_t)data - (uintptr_t)here->own.buf < (uintptr_t)here->own.len;
}

/* Does a result belong past the caches? What is reduced is read again, so later than what is only stored. */
static int is_far(const Program *program, size_t length) { return length >= (program->grain ? 2 * FAR : FAR); }

/* What our letters say: how peers may read our arrays, and where they are. */
static void address_letters(Endpoint *here, const Task *task, int stages) {
    const char *arrays[2] = {task->work, task->input};
    here->modes = !stages || task->program->parts ? COUNTED : 0;
    for (int i = 0; i < 2; i++) {
        here->place[i] = 0;
        if (stages || !arrays[i]) continue;
        int registered = is_registered(here, arrays[i]);
        here->modes |= (uint64_t)(registered ? REGISTERED : PRIVATE) << 8 * i;
        here->place[i] = (uint64_t)(uintptr_t)(registered ? arrays[i] - (uintptr_t)here->own.buf : arrays[i]);
        if (!i) here->place[i] -= task->program->work_at; /* peers count from the beginning of the vector */
    }
}

/* Run a call, with the lock of the interpreter released where it takes long; None, or a tuple that says how it failed. */
static PyObject *launch(Endpoint *here, Task *task, uint64_t call, uint64_t signature, double timeout, int stages) {
    here->call = call;
    task->began = now_s();
    task->deadline = task->began + timeout;
    address_letters(here, task, stages);
    here->in_main = PyThread_get_thread_ident() == here->main_thread;
    here->busy = here->in_python = 1;
    here->state = NULL;
    /* What runs beside the main thread must not keep that from its work. */
    if (task->program->bytes > MUCH || task->program->wired || !here->in_main) let_go_of_interpreter(here);
    int outcome = run_call(here, task, signature, stages);
    if (here->state) PyEval_RestoreThread(here->state);
    here->busy = 0;
    if (outcome == FINE) return Py_NewRef(Py_None);
    return outcome == INTERRUPTED ? NULL : Py_BuildValue("iii", outcome, here->culprit, here->failed_op);
}

static const char *unfit(Endpoint *here, Program *program, Py_ssize_t work, Py_ssize_t input, uint64_t dtype, uint64_t operation, int stages) {
    if (dtype >= TYPES || operation >= OPERATIONS || !KERNELS[dtype][operation])
        return "this operation is not defined for this type";
    if (program->checked_for != here->serial) {
        const char *wrong = suits(here, program);
        if (wrong) return wrong;
    }
    if (stages ? program->exposed : program->staged) return "a program stages what this call exposes, or the other way round";
    if ((uint64_t)work < program->work || (uint64_t)input < program->input)
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
    if (!here->peers || !here->header) { PyErr_SetString(PyExc_ValueError, "this communicator is closed"); return NULL; }
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
    if (number[0] <= here->call || number[0] >> (64 - NUMBERED) || timeout != timeout) {
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
    PyObject *result = NULL;
    const char *wrong = unfit(here, program, views[0].buf ? views[0].len : 0, views[1].buf ? views[1].len : 0, number[5], number[6], stages);
    if (wrong) PyErr_SetString(PyExc_ValueError, wrong);
    else {
        Task task = {.program = program, .input = views[1].buf, .work = views[0].buf, .far = is_far(program, (size_t)views[0].len),
                     .kernel = KERNELS[number[5]][number[6]], .item = ITEM[number[5]]};
        result = launch(here, &task, number[0], number[1], timeout, stages);
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
    here->spins = here->patience = spins;
    here->stage_bytes = stage_bytes;
    here->slot_bytes = stage_bytes / SLOTS / 64 * 64;
    here->stage_at = staging_at(world, stage_bytes, here->own.len);
    if (!here->stage_at || !is_of(&here->own, here, rank)) {
        PyErr_SetString(PyExc_ValueError, "the own segment has not been prepared for this communicator");
        return -1;
    }
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
            other->to_us = (const Channel *)((const char *)other->map.buf + PAGE) + rank;
            other->from_us = (Channel *)((char *)here->own.buf + PAGE) + peer;
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

#include "_quick.h"

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

static PyMemberDef members[] = {
    {"calls", T_ULONGLONG, offsetof(Endpoint, call), READONLY, "The number of the last call."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot endpoint_slots[] = {
    {Py_tp_new, PyType_GenericNew}, {Py_tp_init, endpoint_init}, {Py_tp_dealloc, endpoint_dealloc},
    {Py_tp_methods, methods}, {Py_tp_members, members}, {Py_tp_doc, "One rank's end of a communicator."}, {0, NULL},
};
static PyType_Slot program_slots[] = {
    {Py_tp_new, PyType_GenericNew}, {Py_tp_init, program_init}, {Py_tp_dealloc, program_dealloc},
    {Py_tp_doc, "What one rank does in a call, checked once."}, {0, NULL},
};
static PyType_Spec endpoint_spec = {"choreo.run.execute._core.Endpoint", sizeof(Endpoint), 0, Py_TPFLAGS_DEFAULT, endpoint_slots};
static PyType_Spec program_spec = {"choreo.run.execute._core.Program", sizeof(Program), 0, Py_TPFLAGS_DEFAULT, program_slots};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_core", "Runs programs.", -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__core(void) {
    _Static_assert(sizeof(Header) == PAGE && sizeof(Letter) == 64 && sizeof(Channel) == 576 && sizeof(Op) == 64 && sizeof(Call) == 64, "layout");
    _Static_assert(sizeof(Frame) == 32 && sizeof(Guard) == 8 && ATOMIC_LLONG_LOCK_FREE == 2, "layout");
    PyObject *made = PyModule_Create(&module);
    if (!made) return NULL;
    struct { const char *name; PyType_Spec *spec; PyTypeObject **kept; } types[] = {
        {"Endpoint", &endpoint_spec, &endpoint_type}, {"Program", &program_spec, &program_type}, {"Quick", &quick_spec, NULL}};
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        PyObject *type = PyType_FromSpec(types[i].spec);
        if (!type || PyModule_AddObjectRef(made, types[i].name, type)) { Py_XDECREF(type); Py_DECREF(made); return NULL; }
        if (types[i].kept) *types[i].kept = (PyTypeObject *)type; /* for as long as the process lives */
        else Py_DECREF(type);
    }
    if (pthread_atfork(NULL, NULL, count_fork)) Py_CLEAR(made);
    return made;
}

/* Waiting for a counter of a peer in shared memory: spin, then yield, then sleep on a futex. Every wait ends: with the counter,
 * at the deadline, by a failure, or by a signal.
 *
 * A yield pays only if it hands the core to another rank. Another program keeps the core for milliseconds, and a rank that
 * yields waits behind it. If ranks are in sessions of their own, as torchrun starts them, Linux gives each session a share of
 * the core, and a rank that yields only uses up its own. So ranks learn how often to yield before they sleep. A rank that waits
 * asks for a short slice: it then runs soon after a wake-up, and a yield costs it no more than that slice.
 */
#define LOOKS 20          /* at a counter, before the clock is read */
#define GIL_NS 20000      /* how long it spins before it releases the GIL */
#define YIELDS 16         /* how often it yields before it reads the clock and releases the GIL */
#define YIELD_S 0.0005    /* how long it yields before it sleeps */
#define MAX_YIELDS 1024   /* how often it yields before it sleeps: as often as that has paid off */
#define LONG_YIELD_S 0.001 /* another program had the core */
#define FIRST_TRIAL 4     /* a rank that has stopped yielding tries it again after so many sleeps: a peer that computes on the same core */
#define LAST_TRIAL 256    /* makes one yield long, a busy program all of them. After a trial that failed, twice as many, and so on up to this */
#define WARY_SENDS 64     /* so many messages after a sleep, both sides take care that no wake-up is missed */
#define SLEEP_NS 2000000  /* the longest sleep at once, because a wake-up can be missed */
#define MOVE_S 0.005      /* how often it changes its core at most */
#define MOVE_CALLS 16     /* it looks for another core in every 16th call, where ranks share cores */

/* A full barrier would wait until all stores are done. Without it a peer that falls asleep within these few nanoseconds can miss
 * the wake-up; it wakes by itself after SLEEP_NS. So there is one only where ranks share cores or have slept lately. */
static inline void wake_if_asleep(Peer *other, _Atomic uint64_t *counter) {
    if (other->sleeps_often || other->wary) {
        other->wary -= other->wary > 0;
        atomic_thread_fence(memory_order_seq_cst);
    }
    if (atomic_load_explicit(&other->to_us->asleep, memory_order_relaxed)) {
        other->wary = WARY_SENDS;
        syscall(SYS_futex, (uint32_t *)counter, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    }
}

static inline void publish(_Atomic uint64_t *counter, uint64_t value, Peer *other) {
    atomic_store_explicit(counter, value, memory_order_release);
    wake_if_asleep(other, counter);
}

static void sleep_until_changed(Endpoint *here, const _Atomic uint64_t *counter, uint64_t value, int peer) {
    _Atomic uint32_t *asleep = &here->peers[peer].from_us->asleep;
    atomic_exchange_explicit(asleep, 1, memory_order_seq_cst);
    uint64_t seen = atomic_load_explicit(counter, memory_order_seq_cst);
    if (seen < value) { /* the futex is the low half of the counter */
        struct timespec most = {0, SLEEP_NS};
        syscall(SYS_futex, (uint32_t *)counter, FUTEX_WAIT, (uint32_t)seen, &most, NULL, 0);
    }
    atomic_store_explicit(asleep, 0, memory_order_release);
}

/* Spin for as long as that has paid off lately, unless the peer needs this core. */
static int spin_for(Endpoint *here, const _Atomic uint64_t *counter, uint64_t value, int peer) {
    if (here->spins < LOOKS) return 0;
    uint32_t core = (uint32_t)sched_getcpu() + 1;
    atomic_store_explicit(&here->header->core, core, memory_order_relaxed);
    if (atomic_load_explicit(&here->peers[peer].header->core, memory_order_relaxed) == core) return 0;
    int64_t began = now_ns(), now = began, patience = atomic_load_explicit(&here->patience.ns, memory_order_relaxed);
    for (; now < began + patience; now = now_ns()) {
        if (now > began + GIL_NS) release_gil(here);
        for (int look = 0; look < LOOKS; look++) {
            if (atomic_load_explicit(counter, memory_order_acquire) >= value) return 1;
            relax();
        }
    }
    return 0;
}

/* The scheduler may leave ranks on one core for long while another core has fewer. A rank that waits moves to that core; then
 * it may run wherever it could before. It says at once where it is, so that the others stay. Where there are more ranks than cores,
 * those on one core take turns to move, each for some calls. */
static void move_to_free_core(Endpoint *here) {
    int core = sched_getcpu(), crowd = 1, before = 0;
    if (core < 0 || core >= CPU_SETSIZE) return;
    atomic_store_explicit(&here->header->core, (uint32_t)core + 1, memory_order_relaxed);
    for (int peer = 0; peer < here->world; peer++) {
        const Header *theirs = here->peers[peer].header;
        if (!theirs || atomic_load_explicit(&theirs->core, memory_order_relaxed) != (uint32_t)core + 1) continue;
        crowd++;
        before += peer < here->rank;
    }
    if (crowd == 1 || (here->spins <= LOOKS && here->call / MOVE_CALLS % (unsigned)crowd != (unsigned)before)) return;
    double time = now_s();
    cpu_set_t all, one;
    if (time - here->moved_s < MOVE_S || sched_getaffinity(0, sizeof(all), &all)) return;
    here->moved_s = time;
    int ranks[CPU_SETSIZE] = {0}, best = core;
    ranks[core] = 1;
    for (int peer = 0; peer < here->world; peer++) {
        const Header *theirs = here->peers[peer].header;
        uint32_t where = theirs ? atomic_load_explicit(&theirs->core, memory_order_relaxed) : 0;
        if (where && where <= CPU_SETSIZE) ranks[where - 1]++;
    }
    for (int other = 0; other < CPU_SETSIZE; other++)
        if (CPU_ISSET(other, &all) && ranks[other] < ranks[best]) best = other;
    if (ranks[best] + 2 > ranks[core]) return; /* it would be no better there */
    CPU_ZERO(&one);
    CPU_SET(best, &one);
    if (sched_setaffinity(0, sizeof(one), &one)) return;
    atomic_store_explicit(&here->header->core, (uint32_t)best + 1, memory_order_relaxed);
    sched_setaffinity(0, sizeof(all), &all);
}

/* Yield, and learn if another program had the core meanwhile. */
static void yield_core(Endpoint *here) {
    double before = now_s();
    sched_yield();
    if (now_s() - before > LONG_YIELD_S) here->yields /= 4;
}

static void try_yields_again(Endpoint *here) {
    if (here->yields || ++here->sleeps < here->trial) return;
    here->yields = 1;
    here->sleeps = 0;
    if (here->trial < LAST_TRIAL) here->trial *= 2;
}

/* A wait ended while this rank yielded. */
static void yields_have_paid_off(Endpoint *here) {
    if (2 * here->yields <= MAX_YIELDS) here->yields *= 2;
    if (here->yields >= YIELDS) here->trial = FIRST_TRIAL;
}

/* Nothing came through a socket, or there is no room in it. Try again a few times before sleeping, because the peer is
 * most likely at work; but not where a yield hands the core to somebody else's program, which keeps it for milliseconds. */
static int may_try_again(Endpoint *here, int *tries) {
    ask_for_short_slice();
    if (++*tries * 16 < here->spins && *tries <= here->yields) {
        yield_core(here);
        return 1;
    }
    try_yields_again(here);
    return 0;
}

/* Something moved. If it did so after a few yields, they have paid off. */
static void note_progress(Endpoint *here, int *tries) {
    if (*tries && *tries <= here->yields) yields_have_paid_off(here);
    *tries = 0;
}

/* Before the first sleep of a wait: how often it yields in the next one. */
static void prepare_to_sleep(Endpoint *here, int peer) {
    here->peers[peer].wary = WARY_SENDS;
    if (here->apart && here->yields > 1) here->yields /= 2;
    try_yields_again(here);
}

static int yield_or_sleep(Endpoint *here, const _Atomic uint64_t *counter, uint64_t value, int peer, double deadline) {
    ask_for_short_slice();
    if (here->spins > LOOKS || here->call % MOVE_CALLS == 0) move_to_free_core(here);
    double began = 0;
    int slept = 0, yields = here->yields;
    for (int round = 1;; round++) {
        if (atomic_load_explicit(counter, memory_order_acquire) >= value) {
            if (!slept && here->yields == yields) yields_have_paid_off(here);
            return OK;
        }
        if (round % YIELDS == 0 || round > here->yields) {
            release_gil(here);
            int culprit, outcome = check_health(here, peer, deadline, &culprit);
            /* A peer may have done its part of this call before it died or stopped. */
            if (outcome && outcome != INTERRUPTED && atomic_load_explicit(counter, memory_order_acquire) >= value) return OK;
            if (outcome) return give_up(here, outcome, culprit);
            double time = now_s();
            if (!began) began = time;
            int tired = round > here->yields || (!here->apart && time - began > YIELD_S);
            if (here->pending) {
                if ((outcome = write_and_poll(here, -1, 0, tired))) return outcome;
            } else if (tired) {
                if (!slept) prepare_to_sleep(here, peer);
                slept = 1;
                sleep_until_changed(here, counter, value, peer);
            }
            if (tired) { round--; continue; }
        }
        yield_core(here);
    }
}

static int wait_slowly(Endpoint *here, const _Atomic uint64_t *counter, uint64_t value, int peer, double deadline) {
    int64_t began = now_ns();
    int paid = spin_for(here, counter, value, peer), outcome = OK;
    if (!paid) outcome = yield_or_sleep(here, counter, value, peer, deadline);
    learn_patience(&here->patience, now_ns() - began, paid);
    return outcome;
}

static inline int wait_for(Endpoint *here, const _Atomic uint64_t *counter, uint64_t value, int peer, double deadline) {
    for (int look = 0; look < here->spins && look < LOOKS; look++) {
        if (atomic_load_explicit(counter, memory_order_acquire) >= value) return OK;
        relax();
    }
    return wait_slowly(here, counter, value, peer, deadline);
}


/* A message of this call as counters have it. */
static inline uint64_t counter_of(const Endpoint *here, uint64_t number) { return here->call << MESSAGE_BITS | number; }

/* Wait until the system has taken all up to this message. */
static int wait_written(Endpoint *here, int peer, uint32_t number, double deadline) {
    int outcome = OK, tries = 0, culprit;
    for (unsigned round = 1; !outcome && !has_written(&here->peers[peer], number); round++) {
        uint64_t before = here->written;
        outcome = may_try_again(here, &tries) ? write_all(here) : wait_for_sockets(here, -1, 0, peer, deadline);
        if (here->written != before) note_progress(here, &tries);
        if (!outcome && round % 256 == 0 && (outcome = check_health(here, peer, deadline, &culprit)))
            return give_up(here, outcome, culprit);
    }
    return outcome;
}

/* Wait until what this operation overwrites has been read. */
static int wait_guards(Endpoint *here, const Task *task, const Op *op) {
    for (uint32_t i = 0; i < op->guards; i++) {
        Guard guard = task->program->guards[op->first_guard + i];
        Peer *other = &here->peers[guard.peer];
        int outcome = OK;
        if (other->header)
            outcome = wait_for(here, &other->to_us->consumed, counter_of(here, guard.number), (int)guard.peer, task->deadline_s);
        else
            outcome = wait_written(here, (int)guard.peer, guard.number, task->deadline_s);
        if (outcome) return outcome;
    }
    return OK;
}

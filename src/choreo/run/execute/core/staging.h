/* Staging: which slot a call takes, and how its bytes get there.
 *
 * A peer's core has read what was staged in this place before. While that core's own cache still holds it, a plain store must first
 * take every line away from there, and a non-temporal store is faster. Once the lines have moved to a cache that both cores share,
 * plain stores are up to twice as fast, and the peer that reads them is faster too. But if the cores share no cache, plain stores are
 * up to twenty times as slow. The cores of a virtual machine may change from one case to the other within seconds. So each program
 * tries both ways. It times whole parts, or calls of one part, because most of the difference is at the readers. All ranks begin the
 * same parts in the same order, so their trials coincide.
 */
#define LARGE_CALL ((size_t)64 << 10)   /* a call that moves more bytes releases the GIL at once */
#define WARM 2                          /* parts that do not count after a change: the slots still hold what the other way left */
#define TIMED 8                         /* parts that count, but for the slowest: another program may have had the core */
#define BETWEEN 1024                    /* parts from the start of one trial to that of the next: the worse way may take three times as long */
#define EARLY 128                       /* parts before the second trial */
#define WORTH 1.3                       /* a rank that receives nothing may take so many times as long, because its readers gain */

/* Stage a range through the caches, or past them. */
static void stage_bytes(const Task *task, char *to, const char *from, size_t length) {
    if (task->through) copy_bytes(to, from, length);
    else if (task->uncached) stream_bytes(to, from, length, 1);
    else share_bytes(to, from, length);
}

/* How far a part is in what begins with a trial. */
static uint32_t trial_part(const Staging *staging) {
    uint32_t parts = staging->parts % BETWEEN;
    return staging->parts < BETWEEN && parts >= EARLY ? parts - EARLY : parts;
}

/* A part begins: which way does it stage? */
static void begin_staging(Task *task) {
    Staging *staging = &task->program->staging;
    /* The first call touches new pages. */
    task->learns = staging->learns && atomic_load_explicit(&task->program->runs, memory_order_relaxed);
    if (!task->learns) return;
    uint32_t at = trial_part(staging);
    task->through = at < 2 * (WARM + TIMED) ? at >= WARM + TIMED : staging->through;
    /* Where a result replaces what was staged a moment ago, the own caches hold its lines, and memory is what cores share. */
    task->cached = !task->through && task->program->grain && task->input == task->work;
    staging->began = now_ns();
}

/* It ends: learn from how long it took. */
static void end_staging(Task *task) {
    Staging *staging = &task->program->staging;
    if (!task->learns) return;
    uint32_t at = trial_part(staging), of_way = at % (WARM + TIMED);
    staging->parts++;
    if (at >= 2 * (WARM + TIMED) || of_way < WARM) return;
    int64_t took = now_ns() - staging->began, *spent = &staging->spent[task->through], *slowest = &staging->slowest[task->through];
    if (of_way == WARM) *spent = *slowest = 0;
    *spent += took;
    if (took > *slowest) *slowest = took;
    if (at < 2 * (WARM + TIMED) - 1) return;
    double past = (double)(staging->spent[0] - staging->slowest[0]), through = (double)(staging->spent[1] - staging->slowest[1]);
    staging->through = through < past * (task->program->receives ? 1 : WORTH);
}

static void set_slot(const Endpoint *here, Task *task, size_t slot) {
    task->slot = slot;
    task->stage = (char *)here->own.buf + here->stage_at + slot * here->slot_bytes;
}

/* Wait until all peers have returned from a call. */
static int wait_returned(Endpoint *here, const Task *task, uint64_t call) {
    if (call <= here->returned) return OK;
    uint64_t all = UINT64_MAX;
    for (int peer = 0; peer < here->world; peer++) {
        Peer *other = &here->peers[peer];
        if (!other->header) continue;
        if (call > other->returned) {
            const _Atomic uint64_t *returned = &other->header->returned;
            int outcome = wait_for(here, returned, call, peer, task->deadline_s);
            if (outcome) return outcome;
            other->returned = atomic_load_explicit(returned, memory_order_acquire);
        }
        if (other->returned < all) all = other->returned;
    }
    here->returned = all;
    return OK;
}

/* Take a slot of the staging. A large call takes the first two that peers need no more: they are likely in cache. It costs too
 * much to ask for that in a small call. */
static int claim_slot(Endpoint *here, Task *task) {
    size_t slot = here->call % STAGING_SLOTS;
    if (task->program->bytes > LARGE_CALL) {
        uint64_t all = UINT64_MAX;
        for (int peer = 0; peer < here->world; peer++) {
            Peer *other = &here->peers[peer];
            if (!other->header) continue;
            other->returned = atomic_load_explicit(&other->header->returned, memory_order_acquire);
            if (other->returned < all) all = other->returned;
        }
        here->returned = all;
        for (size_t pair = STAGING_SLOTS; pair;) {
            pair -= 2;
            if (here->used[pair] <= all && here->used[pair + 1] <= all) slot = pair;
        }
    }
    set_slot(here, task, slot);
    here->modes |= (uint64_t)slot << SLOT_BIT;
    return wait_returned(here, task, here->used[slot]);
}

/* The next part takes the other of two slots, once its last contents have been consumed. */
static int next_part(Endpoint *here, Task *task) {
    size_t next = task->slot ^ 1;
    end_staging(task);
    for (int peer = 0; peer < here->world; peer++) {
        Peer *other = &here->peers[peer];
        if (!other->header) continue;
        other->part_ends[task->slot & 1] = other->posted;
        if (!task->parts || other->part_ends[next & 1] <= counter_of(here, 0)) continue;
        int outcome = wait_for(here, &other->to_us->consumed, other->part_ends[next & 1], peer, task->deadline_s);
        if (outcome) return outcome;
    }
    int first = !task->parts++;
    set_slot(here, task, next);
    int outcome = first ? wait_returned(here, task, here->used[next]) : OK;
    begin_staging(task);
    return outcome;
}

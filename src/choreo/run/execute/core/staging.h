/* Staging: which slot a call takes, and how its bytes get there.
 *
 * A peer's core has read what was staged in this place before. While that core's own cache still holds it, a plain store must first
 * take every line away from there, and it is faster to write past the caches. Once the lines have moved on to a cache that both cores
 * share, plain stores are up to twice as fast, and so is the peer that reads them. But if the cores share no cache, they are up to
 * twenty times as slow. The cores of a virtual machine may change from one to the other within seconds. So each program tries it.
 */
#define LARGE_CALL ((size_t)64 << 10)   /* a call that moves more bytes releases the GIL at once */
#define LEARN_BYTES ((size_t)64 << 10)  /* a shorter range always goes past the caches */
#define MOST_BETWEEN 4096               /* ranges between two trials at most */
#define HOPELESS 4                      /* so many times as long as past the caches, a few times in a row: the trial is over */
#define WORTH 1.3                       /* plain stores may take so many times as long, because their reader gains more */
#define RECHECK 2048                    /* ranges after which it finds out again how fast it is past the caches */
#define SLOWER 1.6                      /* times as long, a few times in a row: plain stores do not pay any more */

/* Stage a range through the caches, or past them. */
static void copy_to_stage(const Task *task, char *to, const char *from, size_t length, int through) {
    if (through) copy_bytes(to, from, length);
    else if (task->uncached) stream_bytes(to, from, length, 1);
    else share_bytes(to, from, length);
}

/* Go on through the caches or past them; try the other way after so many ranges. */
static void settle_staging(Staging *staging, int through, uint32_t between) {
    *staging = (Staging){.through = through, .between = between < MOST_BETWEEN ? between : MOST_BETWEEN, .past = staging->past, .best = INFINITY};
}

/* A range went through the caches, in so many ns a byte. In a trial the first ranges do not count: their lines were not in the
 * caches. The best of the others does, because another program may have had the core in between. */
static void learn_through(Staging *staging, double took) {
    int in_use = staging->through;
    staging->slow = took > (in_use ? SLOWER : HOPELESS) * staging->past ? staging->slow + 1 : 0;
    if (staging->slow == (in_use ? SAMPLES : SAMPLES / 2)) settle_staging(staging, 0, in_use ? 8 * SAMPLES : 2 * staging->between);
    if (staging->through && staging->count == RECHECK) settle_staging(staging, 0, 2 * SAMPLES);
    if (in_use || !staging->count) return;
    uint32_t tried = staging->count - staging->between;
    if (tried > SAMPLES && took < staging->best) staging->best = took;
    if (tried < 2 * SAMPLES) return;
    if (staging->best < WORTH * staging->past) settle_staging(staging, 1, 0);
    else settle_staging(staging, 0, 2 * staging->between);
}

/* Stage a range the way that is faster. */
static void stage_bytes(const Task *task, char *to, const char *from, size_t length) {
    Staging *staging = &task->program->staging;
    uint32_t at = staging->count;
    int through = staging->through || at >= staging->between;
    if (length < LEARN_BYTES || (!through && at + SAMPLES < staging->between)) {
        staging->count += length >= LEARN_BYTES;
        copy_to_stage(task, to, from, length, 0);
        return;
    }
    int64_t began = now_ns();
    copy_to_stage(task, to, from, length, through);
    double took = (double)(now_ns() - began) / (double)length;
    staging->count++;
    if (through) learn_through(staging, took);
    else if (at + SAMPLES == staging->between || took < staging->past) staging->past = took;
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
    return first ? wait_returned(here, task, here->used[next]) : OK;
}

/* The flows on the links, and their max-min fair rates. */

static int touch(Core *core, int32_t link) {
    Shared *shared = &core->shared;
    if (shared->link_mark[link] == NONE) return 0;
    shared->link_mark[link] = NONE;
    return PUSH(shared, dirty, link);
}

static int start_flow(Core *core, int32_t id, int32_t hop, double time) {
    Shared *shared = &core->shared;
    Routes *routes = &core->routes;
    Message *message = &shared->messages[id];
    int64_t low = routes->first_hop[message->route], high = routes->first_hop[message->route + 1];
    if (core->store_and_forward) { low += hop; high = low + 1; }
    int32_t count = (int32_t)(high - low), index;
    if (shared->free_slots_count) index = shared->free_slots[--shared->free_slots_count];
    else {
        Slot fresh;
        memset(&fresh, 0, sizeof(fresh));
        if (PUSH(shared, slots, fresh)) return -1;
        index = (int32_t)shared->slots_count - 1;
    }
    Slot *slot = &shared->slots[index];
    if (slot->room < count) {
        int32_t *links = realloc(slot->links, (size_t)count * 4), *at = links ? realloc(slot->at, (size_t)count * 4) : NULL;
        double *share = at ? realloc(slot->share, (size_t)count * 8) : NULL;
        if (links) slot->links = links;
        if (at) slot->at = at;
        if (!share) { PyErr_NoMemory(); return -1; }
        slot->share = share;
        slot->room = count;
    }
    slot->message = id;
    slot->count = count;
    slot->hop = hop;
    slot->remaining = message->bytes;
    slot->rate = 0;
    slot->since = time;
    slot->finish = INFINITY;
    slot->seen = 0;
    for (int32_t k = 0; k < count; k++) {
        int32_t link = slot->links[k] = routes->hop_link[low + k];
        slot->share[k] = routes->hop_share[low + k];
        core->link_bytes[link] += message->bytes * slot->share[k];
        LinkFlows *flows = &shared->flows[link];
        if (flows->count == flows->room) {
            int32_t room = flows->room ? 2 * flows->room : 4;
            Use *uses = realloc(flows->uses, (size_t)room * sizeof(Use));
            if (!uses) { PyErr_NoMemory(); return -1; }
            flows->uses = uses;
            flows->room = room;
        }
        if (!flows->count) shared->busy_since[link] = time;
        slot->at[k] = flows->count;
        flows->uses[flows->count++] = (Use){index, k};
        if (touch(core, link)) return -1;
    }
    if (PUSH(shared, flow_heap, index)) return -1;
    settle_flow(core, shared->flow_heap_count - 1);
    return 0;
}

static int end_flow(Core *core, int32_t index) {
    Shared *shared = &core->shared;
    Slot *slot = &shared->slots[index];
    for (int32_t k = 0; k < slot->count; k++) {
        int32_t link = slot->links[k];
        LinkFlows *flows = &shared->flows[link];
        Use moved = flows->uses[--flows->count];
        flows->uses[slot->at[k]] = moved;
        shared->slots[moved.slot].at[moved.at] = slot->at[k];
        if (!flows->count) core->link_busy[link] += slot->finish - shared->busy_since[link];
        if (touch(core, link)) return -1;
    }
    int32_t at = slot->heap_at, last = shared->flow_heap[--shared->flow_heap_count];
    if (last != index) {
        shared->flow_heap[at] = last;
        shared->slots[last].heap_at = at;
        settle_flow(core, at);
    }
    return PUSH(shared, free_slots, index);
}

static void give_rate(Core *core, Slot *slot, double rate, int32_t link, double now) {
    core->shared.messages[slot->message].bottleneck = link;
    if (fabs(rate - slot->rate) <= SAME_RATE * rate) return;
    if (slot->rate > 0) {
        slot->remaining -= slot->rate * (now - slot->since);
        if (slot->remaining < 0) slot->remaining = 0;
        slot->since = now;
    }
    slot->rate = rate;
    slot->finish = slot->since + slot->remaining / rate;
    settle_flow(core, slot->heap_at);
}

static int link_first(const Core *core, int32_t a, int32_t b) {
    const Shared *shared = &core->shared;
    return shared->link_key[a] != shared->link_key[b] ? shared->link_key[a] < shared->link_key[b] : a < b;
}

static void sink_link(Core *core, int64_t at) {
    Shared *shared = &core->shared;
    int32_t link = shared->link_heap[at];
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= shared->link_heap_count) break;
        if (child + 1 < shared->link_heap_count && link_first(core, shared->link_heap[child + 1], shared->link_heap[child]))
            child++;
        if (!link_first(core, shared->link_heap[child], link)) break;
        shared->link_heap[at] = shared->link_heap[child];
        at = child;
    }
    shared->link_heap[at] = link;
}

/* Max-min fair rates for the flows that a link's flows share links with, directly or through others. */
static int share_part(Core *core, int32_t start, double now) {
    Shared *shared = &core->shared;
    shared->part_links_count = shared->part_slots_count = shared->link_heap_count = 0;
    shared->link_mark[start] = shared->mark;
    if (PUSH(shared, part_links, start)) return -1;
    for (int64_t i = 0; i < shared->part_links_count; i++) {
        int32_t link = shared->part_links[i];
        LinkFlows *flows = &shared->flows[link];
        shared->link_left[link] = core->bandwidth[link];
        shared->link_open[link] = flows->count;
        double weight = 0;
        for (int32_t f = 0; f < flows->count; f++) {
            Slot *slot = &shared->slots[flows->uses[f].slot];
            weight += slot->share[flows->uses[f].at];
            if (slot->seen == shared->mark) continue;
            slot->seen = shared->mark;
            if (PUSH(shared, part_slots, flows->uses[f].slot)) return -1;
            for (int32_t k = 0; k < slot->count; k++)
                if (shared->link_mark[slot->links[k]] != shared->mark) {
                    shared->link_mark[slot->links[k]] = shared->mark;
                    if (PUSH(shared, part_links, slot->links[k])) return -1;
                }
        }
        shared->link_weight[link] = weight;
        shared->link_key[link] = weight > 0 ? core->bandwidth[link] / weight : INFINITY;
    }
    if (shared->part_slots_count == 1) { /* alone */
        Slot *slot = &shared->slots[shared->part_slots[0]];
        double rate = INFINITY;
        int32_t narrow = NONE;
        for (int32_t k = 0; k < slot->count; k++) {
            double most = core->bandwidth[slot->links[k]] / slot->share[k];
            if (most < rate || (most == rate && slot->links[k] < narrow)) { rate = most; narrow = slot->links[k]; }
        }
        give_rate(core, slot, rate, narrow, now);
        return 0;
    }
    if (ROOM(shared, link_heap, shared->part_links_count)) return -1;
    for (int64_t i = 0; i < shared->part_links_count; i++)
        if (shared->link_open[shared->part_links[i]]) shared->link_heap[shared->link_heap_count++] = shared->part_links[i];
    for (int64_t i = shared->link_heap_count / 2; i-- > 0;) sink_link(core, i);
    while (shared->link_heap_count) {
        int32_t link = shared->link_heap[0];
        int drop = !shared->link_open[link];
        if (!drop) {
            double left = shared->link_left[link] > 0 ? shared->link_left[link] : 0, weight = shared->link_weight[link];
            /* A link's fair share only rises while others fill up: look again when its turn comes. Shares so small that
             * nothing is left of them after rounding stay where they are. */
            double key = weight > 0 ? left / weight : 0;
            if (key > shared->link_key[link] * (1 + SAME_RATE)) {
                shared->link_key[link] = key;
                sink_link(core, 0);
                continue;
            }
            double rate = shared->link_key[link];
            LinkFlows *flows = &shared->flows[link];
            for (int32_t f = 0; f < flows->count; f++) {
                Slot *slot = &shared->slots[flows->uses[f].slot];
                if (slot->seen != shared->mark) continue;
                slot->seen = -shared->mark; /* settled */
                for (int32_t k = 0; k < slot->count; k++) {
                    shared->link_left[slot->links[k]] -= rate * slot->share[k];
                    shared->link_weight[slot->links[k]] -= slot->share[k];
                    shared->link_open[slot->links[k]]--;
                }
                give_rate(core, slot, rate, link, now);
            }
            drop = 1;
        }
        shared->link_heap[0] = shared->link_heap[--shared->link_heap_count];
        if (shared->link_heap_count) sink_link(core, 0);
    }
    return 0;
}

/* After this much work others are heard: signals, and the progress callback. An action or a rate is one unit of work, and a
 * moment a few. */
#define LONG_WORK 65536
#define WORK_OF_MOMENT 16

/* Let others be heard now and then: after long work, be it in one moment or in many. */
static int hear_others(Core *core) {
    Shared *shared = &core->shared;
    if (shared->work < LONG_WORK) return 0;
    shared->work = 0;
    if (PyErr_CheckSignals()) return -1;
    if (core->progress == Py_None) return 0;
    PyObject *said = PyObject_CallFunction(core->progress, "LL", (long long)shared->written, (long long)shared->messages_count);
    Py_XDECREF(said);
    return said ? 0 : -1;
}

static int share_links(Core *core, double now) {
    Shared *shared = &core->shared;
    /* Marks count up; a touched link has the mark NONE until its part has been looked at. */
    shared->mark++;
    for (int64_t i = 0; i < shared->dirty_count; i++) {
        int32_t link = shared->dirty[i];
        if (shared->link_mark[link] == shared->mark) continue;
        if (!shared->flows[link].count) { shared->link_mark[link] = shared->mark; continue; }
        if (share_part(core, link, now)) return -1;
        shared->work += shared->part_slots_count;
        if (hear_others(core)) return -1;
    }
    shared->dirty_count = 0;
    return 0;
}

/* Two heaps of the shared pass: events by time, and flows by when they finish. */

static int sooner(const Event *a, const Event *b) {
    if (a->time != b->time) return a->time < b->time;
    return a->id < b->id;
}

static int push_event(Core *core, double time, int32_t kind, int32_t id, int32_t hop) {
    Shared *shared = &core->shared;
    Event event = {time, kind, id, hop};
    if (PUSH(shared, events, event)) return -1;
    int64_t at = shared->events_count - 1;
    while (at > 0 && sooner(&event, &shared->events[(at - 1) / 2])) {
        shared->events[at] = shared->events[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    shared->events[at] = event;
    return 0;
}

static Event pop_event(Core *core) {
    Shared *shared = &core->shared;
    Event top = shared->events[0], last = shared->events[--shared->events_count];
    int64_t at = 0, count = shared->events_count;
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= count) break;
        if (child + 1 < count && sooner(&shared->events[child + 1], &shared->events[child])) child++;
        if (!sooner(&shared->events[child], &last)) break;
        shared->events[at] = shared->events[child];
        at = child;
    }
    if (count) shared->events[at] = last;
    return top;
}

static int flow_sooner(const Core *core, int32_t a, int32_t b) {
    const Shared *shared = &core->shared;
    if (shared->slots[a].finish != shared->slots[b].finish) return shared->slots[a].finish < shared->slots[b].finish;
    return shared->slots[a].message < shared->slots[b].message;
}

static void settle_flow(Core *core, int64_t at) {
    Shared *shared = &core->shared;
    int32_t slot = shared->flow_heap[at];
    while (at > 0 && flow_sooner(core, slot, shared->flow_heap[(at - 1) / 2])) {
        shared->flow_heap[at] = shared->flow_heap[(at - 1) / 2];
        shared->slots[shared->flow_heap[at]].heap_at = (int32_t)at;
        at = (at - 1) / 2;
    }
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= shared->flow_heap_count) break;
        if (child + 1 < shared->flow_heap_count && flow_sooner(core, shared->flow_heap[child + 1], shared->flow_heap[child]))
            child++;
        if (!flow_sooner(core, shared->flow_heap[child], slot)) break;
        shared->flow_heap[at] = shared->flow_heap[child];
        shared->slots[shared->flow_heap[at]].heap_at = (int32_t)at;
        at = child;
    }
    shared->flow_heap[at] = slot;
    shared->slots[slot].heap_at = (int32_t)at;
}

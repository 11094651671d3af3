/* Events in order of time, then kind, then id: a heap with four children a node, two of whose entries fill a cache line. A
 * port has at most one event of each kind at a time, so the heap holds a few entries a port, whatever is in flight. */

static inline int sooner(const Event *a, const Event *b) {
    return a->time != b->time ? a->time < b->time : a->key < b->key;
}

static int happen(Core *core, int64_t time, uint32_t kind, int32_t id) {
    Event event = {time, (uint64_t)kind << 32 | (uint32_t)id};
    if (PUSH(core, heap, event)) return -1;
    Event *heap = core->heap;
    int64_t at = core->heap_count - 1;
    while (at > 0 && sooner(&event, &heap[(at - 1) >> 2])) {
        heap[at] = heap[(at - 1) >> 2];
        at = (at - 1) >> 2;
    }
    heap[at] = event;
    return 0;
}

static Event next_event(Core *core) {
    Event *heap = core->heap, top = heap[0];
    int64_t count = --core->heap_count, at = 0;
    Event last = heap[count];
    for (;;) {
        int64_t child = 4 * at + 1, end = child + 4 < count ? child + 4 : count;
        if (child >= count) break;
        int64_t least = child;
        for (int64_t other = child + 1; other < end; other++)
            if (sooner(&heap[other], &heap[least])) least = other;
        if (!sooner(&heap[least], &last)) break;
        heap[at] = heap[least];
        at = least;
    }
    heap[at] = last;
    return top;
}

/* Links: queues of packets, the memory of switches, marks, pauses, and the history of each queue. */

static void append(Core *core, Queue *queue, int32_t packet) {
    core->packets[packet].next = NONE;
    if (queue->head == NONE) queue->head = packet;
    else core->packets[queue->tail].next = packet;
    queue->tail = packet;
}

static int32_t take(Core *core, Queue *queue) {
    int32_t packet = queue->head;
    queue->head = core->packets[packet].next;
    return packet;
}

static int32_t new_packet(Core *core) {
    int32_t packet = core->free_packet;
    if (packet != NONE) core->free_packet = core->packets[packet].next;
    else {
        Packet empty = {0};
        if (core->packets_count >= INT32_MAX) { PyErr_NoMemory(); return NONE; }
        if (PUSH(core, packets, empty)) return NONE;
        packet = (int32_t)core->packets_count - 1;
    }
    if (++core->in_flight > core->most_in_flight) core->most_in_flight = core->in_flight;
    return packet;
}

static void free_packet(Core *core, int32_t packet) {
    core->packets[packet].next = core->free_packet;
    core->free_packet = packet;
    core->in_flight--;
}

static inline int64_t sending_ps(const Core *core, const Link *link, int64_t size) {
    return size == core->set.mtu ? link->full_ps : (int64_t)((double)size * link->ps_per_byte + 0.5);
}

/* The port sends as soon as it can, if it has something to send. */
static int wants_to_send(Core *core, Link *link) {
    if (link->scheduled) return 0;
    if (link->control.head == NONE && (link->pauses_held || (link->data.head == NONE && link->ring.head == NONE))) return 0;
    link->scheduled = 1;
    return happen(core, link->free_at > core->now ? link->free_at : core->now, SEND, (int32_t)(link - core->links));
}

static uint64_t mixed(uint64_t key) {
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9ULL;
    key = (key ^ (key >> 27)) * 0x94D049BB133111EBULL;
    return key ^ (key >> 31);
}

/* 32 bits that depend on the seed, on the packet, and on when and where it is asked. */
static uint32_t draw(const Core *core, const Packet *packet, int32_t where) {
    uint64_t key = mixed((uint64_t)core->set.seed * 0x9E3779B97F4A7C15ULL + (uint64_t)core->now);
    key = mixed(key + ((uint64_t)(uint32_t)packet->conn << 32 | packet->psn));
    return (uint32_t)(mixed(key + (uint64_t)(uint32_t)where) >> 32);
}

/* The hop that a packet takes of `ways` that begin at `first`. */
static int32_t choose_hop(const Core *core, const Packet *packet, int32_t first, int32_t ways) {
    if (ways == 1) return first;
    uint32_t drawn = draw(core, packet, first);
    int32_t last = first + ways - 1;
    while (first < last && drawn >= core->hop_until[first]) first++;
    return first;
}

/* ---- the history of a queue ---- */

/* Until now the queue was as long as it is before a change. */
static inline int note_queue(Core *core, Link *link, int64_t queued) {
    if (link->history && core->now >> link->shift == link->part) return 0; /* noted when it became so */
    if (!link->history) {
        if (!(link->history = calloc(PARTS, 8))) { PyErr_NoMemory(); return -1; }
        link->shift = 16; /* parts of 65.5 ns at first; twice as long when they are used up */
    }
    while (core->now >> link->shift >= PARTS) {
        for (int i = 0; i < PARTS / 2; i++) {
            int64_t a = link->history[2 * i], b = link->history[2 * i + 1];
            link->history[i] = a > b ? a : b;
        }
        memset(link->history + PARTS / 2, 0, PARTS / 2 * 8);
        link->part >>= 1;
        link->shift++;
    }
    int64_t part = core->now >> link->shift;
    for (; link->part < part; link->part++)
        if (queued > link->history[link->part]) link->history[link->part] = queued;
    if (queued > link->history[part]) link->history[part] = queued;
    return 0;
}

/* ---- memory ---- */

/* Whether `size` more bytes fit beside `taken` under the threshold, which falls as the switch's memory fills up. A port that
 * holds nothing always has room for one packet. */
static int fits(const Core *core, int32_t node, int64_t taken, int64_t size) {
    int64_t left = core->set.buffer - core->node_used[node];
    return taken == 0 || (size <= left && (double)(taken + size) <= core->set.threshold * (double)left);
}

static int tell_sender(Core *core, Link *link, uint32_t what) {
    int64_t frame = (int64_t)((double)core->set.answer_bytes * link->ps_per_byte + 0.5);
    return happen(core, core->now + frame + link->latency, what, (int32_t)(link - core->links));
}

static void is_marked(Core *core, Link *link, Packet *packet) {
    double queued = (double)link->queued;
    if (queued <= link->mark_from) return;
    if (queued < link->mark_all) {
        double part = core->set.mark_most * (queued - link->mark_from) / (link->mark_all - link->mark_from);
        if ((double)draw(core, packet, ~packet->at) >= part * 4294967296.0) return;
    }
    packet->marked = 1;
    link->marks++;
}

/* A packet that came by `ingress` joins the queue of its next port, or is dropped. */
static int join_queue(Core *core, int32_t number, int32_t ingress) {
    Packet *packet = &core->packets[number];
    Link *link = &core->links[core->hop_link[packet->at]];
    if (packet->kind != DATA) {
        append(core, &link->control, number);
        return wants_to_send(core, link);
    }
    int32_t node = link->src;
    packet->headroom = 0;
    if (core->set.lossless) {
        Link *from = &core->links[ingress];
        if (!fits(core, node, from->held, packet->size)) {
            packet->headroom = 1;
            from->headroom += packet->size;
            if (from->headroom > from->peak_headroom) from->peak_headroom = from->headroom;
            if (!from->pause_sent) {
                from->pause_sent = 1;
                if (tell_sender(core, from, PAUSE)) return -1;
            }
        }
        from->held += packet->size;
    } else if (!fits(core, node, link->queued, packet->size)) {
        link->drops++;
        core->dropped_bytes += packet->size;
        free_packet(core, number);
        return 0;
    }
    if (!packet->headroom) core->node_used[node] += packet->size;
    if (core->node_used[node] > core->node_peak[node]) core->node_peak[node] = core->node_used[node];
    if (core->set.dcqcn) is_marked(core, link, packet);
    if (note_queue(core, link, link->queued)) return -1;
    packet->ingress = ingress;
    append(core, &link->data, number);
    link->queued += packet->size;
    if (link->queued > link->peak) link->peak = link->queued;
    if (link->queued > link->history[link->part]) link->history[link->part] = link->queued;
    return wants_to_send(core, link);
}

/* The first packet leaves the queue: it gives its memory back when it begins to be sent. */
static int32_t leave_queue(Core *core, Link *link) {
    if (note_queue(core, link, link->queued)) return NONE;
    int32_t number = take(core, &link->data), node = link->src;
    Packet *packet = &core->packets[number];
    link->queued -= packet->size;
    if (!packet->headroom) core->node_used[node] -= packet->size;
    if (core->set.lossless) {
        Link *from = &core->links[packet->ingress];
        from->held -= packet->size;
        if (packet->headroom) from->headroom -= packet->size;
        if (from->pause_sent && (from->held == 0 || fits(core, node, from->held, core->set.resume_below))) {
            from->pause_sent = 0;
            if (tell_sender(core, from, RESUME)) return NONE;
        }
    }
    return number;
}

static void hear_pause(Core *core, Link *link) {
    if (link->pauses_held++) return;
    link->pauses++;
    link->paused_since = core->now;
}

static int hear_resume(Core *core, Link *link) {
    if (--link->pauses_held) return 0;
    link->paused_ps += core->now - link->paused_since;
    return wants_to_send(core, link);
}

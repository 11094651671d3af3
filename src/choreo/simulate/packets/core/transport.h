/* Connections: packets in order of their sequence numbers, acknowledgements, and retransmissions. */

static int has_bit(const Window *window, uint32_t base, uint32_t psn) {
    if (psn - base >= window->room) return 0;
    uint32_t at = psn & (window->room - 1);
    return (int)(window->words[at >> 6] >> (at & 63) & 1);
}

static void clear_bit(Window *window, uint32_t psn) {
    uint32_t at = psn & (window->room - 1);
    window->words[at >> 6] &= ~(1ULL << (at & 63));
}

/* Set the bit of a packet; numbers below `base` are not asked for any more. */
static int set_bit(Window *window, uint32_t base, uint32_t psn) {
    if (psn - base >= window->room) {
        uint32_t room = window->room ? window->room : 64;
        while (psn - base >= room) room *= 2;
        uint64_t *words = calloc(room / 64, 8);
        if (!words) { PyErr_NoMemory(); return -1; }
        for (uint32_t i = 0; i < window->room; i++)
            if (has_bit(window, base, base + i)) words[((base + i) & (room - 1)) >> 6] |= 1ULL << ((base + i) & 63);
        free(window->words);
        window->words = words;
        window->room = room;
    }
    uint32_t at = psn & (window->room - 1);
    window->words[at >> 6] |= 1ULL << (at & 63);
    return 0;
}

/* ---- the sender ---- */

/* Whether there is a packet to send: one that is lost, or the next within the window. */
static int next_to_send(Conn *conn, uint32_t *psn) {
    if (conn->lost) {
        if (conn->repeat < conn->unacked) conn->repeat = conn->unacked;
        while (conn->repeat < conn->lost && has_bit(&conn->answered, conn->unacked, conn->repeat)) conn->repeat++;
        *psn = conn->repeat;
        if (conn->repeat < conn->lost) return 1;
    }
    *psn = conn->next;
    return conn->next < conn->end && conn->next - conn->unacked < conn->window;
}

static int awake(Core *core, int32_t id) {
    Conn *conn = &core->conns[id];
    uint32_t psn;
    if (!next_to_send(conn, &psn)) return 0;
    for (int32_t i = conn->first_source; i < conn->first_source + conn->sources; i++) {
        Source *source = &core->sources[i];
        Link *link = &core->links[core->hop_link[source->at]];
        if (!source->waiting) {
            source->waiting = 1;
            source->next = NONE;
            if (link->ring.head == NONE) link->ring.head = i;
            else core->sources[link->ring.tail].next = i;
            link->ring.tail = i;
        }
        if (wants_to_send(core, link)) return -1;
    }
    return 0;
}

static int start_message(Core *core, int32_t id) {
    Message *message = &MESSAGE(core, id);
    Conn *conn = &core->conns[message->conn];
    if (!conn->sources) return is_out(core, id, core->now) || has_arrived(core, id) ? -1 : 0;
    if (message->step > core->last_started) core->last_started = message->step;
    message->first = conn->end;
    conn->end += message->bytes ? (uint32_t)((message->bytes + core->set.mtu - 1) / core->set.mtu) : 1;
    message->end = conn->end;
    if (conn->last != NONE) MESSAGE(core, conn->last).next = id;
    conn->last = id;
    if (conn->sending == NONE) conn->sending = id;
    if (conn->receiving == NONE) conn->receiving = id;
    if (conn->unacked_message == NONE) conn->unacked_message = id;
    return awake(core, message->conn);
}

static int64_t time_out_ps(const Conn *conn) {
    int64_t least = 4 * conn->base_rtt;
    int64_t guess = conn->smooth_rtt ? conn->smooth_rtt + 4 * conn->rtt_spread : 2 * least;
    return (guess > least ? guess : least) << conn->backoff;
}

/* Put the connection's next packet onto a port. Returns it, or NONE with an error set. */
static int32_t emit(Core *core, int32_t at, uint32_t psn) {
    const Source *source = &core->sources[at];
    Conn *conn = &core->conns[source->conn];
    int32_t number = new_packet(core);
    if (number == NONE) return NONE;
    int first_time = psn == conn->fresh;
    int32_t id = psn == conn->next ? conn->sending : conn->unacked_message;
    while (MESSAGE(core, id).end <= psn) id = MESSAGE(core, id).next;
    Message *message = &MESSAGE(core, id);
    Packet *packet = &core->packets[number];
    *packet = (Packet){.conn = source->conn, .at = source->at, .psn = psn, .kind = DATA, .ingress = NONE};
    packet->size = (int32_t)(psn + 1 < message->end ? core->set.mtu
                                                    : message->bytes - core->set.mtu * (int64_t)(psn - message->first));
    if (psn == conn->next) {
        conn->next++;
        conn->sending = id;
    } else conn->repeat = psn + 1;
    core->sent++;
    core->sent_bytes += packet->size;
    if (!core->set.lossless) {
        if (conn->unacked == psn && first_time) conn->deadline = core->now + time_out_ps(conn);
        if (!conn->timer_set) {
            conn->timer_set = 1;
            conn->deadline = core->now + time_out_ps(conn);
            if (happen(core, conn->deadline, TIMEOUT, source->conn)) return NONE;
        }
        if (first_time && !conn->timed) {
            conn->timed = 1;
            conn->timed_psn = psn;
            conn->timed_at = core->now;
        }
    }
    if (core->set.dcqcn) was_sent(core, &core->controls[source->conn], packet->size);
    Link *link = &core->links[core->hop_link[source->at]];
    link->free_at = core->now + sending_ps(core, link, packet->size);
    if (!first_time) {
        core->repeated++;
        return number;
    }
    conn->fresh++;
    if (psn + 1 == message->end && is_out(core, id, link->free_at)) return NONE;
    return number;
}

/* The next packet of a port's sources, in turn; NONE if none has one to send. `failed` is set with an error. */
static int32_t next_source(Core *core, Link *link, int *failed) {
    while (link->ring.head != NONE) {
        int32_t at = link->ring.head;
        Source *source = &core->sources[at];
        Conn *conn = &core->conns[source->conn];
        link->ring.head = source->next;
        source->waiting = 0;
        uint32_t psn;
        if (!next_to_send(conn, &psn)) continue;
        if (core->set.dcqcn && core->controls[source->conn].next_send > core->now) {
            if (conn->asleep) continue;
            conn->asleep = 1;
            if (happen(core, core->controls[source->conn].next_send, WAKE, source->conn)) { *failed = 1; return NONE; }
            continue;
        }
        int32_t packet = emit(core, at, psn);
        if (packet == NONE) { *failed = 1; return NONE; }
        if (awake(core, source->conn)) { *failed = 1; return NONE; }
        return packet;
    }
    return NONE;
}

static int send_next(Core *core, int32_t id) {
    Link *link = &core->links[id];
    int failed = 0;
    int32_t packet = NONE;
    if (link->control.head != NONE) packet = take(core, &link->control);
    else if (!link->pauses_held) {
        /* Where packets pass through and others begin, they take turns. */
        int own_first = link->own_turn || link->data.head == NONE;
        if (own_first) packet = next_source(core, link, &failed);
        if (packet == NONE && !failed && link->data.head != NONE) {
            packet = leave_queue(core, link);
            failed = packet == NONE;
            link->own_turn = 1;
        } else if (packet != NONE) link->own_turn = 0;
    }
    if (failed) return -1;
    link->scheduled = 0;
    if (packet == NONE) return wants_to_send(core, link);
    Packet *it = &core->packets[packet];
    int64_t takes = sending_ps(core, link, it->size);
    link->free_at = core->now + takes;
    link->busy += takes;
    link->bytes += it->size;
    link->packets++;
    it->due = link->free_at + link->latency;
    if (link->wire.head == NONE && happen(core, it->due, ARRIVE, id)) return -1;
    append(core, &link->wire, packet);
    return wants_to_send(core, link);
}

static int is_acknowledged(Core *core, int32_t id, uint32_t all_before) {
    Conn *conn = &core->conns[id];
    if (all_before <= conn->unacked) return 0;
    if (conn->timed && conn->timed_psn < all_before) {
        int64_t took = core->now - conn->timed_at, off = took - conn->smooth_rtt;
        if (!conn->smooth_rtt) {
            conn->smooth_rtt = took;
            conn->rtt_spread = took / 2;
        } else {
            conn->smooth_rtt += off / 8;
            conn->rtt_spread += ((off < 0 ? -off : off) - conn->rtt_spread) / 4;
        }
        conn->timed = 0;
    }
    if (conn->answered.room)
        for (uint32_t psn = conn->unacked; psn < all_before; psn++)
            if (has_bit(&conn->answered, conn->unacked, psn)) clear_bit(&conn->answered, psn);
    conn->unacked = all_before;
    conn->backoff = 0;
    conn->deadline = core->now + time_out_ps(conn);
    if (conn->next < all_before) conn->next = all_before;
    while (conn->unacked_message != NONE && MESSAGE(core, conn->unacked_message).end <= all_before) {
        if (has_read(core, conn->unacked_message, core->now)) return -1;
        if (conn->sending == conn->unacked_message) conn->sending = MESSAGE(core, conn->unacked_message).next;
        conn->unacked_message = MESSAGE(core, conn->unacked_message).next;
    }
    return 0;
}

/* Go back to the first packet without an acknowledgement, or look through all that were sent for those without. */
static void send_again(Core *core, Conn *conn) {
    conn->timed = 0;
    if (core->set.selective) {
        conn->repeat = conn->unacked;
        conn->lost = conn->fresh;
    } else {
        conn->next = conn->unacked;
        conn->sending = conn->unacked_message;
    }
}

static int times_out(Core *core, int32_t id) {
    Conn *conn = &core->conns[id];
    conn->timer_set = 0;
    if (conn->unacked == conn->fresh) return 0;
    conn->timer_set = 1;
    if (core->now >= conn->deadline) {
        core->timeouts++;
        if (conn->backoff < 10) conn->backoff++;
        send_again(core, conn);
        conn->deadline = core->now + time_out_ps(conn);
    }
    return happen(core, conn->deadline, TIMEOUT, id) || awake(core, id) ? -1 : 0;
}

static int hears(Core *core, const Packet *answer) {
    Conn *conn = &core->conns[answer->conn];
    if (answer->kind == NOTIFY) {
        slow_down(core, &core->controls[answer->conn]);
        return 0;
    }
    if (is_acknowledged(core, answer->conn, answer->psn)) return -1;
    if (answer->kind == BACK) {
        if (answer->psn < conn->unacked || conn->next <= answer->psn) return 0;
        core->backs++;
        send_again(core, conn);
    } else if (core->set.selective && answer->seen >= conn->unacked) {
        if (set_bit(&conn->answered, conn->unacked, answer->seen)) return -1;
        if (answer->seen >= conn->highest) conn->highest = answer->seen + 1;
        int64_t lost = (int64_t)conn->highest - 1 - core->set.reorder;
        if (lost > (int64_t)conn->lost) conn->lost = (uint32_t)lost;
    }
    return awake(core, answer->conn);
}

/* ---- the receiver ---- */

static int answer(Core *core, int32_t id, uint8_t kind, uint32_t seen) {
    const Conn *conn = &core->conns[id];
    int32_t number = new_packet(core);
    if (number == NONE) return -1;
    Packet *packet = &core->packets[number];
    *packet = (Packet){.conn = id, .psn = conn->expected, .seen = seen, .kind = kind, .ingress = NONE};
    packet->size = (int32_t)core->set.answer_bytes;
    packet->at = choose_hop(core, packet, conn->back_at, conn->back_ways);
    Link *link = &core->links[core->hop_link[packet->at]];
    append(core, &link->control, number);
    return wants_to_send(core, link);
}

static int receive(Core *core, const Packet *packet) {
    Conn *conn = &core->conns[packet->conn];
    if (packet->marked && core->now >= core->controls[packet->conn].notify_at) {
        core->controls[packet->conn].notify_at = core->now + core->set.notify_ps;
        core->notified++;
        if (answer(core, packet->conn, NOTIFY, 0)) return -1;
    }
    if (packet->psn > conn->expected) {
        if (!core->set.lossless && !core->set.selective) {
            core->discarded_bytes += packet->size;
            if (conn->asked_back) return 0;
            conn->asked_back = 1;
            return answer(core, packet->conn, BACK, packet->psn);
        }
        if (!has_bit(&conn->arrived, conn->expected, packet->psn)) {
            if (set_bit(&conn->arrived, conn->expected, packet->psn)) return -1;
            core->delivered_bytes += packet->size;
        } else core->discarded_bytes += packet->size;
    } else if (packet->psn == conn->expected) {
        core->delivered_bytes += packet->size;
        conn->asked_back = 0;
        conn->expected++;
        while (has_bit(&conn->arrived, conn->expected, conn->expected)) clear_bit(&conn->arrived, conn->expected++);
        if (core->set.acks && answer(core, packet->conn, ACK, packet->psn)) return -1;
        while (conn->receiving != NONE && MESSAGE(core, conn->receiving).end <= conn->expected) {
            int32_t id = conn->receiving;
            conn->receiving = MESSAGE(core, id).next;
            if (has_arrived(core, id)) return -1;
        }
        return 0;
    } else core->discarded_bytes += packet->size;
    return core->set.acks ? answer(core, packet->conn, ACK, packet->psn) : 0;
}

static int arrive(Core *core, int32_t id) {
    Link *link = &core->links[id];
    int32_t number = take(core, &link->wire);
    if (link->wire.head != NONE && happen(core, core->packets[link->wire.head].due, ARRIVE, id)) return -1;
    Packet *packet = &core->packets[number];
    int32_t next = core->hop_next[packet->at];
    if (next != NONE) {
        packet->at = choose_hop(core, packet, next, core->hop_ways[packet->at]);
        return join_queue(core, number, id);
    }
    Packet copy = *packet;
    free_packet(core, number);
    return copy.kind == DATA ? receive(core, &copy) : hears(core, &copy);
}

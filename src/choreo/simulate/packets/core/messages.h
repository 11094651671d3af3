/* Messages: what each waits for before it starts and before it is written. docs/explanation/simulation.md has the rule; it is
 * the same for flows and for packets. */

static int start_message(Core *core, int32_t id);
static int is_ready(Core *core, int32_t id);
static int is_readable(Core *core, int32_t id);

/* Of several causes at one time the highest is kept, so the result does not depend on their order. */
static void waits_until(int64_t *known, int32_t *known_cause, int64_t time, int32_t cause) {
    if (time < *known || (time == *known && cause <= *known_cause)) return;
    *known = time;
    *known_cause = cause;
}

static int may_send(Core *core, int32_t id, int32_t cause) {
    Message *message = &core->messages[id];
    waits_until(&message->ready, &message->ready_cause, core->now, cause);
    return --message->need_ready ? 0 : is_readable(core, id);
}

static int may_start(Core *core, int32_t id, int64_t time, int32_t cause) {
    Message *message = &core->messages[id];
    waits_until(&message->start, &message->start_cause, time, cause);
    if (--message->need_start) return 0;
    if (message->start > core->now) {
        const Conn *conn = &core->conns[message->conn];
        const Link *link = conn->sources == 1 ? &core->links[core->hop_link[core->sources[conn->first_source].at]] : NULL;
        /* Where its only port is busy until then, it can take its place already. */
        if (!link || link->free_at < message->start) return happen(core, message->start, START, id);
    }
    return start_message(core, id);
}

/* Likewise, but a message that arrives at that moment did not wait. */
static int may_write(Core *core, int32_t id, int64_t time, int32_t cause) {
    Message *message = &core->messages[id];
    int32_t known = message->write_cause;
    if (time > message->written || (time == message->written && known != NONE && (cause == NONE || cause > known))) {
        message->written = time;
        message->write_cause = cause;
    }
    if (--message->need_write) return 0;
    if (message->written > core->now) return happen(core, message->written, READY, id);
    return is_ready(core, id);
}

static int has_read(Core *core, int32_t id, int64_t time) {
    for (int64_t at = core->read_from[id]; at < core->read_from[id + 1]; at++)
        if (may_write(core, core->reads[at], time, CAUSE(id, BY_OUT))) return -1;
    return 0;
}

/* The last byte has left its sender for the first time. */
static int is_out(Core *core, int32_t id, int64_t time) {
    Message *message = &core->messages[id];
    message->out = time;
    if (!core->set.acks && has_read(core, id, time)) return -1;
    int32_t sources = core->conns[message->conn].sources;
    for (int32_t i = 0; i < sources; i++) {
        Group *group = &core->groups[core->turns[message->first_turn + i].group];
        if (time > group->out || (time == group->out && id > group->last)) { group->out = time; group->last = id; }
        if (--group->pending || group->next == NONE) continue;
        for (int32_t turn = core->groups[group->next].first; turn != NONE; turn = core->turns[turn].next)
            if (may_start(core, core->turns[turn].message, group->out, CAUSE(group->last, BY_OUT))) return -1;
    }
    return 0;
}

static int has_arrived(Core *core, int32_t id) {
    core->messages[id].arrived = core->now;
    return may_write(core, id, core->now, NONE);
}

static int is_written(Core *core, int32_t id) {
    core->messages[id].written = core->now;
    core->messages_done++;
    for (int64_t at = core->edge_from[id]; at < core->edge_from[id + 1]; at++) {
        int32_t to = core->edges[at];
        int32_t cause = CAUSE(id, BY_WRITE);
        if (to >= 0 ? may_send(core, to, cause) : may_write(core, ~to, core->now, cause)) return -1;
    }
    return 0;
}

/* ---- what a member does one after another ---- */

/* What is taken in: in order of when it got ready. Of equals, and of what is sent, the earlier step is first, then the lower
 * sender, and of what one sends that to the next rank after it, around the end. */
static int is_before(const Message *a, int64_t a_ready, const Message *b, int64_t b_ready) {
    if (a_ready != b_ready) return a_ready < b_ready;
    if (a->step != b->step) return a->step < b->step;
    if (a->src != b->src) return a->src < b->src;
    int a_around = a->dst < a->src, b_around = b->dst < b->src;
    return a_around != b_around ? b_around : a->dst < b->dst;
}

static int wait_for(Core *core, Engine *engine, int32_t id, uint32_t what) {
    Message *messages = core->messages, *own = &messages[id];
    int sends = what == PREPARE;
#define READY_AT(message) (sends ? 0 : (message)->written)
    int32_t before = engine->last_waiting; /* most come in order */
    if (before != NONE && is_before(own, READY_AT(own), &messages[before], READY_AT(&messages[before]))) {
        before = NONE;
        for (int32_t at = engine->waiting; !is_before(own, READY_AT(own), &messages[at], READY_AT(&messages[at]));
             at = messages[at].next_waiting)
            before = at;
    }
    int32_t *link = before == NONE ? &engine->waiting : &messages[before].next_waiting;
    own->next_waiting = *link;
    *link = id;
    if (own->next_waiting == NONE) engine->last_waiting = id;
    if (engine->scheduled) return 0;
    engine->scheduled = 1;
    Engine *all = sends ? core->senders : core->receivers;
    return happen(core, core->now, what, (int32_t)(engine - all));
}

/* The next message that the member turns to now, or NONE. */
static int32_t turn_to(Core *core, Engine *engine, uint32_t what, int32_t member, int *failed) {
    int32_t id = engine->waiting;
    engine->scheduled = id != NONE;
    if (id == NONE) return NONE;
    if (core->now < engine->free_at) {
        *failed = happen(core, engine->free_at, what, member);
        return NONE;
    }
    engine->waiting = core->messages[id].next_waiting;
    if (engine->waiting == NONE) engine->last_waiting = NONE;
    engine->busy = id;
    return id;
}

static int is_ready(Core *core, int32_t id) {
    Message *message = &core->messages[id];
    if (message->reduce_ps <= 0 && core->conns[message->conn].receive_busy_ps <= 0) return is_written(core, id);
    return wait_for(core, &core->receivers[message->member], id, TAKE_IN);
}

/* A member has taken a message in, and reduced it; it turns to the next. */
static int take_in(Core *core, int32_t member) {
    Engine *engine = &core->receivers[member];
    int failed = 0;
    if (engine->busy != NONE) {
        engine->last = engine->busy;
        engine->busy = NONE;
        if (is_written(core, engine->last)) return -1;
    }
    int32_t id = turn_to(core, engine, TAKE_IN, member, &failed);
    if (id == NONE) return failed;
    Message *message = &core->messages[id];
    int64_t busy = core->conns[message->conn].receive_busy_ps;
    if (core->now > message->written && engine->last != NONE) message->write_cause = CAUSE(engine->last, BY_WRITE);
    engine->free_at = core->now + (message->reduce_ps > busy ? message->reduce_ps : busy);
    return happen(core, core->now + message->reduce_ps, TAKE_IN, member);
}

/* All that a message reads has been written: its sender prepares it, where that takes time. */
static int is_readable(Core *core, int32_t id) {
    Message *message = &core->messages[id];
    if (core->conns[message->conn].send_busy_ps <= 0) return may_start(core, id, message->ready, message->ready_cause);
    return wait_for(core, &core->senders[message->member - message->dst + message->src], id, PREPARE);
}

static int prepare(Core *core, int32_t member) {
    Engine *engine = &core->senders[member];
    int failed = 0;
    if (engine->busy != NONE) {
        engine->last = engine->busy;
        engine->busy = NONE;
        if (may_start(core, engine->last, core->now, core->messages[engine->last].ready_cause)) return -1;
    }
    int32_t id = turn_to(core, engine, PREPARE, member, &failed);
    if (id == NONE) return failed;
    Message *message = &core->messages[id];
    const Conn *conn = &core->conns[message->conn];
    if (core->now > message->ready && engine->last != NONE) message->ready_cause = CAUSE(engine->last, BY_SENDER);
    engine->free_at = core->now + (conn->send_ps > conn->send_busy_ps ? conn->send_ps : conn->send_busy_ps);
    return happen(core, core->now + conn->send_ps, PREPARE, member);
}

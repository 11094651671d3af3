/* Messages: what each waits for before it starts and before it is written. The rule is in docs/explanation/simulation.md, and is
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
    Message *message = &MESSAGE(core, id);
    waits_until(&message->ready, &message->ready_cause, core->now, cause);
    return --message->need_ready ? 0 : is_readable(core, id);
}

static int may_start(Core *core, int32_t id, int64_t time, int32_t cause) {
    Message *message = &MESSAGE(core, id);
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
    Message *message = &MESSAGE(core, id);
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
    MESSAGE(core, id).is_read = 1;
    for (int32_t at = MESSAGE(core, id).lets_overwrite.first; at != NONE; at = core->edges[at].next)
        if (may_write(core, core->edges[at].to, time, CAUSE(id, BY_OUT))) return -1;
    return 0;
}

static void is_done(Core *core, int32_t member, int64_t time) {
    if (time > core->finish[member]) core->finish[member] = time;
}

/* The last byte has left its sender for the first time. */
static int is_out(Core *core, int32_t id, int64_t time) {
    Message *message = &MESSAGE(core, id);
    message->out = time;
    is_done(core, message->member - message->dst + message->src, time);
    if (!core->set.acks && has_read(core, id, time)) return -1;
    int32_t sources = core->conns[message->conn].sources;
    for (int32_t i = 0; i < sources; i++) {
        int32_t number = TURN(core, message->first_turn + i).group;
        Group *group = &core->groups[number];
        if (time > group->out || (time == group->out && id > group->last)) { group->out = time; group->last = id; }
        if (--group->pending || group->next == NONE) continue;
        for (int32_t turn = core->groups[group->next].first; turn != NONE; turn = TURN(core, turn).next)
            if (may_start(core, TURN(core, turn).message, group->out, CAUSE(group->last, BY_OUT))) return -1;
        group->next = core->free_group;
        core->free_group = number;
    }
    return 0;
}

static int has_arrived(Core *core, int32_t id) {
    MESSAGE(core, id).arrived = core->now;
    return may_write(core, id, core->now, NONE);
}

static int is_written(Core *core, int32_t id) {
    Message *message = &MESSAGE(core, id);
    message->written = core->now;
    message->is_written = 1;
    core->messages_done++;
    is_done(core, message->member, core->now);
    for (int32_t at = message->lets_send.first; at != NONE; at = core->edges[at].next)
        if (may_send(core, core->edges[at].to, CAUSE(id, BY_WRITE))) return -1;
    for (int32_t at = message->lets_write.first; at != NONE; at = core->edges[at].next)
        if (may_write(core, core->edges[at].to, core->now, CAUSE(id, BY_WRITE))) return -1;
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

/* Two heaps become one, each given by its first message; those below it are its children. */
static int32_t joined(Core *core, int32_t one, int32_t other, int sends) {
    if (one == NONE || other == NONE) return one == NONE ? other : one;
    Message *a = &MESSAGE(core, one), *b = &MESSAGE(core, other);
    if (is_before(b, sends ? 0 : b->written, a, sends ? 0 : a->written)) {
        Message *swap = a;
        a = b;
        b = swap;
        int32_t number = one;
        one = other;
        other = number;
    }
    b->waits_next = a->waits_child;
    a->waits_child = other;
    return one;
}

/* The heap without its first message: its children in pairs, and then these. */
static int32_t without_first(Core *core, int32_t first, int sends) {
    int32_t pairs = NONE, found = NONE;
    for (int32_t at = MESSAGE(core, first).waits_child, next; at != NONE; at = next) {
        int32_t beside = MESSAGE(core, at).waits_next;
        next = beside == NONE ? NONE : MESSAGE(core, beside).waits_next;
        int32_t pair = joined(core, at, beside, sends);
        MESSAGE(core, pair).waits_next = pairs;
        pairs = pair;
    }
    for (int32_t next; pairs != NONE; pairs = next) {
        next = MESSAGE(core, pairs).waits_next;
        found = joined(core, found, pairs, sends);
    }
    return found;
}

static int wait_for(Core *core, Engine *engine, int32_t id, uint32_t what) {
    MESSAGE(core, id).waits_child = MESSAGE(core, id).waits_next = NONE;
    engine->waiting = joined(core, engine->waiting, id, what == PREPARE);
    if (engine->scheduled) return 0;
    engine->scheduled = 1;
    Engine *all = what == PREPARE ? core->senders : core->receivers;
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
    engine->waiting = without_first(core, id, what == PREPARE);
    engine->busy = id;
    return id;
}

static int is_ready(Core *core, int32_t id) {
    Message *message = &MESSAGE(core, id);
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
    Message *message = &MESSAGE(core, id);
    int64_t busy = core->conns[message->conn].receive_busy_ps;
    if (core->now > message->written && engine->last != NONE) message->write_cause = CAUSE(engine->last, BY_WRITE);
    engine->free_at = core->now + (message->reduce_ps > busy ? message->reduce_ps : busy);
    return happen(core, core->now + message->reduce_ps, TAKE_IN, member);
}

/* All that a message reads has been written: its sender prepares it, where that takes time. */
static int is_readable(Core *core, int32_t id) {
    Message *message = &MESSAGE(core, id);
    if (core->conns[message->conn].send_busy_ps <= 0) return may_start(core, id, message->ready, message->ready_cause);
    return wait_for(core, &core->senders[message->member - message->dst + message->src], id, PREPARE);
}

static int prepare(Core *core, int32_t member) {
    Engine *engine = &core->senders[member];
    int failed = 0;
    if (engine->busy != NONE) {
        engine->last = engine->busy;
        engine->busy = NONE;
        if (may_start(core, engine->last, core->now, MESSAGE(core, engine->last).ready_cause)) return -1;
    }
    int32_t id = turn_to(core, engine, PREPARE, member, &failed);
    if (id == NONE) return failed;
    Message *message = &MESSAGE(core, id);
    const Conn *conn = &core->conns[message->conn];
    if (core->now > message->ready && engine->last != NONE) message->ready_cause = CAUSE(engine->last, BY_SENDER);
    engine->free_at = core->now + (conn->send_ps > conn->send_busy_ps ? conn->send_ps : conn->send_busy_ps);
    return happen(core, core->now + conn->send_ps, PREPARE, member);
}

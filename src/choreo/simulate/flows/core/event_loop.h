/* The shared pass, second half: an event loop over all messages at once. */

enum { SEND, SENT, FREE, START, OUT, ARRIVE, READY, WRITTEN, HOP, REDUCED };

static int act(Core *core, int32_t kind, int32_t id, double time) {
    Event event = {time, kind, id, 0};
    return PUSH(&core->shared, actions, event);
}

static int may_start(Core *core, int32_t id, double time, int32_t cause) {
    Message *message = &core->shared.messages[id];
    waits(&message->start, &message->start_cause, time, cause);
    return --message->need_start ? 0 : act(core, START, id, message->start);
}

/* All that a message reads may be written: then it is sent. */
static int may_send(Core *core, int32_t id, double time, int32_t cause) {
    Message *message = &core->shared.messages[id];
    waits(&message->ready, &message->ready_cause, time, cause);
    if (--message->need_ready) return 0;
    if (core->routes.charge && core->routes.cost[message->route].send_busy > 0) return act(core, SEND, id, message->ready);
    return may_start(core, id, message->ready, message->ready_cause);
}

static int may_write(Core *core, int32_t id, double time, int32_t cause) {
    Message *message = &core->shared.messages[id];
    waits_to_be_written(&message->written, &message->write_cause, time, cause);
    return --message->need_write ? 0 : act(core, READY, id, message->written);
}

static int open_group(Core *core, int32_t group, double time, int32_t cause) {
    Shared *shared = &core->shared;
    shared->groups[group].pending &= ~(1 << 30);
    for (int32_t at = shared->groups[group].first; at != NONE; at = shared->turns[at].next)
        if (may_start(core, shared->turns[at].message, time, cause)) return -1;
    return 0;
}

/* A rank has one thing less to do. */
static int one_less(Shared *shared, int32_t number, double time) {
    Engine *engine = &shared->engines[number];
    if (time > engine->done) engine->done = time;
    return --engine->left ? 0 : PUSH(shared, finished, number);
}

static int is_out(Core *core, int32_t id, double time) {
    Shared *shared = &core->shared;
    Message *message = &shared->messages[id];
    message->out = time;
    if (one_less(shared, sender_of(message), time)) return -1;
    for (int32_t at = message->out_edges; at != NONE; at = shared->edges[at].next)
        if (may_write(core, ~shared->edges[at].to, time, CAUSE(id, BY_OUT))) return -1;
    int32_t turn = message->first_turn, end = turn + core->routes.leaving[message->route];
    for (; turn < end; turn++) {
        Group *group = &shared->groups[shared->turns[turn].group];
        if (time > group->out || (time == group->out && id > group->last)) { group->out = time; group->last = id; }
        if (--group->pending || group->next == NONE) continue;
        if (open_group(core, group->next, group->out, CAUSE(group->last, BY_OUT))) return -1;
    }
    return 0;
}

/* Of two that wait to be taken in, the one that has been ready longer is first. Of those of one moment, and of all that wait
 * to be sent, the first by step, src and peer is. */
static int is_before(const Shared *shared, int32_t one, int32_t other, int sends) {
    const Message *a = &shared->messages[one], *b = &shared->messages[other];
    if (!sends && a->moment != b->moment) return a->moment < b->moment;
    if (a->step != b->step) return a->step < b->step;
    return a->src != b->src ? a->src < b->src : peer_is_before(a->src, a->dst, b->dst);
}

/* Two heaps of messages that wait, made one. It is leftist: the way to the right is the short one, so this takes few calls. */
static int32_t merged(Shared *shared, int32_t one, int32_t other, int sends) {
    if (one == NONE || other == NONE) return one == NONE ? other : one;
    if (is_before(shared, other, one, sends)) { int32_t first = other; other = one; one = first; }
    Message *top = &shared->messages[one];
    top->waits_right = merged(shared, top->waits_right, other, sends);
    int32_t left = top->waits_left == NONE ? 0 : shared->messages[top->waits_left].waits_depth;
    int32_t right = shared->messages[top->waits_right].waits_depth;
    if (left < right) {
        int32_t deeper = top->waits_right;
        top->waits_right = top->waits_left;
        top->waits_left = deeper;
    }
    top->waits_depth = 1 + (left < right ? left : right);
    return one;
}

static void wait_for(Shared *shared, Engine *engine, int32_t id, int32_t moment, int sends) {
    Message *message = &shared->messages[id];
    message->moment = moment;
    message->waits_left = message->waits_right = NONE;
    message->waits_depth = 1;
    engine->waiting = merged(shared, engine->waiting, id, sends);
}

/* The message that an idle rank takes up, or NONE. */
static int32_t first_waiting(Shared *shared, Engine *engine, int sends) {
    int32_t id = engine->waiting;
    engine->listed = 0;
    if (engine->busy != NONE || id == NONE) return NONE;
    engine->waiting = merged(shared, shared->messages[id].waits_left, shared->messages[id].waits_right, sends);
    return id;
}

static int touch_receiver(Shared *shared, int32_t number) {
    if (shared->engines[number].listed) return 0;
    shared->engines[number].listed = 1;
    return PUSH(shared, touched, number);
}

static int touch_sender(Shared *shared, int32_t number) {
    if (shared->senders[number].listed) return 0;
    shared->senders[number].listed = 1;
    return PUSH(shared, touched_senders, number);
}

static int is_ready(Core *core, int32_t id, double time, int32_t moment) {
    Shared *shared = &core->shared;
    Message *message = &shared->messages[id];
    int pays = core->routes.charge && core->routes.cost[message->route].receive_busy > 0;
    if (message->reduce_s <= 0 && !pays) return act(core, WRITTEN, id, time);
    wait_for(shared, &shared->engines[message->engine], id, moment, 0);
    return touch_receiver(shared, message->engine);
}

static int is_free(Shared *shared, int32_t sender) {
    shared->senders[sender].busy = NONE;
    return touch_sender(shared, sender);
}

static int is_sent(Core *core, int32_t id, double time) {
    Shared *shared = &core->shared;
    Message *message = &shared->messages[id];
    Engine *sender = &shared->senders[sender_of(message)];
    int later = sender->free_at > time; /* a message may be sent before the next one may be taken up */
    if (later ? push_event(core, sender->free_at, FREE, id, 0) : is_free(shared, sender_of(message))) return -1;
    return may_start(core, id, time, message->ready_cause);
}

static int is_written(Core *core, int32_t id, double time) {
    Shared *shared = &core->shared;
    shared->messages[id].written = time;
    shared->written++;
    if (one_less(shared, shared->messages[id].engine, time)) return -1;
    for (int32_t at = shared->messages[id].written_edges; at != NONE; at = shared->edges[at].next) {
        int32_t to = shared->edges[at].to;
        int32_t cause = CAUSE(id, BY_WRITE);
        if (to >= 0 ? may_send(core, to, time, cause) : may_write(core, ~to, time, cause)) return -1;
    }
    return 0;
}

static int is_started(Core *core, int32_t id, double time) {
    Routes *routes = &core->routes;
    Message *message = &core->shared.messages[id];
    int64_t hops = routes->first_hop[message->route + 1] - routes->first_hop[message->route];
    if (message->bytes > 0 && hops) return start_flow(core, id, 0, time);
    if (act(core, OUT, id, time)) return -1;
    return push_event(core, time + routes->latency[message->route], ARRIVE, id, 0);
}

static int flow_ended(Core *core, int32_t index) {
    Routes *routes = &core->routes;
    Slot *slot = &core->shared.slots[index];
    int32_t id = slot->message, hop = slot->hop;
    double time = slot->finish;
    if (end_flow(core, index)) return -1;
    if (hop == 0 && act(core, OUT, id, time)) return -1;
    Message *message = &core->shared.messages[id];
    if (!core->store_and_forward) return push_event(core, time + routes->latency[message->route], ARRIVE, id, 0);
    int64_t at = routes->first_hop[message->route] + hop;
    time += core->latency[routes->hop_link[at]];
    int last = at + 1 == routes->first_hop[message->route + 1];
    return push_event(core, time, last ? ARRIVE : HOP, id, hop + 1);
}

static int do_action(Core *core, Event action, int32_t moment) {
    Shared *shared = &core->shared;
    switch (action.kind) {
        case SEND:
            wait_for(shared, &shared->senders[sender_of(&shared->messages[action.id])], action.id, moment, 1);
            return touch_sender(shared, sender_of(&shared->messages[action.id]));
        case SENT: return is_sent(core, action.id, action.time);
        case FREE: return is_free(shared, sender_of(&shared->messages[action.id]));
        case START: return is_started(core, action.id, action.time);
        case OUT: return is_out(core, action.id, action.time);
        case ARRIVE:
            shared->messages[action.id].arrived = action.time;
            return may_write(core, action.id, action.time, NONE);
        case READY: return is_ready(core, action.id, action.time, moment);
        case WRITTEN: return is_written(core, action.id, action.time);
        case HOP: return start_flow(core, action.id, action.hop, action.time);
        default: /* REDUCED */
            shared->engines[shared->messages[action.id].engine].busy = NONE;
            if (touch_receiver(shared, shared->messages[action.id].engine)) return -1;
            return is_written(core, action.id, action.time);
    }
}

/* An idle rank takes in and reduces the message that has been ready longest. */
static int begin_reduction(Core *core, int32_t number) {
    Shared *shared = &core->shared;
    Engine *engine = &shared->engines[number];
    int32_t id = first_waiting(shared, engine, 0);
    if (id == NONE) return 0;
    Message *message = &shared->messages[id];
    double begin = message->written, busy = core->routes.cost[message->route].receive_busy;
    if (engine->free_at > begin) {
        begin = engine->free_at;
        message->write_cause = CAUSE(engine->last, BY_WRITE);
    }
    engine->busy = engine->last = id;
    engine->free_at = begin + (message->reduce_s > busy ? message->reduce_s : busy);
    return push_event(core, begin + message->reduce_s, REDUCED, id, 0);
}

/* An idle rank sends, of the messages that are ready, that of the first step. */
static int begin_send(Core *core, int32_t number) {
    Shared *shared = &core->shared;
    Engine *sender = &shared->senders[number];
    int32_t id = first_waiting(shared, sender, 1);
    if (id == NONE) return 0;
    Message *message = &shared->messages[id];
    const Cost *cost = &core->routes.cost[message->route];
    double begin = message->ready;
    if (sender->free_at > begin) {
        begin = sender->free_at;
        message->ready_cause = CAUSE(sender->last, BY_SENDER);
    }
    sender->busy = sender->last = id;
    sender->free_at = begin + (cost->send > cost->send_busy ? cost->send : cost->send_busy);
    return push_event(core, begin + cost->send, SENT, id, 0);
}

/* When something happens next. */
static double next_time(const Shared *shared) {
    double first = shared->events_count ? shared->events[0].time : INFINITY;
    if (!shared->flow_heap_count) return first;
    return fmin(first, shared->slots[shared->flow_heap[0]].finish);
}

static int one_moment(Core *core) {
    Shared *shared = &core->shared;
    int32_t moment = shared->moment++;
    double now = next_time(shared), limit = now + fabs(now) * SAME_MOMENT;
    for (;;) {
        int more = 0;
        while (shared->flow_heap_count && shared->slots[shared->flow_heap[0]].finish <= limit) {
            if (shared->slots[shared->flow_heap[0]].finish > now) now = shared->slots[shared->flow_heap[0]].finish;
            if (flow_ended(core, shared->flow_heap[0])) return -1;
            more = 1;
        }
        while (shared->events_count && shared->events[0].time <= limit) {
            Event event = pop_event(core);
            if (event.time > now) now = event.time;
            if (PUSH(shared, actions, event)) return -1;
            more = 1;
        }
        for (int64_t at = 0; at < shared->actions_count; at++) {
            if (do_action(core, shared->actions[at], moment)) return -1;
            shared->work++;
            if (hear_others(core)) return -1;
        }
        shared->actions_count = 0;
        if (more) continue;
        for (int64_t at = 0; at < shared->touched_count; at++)
            if (begin_reduction(core, shared->touched[at])) return -1;
        shared->touched_count = 0;
        if (shared->events_count && shared->events[0].time <= limit) continue;
        for (int64_t at = 0; at < shared->touched_senders_count; at++)
            if (begin_send(core, shared->touched_senders[at])) return -1;
        shared->touched_senders_count = 0;
        if (shared->events_count && shared->events[0].time <= limit) continue;
        return share_links(core, now);
    }
}

/* Make room for the flows on each link. */
static int ready_links(Core *core) {
    Shared *shared = &core->shared;
    if (shared->busy_since) return 0;
    int64_t links = core->num_links + 1;
    memset(core->link_bytes, 0, (size_t)links * 8);
    memset(core->link_busy, 0, (size_t)links * 8);
    shared->flows = calloc((size_t)links, sizeof(LinkFlows));
    shared->link_mark = calloc((size_t)links, 4);
    shared->link_open = calloc((size_t)links, 4);
    shared->link_left = calloc((size_t)links, 8);
    shared->link_weight = calloc((size_t)links, 8);
    shared->link_key = calloc((size_t)links, 8);
    shared->busy_since = calloc((size_t)links, 8);
    if (shared->flows && shared->link_mark && shared->link_open && shared->link_left && shared->link_weight &&
        shared->link_key && shared->busy_since)
        return 0;
    PyErr_NoMemory();
    return -1;
}

/* Begin what was gathered since the last time. */
static int begin_gathered(Core *core) {
    Shared *shared = &core->shared;
    if (ready_links(core)) return -1;
    for (; shared->begun_engines < shared->engines_count; shared->begun_engines++)
        if (!shared->engines[shared->begun_engines].left && PUSH(shared, finished, (int32_t)shared->begun_engines)) return -1;
    for (; shared->begun_messages < shared->messages_count; shared->begun_messages++) {
        int32_t id = (int32_t)shared->begun_messages;
        Message *message = &shared->messages[id];
        if (message->need_ready) continue;
        int pays = core->routes.charge && core->routes.cost[message->route].send_busy > 0;
        if ((pays || !--message->need_start) && push_event(core, message->start, pays ? SEND : START, id, 0)) return -1;
    }
    return 0;
}

static int next_moment(Core *core) {
    if (one_moment(core)) return -1;
    core->shared.work += WORK_OF_MOMENT;
    return hear_others(core);
}

static PyObject *core_run(Core *core, PyObject *Py_UNUSED(ignored)) {
    Shared *shared = &core->shared;
    if (core->stage != SHARED) { refuse("there is nothing to run, or it has run"); return NULL; }
    core->stage = RAN;
    if (begin_gathered(core)) return NULL;
    while (shared->events_count || shared->flow_heap_count)
        if (next_moment(core)) return NULL;
    if (shared->written != shared->messages_count) {
        PyErr_SetString(PyExc_RuntimeError, "some messages were never written");
        return NULL;
    }
    Py_RETURN_NONE;
}

static void free_shared(Shared *shared, int64_t num_links) {
    for (int64_t i = 0; i < shared->slots_count; i++)
        FREE_ALL(shared->slots[i].links, shared->slots[i].at, shared->slots[i].share);
    for (int64_t i = 0; shared->flows && i < num_links; i++) free(shared->flows[i].uses);
    FREE_ALL(shared->cells, shared->messages, shared->edges, shared->readers, shared->groups, shared->turns, shared->engines, shared->senders,
             shared->seen_start, shared->seen_write, shared->seen_read, shared->port_group, shared->events, shared->actions,
             shared->touched, shared->touched_senders, shared->finished, shared->slots, shared->free_slots, shared->flow_heap, shared->dirty, shared->part_links,
             shared->part_slots, shared->link_heap, shared->flows, shared->link_mark, shared->link_open, shared->link_left,
             shared->link_weight, shared->link_key, shared->busy_since, shared->reach, shared->sent, shared->sorted,
             shared->place);
    for (int kind = 0; kind < NUM_WAITS; kind++) free(shared->waits[kind].all);
}

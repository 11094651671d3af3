/* Adding messages, some whole steps at a time, in their order. Messages that nothing can refer to any more make room for them. So
 * memory grows with what is in progress, not with the schedule. */

/* The columns of some messages. Lists: `from` says where each message's begins. */
typedef struct {
    Py_ssize_t count;
    int64_t *bytes, *reduce_ps, *start, *conn, *member, *step, *src, *dst;
    int64_t *from[3], *others[3]; /* what must be written before it is sent, be written or have been read before it is written */
    Py_ssize_t listed[3];
} Added;

static Added read_added(Core *core, Given *from) {
    static const char *const begins[] = {"send_from", "write_from", "overwrite_from"};
    static const char *const lists[] = {"send_after", "write_after", "overwrite_after"};
    Added in = {.count = -1};
    in.bytes = given(from, "bytes", INT64, &in.count);
    in.reduce_ps = given(from, "reduce_ps", INT64, &in.count);
    in.start = given(from, "start", INT64, &in.count);
    in.conn = given(from, "conn", INT64, &in.count);
    in.member = given(from, "member", INT64, &in.count);
    in.step = given(from, "step", INT64, &in.count);
    in.src = given(from, "src", INT64, &in.count);
    in.dst = given(from, "dst", INT64, &in.count);
    Py_ssize_t more = in.count + 1;
    for (int kind = 0; kind < 3; kind++) {
        in.listed[kind] = -1;
        in.from[kind] = given(from, begins[kind], INT64, &more);
        in.others[kind] = given(from, lists[kind], INT64, &in.listed[kind]);
    }
    if (from->bad) return in;
    if (in.count > core->set.messages - core->added) from->bad = refuse("there are more messages than was said") != 0;
    inside(from, in.bytes, in.count, 0, INT64_MAX / 8);
    inside(from, in.reduce_ps, in.count, 0, INT64_MAX / 8);
    inside(from, in.start, in.count, 0, INT64_MAX / 8);
    inside(from, in.conn, in.count, 0, core->num_conns);
    inside(from, in.member, in.count, 0, core->num_members);
    inside(from, in.step, in.count, 0, INT32_MAX);
    for (Py_ssize_t i = 0; !from->bad && i < in.count; i++) {
        int64_t sender = in.member[i] - in.dst[i] + in.src[i];
        if (sender < 0 || sender >= core->num_members) from->bad = refuse("no such sender") != 0;
    }
    for (int kind = 0; kind < 3 && !from->bad; kind++) {
        inside(from, in.others[kind], in.listed[kind], 0, core->added + in.count);
        for (Py_ssize_t i = 0; !from->bad && i < in.count; i++)
            if (in.from[kind][i] > in.from[kind][i + 1]) from->bad = refuse("lists are not in order") != 0;
        if (!from->bad && (in.from[kind][0] || in.from[kind][in.count] != in.listed[kind]))
            from->bad = refuse("lists are not in order") != 0;
    }
    return in;
}

static void free_edges(Core *core, Edges *edges) {
    if (edges->first == NONE) return;
    core->edges[edges->last].next = core->free_edge;
    core->free_edge = edges->first;
}

/* Let go of the oldest messages, as long as they were written and will not be sent again. */
static void let_go(Core *core) {
    for (; core->oldest < core->added; core->oldest++) {
        int32_t id = (int32_t)core->oldest;
        Message *message = &MESSAGE(core, id);
        if (!message->is_written || !message->is_read) return;
        Conn *conn = &core->conns[message->conn];
        if (conn->sending == id) conn->sending = message->next;
        if (conn->unacked_message == id) conn->unacked_message = message->next;
        if (conn->last == id) conn->last = NONE;
        free_edges(core, &message->lets_send);
        free_edges(core, &message->lets_write);
        free_edges(core, &message->lets_overwrite);
        core->turns_oldest += conn->sources;
    }
}

/* Make room for more in a window that holds oldest..added - 1, each at its number modulo the room. */
static int widen(void **window, int64_t *room, int64_t oldest, int64_t added, int64_t more, size_t size) {
    if (added + more - oldest <= *room) return 0;
    int64_t wider = *room ? *room : 16;
    while (wider < added + more - oldest) wider *= 2;
    char *into = malloc((size_t)wider * size);
    if (!into) { PyErr_NoMemory(); return -1; }
    for (int64_t i = oldest; i < added; i++)
        memcpy(into + (size_t)(i & (wider - 1)) * size, (char *)*window + (size_t)(i & (*room - 1)) * size, size);
    free(*window);
    *window = into;
    *room = wider;
    return 0;
}

static int add_edge(Core *core, Edges *edges, int32_t to) {
    Edge edge = {to, NONE};
    int32_t at = core->free_edge;
    if (at != NONE) {
        core->free_edge = core->edges[at].next;
        core->edges[at] = edge;
    } else {
        if (core->edges_count >= INT32_MAX || PUSH(core, edges, edge)) { PyErr_NoMemory(); return -1; }
        at = (int32_t)core->edges_count - 1;
    }
    if (edges->first == NONE) edges->first = at;
    else core->edges[edges->last].next = at;
    edges->last = at;
    return 0;
}

/* Messages of one step at one port go together; those of the next step when they are out. */
static int join_port(Core *core, int32_t id, int32_t source) {
    Message *message = &MESSAGE(core, id);
    int64_t layer = core->layer[message->member - message->dst + message->src];
    int32_t *latest = &core->port_group[layer * core->num_links + core->hop_link[core->sources[source].at]], before = *latest;
    if (before == NONE || core->groups[before].step != message->step) {
        Group fresh = {0, message->step, 0, 0, NONE, NONE, NONE};
        if (before != NONE && core->groups[before].pending) fresh.waits = 1;
        else if (before != NONE) { /* all of it is out, or will be at a time that is known */
            fresh.out = core->groups[before].out;
            core->groups[before].next = core->free_group;
            core->free_group = before;
        }
        int32_t group = core->free_group;
        if (group != NONE) {
            core->free_group = core->groups[group].next;
            core->groups[group] = fresh;
        } else {
            if (core->groups_count >= INT32_MAX || PUSH(core, groups, fresh)) { PyErr_NoMemory(); return -1; }
            group = (int32_t)core->groups_count - 1;
        }
        if (fresh.waits) core->groups[before].next = group;
        *latest = group;
    }
    Group *group = &core->groups[*latest];
    message->need_start += group->waits;
    if (!group->waits && group->out > message->start) message->start = group->out;
    group->pending++;
    TURN(core, core->turns_added) = (Turn){id, *latest, group->first};
    group->first = (int32_t)core->turns_added++;
    return 0;
}

/* What a message waits for lets it go on, unless that has happened already. */
static int add_waits(Core *core, const Added *in, int32_t id, Py_ssize_t at) {
    Message *message = &MESSAGE(core, id);
    for (int kind = 0; kind < 3; kind++)
        for (int64_t i = in->from[kind][at]; i < in->from[kind][at + 1]; i++) {
            if (in->others[kind][i] < core->oldest) continue;
            Message *other = &MESSAGE(core, in->others[kind][i]);
            if (kind == 2 ? other->is_read : other->is_written) continue;
            Edges *edges = kind == 0 ? &other->lets_send : kind == 1 ? &other->lets_write : &other->lets_overwrite;
            if (add_edge(core, edges, id)) return -1;
            if (kind == 0) message->need_ready++;
            else message->need_write++;
        }
    return 0;
}

static int add_all(Core *core, const Added *in) {
    int64_t first = core->added, turns = 0;
    if (!core->set.keep) let_go(core);
    for (Py_ssize_t i = 0; i < in->count; i++) turns += core->conns[in->conn[i]].sources;
    if (core->turns_added + turns >= INT32_MAX) { PyErr_NoMemory(); return -1; }
    if (widen((void **)&core->messages, &core->room, core->oldest, core->added, in->count, sizeof(Message)) ||
        widen((void **)&core->turns, &core->turns_room, core->turns_oldest, core->turns_added, turns, sizeof(Turn)))
        return -1;
    for (Py_ssize_t i = 0; i < in->count; i++) {
        int32_t id = (int32_t)core->added++;
        const Conn *conn = &core->conns[in->conn[i]];
        const Edges none = {NONE, NONE};
        MESSAGE(core, id) = (Message){
            .bytes = in->bytes[i], .reduce_ps = in->reduce_ps[i], .start = in->start[i], .ready = in->start[i],
            .conn = (int32_t)in->conn[i], .member = (int32_t)in->member[i], .step = (int32_t)in->step[i],
            .src = (int32_t)in->src[i], .dst = (int32_t)in->dst[i], .need_start = 1, .need_write = 1,
            .ready_cause = NONE, .start_cause = NONE, .write_cause = NONE, .next = NONE,
            .first_turn = (int32_t)core->turns_added, .lets_send = none, .lets_write = none, .lets_overwrite = none};
        for (int32_t source = conn->first_source; source < conn->first_source + conn->sources; source++)
            if (join_port(core, id, source)) return -1;
    }
    for (Py_ssize_t i = 0; i < in->count; i++)
        if (add_waits(core, in, (int32_t)(first + i), i)) return -1;
    for (int32_t id = (int32_t)first; id < core->added; id++) {
        if (MESSAGE(core, id).need_ready) continue;
        if (!core->events_done) {
            if (happen(core, MESSAGE(core, id).start, READABLE, id)) return -1;
            continue;
        }
        core->events_done++; /* it has been readable for some time */
        if (is_readable(core, id)) return -1;
    }
    return 0;
}

static PyObject *core_add(Core *core, PyObject *columns) {
    Given from = {.columns = columns};
    if (!PyDict_Check(columns) || !core->links) { refuse("messages are columns, and added once the network was made"); return NULL; }
    Added in = read_added(core, &from);
    int bad = from.bad || add_all(core, &in);
    release(from.in, from.held);
    if (bad) return NULL;
    Py_RETURN_NONE;
}

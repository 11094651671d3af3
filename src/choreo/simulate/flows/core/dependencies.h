/* The shared pass, first half: the messages of all steps, and their dependencies. */

/* Make room for what is known of each cell and port. */
static int ready_shared(Core *core) {
    Shared *shared = &core->shared;
    Job *job = &core->job;
    int64_t ports = core->num_links * job->layers + 1;
    shared->cells = malloc((size_t)job->num_cells * sizeof(SharedCell) + 1);
    free(shared->port_group);
    shared->port_group = malloc((size_t)ports * 4);
    if (!shared->cells || !shared->port_group) { PyErr_NoMemory(); return -1; }
    memset(shared->cells, 0xFF, (size_t)job->num_cells * sizeof(SharedCell));
    memset(shared->port_group, 0xFF, (size_t)ports * 4);
    shared->free_reader = NONE;
    shared->readers_count = 0; /* those of a job before are asked for no more */
    if (ROOM(shared, engines, shared->engines_count + job->ranks)) return -1;
    for (int64_t rank = 0; rank < job->ranks; rank++)
        shared->engines[shared->engines_count++] = (Engine){0.0, NONE, NONE, NONE, 0, 0, job->start};
    if (ROOM(shared, senders, shared->engines_count)) return -1;
    while (shared->senders_count < shared->engines_count)
        shared->senders[shared->senders_count++] = (Engine){0.0, NONE, NONE, NONE, 0, 0, job->start};
    return 0;
}

static int add_edge(Core *core, int32_t *head, int32_t to) {
    Shared *shared = &core->shared;
    if (shared->edges_count >= INT32_MAX) { PyErr_NoMemory(); return -1; }
    Edge edge = {to, *head};
    *head = (int32_t)shared->edges_count;
    return PUSH(shared, edges, edge);
}

static int join_port(Core *core, int32_t id, int64_t port) {
    Shared *shared = &core->shared;
    Message *message = &shared->messages[id];
    int32_t group = shared->port_group[port];
    if (group == NONE || shared->groups[group].step != message->step) {
        Group fresh = {0.0, message->step, 0, NONE, NONE, NONE};
        if (PUSH(shared, groups, fresh)) return -1;
        int32_t latest = (int32_t)shared->groups_count - 1;
        if (group != NONE) shared->groups[group].next = latest;
        shared->port_group[port] = latest;
        /* Bit 30 of `pending` says that the group must wait for the one before it. */
        if (group != NONE) shared->groups[latest].pending = 1 << 30;
        group = latest;
    }
    if (shared->groups[group].pending & (1 << 30)) message->need_start++;
    shared->groups[group].pending++;
    if (shared->turns_count >= INT32_MAX) { PyErr_NoMemory(); return -1; }
    Turn turn = {id, group, shared->groups[group].first};
    shared->groups[group].first = (int32_t)shared->turns_count;
    return PUSH(shared, turns, turn);
}

static int gather_reads(Core *core, Range range, int32_t id) {
    Shared *shared = &core->shared;
    EACH_CELL(&core->job, range, cell) {
        int32_t writer = shared->cells[cell].writer;
        if (writer != NONE && shared->seen_start[writer] != id) {
            shared->seen_start[writer] = id;
            if (add_edge(core, &shared->messages[writer].written_edges, id)) return -1;
            shared->messages[id].need_ready++;
        }
        if (shared->readers_count >= INT32_MAX) { PyErr_NoMemory(); return -1; }
        Reader reader = {id, shared->cells[cell].readers};
        shared->cells[cell].readers = (int32_t)shared->readers_count;
        if (PUSH(shared, readers, reader)) return -1;
    }
    return 0;
}

static int gather_writes(Core *core, Range range, int32_t id) {
    Shared *shared = &core->shared;
    EACH_CELL(&core->job, range, cell) {
        SharedCell *known = &shared->cells[cell];
        if (known->writer != NONE && known->writer != id && shared->seen_write[known->writer] != id) {
            shared->seen_write[known->writer] = id;
            if (add_edge(core, &shared->messages[known->writer].written_edges, ~id)) return -1;
            shared->messages[id].need_write++;
        }
        for (int32_t at = known->readers; at != NONE; at = shared->readers[at].next) {
            int32_t reader = shared->readers[at].message;
            if (shared->seen_read[reader] == id) continue;
            shared->seen_read[reader] = id;
            if (add_edge(core, &shared->messages[reader].out_edges, ~id)) return -1;
            shared->messages[id].need_write++;
        }
        known->writer = id;
        known->readers = NONE;
    }
    return 0;
}

/* The sender of a message has its number among all engines, as its receiver has. */
static int32_t sender_of(const Message *message) { return message->engine - message->dst + message->src; }

static int shared_step(Core *core, const Rows *rows, int64_t first, int64_t last) {
    Shared *shared = &core->shared;
    Step *step = &core->step;
    Job *job = &core->job;
    Routes *routes = &core->routes;
    int64_t made = look_up_step(core, rows, first, last), width = last - first;
    if (made < 0) return -1;
    int32_t base = (int32_t)shared->messages_count;
    int64_t total = shared->messages_count + made;
    if (total >= MOST_MESSAGES) { PyErr_NoMemory(); return -1; }
    if (ROOM(shared, messages, total) || ROOM(shared, seen_start, total) || ROOM(shared, seen_write, total) ||
        ROOM(shared, seen_read, total))
        return -1;
    for (int64_t m = 0; m < made; m++) {
        int64_t row = first + step->lead[m];
        int32_t id = base + (int32_t)m;
        Message *message = &shared->messages[id];
        new_message(core, message, rows, row, step->route[step->lead[m]]);
        message->need_start = 1; /* to be ready, and sent */
        message->need_write = 1; /* its own arrival */
        message->out_edges = message->written_edges = NONE;
        if (routes->charge) message->reduce_s = routes->cost[message->route].receive;
        message->first_turn = (int32_t)shared->turns_count;
        shared->seen_start[id] = shared->seen_write[id] = shared->seen_read[id] = NONE;
        shared->messages_count++;
        shared->engines[message->engine].left++;
        shared->engines[sender_of(message)].left++;
        int64_t hop = routes->first_hop[message->route], left = hop + routes->leaving[message->route];
        for (; hop < left; hop++)
            if (join_port(core, id, port_of(core, message->src, routes->hop_link[hop]))) return -1;
    }
    for (int64_t i = 0; i < width; i++) {
        int64_t row = first + i;
        int32_t id = base + (int32_t)message_in_step(rows, first, i);
        double bytes = (double)rows->weight[row] * job->unit;
        shared->messages[id].bytes += bytes;
        if (rows->reduce[row]) {
            shared->messages[id].reduces = 1;
            shared->messages[id].reduce_s += bytes * job->gamma[rows->dst[row]];
        }
        if (gather_reads(core, step->reads[i], id)) return -1;
    }
    for (int64_t at = 0; at < made; at++)
        for (int64_t i = step->lead[step->order[at]]; i != NONE; i = step->next[i])
            if (gather_writes(core, step->writes[i], base + step->order[at])) return -1;
    return 0;
}

/* Take the rows of some whole steps, step by step, by `does`. */
static int each_step(Core *core, Rows *rows, int (*does)(Core *, const Rows *, int64_t, int64_t)) {
    int bad = core->stage != SHARED ? refuse("the job is not ready for a shared run") : 0;
    for (int64_t first = 0, last; !bad && first < rows->rows; first = last) {
        for (last = first + 1; last < rows->rows && rows->step[last] == rows->step[first];) last++;
        bad = does(core, rows, first, last);
    }
    return bad;
}

static PyObject *core_gather(Core *core, PyObject *args) {
    /* Take some whole steps for a shared run. */
    Rows rows;
    int bad = read_rows(core, args, &rows) || each_step(core, &rows, shared_step);
    release(rows.in, 9);
    if (bad) return NULL;
    Py_RETURN_NONE;
}

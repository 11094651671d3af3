/* The alone pass: one pass over the rows in order of steps. It is valid as long as no two messages are on a link at the same time,
 * and no rank takes up a message of a later step before one of an earlier step; otherwise it gives up. On request, it keeps the
 * messages as the shared pass does. */

/* Make room for who was where, by message. */
static int ready_users(Core *core, int64_t ports) {
    Alone *alone = &core->alone;
    size_t cells = (size_t)core->job.num_cells;
    FREE_ALL(alone->users, alone->port_last, alone->port_last_before);
    alone->users = malloc(cells * sizeof(CellUsers) + 1);
    alone->port_last = malloc((size_t)ports * 4);
    alone->port_last_before = malloc((size_t)ports * 4);
    if (!alone->users || !alone->port_last || !alone->port_last_before) {
        PyErr_NoMemory();
        return -1;
    }
    memset(alone->users, 0xFF, cells * sizeof(CellUsers));
    memset(alone->port_last, 0xFF, (size_t)ports * 4);
    return 0;
}

/* Make room for what is known of each cell, port and link. */
static int ready_alone(Core *core) {
    Alone *alone = &core->alone;
    Job *job = &core->job;
    int64_t links = core->num_links + 1, ports = core->num_links * job->layers + 1;
    alone->cells = zeroed((size_t)job->num_cells, sizeof(AloneCell));
    free(alone->busy_until); free(alone->port_out); free(alone->port_before); free(alone->port_stamp);
    free(alone->sender); free(alone->receiver); free(alone->rank_finish);
    alone->busy_until = calloc((size_t)links, 8);
    alone->port_out = calloc((size_t)ports, 8);
    alone->port_before = calloc((size_t)ports, 8);
    alone->port_stamp = calloc((size_t)ports, 8);
    alone->sender = calloc((size_t)job->ranks + 1, sizeof(Queue));
    alone->receiver = calloc((size_t)job->ranks + 1, sizeof(Queue));
    alone->rank_finish = calloc((size_t)job->ranks + 1, 8);
    if (!alone->cells || !alone->busy_until || !alone->port_out || !alone->port_before || !alone->port_stamp ||
        !alone->sender || !alone->receiver || !alone->rank_finish) {
        PyErr_NoMemory();
        return -1;
    }
    memset(core->link_bytes, 0, (size_t)links * 8);
    memset(core->link_busy, 0, (size_t)links * 8);
    return alone->keep ? ready_users(core, ports) : 0;
}

typedef struct { double ready, bytes, reduced, time; } AloneMessage;

/* A new message of the shared pass, of which nothing is known yet but its ends. */
static void new_message(Core *core, Message *message, const Rows *rows, int64_t row, int32_t route) {
    *message = (Message){.start = core->job.start, .ready = core->job.start};
    message->ready_cause = message->start_cause = message->write_cause = NONE;
    message->route = route;
    message->step = (int32_t)rows->step[row];
    message->src = (int32_t)rows->src[row];
    message->dst = (int32_t)rows->dst[row];
    message->engine = core->job.first_engine + message->dst;
    message->bottleneck = NONE;
}

/* Something that a message waits for: it goes on at the latest of them, and by the highest of several at once, so that it
 * does not depend on who is told first. */
static inline void waits(double *until, int32_t *by, double time, int32_t cause) {
    if (time > *until || (time == *until && cause > *by)) {
        *until = time;
        *by = cause;
    }
}

/* Likewise before it is written; but a message that arrives at that moment waited for nobody. */
static inline void waits_to_be_written(double *until, int32_t *by, double time, int32_t cause) {
    int32_t known = *by;
    if (time > *until || (time == *until && known != NONE && (cause == NONE || cause > known))) {
        *until = time;
        *by = cause;
    }
}

/* A rank takes up what is ready at `*time`, which ends `takes` later, and the next `busy` later; 0 if it is out of turn. What
 * it takes in comes in the order in which it gets ready. So does what it sends after it was idle. */
static inline int take_up(Queue *queue, double *time, double takes, double busy, int sends) {
    if (*time < queue->idle_until) return 0;
    if (!sends || *time > queue->free_at) queue->idle_until = *time;
    queue->begin = queue->free_at > *time ? queue->free_at : *time;
    queue->free_at = queue->begin + (takes > busy ? takes : busy);
    *time = queue->begin + takes;
    return 1;
}

/* `keep` is known where this is called, so that a pass that keeps nothing does not pay for it. */
static inline __attribute__((always_inline)) int alone_step(
    Core *core, const Rows *rows, int64_t first, int64_t last, AloneMessage *messages, const int keep) {
    Alone *alone = &core->alone;
    Step *step = &core->step;
    Job *job = &core->job;
    Routes *routes = &core->routes;
    int64_t made = look_up_step(core, rows, first, last), width = last - first;
    if (made < 0) return -1;
    AloneCell *cells = alone->cells;
    const int64_t ahead = 16;
    CellUsers *users = alone->users;
    KeptStep kept = {0};
    int32_t base = (int32_t)core->kept.count;
    if (keep) {
        if (core->kept.count + made >= MOST_MESSAGES) { PyErr_NoMemory(); return -1; }
        if (keep_room(&core->kept, core->kept.count + made)) return -1;
        kept = next_step(&core->kept);
        for (int64_t m = 0; m < made; m++) {
            kept.ready_cause[m] = kept.start_cause[m] = kept.write_cause[m] = NONE;
            kept.reduces[m] = 0;
        }
    }
    for (int64_t m = 0; m < made; m++) messages[m] = (AloneMessage){0.0, 0.0, 0.0, 0.0};
    for (int64_t i = 0; i < width; i++) {
        int64_t row = first + i;
        int64_t m = message_in_step(rows, first, i);
        AloneMessage *message = &messages[m];
        double bytes = (double)rows->weight[row] * job->unit;
        message->bytes += bytes;
        if (rows->reduce[row]) message->reduced += bytes;
        if (keep && rows->reduce[row]) kept.reduces[m] = 1;
        if (i + ahead < width) {
            __builtin_prefetch(&cells[step->reads[i + ahead].first], 1);
            if (keep) __builtin_prefetch(&users[step->reads[i + ahead].first], 1);
        }
        EACH_CELL(job, step->reads[i], cell) {
            if (keep && users[cell].writer != NONE)
                waits(&message->ready, &kept.ready_cause[m], cells[cell].written, CAUSE(users[cell].writer, BY_WRITE));
            else if (cells[cell].written > message->ready)
                message->ready = cells[cell].written;
        }
    }
    for (int64_t m = 0; m < made; m++) {
        AloneMessage *message = &messages[m];
        int32_t route = step->route[step->lead[m]];
        int64_t hop = routes->first_hop[route], end = routes->first_hop[route + 1];
        int64_t src = rows->src[first + step->lead[m]], left = hop + routes->leaving[route];
        double start = message->ready;
        if (routes->charge && routes->cost[route].send_busy > 0) {
            Queue *sender = &alone->sender[src];
            int64_t peer = rows->dst[first + step->lead[m]];
            int turned = sender->stamp == step->stamp && peer_is_before(src, peer, sender->peer);
            if (turned && start <= sender->begin * (1 + SAME_MOMENT)) return 0;
            if (turned && start > sender->idle_until) sender->idle_until = start; /* nor may those after it come before */
            sender->stamp = step->stamp;
            sender->peer = peer;
            if (keep && sender->free_at > start) kept.ready_cause[m] = CAUSE(sender->last, BY_SENDER);
            if (!take_up(sender, &start, routes->cost[route].send, routes->cost[route].send_busy, 1)) return 0;
            sender->last = base + (int32_t)m;
        }
        if (keep) {
            kept.start[m] = job->start;
            waits(&kept.start[m], &kept.start_cause[m], start, kept.ready_cause[m]);
        }
        double out = start;
        if (hop < end) {
            for (int64_t h = hop; h < left; h++) {
                int64_t port = port_of(core, src, routes->hop_link[h]);
                if (alone->port_stamp[port] != step->stamp) {
                    alone->port_stamp[port] = step->stamp;
                    alone->port_before[port] = alone->port_out[port];
                    if (keep) alone->port_last_before[port] = alone->port_last[port];
                }
                if (alone->port_before[port] > start) start = alone->port_before[port];
                if (keep && alone->port_last_before[port] != NONE)
                    waits(&kept.start[m], &kept.start_cause[m], alone->port_before[port],
                          CAUSE(alone->port_last_before[port], BY_OUT));
            }
            out = start;
            if (message->bytes > 0) {
                out = start + message->bytes / routes->alone[route];
                for (int64_t h = hop; h < end; h++) {
                    int32_t link = routes->hop_link[h];
                    if (alone->busy_until[link] > start * (1 + SAME_MOMENT)) return 0;
                    alone->busy_until[link] = out;
                    core->link_bytes[link] += message->bytes * routes->hop_share[h];
                    core->link_busy[link] += out - start;
                }
            }
            for (int64_t h = hop; h < left; h++) {
                int64_t port = port_of(core, src, routes->hop_link[h]);
                /* Messages are numbered upwards, so of several that are out at once the last is the highest. */
                if (keep && out >= alone->port_out[port]) alone->port_last[port] = base + (int32_t)m;
                if (out > alone->port_out[port]) alone->port_out[port] = out;
            }
        }
        message->ready = out;
        message->time = out + routes->latency[route];
        if (keep) {
            int64_t row = first + step->lead[m];
            kept.bytes[m] = message->bytes;
            kept.out[m] = out;
            kept.arrived[m] = kept.written[m] = message->time;
            kept.step[m] = (int32_t)rows->step[row];
            kept.src[m] = (int32_t)src;
            kept.dst[m] = (int32_t)rows->dst[row];
            kept.route[m] = route;
            kept.bottleneck[m] = message->bytes > 0 ? routes->narrow[route] : NONE;
        }
        if (out > alone->rank_finish[src]) alone->rank_finish[src] = out;
    }
    for (int64_t i = 0; i < width; i++) {
        int64_t m = message_in_step(rows, first, i);
        double out = messages[m].ready;
        EACH_CELL(job, step->reads[i], cell) {
            if (keep && (users[cell].reader == NONE || out >= cells[cell].read)) {
                int32_t id = base + (int32_t)m;
                if (out > cells[cell].read || id > users[cell].reader) users[cell].reader = id;
            }
            if (cells[cell].read < out) cells[cell].read = out;
        }
    }
    /* Writes, in order of src. Where a message has several rows they must all be looked at before any is written. */
    for (int64_t at = 0; at < made; at++) {
        int32_t m = step->order[at];
        AloneMessage *message = &messages[m];
        if (at + ahead < made) {
            int64_t later = step->writes[step->lead[step->order[at + ahead]]].first;
            __builtin_prefetch(&cells[later], 1);
            if (keep) __builtin_prefetch(&users[later], 1);
        }
        int64_t dst = rows->dst[first + step->lead[m]];
        double time = message->time;
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t i = step->lead[m]; i != NONE; i = step->next[i]) {
                EACH_CELL(job, step->writes[i], cell) {
                    if (pass) {
                        cells[cell].written = time;
                        if (keep) {
                            cells[cell].read = 0;
                            users[cell] = (CellUsers){base + m, NONE};
                        }
                        continue;
                    }
                    if (cells[cell].read > time) time = cells[cell].read;
                    if (cells[cell].written > time) time = cells[cell].written;
                    if (keep && users[cell].reader != NONE)
                        waits_to_be_written(&kept.written[m], &kept.write_cause[m], cells[cell].read,
                                            CAUSE(users[cell].reader, BY_OUT));
                    if (keep && users[cell].writer != NONE)
                        waits_to_be_written(&kept.written[m], &kept.write_cause[m], cells[cell].written,
                                            CAUSE(users[cell].writer, BY_WRITE));
                }
            }
            if (!pass && (routes->charge || (message->reduced > 0 && job->gamma[dst] > 0))) {
                const Cost *cost = &routes->cost[step->route[step->lead[m]]];
                Queue *receiver = &alone->receiver[dst];
                double takes = cost->receive + message->reduced * job->gamma[dst];
                if (takes > 0 || cost->receive_busy > 0) {
                    if (keep && receiver->free_at > time) kept.write_cause[m] = CAUSE(receiver->last, BY_WRITE);
                    if (!take_up(receiver, &time, takes, cost->receive_busy, 0)) return 0;
                    receiver->last = base + m;
                }
            }
        }
        if (keep) kept.written[m] = time;
        if (time > alone->rank_finish[dst]) alone->rank_finish[dst] = time;
    }
    if (keep) core->kept.count += made;
    return 1;
}

static PyObject *core_alone(Core *core, PyObject *args) {
    /* Take some whole steps; false when two messages would have to share something. */
    Rows rows;
    int answer = -1;
    if (!read_rows(core, args, &rows) && (core->stage == ALONE || !refuse("the job is not ready for an alone pass"))) {
        answer = 1;
        AloneMessage *messages = NULL;
        int64_t room = 0;
        for (int64_t first = 0, last; first < rows.rows && answer == 1; first = last) {
            for (last = first + 1; last < rows.rows && rows.step[last] == rows.step[first];) last++;
            answer = grow((void **)&messages, &room, last - first, sizeof(AloneMessage)) ? -1
                     : core->alone.keep ? alone_step(core, &rows, first, last, messages, 1)
                                        : alone_step(core, &rows, first, last, messages, 0);
        }
        free(messages);
    }
    release(rows.in, 9);
    return answer < 0 ? NULL : PyBool_FromLong(answer);
}

static void free_alone(Alone *alone) {
    FREE_ALL(alone->cells, alone->busy_until, alone->port_out, alone->port_before, alone->sender, alone->receiver,
             alone->rank_finish, alone->port_stamp, alone->users, alone->port_last, alone->port_last_before);
}

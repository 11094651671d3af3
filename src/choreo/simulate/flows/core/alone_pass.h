/* The alone pass: one pass over the rows in order of steps, as long as no two messages are on a link, or in a rank's reduction,
 * at the same time. It gives up when they are. */

/* Make room for what is known of each cell, port and link. */
static int ready_alone(Core *core) {
    Alone *alone = &core->alone;
    Job *job = &core->job;
    int64_t links = core->num_links + 1, ports = core->num_links * job->layers + 1;
    alone->cells = zeroed((size_t)job->num_cells, sizeof(AloneCell));
    free(alone->busy_until); free(alone->port_out); free(alone->port_before); free(alone->port_stamp);
    free(alone->engine_free); free(alone->rank_finish);
    alone->busy_until = calloc((size_t)links, 8);
    alone->port_out = calloc((size_t)ports, 8);
    alone->port_before = calloc((size_t)ports, 8);
    alone->port_stamp = calloc((size_t)ports, 8);
    alone->engine_free = calloc((size_t)job->ranks + 1, 8);
    alone->rank_finish = calloc((size_t)job->ranks + 1, 8);
    if (!alone->cells || !alone->busy_until || !alone->port_out || !alone->port_before || !alone->port_stamp ||
        !alone->engine_free || !alone->rank_finish) {
        PyErr_NoMemory();
        return -1;
    }
    memset(core->link_bytes, 0, (size_t)links * 8);
    memset(core->link_busy, 0, (size_t)links * 8);
    return 0;
}

typedef struct { double ready, bytes, reduced, time; } AloneMessage;

static int alone_step(Core *core, const Rows *rows, int64_t first, int64_t last, AloneMessage *messages) {
    Alone *alone = &core->alone;
    Step *step = &core->step;
    Job *job = &core->job;
    Routes *routes = &core->routes;
    int64_t made = look_up_step(core, rows, first, last), width = last - first;
    if (made < 0) return -1;
    AloneCell *cells = alone->cells;
    const int64_t ahead = 16;
    for (int64_t m = 0; m < made; m++) messages[m] = (AloneMessage){0.0, 0.0, 0.0, 0.0};
    for (int64_t i = 0; i < width; i++) {
        int64_t row = first + i;
        AloneMessage *message = &messages[message_in_step(rows, first, i)];
        double bytes = (double)rows->weight[row] * job->unit;
        message->bytes += bytes;
        if (rows->reduce[row]) message->reduced += bytes;
        if (i + ahead < width) __builtin_prefetch(&cells[step->reads[i + ahead].first], 1);
        EACH_CELL(job, step->reads[i], cell)
            if (cells[cell].written > message->ready) message->ready = cells[cell].written;
    }
    for (int64_t m = 0; m < made; m++) {
        AloneMessage *message = &messages[m];
        int32_t route = step->route[step->lead[m]];
        int64_t hop = routes->first_hop[route], end = routes->first_hop[route + 1];
        int64_t src = rows->src[first + step->lead[m]], left = hop + routes->leaving[route];
        double start = message->ready, out = start;
        if (hop < end) {
            for (int64_t h = hop; h < left; h++) {
                int64_t port = port_of(core, src, routes->hop_link[h]);
                if (alone->port_stamp[port] != step->stamp) {
                    alone->port_stamp[port] = step->stamp;
                    alone->port_before[port] = alone->port_out[port];
                }
                if (alone->port_before[port] > start) start = alone->port_before[port];
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
                if (out > alone->port_out[port]) alone->port_out[port] = out;
            }
        }
        message->ready = out;
        message->time = out + routes->latency[route];
        if (out > alone->rank_finish[src]) alone->rank_finish[src] = out;
    }
    for (int64_t i = 0; i < width; i++) {
        double out = messages[message_in_step(rows, first, i)].ready;
        EACH_CELL(job, step->reads[i], cell)
            if (cells[cell].read < out) cells[cell].read = out;
    }
    /* Writes, in order of src. Where a message has several rows they must all be looked at before any is written. */
    for (int64_t at = 0; at < made; at++) {
        int32_t m = step->order[at];
        AloneMessage *message = &messages[m];
        if (at + ahead < made)
            __builtin_prefetch(&cells[step->writes[step->lead[step->order[at + ahead]]].first], 1);
        int64_t dst = rows->dst[first + step->lead[m]];
        double time = message->time;
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t i = step->lead[m]; i != NONE; i = step->next[i]) {
                EACH_CELL(job, step->writes[i], cell) {
                    if (pass) { cells[cell].written = time; continue; }
                    if (cells[cell].read > time) time = cells[cell].read;
                    if (cells[cell].written > time) time = cells[cell].written;
                }
            }
            if (!pass && message->reduced > 0 && job->gamma[dst] > 0) {
                if (alone->engine_free[dst] > time * (1 + SAME_MOMENT)) return 0;
                time += message->reduced * job->gamma[dst];
                alone->engine_free[dst] = time;
            }
        }
        if (time > alone->rank_finish[dst]) alone->rank_finish[dst] = time;
    }
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
                     : alone_step(core, &rows, first, last, messages);
        }
        free(messages);
    }
    release(rows.in, 9);
    return answer < 0 ? NULL : PyBool_FromLong(answer);
}

static void free_alone(Alone *alone) {
    FREE_ALL(alone->cells, alone->busy_until, alone->port_out, alone->port_before, alone->engine_free, alone->rank_finish,
             alone->port_stamp);
}

/* Messages as columns, some whole steps at a time, with those that each waits for. The packet simulator reads them. Only the
 * last writer and readers of each cell are kept here, so a schedule need not be held whole. */

static const Field GRAPH_FIELDS[] = {
    {"bytes", offsetof(Message, bytes), 8},   {"reduce_s", offsetof(Message, reduce_s), 8},
    {"start", offsetof(Message, start), 8},   {"step", offsetof(Message, step), 4},
    {"src", offsetof(Message, src), 4},       {"dst", offsetof(Message, dst), 4},
    {"engine", offsetof(Message, engine), 4}, {"route", offsetof(Message, route), 4},
    {"reduces", offsetof(Message, reduces), 4},
};

/* Message `at` of these columns waits for another, whose number counts through all columns. */
static int add_wait(Waits *waits, int64_t at, int32_t other) {
    uint64_t wait = (uint64_t)at << 32 | (uint32_t)other;
    if (waits->all_count && waits->all[waits->all_count - 1] == wait) return 0;
    return PUSH(waits, all, wait);
}

static int by_wait(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int by_key(const void *a, const void *b) {
    uint64_t x = ((const Ordered *)a)->key, y = ((const Ordered *)b)->key;
    return (x > y) - (x < y);
}

/* Sort what a step's messages wait for, each once. Most are in order already. */
static void sort_waits(Waits *waits, int64_t first) {
    int64_t sorted = first + 1, kept = first;
    while (sorted < waits->all_count && waits->all[sorted - 1] < waits->all[sorted]) sorted++;
    if (sorted >= waits->all_count) return;
    qsort(waits->all + first, (size_t)(waits->all_count - first), 8, by_wait);
    for (int64_t i = first; i < waits->all_count; i++)
        if (kept == first || waits->all[kept - 1] != waits->all[i]) waits->all[kept++] = waits->all[i];
    waits->all_count = kept;
}

static int graph_reads(Core *core, Range range, int64_t at, int32_t id) {
    Shared *shared = &core->shared;
    EACH_CELL(&core->job, range, cell) {
        SharedCell *known = &shared->cells[cell];
        if (known->writer != NONE && add_wait(&shared->waits[TO_SEND], at, known->writer)) return -1;
        Reader reader = {id, known->readers};
        if (shared->free_reader != NONE) {
            known->readers = shared->free_reader;
            shared->free_reader = shared->readers[known->readers].next;
            shared->readers[known->readers] = reader;
            continue;
        }
        if (shared->readers_count >= INT32_MAX) { PyErr_NoMemory(); return -1; }
        known->readers = (int32_t)shared->readers_count;
        if (PUSH(shared, readers, reader)) return -1;
    }
    return 0;
}

static int graph_writes(Core *core, Range range, int64_t at, int32_t id) {
    Shared *shared = &core->shared;
    EACH_CELL(&core->job, range, cell) {
        SharedCell *known = &shared->cells[cell];
        if (known->writer != NONE && known->writer != id && add_wait(&shared->waits[TO_WRITE], at, known->writer)) return -1;
        while (known->readers != NONE) {
            int32_t read = known->readers;
            if (add_wait(&shared->waits[TO_OVERWRITE], at, shared->readers[read].message)) return -1;
            known->readers = shared->readers[read].next;
            shared->readers[read].next = shared->free_reader;
            shared->free_reader = read;
        }
        known->writer = id;
    }
    return 0;
}

/* Number the messages of a step by sender, and of each sender's, the one to the next rank after it first, around the end: so
 * who is first does not depend on the order of rows. `place` says where each is then. */
static int number_step(Core *core, const Rows *rows, int64_t first, int64_t made) {
    Shared *shared = &core->shared;
    if (ROOM(shared, sorted, made) || ROOM(shared, place, made)) return -1;
    int in_order = 1;
    for (int64_t m = 0; m < made; m++) {
        uint64_t src = (uint64_t)rows->src[first + core->step.lead[m]], dst = (uint64_t)rows->dst[first + core->step.lead[m]];
        shared->sorted[m] = (Ordered){src << 32 | (dst < src ? 1ULL << 31 : 0) | dst, (int32_t)m};
        in_order &= m == 0 || shared->sorted[m - 1].key < shared->sorted[m].key;
    }
    if (!in_order) qsort(shared->sorted, (size_t)made, sizeof(Ordered), by_key);
    for (int64_t at = 0; at < made; at++) shared->place[shared->sorted[at].message] = (int32_t)at;
    return 0;
}

static int graph_step(Core *core, const Rows *rows, int64_t first, int64_t last) {
    Shared *shared = &core->shared;
    Step *step = &core->step;
    Job *job = &core->job;
    int64_t made = look_up_step(core, rows, first, last), base = shared->messages_count, begins[NUM_WAITS];
    if (made < 0 || ROOM(shared, messages, base + made) || number_step(core, rows, first, made)) return -1;
    if (shared->told + base + made >= 1 << 29) { PyErr_NoMemory(); return -1; }
    for (int kind = 0; kind < NUM_WAITS; kind++) begins[kind] = shared->waits[kind].all_count;
    shared->messages_count += made;
    for (int64_t m = 0; m < made; m++) {
        Message *message = &shared->messages[base + shared->place[m]];
        new_message(core, message, rows, first + step->lead[m], step->route[step->lead[m]]);
        if (core->routes.charge) message->reduce_s = core->routes.cost[message->route].receive;
    }
    for (int64_t i = 0; i < last - first; i++) {
        int64_t row = first + i, at = base + shared->place[message_in_step(rows, first, i)];
        double bytes = (double)rows->weight[row] * job->unit;
        shared->messages[at].bytes += bytes;
        if (rows->reduce[row]) {
            shared->messages[at].reduces = 1;
            shared->messages[at].reduce_s += bytes * job->gamma[rows->dst[row]];
        }
        if (graph_reads(core, step->reads[i], at, (int32_t)(shared->told + at))) return -1;
    }
    for (int64_t turn = 0; turn < made; turn++) {
        int64_t at = base + shared->place[step->order[turn]];
        for (int64_t i = step->lead[step->order[turn]]; i != NONE; i = step->next[i])
            if (graph_writes(core, step->writes[i], at, (int32_t)(shared->told + at))) return -1;
    }
    for (int kind = 0; kind < NUM_WAITS; kind++) sort_waits(&shared->waits[kind], begins[kind]);
    return 0;
}

/* Where the list of each message begins in one column, and all lists in another. */
static PyObject *lists_of(const Waits *waits, int64_t count) {
    PyObject *from = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count + 1) * 8);
    PyObject *others = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)waits->all_count * 8);
    if (from && others) {
        int64_t *begins = (int64_t *)PyBytes_AS_STRING(from), *into = (int64_t *)PyBytes_AS_STRING(others), made = 0;
        for (int64_t at = 0; at <= count; at++) {
            for (; made < waits->all_count && (int64_t)(waits->all[made] >> 32) < at; made++)
                into[made] = (uint32_t)waits->all[made];
            begins[at] = made;
        }
    }
    return Py_BuildValue("NN", from, others);
}

/* The messages of some whole steps, and for each what must be written before it is sent, what must be written before it is,
 * and what must have been read before it is written. */
static PyObject *core_graph(Core *core, PyObject *args) {
    Shared *shared = &core->shared;
    Rows rows;
    if (shared->messages_count) { refuse("some steps were gathered for a run here"); return NULL; }
    for (int kind = 0; kind < NUM_WAITS; kind++) shared->waits[kind].all_count = 0;
    int bad = read_rows(core, args, &rows) || each_step(core, &rows, graph_step);
    release(rows.in, 9);
    if (bad) { shared->messages_count = 0; return NULL; }
    int64_t count = shared->messages_count;
    PyObject *columns = columns_of(shared, GRAPH_FIELDS, (int)(sizeof(GRAPH_FIELDS) / sizeof(*GRAPH_FIELDS)));
    shared->told += count;
    shared->messages_count = 0;
    return Py_BuildValue("NNNN", columns, lists_of(&shared->waits[TO_SEND], count), lists_of(&shared->waits[TO_WRITE], count),
                         lists_of(&shared->waits[TO_OVERWRITE], count));
}

/* ---- how far ahead a message can be sent ---- */

/* Here a cell's writer is the step that wrote it. */
static int reach_step(Core *core, const Rows *rows, int64_t first, int64_t last) {
    Shared *shared = &core->shared;
    Step *step = &core->step;
    int64_t made = look_up_step(core, rows, first, last), ranks = core->job.ranks;
    if (made < 0 || ROOM(shared, reach, made) || ROOM(shared, sent, core->routes.key_count + ranks)) return -1;
    while (shared->sent_count < core->routes.key_count + ranks) shared->sent[shared->sent_count++] = NONE;
#define SENT(m) (shared->one_port ? rows->src[first + step->lead[m]] : ranks + step->route[step->lead[m]])
    for (int64_t m = 0; m < made; m++) shared->reach[m] = shared->in_port_order ? shared->sent[SENT(m)] : NONE;
    for (int64_t i = 0; i < last - first; i++) {
        int32_t *reach = &shared->reach[message_in_step(rows, first, i)];
        EACH_CELL(&core->job, step->reads[i], cell)
            if (shared->cells[cell].writer > *reach) *reach = shared->cells[cell].writer;
    }
    int32_t now = (int32_t)rows->step[first];
    for (int64_t i = 0; i < last - first; i++)
        EACH_CELL(&core->job, step->writes[i], cell) shared->cells[cell].writer = now;
    for (int64_t m = 0; m < made; m++) {
        shared->sent[SENT(m)] = now;
        if (shared->reach[m] < shared->least_reach) shared->least_reach = shared->reach[m];
    }
#undef SENT
    shared->told += made;
    return 0;
}

/* How many messages some whole steps have, and a step of which one must have started before any of them can: -1 is none. What
 * counts is who wrote what they read, and, if asked, that a port sends in order of steps: one port a rank, or one a peer. */
static PyObject *core_reach(Core *core, PyObject *args) {
    Shared *shared = &core->shared;
    PyObject *columns;
    Rows rows;
    if (!PyArg_ParseTuple(args, "O!pp", &PyTuple_Type, &columns, &shared->in_port_order, &shared->one_port)) return NULL;
    shared->told = 0;
    shared->least_reach = INT32_MAX;
    int bad = read_rows(core, columns, &rows) || each_step(core, &rows, reach_step);
    release(rows.in, 9);
    return bad ? NULL : Py_BuildValue("Li", (long long)shared->told, shared->least_reach);
}

/* The rows of a step, grouped into messages: the rows of one step between the same two ranks are one message. */

typedef struct {
    int64_t *step, *src, *dst, *chunk, *count, *weight;
    uint8_t *reduce, *from_input;
    Py_ssize_t rows;
    Column in[8];
} Rows;

static int read_rows(const Core *core, PyObject *args, Rows *rows) {
    PyObject *o[8];
    memset(rows, 0, sizeof(*rows));
    rows->rows = -1;
    if (!PyArg_ParseTuple(args, "OOOOOOOO", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5], &o[6], &o[7])) return -1;
    int64_t **numbers[6] = {&rows->step, &rows->src, &rows->dst, &rows->chunk, &rows->count, &rows->weight};
    for (int i = 0; i < 6; i++)
        if (!(*numbers[i] = column(o[i], &rows->in[i], INT64, &rows->rows))) return -1;
    uint8_t **flags[2] = {&rows->reduce, &rows->from_input};
    for (int i = 0; i < 2; i++)
        if (!(*flags[i] = column(o[6 + i], &rows->in[6 + i], FLAG, &rows->rows))) return -1;
    return inside(core, rows->src, rows->dst, rows->rows) || in_vector(core, rows->chunk, rows->count, rows->rows);
}

/* Put the rows first..last - 1 of one step together to messages, one for each two ends: `row_message[i]` is row i's,
 * `row_lead[m]` the first row of message m, `row_next[i]` the next row of row i's message, and `row_order` the messages
 * in order of src. `row_reads` and `row_writes` are the rows' cells; an input is none. Returns how many there are. */
static int64_t group_rows(Core *core, const Rows *rows, int64_t first, int64_t last) {
    Step *step = &core->step;
    Job *job = &core->job;
    Routes *routes = &core->routes;
    int64_t width = last - first, made = 0;
    if (ROOM(step, message, width) || ROOM(step, lead, width) || ROOM(step, order, width) ||
        ROOM(step, tail, width) || ROOM(step, next, width) || ROOM(step, other, width) ||
        ROOM(step, reads, width) || ROOM(step, writes, width))
        return -1;
    if (step->route_count < width) {
        if (ROOM(step, route, width)) return -1;
        while (step->route_count < width) step->route[step->route_count++] = NONE;
    }
    const int64_t ahead = 16;
    for (int64_t i = 0; i < width; i++) {
        int64_t row = first + i;
        if (job->cuts && i + ahead < width) {
            int64_t low = rows->chunk[row + ahead], high = low + rows->count[row + ahead];
            const Word *src = &job->cuts[rows->src[row + ahead] * job->words];
            const Word *dst = &job->cuts[rows->dst[row + ahead] * job->words];
            __builtin_prefetch(src + (low >> 6));
            __builtin_prefetch(src + (high >> 6));
            __builtin_prefetch(dst + (low >> 6));
            __builtin_prefetch(dst + (high >> 6));
        }
        step->reads[i] = range_of(core, rows->src[row], rows->chunk[row], rows->count[row]);
        step->writes[i] = range_of(core, rows->dst[row], rows->chunk[row], rows->count[row]);
        if (rows->from_input[row]) step->reads[i].count = 0;
    }
    step->stamp++;
    int sorted = 1;
    int64_t before = -1;
    for (int64_t i = 0; i < width; i++) {
        int64_t row = first + i, key = job->place[rows->src[row]] * routes->num_nodes + job->place[rows->dst[row]];
        /* The same row of the step before usually went the same way. */
        int32_t route = step->route[i];
        if (route == NONE || routes->key[route] != key) step->route[i] = route = find_route(core, key);
        if (route == NONE) { PyErr_SetString(PyExc_ValueError, "a row has no route"); return -1; }
        int32_t message = routes->stamp[route] == step->stamp ? routes->message[route] : NONE, other = message;
        /* Of several switches of a schedule at one node each has messages of its own on the same route. */
        while (message != NONE && (rows->src[first + step->lead[message]] != rows->src[row] ||
                                   rows->dst[first + step->lead[message]] != rows->dst[row]))
            message = step->other[message];
        if (message == NONE) {
            message = (int32_t)made;
            routes->stamp[route] = step->stamp;
            routes->message[route] = message;
            step->other[made] = other;
            step->lead[made] = (int32_t)i;
            step->order[made] = (int32_t)made;
            step->tail[made] = (int32_t)i;
            sorted &= rows->src[row] >= before;
            before = rows->src[row];
            made++;
        }
        step->message[i] = message;
        step->next[i] = NONE;
        if (step->tail[message] != i) {
            step->next[step->tail[message]] = (int32_t)i;
            step->tail[message] = (int32_t)i;
        }
    }
    if (!sorted) { /* by src; a counting sort keeps the order of equal ones */
        int64_t *starts = calloc((size_t)job->ranks + 1, 8);
        if (!starts) { PyErr_NoMemory(); return -1; }
        for (int64_t m = 0; m < made; m++) starts[rows->src[first + step->lead[m]] + 1]++;
        for (int64_t rank = 0; rank < job->ranks; rank++) starts[rank + 1] += starts[rank];
        for (int64_t m = 0; m < made; m++) step->order[starts[rows->src[first + step->lead[m]]]++] = (int32_t)m;
        free(starts);
    }
    return made;
}

static void free_step(Step *step) {
    FREE_ALL(step->message, step->route, step->order, step->lead, step->tail, step->next, step->other, step->reads,
             step->writes);
}

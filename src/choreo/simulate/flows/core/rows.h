/* The rows of some whole steps, and the lookups of both passes about one step. */

typedef struct {
    int64_t *step, *src, *dst, *chunk, *count, *weight;
    int64_t *message; /* the number of each row's message; see schedule/messages.py */
    uint8_t *reduce, *from_input;
    Py_ssize_t rows;
    Column in[9];
} Rows;

static int read_rows(const Core *core, PyObject *args, Rows *rows) {
    PyObject *o[9];
    memset(rows, 0, sizeof(*rows));
    rows->rows = -1;
    if (!PyArg_ParseTuple(args, "OOOOOOOOO", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5], &o[6], &o[7], &o[8])) return -1;
    int64_t **numbers[7] = {&rows->step,  &rows->src,    &rows->dst,    &rows->chunk,
                            &rows->count, &rows->weight, &rows->message};
    for (int i = 0; i < 7; i++)
        if (!(*numbers[i] = column(o[i], &rows->in[i], INT64, &rows->rows))) return -1;
    uint8_t **flags[2] = {&rows->reduce, &rows->from_input};
    for (int i = 0; i < 2; i++)
        if (!(*flags[i] = column(o[7 + i], &rows->in[7 + i], FLAG, &rows->rows))) return -1;
    return inside(core, rows->src, rows->dst, rows->rows) || in_vector(core, rows->chunk, rows->count, rows->rows);
}

/* Of what a rank sends in one step to two peers, the one to the next rank after it, around the end, goes first. */
static inline int peer_is_before(int64_t src, int64_t one, int64_t other) {
    return (one < src) != (other < src) ? one > src : one < other;
}

/* The message of row i of the step that begins with row `first`. */
static inline int64_t message_in_step(const Rows *rows, int64_t first, int64_t i) {
    return (int64_t)((uint64_t)rows->message[first + i] - (uint64_t)rows->message[first]);
}

/* Look up the rows first..last - 1, which are one step. Its messages are numbered from 0 in the order of their first rows.
 * `reads` and `writes` are the rows' cells (an input is none). `next[i]` is the next row of row i's message. `lead[m]` is
 * the first row of message m, and `route[lead[m]]` its route. `order` has the messages by src. Returns their number. */
static int64_t look_up_step(Core *core, const Rows *rows, int64_t first, int64_t last) {
    Step *step = &core->step;
    Job *job = &core->job;
    Routes *routes = &core->routes;
    int64_t width = last - first, made = 0;
    if (ROOM(step, lead, width) || ROOM(step, order, width) || ROOM(step, tail, width) || ROOM(step, next, width) ||
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
        int64_t row = first + i, src = rows->src[row], dst = rows->dst[row], message = message_in_step(rows, first, i);
        step->next[i] = NONE;
        if (message < 0 || message > made) return refuse("the messages are not numbered in the order of their rows");
        if (message < made) {
            int64_t lead = first + step->lead[message];
            if (rows->src[lead] != src || rows->dst[lead] != dst) return refuse("a message has more than two ends");
            step->next[step->tail[message]] = (int32_t)i;
            step->tail[message] = (int32_t)i;
            continue;
        }
        int64_t key = job->place[src] * routes->num_nodes + job->place[dst];
        /* The same row of the step before usually went the same way. */
        int32_t route = step->route[i];
        if (route == NONE || routes->key[route] != key) step->route[i] = route = find_route(core, key);
        if (route == NONE) return refuse("a row has no route");
        step->lead[made] = step->tail[made] = (int32_t)i;
        step->order[made] = (int32_t)made;
        sorted &= src >= before;
        before = src;
        made++;
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
    FREE_ALL(step->route, step->order, step->lead, step->tail, step->next, step->reads, step->writes);
}

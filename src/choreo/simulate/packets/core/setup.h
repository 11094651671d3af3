/* Building the state of a simulation from columns. */

/* A column of the dictionary as 64-bit numbers or doubles; they are borrowed from `in`, which is released at the end. */
typedef struct { PyObject *columns; Column in[48]; int held; int bad; } Given;

static void *given(Given *from, const char *name, Kind kind, Py_ssize_t *count) {
    if (from->bad) return NULL;
    PyObject *object = PyDict_GetItemString(from->columns, name);
    if (!object) {
        PyErr_Format(PyExc_ValueError, "the column %s is missing", name);
        from->bad = 1;
        return NULL;
    }
    void *values = column(object, &from->in[from->held++], kind, count);
    if (!values) from->bad = 1;
    return values;
}

/* Whether all numbers are from `least` to below `most`. */
static void inside(Given *from, const int64_t *values, Py_ssize_t count, int64_t least, int64_t most) {
    for (Py_ssize_t i = 0; !from->bad && i < count; i++)
        if (values[i] < least || values[i] >= most) from->bad = refuse("a column has a number that is out of range") != 0;
}

static int32_t *narrow(Given *from, const int64_t *values, Py_ssize_t count) {
    int32_t *own = from->bad ? NULL : malloc((size_t)(count + 1) * 4);
    if (own) for (Py_ssize_t i = 0; i < count; i++) own[i] = (int32_t)values[i];
    else if (!from->bad) { PyErr_NoMemory(); from->bad = 1; }
    return own;
}

static void *made(Given *from, int64_t count, size_t size) {
    void *memory = from->bad ? NULL : zeroed((size_t)count + 1, size);
    if (!memory && !from->bad) { PyErr_NoMemory(); from->bad = 1; }
    return memory;
}

static void make_links(Core *core, Given *from) {
    Py_ssize_t count = -1;
    int64_t *src = given(from, "link_src", INT64, &count), *dst = given(from, "link_dst", INT64, &count);
    int64_t *latency = given(from, "link_latency", INT64, &count);
    double *ps_per_byte = given(from, "link_ps_per_byte", FLOAT64, &count);
    double *mark_from = given(from, "link_mark_from", FLOAT64, &count), *mark_all = given(from, "link_mark_all", FLOAT64, &count);
    inside(from, src, count, 0, core->set.nodes);
    inside(from, dst, count, 0, core->set.nodes);
    inside(from, latency, count, 0, INT64_MAX / 8);
    core->links = made(from, count, sizeof(Link));
    core->node_used = made(from, core->set.nodes, 8);
    core->node_peak = made(from, core->set.nodes, 8);
    if (from->bad) return;
    core->num_links = count;
    for (Py_ssize_t i = 0; i < count; i++) {
        Link *link = &core->links[i];
        link->src = (int32_t)src[i];
        link->dst = (int32_t)dst[i];
        link->latency = latency[i];
        link->ps_per_byte = ps_per_byte[i];
        link->full_ps = (int64_t)((double)core->set.mtu * ps_per_byte[i] + 0.5);
        link->mark_from = mark_from[i];
        link->mark_all = mark_all[i];
        link->control = link->data = link->wire = link->ring = (Queue){NONE, NONE};
    }
}

static void make_hops(Core *core, Given *from) {
    Py_ssize_t count = -1;
    int64_t *link = given(from, "hop_link", INT64, &count), *next = given(from, "hop_next", INT64, &count);
    int64_t *ways = given(from, "hop_ways", INT64, &count), *until = given(from, "hop_until", INT64, &count);
    if (from->bad) return;
    inside(from, link, count, 0, core->num_links);
    inside(from, next, count, NONE, count);
    inside(from, until, count, 0, (int64_t)1 << 32);
    for (Py_ssize_t i = 0; !from->bad && i < count; i++)
        if (next[i] != NONE && (ways[i] < 1 || ways[i] > count - next[i])) from->bad = refuse("a hop leads nowhere") != 0;
    core->hop_link = narrow(from, link, count);
    core->hop_next = narrow(from, next, count);
    core->hop_ways = narrow(from, ways, count);
    core->hop_until = made(from, count, 4);
    core->num_hops = count;
    for (Py_ssize_t i = 0; !from->bad && i < count; i++) core->hop_until[i] = (uint32_t)until[i];
}

static void make_conns(Core *core, Given *from) {
    Py_ssize_t count = -1, sources = -1;
    int64_t *first = given(from, "conn_source", INT64, &count), *each = given(from, "conn_sources", INT64, &count);
    int64_t *back = given(from, "conn_back", INT64, &count), *ways = given(from, "conn_back_ways", INT64, &count);
    int64_t *window = given(from, "conn_window", INT64, &count), *rtt = given(from, "conn_rtt", INT64, &count);
    int64_t *send = given(from, "conn_send", INT64, &count), *send_busy = given(from, "conn_send_busy", INT64, &count);
    int64_t *receive_busy = given(from, "conn_receive_busy", INT64, &count);
    double *line = given(from, "conn_line", FLOAT64, &count);
    int64_t *at = given(from, "source_at", INT64, &sources);
    if (from->bad) return;
    inside(from, first, count, 0, sources + 1);
    inside(from, back, count, 0, core->num_hops + 1);
    inside(from, window, count, 1, UINT32_MAX);
    inside(from, rtt, count, 1, INT64_MAX >> 20);
    inside(from, at, sources, 0, core->num_hops);
    inside(from, send, count, 0, INT64_MAX / 8);
    inside(from, send_busy, count, 0, INT64_MAX / 8);
    inside(from, receive_busy, count, 0, INT64_MAX / 8);
    for (Py_ssize_t i = 0; !from->bad && i < count; i++)
        if (each[i] < 0 || each[i] > sources - first[i] || ways[i] < 0 || ways[i] > core->num_hops - back[i])
            from->bad = refuse("a connection has ports that are not there") != 0;
    core->conns = made(from, count, sizeof(Conn));
    core->sources = made(from, sources, sizeof(Source));
    core->controls = made(from, core->set.dcqcn ? count : 0, sizeof(Control));
    if (from->bad) return;
    core->num_conns = count;
    for (Py_ssize_t i = 0; i < count; i++) {
        Conn *conn = &core->conns[i];
        conn->first_source = (int32_t)first[i];
        conn->sources = (int32_t)each[i];
        conn->back_at = (int32_t)back[i];
        conn->back_ways = (int32_t)ways[i];
        conn->window = (uint32_t)window[i];
        conn->base_rtt = rtt[i];
        conn->send_ps = send[i];
        conn->send_busy_ps = send_busy[i];
        conn->receive_busy_ps = receive_busy[i];
        conn->sending = conn->unacked_message = conn->receiving = conn->last = NONE;
        for (int64_t source = first[i]; source < first[i] + each[i]; source++)
            core->sources[source] = (Source){(int32_t)i, (int32_t)at[source], NONE, 0};
        if (!core->set.dcqcn) continue;
        core->controls[i].rate = core->controls[i].target = core->controls[i].line = line[i];
        core->controls[i].alpha = 1.0;
    }
}

/* What members do one after another, and their ports. `layer` tells apart the members that share a node: each has its own
 * turns at the ports. */
static void make_members(Core *core, Given *from) {
    Py_ssize_t count = -1;
    int64_t *layer = given(from, "layer", INT64, &count), layers = 1;
    if (from->bad) return;
    inside(from, layer, count, 0, INT32_MAX);
    for (Py_ssize_t i = 0; i < count; i++)
        if (layer[i] >= layers) layers = layer[i] + 1;
    core->layer = narrow(from, layer, count);
    core->senders = made(from, count, sizeof(Engine));
    core->receivers = made(from, count, sizeof(Engine));
    core->finish = made(from, count, 8);
    core->port_group = made(from, core->num_links * layers, 4);
    if (from->bad) return;
    core->num_members = count;
    memset(core->port_group, 0xFF, (size_t)(core->num_links * layers) * 4);
    for (Py_ssize_t i = 0; i < count; i++) core->senders[i] = core->receivers[i] = (Engine){0, NONE, NONE, NONE, 0};
}

static int core_init(Core *core, PyObject *args, PyObject *Py_UNUSED(keywords)) {
    PyObject *columns, *progress;
    if (!PyArg_ParseTuple(args, "O!O", &PyDict_Type, &columns, &progress)) return -1;
    if (core->progress) return refuse("a simulation is made once");
    core->progress = Py_NewRef(progress);
    core->free_packet = core->free_edge = core->free_group = core->last_started = NONE;
    Given from = {.columns = columns};
    Py_ssize_t numbers = 19, figures = 6;
    int64_t *number = given(&from, "numbers", INT64, &numbers);
    double *figure = given(&from, "figures", FLOAT64, &figures);
    if (!from.bad) {
        Settings *set = &core->set;
        int64_t *into[] = {&set->nodes, &set->mtu, &set->buffer, &set->lossless, &set->spray, &set->selective, &set->acks,
                           &set->dcqcn, &set->seed, &set->resume_below, &set->reorder, &set->answer_bytes, &set->alpha_ps,
                           &set->timer_ps, &set->notify_ps, &set->byte_counter, &set->fast_stages, &set->messages, &set->keep};
        for (int i = 0; i < 19; i++) *into[i] = number[i];
        double *of[] = {&set->threshold, &set->mark_most, &set->gain, &set->additive, &set->hyper, &set->least_rate};
        for (int i = 0; i < 6; i++) *of[i] = figure[i];
        if (set->mtu < 1 || set->mtu > INT32_MAX || set->nodes < 1 || set->alpha_ps < 1 || set->timer_ps < 1 || set->buffer < 0 ||
            set->messages < 0 || set->messages >= 1 << 29)
            from.bad = refuse("the settings are out of range") != 0;
    }
    if (!from.bad) make_links(core, &from);
    if (!from.bad) make_hops(core, &from);
    if (!from.bad) make_conns(core, &from);
    if (!from.bad) make_members(core, &from);
    release(from.in, from.held);
    return from.bad ? -1 : 0;
}

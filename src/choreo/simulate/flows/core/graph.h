/* What was gathered, as columns: the messages, what each waits for, and whom it lets go on. The packet simulator reads it. */

static int by_target(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The edges of each message in one column, and where each message's begin in another: first those to messages that may be sent,
 * then, as ~to, those to messages that may be written; each in order of messages. */
static PyObject *edges_of(const Shared *shared, int written) {
    int64_t count = shared->messages_count, total = 0;
    for (int64_t id = 0; id < count; id++) {
        int32_t at = written ? shared->messages[id].written_edges : shared->messages[id].out_edges;
        for (; at != NONE; at = shared->edges[at].next) total++;
    }
    PyObject *from = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count + 1) * 8);
    PyObject *to = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total * 8);
    if (from && to) {
        int64_t *begins = (int64_t *)PyBytes_AS_STRING(from), *targets = (int64_t *)PyBytes_AS_STRING(to), made = 0;
        for (int64_t id = 0; id < count; id++) {
            begins[id] = made;
            int32_t first = written ? shared->messages[id].written_edges : shared->messages[id].out_edges;
            for (int starts = 1; starts >= 0; starts--) {
                int64_t here = made;
                for (int32_t at = first; at != NONE; at = shared->edges[at].next)
                    if ((shared->edges[at].to >= 0) == starts)
                        targets[made++] = starts ? shared->edges[at].to : ~shared->edges[at].to;
                if (made - here > 1) qsort(targets + here, (size_t)(made - here), 8, by_target);
                for (int64_t at = here; written && !starts && at < made; at++) targets[at] = ~targets[at];
            }
        }
        begins[count] = made;
    }
    return Py_BuildValue("NN", from, to);
}

/* Messages without times, and their edges: once they are written, and once they are out. */
static PyObject *core_graph(Core *core, PyObject *Py_UNUSED(ignored)) {
    static const Field fields[] = {
        {"bytes", offsetof(Message, bytes), 8},
        {"reduce_s", offsetof(Message, reduce_s), 8},
        {"start", offsetof(Message, start), 8},
        {"step", offsetof(Message, step), 4},
        {"src", offsetof(Message, src), 4},
        {"dst", offsetof(Message, dst), 4},
        {"engine", offsetof(Message, engine), 4},
        {"route", offsetof(Message, route), 4},
        {"reduces", offsetof(Message, reduces), 4},
        {"need_ready", offsetof(Message, need_ready), 4},
        {"need_write", offsetof(Message, need_write), 4},
    };
    if (core->stage != SHARED) { refuse("nothing was gathered, or it has run"); return NULL; }
    const Shared *shared = &core->shared;
    return Py_BuildValue("NNN", columns_of(shared, fields, (int)(sizeof(fields) / sizeof(*fields))), edges_of(shared, 1),
                         edges_of(shared, 0));
}

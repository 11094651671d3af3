/* Running a shared run up to a time, so that jobs can be added to it. A job may even begin before the time that has been reached,
 * as long as it has met nobody until then: flows that share nothing do not affect each other. */

static PyObject *core_advance(Core *core, PyObject *args) {
    /* Go on until some ranks are done, or nothing more happens until then. Returns when something happens next, and the ranks
     * that are done, counted over all jobs, with their times. */
    Shared *shared = &core->shared;
    double until;
    if (!PyArg_ParseTuple(args, "d", &until)) return NULL;
    if (core->stage != SHARED) { refuse("there is nothing to run, or it has run"); return NULL; }
    if (begin_gathered(core)) return NULL;
    double limit = until + fabs(until) * SAME_MOMENT;
    while (!shared->finished_count && (shared->events_count || shared->flow_heap_count) && next_time(shared) <= limit)
        if (next_moment(core)) return NULL;
    Py_ssize_t count = (Py_ssize_t)shared->finished_count * 8;
    PyObject *ranks = PyBytes_FromStringAndSize(NULL, count), *times = PyBytes_FromStringAndSize(NULL, count);
    for (int64_t at = 0; ranks && times && at < shared->finished_count; at++) {
        ((int64_t *)PyBytes_AS_STRING(ranks))[at] = shared->finished[at];
        ((double *)PyBytes_AS_STRING(times))[at] = shared->engines[shared->finished[at]].done;
    }
    shared->finished_count = 0;
    return Py_BuildValue("dNN", next_time(shared), ranks, times);
}

static PyObject *core_stop(Core *core, PyObject *args) {
    /* Stop all flows. Returns the bytes that are left of each, and the receiving rank, counted over all jobs. */
    Shared *shared = &core->shared;
    double now;
    if (!PyArg_ParseTuple(args, "d", &now)) return NULL;
    if (core->stage != SHARED) { refuse("there is nothing to stop, or it has run"); return NULL; }
    core->stage = RAN;
    if (ready_links(core)) return NULL;
    Py_ssize_t count = (Py_ssize_t)shared->flow_heap_count * 8;
    PyObject *ranks = PyBytes_FromStringAndSize(NULL, count), *left = PyBytes_FromStringAndSize(NULL, count);
    for (int64_t at = 0; ranks && left && at < shared->flow_heap_count; at++) {
        const Slot *slot = &shared->slots[shared->flow_heap[at]];
        ((int64_t *)PyBytes_AS_STRING(ranks))[at] = shared->messages[slot->message].engine;
        ((double *)PyBytes_AS_STRING(left))[at] = fmax(0.0, slot->remaining - slot->rate * (now - slot->since));
    }
    for (int64_t link = 0; link < core->num_links; link++)
        if (shared->flows[link].count) core->link_busy[link] += now - shared->busy_since[link];
    return Py_BuildValue("NN", ranks, left);
}

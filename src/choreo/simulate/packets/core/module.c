/* The packet simulator's inner loops. `twin` is the same in Python, bit for bit: the fallback without a compiler, and the
 * oracle of this code in the tests. docs/explanation/packets.md describes the model; in short:
 *
 *   message     starts, is out, arrives and is written by the same rule as in flows/core. Between start and arrival it is
 *               packets of at most `mtu` bytes on a connection, one for each pair of members.
 *   port        sends one packet at a time: acknowledgements first, then in turn packets that pass through and packets that
 *               begin here. A packet is received whole before it is forwarded.
 *   switch      has one memory for all its queues, with thresholds that fall as it fills. When it is full, a lossy one drops
 *               packets, and a lossless one pauses the link that the packet came by.
 *   connection  retransmits lost packets, and under DCQCN slows down when packets were marked.
 *
 * A packet costs two events a link: its turn at the port, and its arrival. A port and a wire are first in, first out, so each
 * has one event pending, and the heap is as large as the network, not as the traffic.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "../../flows/core/memory.h"
#include "../../flows/core/python_type.h"
#include "../../flows/core/columns.h"
#include "state.h"
#include "events.h"
#include "links.h"
#include "rates.h"
#include "messages.h"
#include "transport.h"
#include "setup.h"
#include "adding.h"

#define NEVER (1LL << 62)

static int do_event(Core *core, uint32_t kind, int32_t id) {
    switch (kind) {
    case ARRIVE: return arrive(core, id);
    case PAUSE: hear_pause(core, &core->links[id]); return 0;
    case RESUME: return hear_resume(core, &core->links[id]);
    case WAKE: core->conns[id].asleep = 0; return awake(core, id);
    case TIMEOUT: return times_out(core, id);
    case READABLE: return is_readable(core, id);
    case START: return start_message(core, id);
    case READY: return is_ready(core, id);
    case PREPARE: return prepare(core, id);
    case TAKE_IN: return take_in(core, id);
    default: return send_next(core, id);
    }
}

static int tell_progress(Core *core) {
    if (PyErr_CheckSignals()) return -1;
    if (core->progress == Py_None) return 0;
    PyObject *heard = PyObject_CallFunction(core->progress, "LL", (long long)core->messages_done, (long long)core->set.messages);
    Py_XDECREF(heard);
    return heard ? 0 : -1;
}

/* Run until a message of some step or of a later one has started, until some time, or until nothing happens any more. When
 * the next event is due, and whether all messages were written. */
static PyObject *core_run(Core *core, PyObject *args) {
    long long step, until;
    if (!PyArg_ParseTuple(args, "LL", &step, &until)) return NULL;
    if (!core->links) { refuse("a simulation runs after it was made"); return NULL; }
    while (core->heap_count && core->heap[0].time <= until && core->messages_done < core->set.messages &&
           core->last_started < step) {
        Event event = next_event(core);
        core->now = event.time;
        if (event.time > INT64_MAX / 4) { refuse("it takes longer than can be counted"); return NULL; }
        if (do_event(core, (uint32_t)(event.key >> 32), (int32_t)(uint32_t)event.key)) return NULL;
        if (!(++core->events_done & 0xFFFF) && tell_progress(core)) return NULL;
    }
    return Py_BuildValue("LN", core->heap_count ? (long long)core->heap[0].time : NEVER,
                         PyBool_FromLong(core->messages_done == core->set.messages));
}

/* ---- results ---- */

#define COLUMN(all, name, count, value)                                                   \
    do {                                                                                  \
        PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count) * 8);       \
        if (!bytes) goto failed;                                                          \
        int64_t *into = (int64_t *)PyBytes_AS_STRING(bytes);                              \
        for (int64_t i = 0; i < (count); i++) into[i] = (value);                          \
        int bad = PyDict_SetItemString(all, name, bytes);                                 \
        Py_DECREF(bytes);                                                                 \
        if (bad) goto failed;                                                             \
    } while (0)

static PyObject *core_found(Core *core, PyObject *Py_UNUSED(ignored)) {
    PyObject *all = PyDict_New();
    if (!all || !core->links) return all;
    const Link *links = core->links;
    const int64_t kept = core->set.keep ? core->added : 0;
    COLUMN(all, "start", kept, MESSAGE(core, i).start);
    COLUMN(all, "out", kept, MESSAGE(core, i).out);
    COLUMN(all, "arrived", kept, MESSAGE(core, i).arrived);
    COLUMN(all, "written", kept, MESSAGE(core, i).written);
    COLUMN(all, "ready_cause", kept, MESSAGE(core, i).ready_cause);
    COLUMN(all, "start_cause", kept, MESSAGE(core, i).start_cause);
    COLUMN(all, "write_cause", kept, MESSAGE(core, i).write_cause);
    COLUMN(all, "bytes", core->num_links, links[i].bytes);
    COLUMN(all, "busy", core->num_links, links[i].busy);
    COLUMN(all, "packets", core->num_links, links[i].packets);
    COLUMN(all, "peak", core->num_links, links[i].peak);
    COLUMN(all, "headroom", core->num_links, links[i].peak_headroom);
    COLUMN(all, "marks", core->num_links, links[i].marks);
    COLUMN(all, "drops", core->num_links, links[i].drops);
    COLUMN(all, "pauses", core->num_links, links[i].pauses);
    COLUMN(all, "paused", core->num_links,
           links[i].paused_ps + (links[i].pauses_held ? core->now - links[i].paused_since : 0));
    COLUMN(all, "held_up", core->num_links, links[i].pauses_held > 0);
    COLUMN(all, "memory", core->set.nodes, core->node_peak[i]);
    COLUMN(all, "finish", core->num_members, core->finish[i]);
    int64_t totals[] = {core->now,     core->events_done,     core->sent,          core->repeated, core->timeouts,
                        core->backs,   core->notified,        core->most_in_flight, core->sent_bytes, core->delivered_bytes,
                        core->dropped_bytes, core->discarded_bytes, core->set.messages - core->messages_done};
    COLUMN(all, "totals", (int64_t)(sizeof(totals) / sizeof(*totals)), totals[i]);
    return all;
failed:
    Py_DECREF(all);
    return NULL;
}

/* The history of one queue: 2 to this power is the length of a part, and the most bytes in each. */
static PyObject *core_history(Core *core, PyObject *args) {
    long long id;
    if (!PyArg_ParseTuple(args, "L", &id)) return NULL;
    if (id < 0 || id >= core->num_links) { refuse("there is no such link"); return NULL; }
    Link *link = &core->links[id];
    if (!link->history) Py_RETURN_NONE;
    if (note_queue(core, link, link->queued)) return NULL;
    return Py_BuildValue("iN", link->shift, PyBytes_FromStringAndSize((const char *)link->history, PARTS * 8));
}

/* Which queues hold packets that came by which links: pairs of the two, in the order of the queues. */
static PyObject *core_waiting(Core *core, PyObject *Py_UNUSED(ignored)) {
    PyObject *pairs = PyList_New(0);
    for (int64_t id = 0; pairs && id < core->num_links; id++)
        for (int32_t at = core->links[id].data.head; at != NONE; at = core->packets[at].next) {
            PyObject *pair = Py_BuildValue("iL", core->packets[at].ingress, (long long)id);
            int bad = !pair || PyList_Append(pairs, pair);
            Py_XDECREF(pair);
            if (bad) { Py_DECREF(pairs); return NULL; }
        }
    return pairs;
}

static void core_dealloc(Core *core) {
    for (int64_t i = 0; core->links && i < core->num_links; i++) free(core->links[i].history);
    for (int64_t i = 0; core->conns && i < core->num_conns; i++)
        FREE_ALL(core->conns[i].arrived.words, core->conns[i].answered.words);
    FREE_ALL(core->links, core->hop_link, core->hop_next, core->hop_ways, core->hop_until, core->conns, core->controls,
             core->sources, core->messages, core->edges, core->groups, core->turns, core->port_group, core->layer,
             core->senders, core->receivers, core->finish, core->heap, core->packets, core->node_used, core->node_peak);
    Py_XDECREF(core->progress);
    PyTypeObject *type = Py_TYPE(core);
    type->tp_free((PyObject *)core);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"add", (PyCFunction)core_add, METH_O, "Add messages."},
    {"run", (PyCFunction)core_run, METH_VARARGS, "Run until a step has started, or until a time; when the next event is due, and whether all messages were written."},
    {"found", (PyCFunction)core_found, METH_NOARGS, "What happened to messages and links, as columns."},
    {"history", (PyCFunction)core_history, METH_VARARGS, "A link's queue over time."},
    {"waiting", (PyCFunction)core_waiting, METH_NOARGS, "Which queues hold packets that came by which links."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, core_init},
    {Py_tp_dealloc, core_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_doc, "The state of one simulation."},
    {0, NULL},
};

static PyType_Spec type_spec = {"choreo.simulate.packets._core.Core", sizeof(Core), 0, Py_TPFLAGS_DEFAULT, type_slots};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_core", "The packet simulator's inner loops.", -1, NULL, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__core(void) { return module_of_type(&module, "Core", &type_spec); }

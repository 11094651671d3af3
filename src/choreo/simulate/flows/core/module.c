/* The inner loops of the network simulator. `twin` is the same in Python: the oracle of this code in the tests, and the fallback
 * without a compiler. docs/explanation/simulation.md describes the model; in short:
 *
 *   message   the rows of one step between the same two ranks. It is sent when what it reads has been written, which takes
 *             its sender's time. It starts when the messages of earlier steps at its ports (the links by which it leaves
 *             its sender) are out too. It is out when its last byte has left, and arrives a latency later. It is written when
 *             nobody has still to read the places it writes, in order of (step, src) among those that write them, and after
 *             its receiver has taken it in and reduced it.
 *   alone     one pass over the rows in order of steps, as long as no two messages share anything.
 *   shared    an event loop over all messages at once, with max-min fair rates on the links.
 *
 * The headers below are parts of this one translation unit, so that the compiler can inline across them.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "memory.h"
#include "python_type.h"
#include "state.h"
#include "columns.h"
#include "job.h"
#include "routes.h"
#include "rows.h"
#include "kept.h"
#include "alone_pass.h"
#include "dependencies.h"
#include "heaps.h"
#include "fair_shares.h"
#include "event_loop.h"
#include "advance.h"

static PyObject *core_ready(Core *core, PyObject *args) {
    /* Number the cells and make room for what is known of each: for an alone pass, which may keep the messages of its
     * steps, so many of them, or for a shared one, which does. */
    int alone;
    long long keep = 0;
    if (!PyArg_ParseTuple(args, "p|L", &alone, &keep)) return NULL;
    if (core->stage != BEGUN) { refuse("a job must have begun"); return NULL; }
    core->stage = NEW;
    number_cells(core);
    free(core->alone.cells);
    free(core->shared.cells);
    core->alone.cells = NULL;
    core->shared.cells = NULL;
    core->alone.keep = keep > 0;
    core->kept.steps = keep;
    if (alone ? ready_alone(core) : ready_shared(core)) return NULL;
    core->stage = alone ? ALONE : SHARED;
    return PyLong_FromLongLong(core->job.num_cells);
}

/* ---- results ---- */

static PyObject *doubles(const double *values, int64_t count) {
    return PyBytes_FromStringAndSize((const char *)values, (Py_ssize_t)count * 8);
}

static PyObject *core_links(Core *core, PyObject *Py_UNUSED(ignored)) {
    return Py_BuildValue("NN", doubles(core->link_bytes, core->num_links), doubles(core->link_busy, core->num_links));
}

static PyObject *core_finish(Core *core, PyObject *Py_UNUSED(ignored)) {
    if (core->stage != ALONE) { refuse("there was no alone pass"); return NULL; }
    return doubles(core->alone.rank_finish, core->job.ranks);
}

/* At most NUM_COLUMNS fields of all messages, as columns. */
static PyObject *columns_of(const Shared *shared, const Field *fields, int num_fields) {
    int64_t count = shared->messages_count;
    char *into[NUM_COLUMNS];
    PyObject *all = PyDict_New();
    for (int c = 0; all && c < num_fields; c++) {
        PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * fields[c].size));
        if (bytes) in_large_pages(into[c] = PyBytes_AS_STRING(bytes), (size_t)count * fields[c].size);
        if (!bytes || PyDict_SetItemString(all, fields[c].name, bytes)) Py_CLEAR(all);
        Py_XDECREF(bytes);
    }
    if (!all) return NULL;
    /* As many messages at a time as the cache holds. */
    const int64_t some = 512;
    for (int64_t first = 0; first < count; first += some) {
        int64_t last = first + some < count ? first + some : count;
        for (int c = 0; c < num_fields; c++) {
            const char *from = (const char *)&shared->messages[first] + fields[c].offset;
            char *to = into[c] + first * (int64_t)fields[c].size;
            if (fields[c].size == 8)
                for (int64_t id = first; id < last; id++, from += sizeof(Message), to += 8) memcpy(to, from, 8);
            else
                for (int64_t id = first; id < last; id++, from += sizeof(Message), to += 4) memcpy(to, from, 4);
        }
    }
    return all;
}

static PyObject *core_messages(Core *core, PyObject *Py_UNUSED(ignored)) {
    return core->stage == ALONE ? kept_columns(&core->kept) : columns_of(&core->shared, COLUMNS, NUM_COLUMNS);
}

#include "graph.h"

static PyObject *core_routes(Core *core, PyObject *Py_UNUSED(ignored)) {
    Routes *routes = &core->routes;
    if (!routes->first_hop) { refuse("this core was not made"); return NULL; }
    return Py_BuildValue("NNNNN", PyBytes_FromStringAndSize((char *)routes->first_hop, (routes->key_count + 1) * 8),
                         PyBytes_FromStringAndSize((char *)routes->hop_link, routes->hop_link_count * 4),
                         doubles(routes->hop_share, routes->hop_share_count), doubles(routes->alone, routes->key_count),
                         doubles((const double *)routes->cost, 4 * routes->key_count));
}

/* ---- the type ---- */

static int core_init(Core *core, PyObject *args, PyObject *Py_UNUSED(keywords)) {
    PyObject *bandwidth, *latency, *progress;
    Py_ssize_t count = -1;
    if (!PyArg_ParseTuple(args, "OOpO", &bandwidth, &latency, &core->store_and_forward, &progress)) return -1;
    if (core->bandwidth) return refuse("a core is made once");
    if (!(core->bandwidth = copied(bandwidth, &count)) || !(core->latency = copied(latency, &count))) return -1;
    core->num_links = count;
    core->progress = Py_NewRef(progress);
    core->link_bytes = calloc((size_t)count + 1, 8);
    core->link_busy = calloc((size_t)count + 1, 8);
    if (!core->link_bytes || !core->link_busy || ROOM(&core->routes, first_hop, 1)) { PyErr_NoMemory(); return -1; }
    core->routes.first_hop[0] = 0;
    return 0;
}

static void core_dealloc(Core *core) {
    free_routes(&core->routes);
    free_job(&core->job);
    free_step(&core->step);
    free_alone(&core->alone);
    free_kept(&core->kept);
    free_shared(&core->shared, core->num_links);
    FREE_ALL(core->bandwidth, core->latency, core->link_bytes, core->link_busy);
    Py_XDECREF(core->progress);
    PyTypeObject *type = Py_TYPE(core);
    type->tp_free((PyObject *)core);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"begin_job", (PyCFunction)core_begin_job, METH_VARARGS, "Begin a collective."},
    {"mark", (PyCFunction)core_mark, METH_VARARGS, "Note where rows cut the vector."},
    {"ready", (PyCFunction)core_ready, METH_VARARGS, "Number the cells."},
    {"missing", (PyCFunction)core_missing, METH_VARARGS, "Pairs of nodes without a route."},
    {"add_routes", (PyCFunction)core_add_routes, METH_VARARGS, "Routes for pairs of nodes."},
    {"alone", (PyCFunction)core_alone, METH_VARARGS, "Take steps while nothing is shared."},
    {"gather", (PyCFunction)core_gather, METH_VARARGS, "Take steps for a shared run."},
    {"graph", (PyCFunction)core_graph, METH_VARARGS, "Steps as columns: messages, and what each waits for."},
    {"reach", (PyCFunction)core_reach, METH_VARARGS, "How far ahead messages can be sent."},
    {"run", (PyCFunction)core_run, METH_NOARGS, "Run all that was gathered."},
    {"advance", (PyCFunction)core_advance, METH_VARARGS, "Run on until ranks are done, or until a time."},
    {"stop", (PyCFunction)core_stop, METH_VARARGS, "Stop all flows: what is left of each."},
    {"links", (PyCFunction)core_links, METH_NOARGS, "Bytes and busy seconds of each link."},
    {"finish", (PyCFunction)core_finish, METH_NOARGS, "When each rank was done, after an alone pass."},
    {"messages", (PyCFunction)core_messages, METH_NOARGS, "What happened to each message that was kept."},
    {"routes", (PyCFunction)core_routes, METH_NOARGS, "The routes: offsets, links, shares, lone bandwidths, costs."},
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

static PyType_Spec type_spec = {"choreo.simulate.flows._core.Core", sizeof(Core), 0, Py_TPFLAGS_DEFAULT, type_slots};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_core", "The simulator's inner loops.", -1, NULL, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__core(void) { return module_of_type(&module, "Core", &type_spec); }

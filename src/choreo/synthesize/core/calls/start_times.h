/* start_times(): list scheduling. */
#pragma once
#include <Python.h>

#include "../list_scheduling.h"
#include "columns.h"

static PyObject *start_times(PyObject *Py_UNUSED(module), PyObject *args) {
    enum { HOP, TAKES, LATEST, MISSING, PLACE, AFTER_OFFSETS, AFTER, LINK_OFFSETS, LINKS, LATENCY, PAYERS, COSTS, TAKEN, PORTS, COLUMNS };
    Py_buffer b[COLUMNS] = {{0}};
    Py_ssize_t links;
    Loop loop = {0};
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*y*y*y*ny*y*y*pd|y*y*", &b[HOP], &b[TAKES], &b[LATEST], &b[MISSING], &b[PLACE],
                          &b[AFTER_OFFSETS], &b[AFTER], &b[LINK_OFFSETS], &b[LINKS], &links, &b[LATENCY], &b[PAYERS],
                          &b[COSTS], &loop.busiest_first, &loop.most, &b[TAKEN], &b[PORTS])) return NULL;
    loop.tasks = b[HOP].len / 8, loop.hops = b[LATENCY].len / 8, loop.links = links;
    loop.hop = b[HOP].buf, loop.place = b[PLACE].buf, loop.latest = b[LATEST].buf, loop.latency = b[LATENCY].buf;
    loop.after_offsets = b[AFTER_OFFSETS].buf, loop.after = b[AFTER].buf;
    loop.link_offsets = b[LINK_OFFSETS].buf, loop.hop_links = b[LINKS].buf;
    loop.payers = b[PAYERS].buf, loop.costs = b[COSTS].buf, loop.taken = b[TAKEN].buf, loop.is_port = b[PORTS].buf;
    int64_t edges = b[AFTER].len / 8, crossed = b[LINKS].len / 8;
    int fits = b[TAKES].len == b[HOP].len && b[LATEST].len == b[HOP].len && b[MISSING].len == b[HOP].len &&
        b[PLACE].len == b[HOP].len &&
        b[AFTER_OFFSETS].len == b[HOP].len + 8 && b[LINK_OFFSETS].len == b[LATENCY].len + 8 &&
        b[PAYERS].len == 2 * b[LATENCY].len && b[COSTS].len == 4 * b[LATENCY].len && links >= 0 &&
        (!loop.taken || (b[TAKEN].len == b[LINKS].len && b[PORTS].len == 8 * links));
    fits = fits && within(loop.hop, loop.tasks, 0, loop.hops) && within(loop.place, loop.tasks, -1, INT32_MAX) &&
        within(loop.after, edges, 0, loop.tasks) &&
        within(loop.hop_links, crossed, 0, links) && within(loop.payers, 2 * loop.hops, 0, INT32_MAX) &&
        are_offsets(loop.after_offsets, loop.tasks, edges) && are_offsets(loop.link_offsets, loop.hops, crossed);
    if (!fits) PyErr_SetString(PyExc_ValueError, "the columns do not fit each other");
    else {
        for (int64_t i = 0; i < loop.tasks; i++)
            if (loop.place[i] >= loop.places) loop.places = loop.place[i] + 1;
        for (int64_t i = 0; i < 2 * loop.hops; i++)
            if (loop.payers[i] >= loop.members) loop.members = loop.payers[i] + 1;
        loop.waits = b[MISSING].buf, loop.takes_it = b[TAKES].buf;
        if (prepare(&loop)) PyErr_NoMemory();
        else {
            Py_BEGIN_ALLOW_THREADS
            reset(&loop);
            run(&loop);
            Py_END_ALLOW_THREADS
            found = Py_BuildValue("y#d", (const char *)loop.start, (Py_ssize_t)loop.tasks * 8, loop.end);
        }
        release(&loop);
    }
    for (int i = 0; i < COLUMNS; i++) PyBuffer_Release(&b[i]);
    return found;
}

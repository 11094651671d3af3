/* anneal_trees(): the annealing of trees that all devices share, shifted. */
#pragma once
#include <Python.h>

#include "../annealing.h"
#include "columns.h"

/* Make room for the columns of an annealing and its plans; 0, or -1 where there is none. */
static int make_room(Annealing *a, Plan plans[4]) {
    int64_t tasks = a->loop.tasks;
    a->way = ROOM(tasks, int64_t), a->waits = ROOM(tasks, int64_t), a->place = ROOM(tasks, int64_t);
    a->after_offsets = ROOM(tasks + 1, int64_t), a->after = ROOM(3 * tasks, int64_t), a->fill = ROOM(tasks, int64_t);
    a->child = ROOM(a->devices, int64_t), a->sibling = ROOM(a->devices, int64_t);
    a->before_edge = ROOM(3 * tasks, int64_t), a->after_edge = ROOM(3 * tasks, int64_t);
    a->chain = ROOM(tasks, int64_t), a->takes = ROOM(tasks, double), a->arrived = ROOM(tasks, double);
    int failed = !a->child || !a->sibling || !a->before_edge || !a->after_edge || !a->way || !a->waits || !a->place || !a->after_offsets || !a->after || !a->fill || !a->chain || !a->takes ||
        !a->arrived;
    for (int i = 0; i < 4; i++) {
        plans[i].parent = ROOM(tasks, int64_t), plans[i].order = ROOM(tasks, double), plans[i].start = ROOM(tasks, double);
        failed |= !plans[i].parent || !plans[i].order || !plans[i].start;
    }
    a->loop.hop = a->way, a->loop.waits = a->waits, a->loop.place = a->place, a->loop.takes_it = a->takes;
    a->loop.after_offsets = a->after_offsets, a->loop.after = a->after, a->loop.latest = plans[0].order;
    return failed || prepare(&a->loop) ? -1 : 0;
}

static void free_room(Annealing *a, Plan plans[4]) {
    void *owned[] = {a->other, a->at, a->child, a->sibling, a->before_edge, a->after_edge, a->way, a->waits, a->place, a->after_offsets, a->after, a->fill, a->chain, a->takes, a->arrived};
    for (size_t i = 0; i < sizeof(owned) / sizeof(*owned); i++) free(owned[i]);
    for (int i = 0; i < 4; i++) free(plans[i].parent), free(plans[i].order), free(plans[i].start);
    release(&a->loop);
}

/* Whether every device has a way to every other, and the parents in each tree lead to its roots. */
static int are_trees(const Annealing *a, const int64_t *parent) {
    for (int64_t to = 0; to < a->devices; to++)
        for (int64_t from = 0; from < a->devices; from++) {
            int64_t offset = a->offset_of[to * a->devices + from];
            if (offset < (to != from) || offset > a->loop.hops || (to == from && offset)) return 0;
        }
    for (int64_t i = 0; a->roots && i < a->loop.tasks / a->each * 2 * a->others; i++) {
        const int64_t *tree = parent + i / a->others * a->others;
        int64_t at = i % a->others, steps = 0;
        while (at >= 0 && steps++ < a->devices) at = a->at[tree[at]];
        if (at >= 0) return 0;
    }
    for (int64_t task = 0; !a->roots && task < a->loop.tasks; task++) {
        int64_t device = child_of(a, task), first = task - device + 1, steps = 0;
        while (device && steps++ < a->devices) device = parent[first + device - 1];
        if (device) return 0;
    }
    return 1;
}

/* Where the roots are, and all other devices; 0 if two are the same, -1 where there is no room. */
static int place_roots(Annealing *a) {
    a->other = ROOM(a->devices, int64_t), a->at = ROOM(a->devices, int64_t);
    if (!a->other || !a->at) return -1;
    for (int64_t i = 0; i < a->roots; i++) {
        if (a->at[a->root[i]] < 0) return 0;
        a->at[a->root[i]] = -1 - i;
    }
    for (int64_t device = 0; device < a->devices; device++)
        if (a->at[device] >= 0) a->at[device] = a->others, a->other[a->others++] = device;
    a->each = 2 * a->others + a->rounds * a->roots;
    for (int64_t i = 0; i < a->rounds * a->roots; i++)
        if (a->partner[i / a->roots * a->roots + a->partner[i]] != i % a->roots) return 0;
    return 1;
}

static PyObject *anneal_trees(PyObject *Py_UNUSED(module), PyObject *args) {
    enum { PARENT, ORDER, TAKES, OFFSET_OF, NEAR_OFFSETS, NEAR, LINK_OFFSETS, LINKS, LATENCY, PAYERS, COSTS, TUNING, ROOTS,
           PARTNERS, COLUMNS };
    Py_buffer b[COLUMNS] = {{0}};
    Annealing a = {0};
    Plan plans[4] = {{0}};
    Py_ssize_t links, devices, count;
    unsigned long long seed;
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*y*y*y*y*y*y*y*y*nndpnK", &b[PARENT], &b[ORDER], &b[TAKES], &b[OFFSET_OF],
                          &b[NEAR_OFFSETS], &b[NEAR], &b[LINK_OFFSETS], &b[LINKS], &b[LATENCY], &b[PAYERS], &b[COSTS],
                          &b[TUNING], &b[ROOTS], &b[PARTNERS], &links, &devices, &plans[0].longest, &a.inward, &count, &seed)) return NULL;
    Loop *loop = &a.loop;
    a.devices = devices, a.random.state = seed, a.offset_of = b[OFFSET_OF].buf, a.way_takes = b[TAKES].buf;
    a.near_offsets = b[NEAR_OFFSETS].buf, a.near = b[NEAR].buf;
    loop->tasks = b[ORDER].len / 8, loop->hops = b[LATENCY].len / 8, loop->links = links, loop->members = 1;
    loop->latency = b[LATENCY].buf, loop->link_offsets = b[LINK_OFFSETS].buf, loop->hop_links = b[LINKS].buf;
    loop->payers = b[PAYERS].buf, loop->costs = b[COSTS].buf;
    a.roots = b[ROOTS].len / 8, a.root = b[ROOTS].buf, a.partner = b[PARTNERS].buf;
    a.rounds = a.roots ? b[PARTNERS].len / 8 / a.roots : 0;
    int64_t crossed = b[LINKS].len / 8, near = b[NEAR].len / 8, parents = b[PARENT].len / 8;
    int fits = devices > 1 && loop->tasks > 0 && b[PARTNERS].len == 8 * a.rounds * a.roots && (!a.roots || a.rounds) &&
        b[TAKES].len == b[LATENCY].len && b[OFFSET_OF].len == 8 * devices * devices && links >= 0 &&
        b[NEAR_OFFSETS].len == 8 * (devices + 1) && b[LINK_OFFSETS].len == b[LATENCY].len + 8 &&
        b[PAYERS].len == 2 * b[LATENCY].len && b[COSTS].len == 4 * b[LATENCY].len && b[TUNING].len == sizeof(Tuning);
    fits = fits && within(b[PARENT].buf, parents, 0, devices) && within(a.near, near, 0, devices) &&
        within(loop->hop_links, crossed, 0, links) && within(loop->payers, 2 * loop->hops, 0, 1) &&
        within(a.root, a.roots, 0, devices) && within(a.partner, a.rounds * a.roots, 0, a.roots) &&
        are_offsets(loop->link_offsets, loop->hops, crossed) && are_offsets(a.near_offsets, devices, near);
    int placed = fits ? place_roots(&a) : 0;
    a.each = a.roots ? a.each : devices - 1;
    fits = placed > 0 && loop->tasks % a.each == 0 &&
        parents == loop->tasks / a.each * (a.roots ? 2 * a.others : devices - 1) && are_trees(&a, b[PARENT].buf);
    for (int64_t device = 0; fits && device < devices; device++) fits = a.near_offsets[device] < a.near_offsets[device + 1];
    if (placed < 0) free(a.other), free(a.at), PyErr_NoMemory();
    else if (!fits) {
        PyErr_SetString(PyExc_ValueError, "the columns do not fit each other");
        free(a.other), free(a.at);
    } else {
        memcpy(&a.tuning, b[TUNING].buf, sizeof(Tuning));
        loop->places = loop->tasks / a.each * devices;
        if (make_room(&a, plans)) PyErr_NoMemory();
        else {
            memcpy(plans[0].parent, b[PARENT].buf, (size_t)b[PARENT].len);
            memcpy(plans[0].order, b[ORDER].buf, (size_t)b[ORDER].len);
            if (!anneal(&a, plans, count))
                found = Py_BuildValue("y#y#d", (const char *)plans[2].parent, (Py_ssize_t)parents * 8,
                                      (const char *)plans[2].order, (Py_ssize_t)loop->tasks * 8, plans[2].longest);
        }
        free_room(&a, plans);
    }
    for (int i = 0; i < COLUMNS; i++) PyBuffer_Release(&b[i]);
    return found;
}

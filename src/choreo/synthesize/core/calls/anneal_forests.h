/* anneal_forests(): the annealing of trees in and out, with roots that exchange sums. */
#pragma once
#include <Python.h>

#include "../forests.h"
#include "columns.h"

/* Make room for the columns of forests and their plans; 0, or -1 where there is none. */
static int make_forest_room(Forests *f, Forest plans[4]) {
    int64_t tasks = f->loop.tasks, edges = f->chunks * f->members * f->members + 2 * tasks;
    f->way = ROOM(tasks, int64_t), f->waits = ROOM(tasks, int64_t), f->place = ROOM(tasks, int64_t);
    f->after_offsets = ROOM(tasks + 1, int64_t), f->after = ROOM(edges, int64_t), f->fill = ROOM(tasks, int64_t);
    f->edges = ROOM(2 * edges, int64_t);
    f->takes = ROOM(tasks, double), f->arrived = ROOM(tasks, double), f->active = ROOM(tasks, char);
    int failed = !f->way || !f->waits || !f->place || !f->after_offsets || !f->after || !f->fill || !f->edges ||
        !f->takes || !f->arrived || !f->active;
    for (int i = 0; i < 4; i++) {
        plans[i].parent = ROOM(tasks, int64_t), plans[i].order = ROOM(tasks, double), plans[i].start = ROOM(tasks, double);
        plans[i].bytes = ROOM(f->chunks, double), plans[i].way = ROOM(tasks, int64_t), plans[i].chain = ROOM(tasks, int64_t);
        failed |= !plans[i].parent || !plans[i].order || !plans[i].start || !plans[i].bytes || !plans[i].way ||
            !plans[i].chain;
    }
    f->loop.hop = f->way, f->loop.waits = f->waits, f->loop.place = f->place, f->loop.takes_it = f->takes;
    f->loop.after_offsets = f->after_offsets, f->loop.after = f->after, f->loop.latest = plans[0].order;
    return failed || prepare(&f->loop) ? -1 : 0;
}

static void free_forest_room(Forests *f, Forest plans[4]) {
    void *owned[] = {f->way, f->waits, f->place, f->after_offsets, f->after, f->fill, f->edges, f->takes, f->arrived, f->active};
    for (size_t i = 0; i < sizeof(owned) / sizeof(*owned); i++) free(owned[i]);
    for (int i = 0; i < 4; i++) {
        free(plans[i].parent), free(plans[i].order), free(plans[i].start), free(plans[i].bytes);
        free(plans[i].way), free(plans[i].chain);
    }
    release(&f->loop);
}

/* Whether the parents in each tree lead to a root, over ways, and roots exchange over ways. */
static int are_forests(const Forests *f, const int64_t *parent) {
    for (int64_t chunk = 0; chunk < f->chunks; chunk++) {
        const int64_t *root = f->root + chunk * f->roots;
        for (int tree = 0; tree < 2; tree++)
            for (int64_t member = 0; (tree ? f->outward : f->inward) && member < f->members; member++) {
                int64_t first = first_of(f, chunk, tree), at = member, steps = 0, above = parent[first + member];
                if (above >= 0 && !f->way_of[tree ? member * f->members + above : above * f->members + member]) return 0;
                while (parent[first + at] >= 0 && steps++ < f->members) at = parent[first + at];
                if (as_root(f, chunk, at) < 0) return 0;
            }
        for (int64_t i = 0; i < f->rounds * f->roots; i++) {
            int64_t partner = f->partner[i];
            if (f->partner[i / f->roots * f->roots + partner] != i % f->roots) return 0;
            if (!f->way_of[root[partner] * f->members + root[i % f->roots]]) return 0;
        }
    }
    return 1;
}

static PyObject *anneal_forests(PyObject *Py_UNUSED(module), PyObject *args) {
    enum { PARENT, ORDER, BYTES, BLOCK, WAY_OF, A_BYTE, ROOT, PARTNER, LINK_OFFSETS, LINKS, LATENCY, PAYERS, COSTS, TUNING, TAKEN, PORTS, COLUMNS };
    Py_buffer b[COLUMNS] = {{0}};
    Forests f = {0};
    Forest plans[4] = {{0}};
    Py_ssize_t links, devices, count;
    unsigned long long seed;
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*y*y*y*y*y*y*y*y*nnppddddnK|y*y*", &b[PARENT], &b[ORDER], &b[BYTES], &b[BLOCK],
                          &b[WAY_OF], &b[A_BYTE], &b[ROOT], &b[PARTNER], &b[LINK_OFFSETS], &b[LINKS], &b[LATENCY], &b[PAYERS],
                          &b[COSTS], &b[TUNING], &links, &devices, &f.inward, &f.outward, &plans[0].longest, &f.resized,
                          &f.alike, &f.least, &count, &seed, &b[TAKEN], &b[PORTS])) return NULL;
    Loop *loop = &f.loop;
    loop->tasks = b[PARENT].len / 8, loop->hops = b[LATENCY].len / 8, loop->links = links;
    f.chunks = b[BYTES].len / 8, f.devices = devices, f.random.state = seed;
    while (f.members * f.members * 8 < b[WAY_OF].len) f.members++;
    f.block = b[BLOCK].buf, f.way_of = b[WAY_OF].buf, f.second_a_byte = b[A_BYTE].buf, f.root = b[ROOT].buf;
    f.partner = b[PARTNER].buf, loop->latency = b[LATENCY].buf, loop->link_offsets = b[LINK_OFFSETS].buf;
    loop->hop_links = b[LINKS].buf, loop->payers = b[PAYERS].buf, loop->costs = b[COSTS].buf;
    loop->taken = b[TAKEN].buf, loop->is_port = b[PORTS].buf;
    int64_t crossed = b[LINKS].len / 8;
    int fits = f.chunks > 0 && devices > 0 && devices <= f.members && links >= 0 && loop->tasks % f.chunks == 0 &&
        b[WAY_OF].len == 8 * f.members * f.members && b[ORDER].len == b[PARENT].len && b[BLOCK].len == b[BYTES].len &&
        b[A_BYTE].len == b[LATENCY].len && b[ROOT].len > 0 && b[ROOT].len % b[BYTES].len == 0 &&
        b[LINK_OFFSETS].len == b[LATENCY].len + 8 && b[PAYERS].len == 2 * b[LATENCY].len &&
        b[COSTS].len == 4 * b[LATENCY].len && b[TUNING].len == sizeof(Tuning) &&
        (!loop->taken || (b[TAKEN].len == b[LINKS].len && b[PORTS].len == 8 * links));
    if (fits) {
        f.roots = b[ROOT].len / b[BYTES].len, f.rounds = b[PARTNER].len / 8 / f.roots, f.each = loop->tasks / f.chunks;
        fits = f.each == (f.inward + f.outward) * f.members + f.rounds * f.roots &&
            b[PARTNER].len == 8 * f.rounds * f.roots && within(b[PARENT].buf, loop->tasks, NOBODY, f.members) &&
            within(f.root, f.chunks * f.roots, 0, devices) && within(f.partner, f.rounds * f.roots, 0, f.roots) &&
            within(f.way_of, f.members * f.members, 0, loop->hops + 1) && within(loop->hop_links, crossed, 0, links) &&
            within(loop->payers, 2 * loop->hops, 0, INT32_MAX) && are_offsets(loop->link_offsets, loop->hops, crossed) &&
            are_forests(&f, b[PARENT].buf);
    }
    if (!fits) PyErr_SetString(PyExc_ValueError, "the columns do not fit each other");
    else {
        memcpy(&f.tuning, b[TUNING].buf, sizeof(Tuning));
        loop->places = f.chunks * f.members;
        for (int64_t i = 0; i < 2 * loop->hops; i++)
            if (loop->payers[i] >= loop->members) loop->members = loop->payers[i] + 1;
        if (make_forest_room(&f, plans)) PyErr_NoMemory();
        else {
            memcpy(plans[0].parent, b[PARENT].buf, (size_t)b[PARENT].len);
            memcpy(plans[0].order, b[ORDER].buf, (size_t)b[ORDER].len);
            memcpy(plans[0].bytes, b[BYTES].buf, (size_t)b[BYTES].len);
            if (!anneal_forest(&f, plans, count))
                found = Py_BuildValue("y#y#y#d", (const char *)plans[2].parent, (Py_ssize_t)loop->tasks * 8,
                                      (const char *)plans[2].order, (Py_ssize_t)loop->tasks * 8,
                                      (const char *)plans[2].bytes, (Py_ssize_t)f.chunks * 8, plans[2].longest);
        }
        free_forest_room(&f, plans);
    }
    for (int i = 0; i < COLUMNS; i++) PyBuffer_Release(&b[i]);
    return found;
}

/* reroute_trees(): trees ripped up and grown anew. */
#pragma once
#include <Python.h>

#include "../rerouting.h"
#include "columns.h"

/* Make room for the columns of a rerouting; 0, or -1 where there is none. */
static int make_rerouting_room(Reroute *r) {
    int64_t places = r->places, devices = r->devices;
    Trees *trees[] = {&r->now, &r->former, &r->best};
    int failed = 0;
    for (int i = 0; i < 3; i++) {
        Trees *one = trees[i];
        one->parent = ROOM(places, int64_t), one->prepared = ROOM(places, double), one->start = ROOM(places, double);
        one->written = ROOM(places, double), one->bytes = ROOM(r->chunks, double);
        one->passing = ROOM(r->chunks, double), one->leaving = ROOM(r->chunks, double);
        failed |= !one->parent || !one->prepared || !one->start || !one->written || !one->bytes || !one->passing || !one->leaving;
    }
    r->usage = ROOM(r->users, Usage), r->sorted = ROOM(places, Keyed), r->detours = ROOM(devices * devices, double);
    /* A device makes offers once to those near it, and perhaps once to all. */
    r->offers = ROOM(r->near_offsets[devices] + devices * devices, Offer);
    r->tail = ROOM(places, double), r->order = ROOM(places, double), r->stack = ROOM(places, int64_t);
    r->reached = ROOM(devices, char), r->done = ROOM(places, char);
    failed |= !r->usage || !r->sorted || !r->detours || !r->offers || !r->tail || !r->order || !r->stack || !r->reached ||
        !r->done;
    return failed ? -1 : 0;
}

static void free_rerouting_room(Reroute *r) {
    Trees *trees[] = {&r->now, &r->former, &r->best};
    for (int i = 0; i < 3; i++) {
        Trees *one = trees[i];
        free(one->parent), free(one->prepared), free(one->start), free(one->written), free(one->bytes);
        free(one->passing), free(one->leaving);
    }
    for (int64_t user = 0; r->usage && user < r->users; user++) free(r->usage[user].now), free(r->usage[user].former);
    void *owned[] = {r->usage, r->sorted, r->detours, r->offers, r->tail, r->order, r->stack, r->reached, r->done};
    for (size_t i = 0; i < sizeof(owned) / sizeof(*owned); i++) free(owned[i]);
}

/* Whether the parents of all places lead to the root of their chunk. */
static int lead_to_roots(const Reroute *r, const int64_t *parent) {
    for (int64_t place = 0; place < r->places; place++) {
        int64_t at = place, steps = 0;
        while (!is_root(r, at) && steps++ < r->devices) at = at / r->devices * r->devices + parent[at];
        if (!is_root(r, at)) return 0;
    }
    return 1;
}

/* The plan that is changed first: as given, or grown chunk by chunk. */
static void begin_rerouting(Reroute *r, const int64_t *parent, const double *order) {
    if (parent) {
        memcpy(r->now.parent, parent, (size_t)r->places * sizeof(int64_t));
        memcpy(r->now.start, order, (size_t)r->places * sizeof(double));
        retime(r, 0.0, 0.0);
        return;
    }
    for (int64_t chunk = 0; chunk < r->chunks; chunk++) {
        memset(r->reached, 0, (size_t)r->devices);
        grow_tree(r, chunk);
    }
}

static PyObject *reroute_trees(PyObject *Py_UNUSED(module), PyObject *args) {
    enum { ROOT, BYTES, PASSING, LEAVING, PARENT, ORDER, BYTE_S, LINK_OFFSETS, LINKS, LATENCY, COSTS, NEAR_OFFSETS, NEAR, TUNING,
           COLUMNS };
    Py_buffer b[COLUMNS] = {{0}};
    Reroute r = {0};
    Py_ssize_t links, devices, blocks, count;
    unsigned long long seed;
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*y*y*y*y*y*y*y*y*nnndnK", &b[ROOT], &b[BYTES], &b[PASSING], &b[LEAVING],
                          &b[PARENT], &b[ORDER], &b[BYTE_S], &b[LINK_OFFSETS], &b[LINKS], &b[LATENCY], &b[COSTS],
                          &b[NEAR_OFFSETS], &b[NEAR], &b[TUNING], &links, &devices, &blocks, &r.least_bytes,
                          &count, &seed)) return NULL;
    r.devices = devices, r.links = links, r.blocks = blocks, r.ways = b[LATENCY].len / 8;
    r.chunks = b[ROOT].len / 8, r.places = r.chunks * devices, r.users = links + 2 * devices, r.random.state = seed;
    r.root = b[ROOT].buf, r.near_offsets = b[NEAR_OFFSETS].buf, r.near = b[NEAR].buf;
    r.link_offsets = b[LINK_OFFSETS].buf, r.way_links = b[LINKS].buf;
    r.byte_s = b[BYTE_S].buf, r.latency = b[LATENCY].buf, r.costs = b[COSTS].buf;
    int64_t crossed = b[LINKS].len / 8, near = b[NEAR].len / 8, given = b[PARENT].len / 8;
    int fits = devices > 1 && links >= 0 && blocks > 0 && r.chunks > 0 && r.chunks % blocks == 0 &&
        r.ways == devices * devices && b[BYTES].len == b[ROOT].len && b[PASSING].len == b[ROOT].len &&
        b[LEAVING].len == b[ROOT].len && (!given || given == r.places) && b[ORDER].len == b[PARENT].len &&
        b[BYTE_S].len == b[LATENCY].len && b[LINK_OFFSETS].len == b[LATENCY].len + 8 &&
        b[COSTS].len == 4 * b[LATENCY].len && b[NEAR_OFFSETS].len == 8 * (devices + 1) && b[TUNING].len == sizeof(Rerouting);
    fits = fits && within(r.root, r.chunks, 0, devices) && within(b[PARENT].buf, given, 0, devices) &&
        within(r.way_links, crossed, 0, links) && within(r.near, near, 0, devices) &&
        are_offsets(r.link_offsets, r.ways, crossed) && are_offsets(r.near_offsets, devices, near) &&
        (!given || lead_to_roots(&r, b[PARENT].buf));
    if (!fits) PyErr_SetString(PyExc_ValueError, "the columns do not fit each other");
    else {
        memcpy(&r.tuning, b[TUNING].buf, sizeof(Rerouting));
        if (make_rerouting_room(&r)) PyErr_NoMemory();
        else {
            memcpy(r.now.bytes, b[BYTES].buf, (size_t)b[BYTES].len);
            memcpy(r.now.passing, b[PASSING].buf, (size_t)b[PASSING].len);
            memcpy(r.now.leaving, b[LEAVING].buf, (size_t)b[LEAVING].len);
            begin_rerouting(&r, given ? b[PARENT].buf : NULL, b[ORDER].buf);
            Py_ssize_t places = r.places * 8, chunks = r.chunks * 8;
            if (!reroute(&r, count))
                found = Py_BuildValue("y#y#y#y#y#d", (const char *)r.best.parent, places, (const char *)r.best.start, places,
                                      (const char *)r.best.bytes, chunks, (const char *)r.best.passing, chunks,
                                      (const char *)r.best.leaving, chunks, r.best.end);
        }
        free_rerouting_room(&r);
    }
    for (int i = 0; i < COLUMNS; i++) PyBuffer_Release(&b[i]);
    return found;
}

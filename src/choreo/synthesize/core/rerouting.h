/* Rip up and reroute: the tree of a chunk, or what is behind one device in it, is taken out of a plan and grown anew.
 * Links are far from full where latency decides, but not at every moment. */
#ifndef CHOREO_REROUTING_H
#define CHOREO_REROUTING_H
#include "growing.h"

/* Take a chunk out of the plan, but for what it has reached. */
static void rip_up(Reroute *r, int64_t chunk) {
    for (int64_t user = 0; user < r->users; user++) r->failed |= vacate(&r->usage[user], chunk);
    for (int64_t device = 0; device < r->devices; device++)
        if (r->reached[device] && device != r->root[chunk]) enter_message(r, chunk * r->devices + device);
}

static void regrow(Reroute *r, int64_t chunk) {
    r->now.passing[chunk] *= exp(r->tuning.repriced * normal(&r->random));
    r->now.leaving[chunk] *= exp(r->tuning.repriced * normal(&r->random));
    add_detours(r);
    grow_tree(r, chunk);
}

static int by_key(const void *a, const void *b) {
    const Keyed *one = a, *other = b;
    if (one->key != other->key) return one->key < other->key ? -1 : 1;
    return one->place < other->place ? -1 : one->place > other->place;
}

/* All messages, in order of these keys. */
static int64_t in_order(Reroute *r, const double *key) {
    int64_t count = 0;
    for (int64_t place = 0; place < r->places; place++)
        if (!is_root(r, place)) r->sorted[count++] = (Keyed){key[place], place};
    qsort(r->sorted, (size_t)count, sizeof(Keyed), by_key);
    return count;
}

/* How long each message and what waits for it takes, if nothing else is in their way. */
static void tails(Reroute *r) {
    int64_t count = in_order(r, r->now.start);
    memset(r->tail, 0, (size_t)r->places * sizeof(double));
    while (count--) {
        int64_t place = r->sorted[count].place, chunk = place / r->devices, from = r->now.parent[place];
        int64_t way = way_of(r, from, place % r->devices), above = chunk * r->devices + from;
        r->tail[place] += paid(r, 0, way) + r->now.bytes[chunk] * r->byte_s[way] + r->latency[way] + paid(r, 2, way);
        if (r->tail[place] > r->tail[above]) r->tail[above] = r->tail[place];
    }
}

/* Put all messages in time again: in order of their starts, or more or less (`mix`) of how late they could start. */
static void retime(Reroute *r, double mix, double moved) {
    if (mix > 0.0) tails(r);
    for (int64_t place = 0; place < r->places; place++) {
        r->order[place] = (1.0 - mix) * r->now.start[place] + (mix > 0.0 ? mix * (r->now.end - r->tail[place]) : 0.0);
        if (moved > 0.0) r->order[place] += moved * normal(&r->random);
    }
    int64_t count = in_order(r, r->order);
    for (int64_t user = 0; user < r->users; user++) r->failed |= remember(&r->usage[user]), r->usage[user].count = 0;
    memset(r->done, 0, (size_t)r->places);
    for (int64_t i = 0; i < count; i++) {
        int64_t waiting = 0;
        for (int64_t place = r->sorted[i].place; !is_root(r, place) && !r->done[place];) {
            r->stack[waiting++] = place;
            place = place / r->devices * r->devices + r->now.parent[place];
        }
        while (waiting) {
            int64_t place = r->stack[--waiting], chunk = place / r->devices;
            Moment m = moment_of(r, chunk, r->now.parent[place], place % r->devices);
            send_at(r, chunk, r->now.parent[place], place % r->devices, &m);
            r->done[place] = 1;
        }
    }
}

/* Plans that end equally late are not equally good: many late messages are worse than one. */
static void rate(Reroute *r) {
    Trees *trees = &r->now;
    double sum = 0.0;
    trees->end = 0.0;
    for (int64_t place = 0; place < r->places; place++)
        if (!is_root(r, place) && trees->written[place] > trees->end) trees->end = trees->written[place];
    for (int64_t place = 0; place < r->places; place++) {
        if (is_root(r, place)) continue;
        double late = trees->written[place] / trees->end, power = late;
        for (int factor = 1; factor < (int)r->tuning.lateness; factor++) power *= late;
        sum += power;
    }
    double messages = (double)(r->places - r->chunks);
    trees->cost = trees->end * (1.0 + r->tuning.weight * pow(sum / messages, 1.0 / r->tuning.lateness));
}

static void copy_trees(const Reroute *r, Trees *to, const Trees *from) {
    size_t places = (size_t)r->places * 8, chunks = (size_t)r->chunks * 8;
    memcpy(to->parent, from->parent, places), memcpy(to->prepared, from->prepared, places);
    memcpy(to->start, from->start, places), memcpy(to->written, from->written, places);
    memcpy(to->bytes, from->bytes, chunks);
    memcpy(to->passing, from->passing, chunks), memcpy(to->leaving, from->leaving, chunks);
    to->end = from->end, to->cost = from->cost;
}

/* Another size for one chunk of a block, and so for the others; 0 if one is too small. */
static int resize_chunk(Reroute *r) {
    int64_t each = r->chunks / r->blocks, first = one_of(&r->random, r->blocks) * each;
    double *bytes = r->now.bytes + first, before = 0.0, after = 0.0;
    for (int64_t i = 0; i < each; i++) before += bytes[i];
    bytes[one_of(&r->random, each)] *= exp(r->tuning.resized * normal(&r->random));
    for (int64_t i = 0; i < each; i++) after += bytes[i];
    int fits = 1;
    for (int64_t i = 0; i < each; i++) bytes[i] *= before / after, fits &= bytes[i] >= r->least_bytes;
    return fits;
}

/* A message: any, or one of the latest. */
static int64_t some_message(Reroute *r, double often) {
    int64_t found = one_of(&r->random, r->places), count = 0;
    if (fraction(&r->random) < often) {
        double from = r->now.end * (1.0 - 0.05 * fraction(&r->random) * fraction(&r->random));
        for (int64_t place = 0; place < r->places; place++)
            if (!is_root(r, place) && r->now.written[place] >= from && !one_of(&r->random, ++count)) found = place;
    }
    return found;
}

/* What is behind one device in a tree grows anew. */
static void change_branch(Reroute *r, int64_t place) {
    int64_t chunk = place / r->devices, first = chunk * r->devices, up = one_of(&r->random, 4);
    while (up-- && !is_root(r, first + r->now.parent[place])) place = first + r->now.parent[place];
    for (int64_t device = 0; device < r->devices; device++) {
        int64_t at = first + device;
        while (!is_root(r, at) && at != place) at = first + r->now.parent[at];
        r->reached[device] = at != place;
    }
    rip_up(r, chunk);
    regrow(r, chunk);
}

/* One to three chunks grow anew, one after another. */
static void change_trees(Reroute *r) {
    int64_t some[3], count = 1 + (fraction(&r->random) < 0.5) + (fraction(&r->random) < 0.2);
    for (int64_t i = 0; i < count; i++) {
        some[i] = some_message(r, i ? 0.0 : r->tuning.late) / r->devices;
        memset(r->reached, 0, (size_t)r->devices);
        rip_up(r, some[i]);
    }
    for (int64_t i = 0; i < count; i++) {
        int repeated = 0;
        for (int64_t j = 0; j < i; j++) repeated |= some[j] == some[i];
        memset(r->reached, 0, (size_t)r->devices);
        if (!repeated) regrow(r, some[i]);
    }
}

/* Change a plan a little; 0 if that is impossible. */
static int change_plan(Reroute *r) {
    const Rerouting *tuning = &r->tuning;
    double which = fraction(&r->random), mix = fraction(&r->random) < 0.3 ? 0.0 : fraction(&r->random);
    if (which < tuning->resize) {
        if (r->chunks == r->blocks || !resize_chunk(r)) return 0;
        retime(r, 0.0, 0.0);
        return 1;
    }
    if (which < tuning->resize + tuning->retime) {
        double moved = fraction(&r->random) < 0.5 ? 0.0 : tuning->moved * fraction(&r->random) * r->now.end;
        retime(r, mix, moved);
        return 1;
    }
    int64_t place = some_message(r, tuning->late);
    if (fraction(&r->random) >= tuning->branch) change_trees(r);
    else if (is_root(r, place)) return 0;
    else change_branch(r, place);
    if (fraction(&r->random) < tuning->retime) rate(r), retime(r, mix, 0.0);
    return 1;
}

/* Change the plan so many times; the best is r->best. -1 if the user wants to stop, or where there is no room. */
static int reroute(Reroute *r, int64_t count) {
    if (r->failed) return PyErr_NoMemory(), -1;
    rate(r);
    copy_trees(r, &r->best, &r->now);
    for (int64_t number = 0; number < count; number++) {
        if (number % 256 == 255 && PyErr_CheckSignals()) return -1;
        double warmth = r->best.end * r->tuning.warm * pow(r->tuning.cold / r->tuning.warm, (double)number / (double)count);
        for (int64_t user = 0; user < r->users; user++) r->usage[user].changed = 0;
        copy_trees(r, &r->former, &r->now);
        int changed = change_plan(r);
        if (changed) rate(r);
        if (r->failed) return PyErr_NoMemory(), -1;
        double more = r->now.cost - r->former.cost;
        if (!changed || (more > 0.0 && fraction(&r->random) >= exp(-more / warmth))) {
            copy_trees(r, &r->now, &r->former);
            for (int64_t user = 0; user < r->users; user++) go_back(&r->usage[user]);
        } else if (r->now.end < r->best.end) copy_trees(r, &r->best, &r->now);
    }
    return 0;
}

#endif

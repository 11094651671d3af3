/* The tree of a chunk grows in the gaps that all others leave on links and at devices. */
#ifndef CHOREO_GROWING_H
#define CHOREO_GROWING_H
#include "annealing.h"
#include "usage.h"

/* The constants of the same names in `rerouted.py`. */
typedef struct {
    double warm, cold, resize, retime, branch, late, resized, moved, repriced, detour, lateness, weight;
} Rerouting;

/* By chunk and device: who sends it, when that is prepared, begins and is written; by chunk: its size, and the price of
 * a second on a link that a message passes, and of leaving the root. */
typedef struct { int64_t *parent; double *prepared, *start, *written, *bytes, *passing, *leaving, end, cost; } Trees;

/* A message, and what it is sorted by. */
typedef struct { double key; int64_t place; } Keyed;

/* A way to a device that lacks the chunk, and when it would arrive there, with what else it costs. */
typedef struct { double key; int64_t from, to; } Offer;

typedef struct {
    Rerouting tuning;
    Random random;
    int64_t devices, links, chunks, blocks, places, ways;
    const int64_t *root, *near_offsets, *near;
    /* By way, which is from * devices + to; there are four rows of costs, as in list scheduling. */
    const int64_t *link_offsets, *way_links;
    const double *byte_s, *latency, *costs;
    double least_bytes;
    Trees now, former, best;
    Usage *usage; /* of links, senders, receivers */
    int64_t users, offered;
    Offer *offers;
    Keyed *sorted;
    double *detours, *tail, *order;
    int64_t *stack;
    char *reached, *done;
    int failed;
} Reroute;

static int64_t way_of(const Reroute *r, int64_t from, int64_t to) { return from * r->devices + to; }
static double paid(const Reroute *r, int row, int64_t way) { return r->costs[row * r->ways + way]; }
static int is_root(const Reroute *r, int64_t place) { return place % r->devices == r->root[place / r->devices]; }

/* When a device has a chunk. */
static double has_it(const Reroute *r, int64_t chunk, int64_t device) {
    return device == r->root[chunk] ? 0.0 : r->now.written[chunk * r->devices + device];
}

/* The first time at which a chunk can go from one device to another. */
typedef struct { double prepared, start, taken, written; } Moment;

static Moment moment_of(const Reroute *r, int64_t chunk, int64_t from, int64_t to) {
    int64_t way = way_of(r, from, to);
    double takes = r->now.bytes[chunk] * r->byte_s[way];
    Moment m;
    m.prepared = gap(&r->usage[r->links + from], has_it(r, chunk, from), paid(r, 1, way));
    m.start = m.prepared + paid(r, 0, way);
    for (int again = 1; again;) {
        again = 0;
        for (int64_t i = r->link_offsets[way]; i < r->link_offsets[way + 1]; i++) {
            double free = gap(&r->usage[r->way_links[i]], m.start, takes);
            if (free > m.start) m.start = free, again = 1;
        }
    }
    double arrived = m.start + takes + r->latency[way];
    m.taken = gap(&r->usage[r->links + r->devices + to], arrived, paid(r, 3, way));
    m.written = m.taken + paid(r, 2, way);
    return m;
}

/* Occupy what the message of a place needs, at the times in `now`. */
static void enter_message(Reroute *r, int64_t place) {
    const Trees *trees = &r->now;
    int64_t chunk = place / r->devices, to = place % r->devices, from = trees->parent[place], way = way_of(r, from, to);
    double end = trees->start[place] + trees->bytes[chunk] * r->byte_s[way];
    double prepared = trees->prepared[place], taken = trees->written[place] - paid(r, 2, way);
    r->failed |= occupy(&r->usage[r->links + from], prepared, prepared + paid(r, 1, way), chunk);
    for (int64_t i = r->link_offsets[way]; i < r->link_offsets[way + 1]; i++)
        r->failed |= occupy(&r->usage[r->way_links[i]], trees->start[place], end, chunk);
    r->failed |= occupy(&r->usage[r->links + r->devices + to], taken, taken + paid(r, 3, way), chunk);
}

static void send_at(Reroute *r, int64_t chunk, int64_t from, int64_t to, const Moment *m) {
    int64_t place = chunk * r->devices + to;
    Trees *trees = &r->now;
    trees->parent[place] = from;
    trees->prepared[place] = m->prepared, trees->start[place] = m->start, trees->written[place] = m->written;
    enter_message(r, place);
}

static void make_offer(Reroute *r, Offer offer) {
    int64_t at = r->offered++;
    for (; at && offer.key < r->offers[(at - 1) / 2].key; at = (at - 1) / 2) r->offers[at] = r->offers[(at - 1) / 2];
    r->offers[at] = offer;
}

static Offer best_offer(Reroute *r) {
    Offer top = r->offers[0], last = r->offers[--r->offered];
    int64_t at = 0;
    for (int64_t child = 1; child < r->offered; child = 2 * at + 1) {
        if (child + 1 < r->offered && r->offers[child + 1].key < r->offers[child].key) child++;
        if (!(r->offers[child].key < last.key)) break;
        r->offers[at] = r->offers[child], at = child;
    }
    r->offers[at] = last;
    return top;
}

/* What a message costs besides its time: links that it passes, the root's ports, and a detour at random. */
static double price_of(const Reroute *r, int64_t chunk, int64_t from, int64_t way) {
    int64_t passed = r->link_offsets[way + 1] - r->link_offsets[way] - 1;
    double passing = r->now.passing[chunk] * (double)passed * r->now.bytes[chunk] * r->byte_s[way];
    return passing + (from == r->root[chunk] ? r->now.leaving[chunk] : 0.0) + r->detours[way];
}

static void offer_to(Reroute *r, int64_t chunk, int64_t from, int64_t to) {
    int64_t way = way_of(r, from, to);
    if (r->reached[to]) return;
    double alone = paid(r, 0, way) + r->now.bytes[chunk] * r->byte_s[way] + r->latency[way] + paid(r, 2, way);
    make_offer(r, (Offer){has_it(r, chunk, from) + alone + price_of(r, chunk, from, way), from, to});
}

/* To the devices near one. */
static void offer_from(Reroute *r, int64_t chunk, int64_t from) {
    for (int64_t i = r->near_offsets[from]; i < r->near_offsets[from + 1]; i++) offer_to(r, chunk, from, r->near[i]);
}

/* To all devices, where none is near. */
static void offer_far(Reroute *r, int64_t chunk) {
    for (int64_t from = 0; from < r->devices; from++)
        for (int64_t to = 0; r->reached[from] && to < r->devices; to++) offer_to(r, chunk, from, to);
}

/* Some ways cost more, so that the next tree is another one. */
static void add_detours(Reroute *r) {
    memset(r->detours, 0, (size_t)r->ways * sizeof(double));
    if (fraction(&r->random) < r->tuning.detour) return;
    double mean = 0.2 * r->best.end * fraction(&r->random), often = 0.02 + 0.3 * fraction(&r->random);
    for (int64_t way = 0; way < r->ways; way += 1 + (int64_t)(-log(1.0 - fraction(&r->random)) / often))
        r->detours[way] = -log(1.0 - fraction(&r->random)) * mean;
}

/* Let a chunk reach all devices that it has not reached, always next by the message that comes first with its price. */
static void grow_tree(Reroute *r, int64_t chunk) {
    int64_t left = 0;
    r->offered = 0, r->reached[r->root[chunk]] = 1;
    for (int64_t device = 0; device < r->devices; device++)
        if (r->reached[device]) offer_from(r, chunk, device);
        else left++;
    while (left) {
        if (!r->offered) offer_far(r, chunk);
        Offer offer = best_offer(r);
        if (r->reached[offer.to]) continue;
        Moment m = moment_of(r, chunk, offer.from, offer.to);
        offer.key = m.written + price_of(r, chunk, offer.from, way_of(r, offer.from, offer.to));
        if (r->offered && offer.key > r->offers[0].key) {
            make_offer(r, offer);
            continue;
        }
        send_at(r, chunk, offer.from, offer.to, &m);
        r->reached[offer.to] = 1, left--;
        offer_from(r, chunk, offer.to);
    }
}

#endif

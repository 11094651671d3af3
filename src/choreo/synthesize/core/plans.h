/* Plans of trees, and of trees with exchanges between several roots: their messages, and what waits for what. */
#ifndef CHOREO_PLANS_H
#define CHOREO_PLANS_H
#include "list_scheduling.h"

typedef struct { uint64_t state; } Random;

/* The next number of splitmix64 (G. Steele, D. Lea, C. Flood, OOPSLA 2014), as a fraction of one. */
static double fraction(Random *random) {
    uint64_t z = (random->state += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1.0p-53;
}

static int64_t one_of(Random *random, int64_t count) {
    int64_t found = (int64_t)(fraction(random) * (double)count);
    return found < count ? found : count - 1;
}

/* Of mean 0 and deviation 1 (Box and Muller 1958). */
static double normal(Random *random) {
    double radius = sqrt(-2.0 * log(1.0 - fraction(random)));
    return radius * cos(6.283185307179586 * fraction(random));
}

/* The constants of the same names in `search.py` and `compiled.py`. */
typedef struct { double warm, cold, shape, one, all, late, moved, moved_all, longer, lateness, near, join, again; } Tuning;

/* Trees of chunks: the parent of each device but 0 for one chunk after another, and when messages should start. With
 * several roots the parents are of the other devices, first in a chunk's tree in to the roots, then in that out. */
typedef struct { int64_t *parent; double *order, longest, *start, end, cost; } Plan;

typedef struct {
    Loop loop;
    Tuning tuning;
    Random random;
    int64_t devices, chunks;
    int inward;
    const int64_t *offset_of, *near_offsets, *near;
    const double *way_takes;
    /* With several roots, else 0: these and all others, where each device stands among them (others from -1 down), and by
     * round and root with which root it exchanges. A chunk's messages go in, then from root to root, then out. */
    int64_t roots, rounds, others, each, edges;
    const int64_t *root, *partner;
    int64_t *other, *at, *child, *sibling, *before_edge, *after_edge;
    int64_t *way, *waits, *place, *after_offsets, *after, *fill, *chain;
    double *takes, *arrived;
} Annealing;

static int64_t child_of(const Annealing *a, int64_t task) { return task % (a->devices - 1) + 1; }

/* The message of a device's parent; -1 where that is device 0. */
static int64_t beyond(const Annealing *a, const Plan *plan, int64_t task) {
    return plan->parent[task] ? task - child_of(a, task) + plan->parent[task] : -1;
}

static int64_t way_between(const Annealing *a, int64_t child, int64_t parent) {
    int64_t to = a->inward ? parent : child, from = a->inward ? child : parent;
    return a->offset_of[to * a->devices + from] - 1;
}

typedef struct { int64_t from, to; } Ends;

/* The ends of a message, with several roots. */
static Ends ends_of(const Annealing *a, const Plan *plan, int64_t task) {
    int64_t rest = task % a->each, between = a->rounds * a->roots;
    const int64_t *parent = plan->parent + task / a->each * 2 * a->others;
    if (rest < a->others) return (Ends){a->other[rest], parent[rest]};
    if (rest < a->others + between) {
        rest -= a->others;
        return (Ends){a->root[rest % a->roots], a->root[a->partner[rest]]};
    }
    return (Ends){parent[rest - between], a->other[rest - a->others - between]};
}

/* The way of a message. */
static int64_t way_of_task(const Annealing *a, const Plan *plan, int64_t task) {
    if (!a->roots) return way_between(a, child_of(a, task), plan->parent[task]);
    Ends ends = ends_of(a, plan, task);
    return a->offset_of[ends.to * a->devices + ends.from] - 1;
}

/* The messages of a plan, and what waits for what. */
static void lay_out_trees(Annealing *a, const Plan *plan) {
    int64_t tasks = a->loop.tasks;
    memset(a->waits, 0, (size_t)tasks * sizeof(int64_t));
    memset(a->after_offsets, 0, (size_t)(tasks + 1) * sizeof(int64_t));
    for (int64_t task = 0; task < tasks; task++) {
        int64_t above = beyond(a, plan, task);
        a->way[task] = way_between(a, child_of(a, task), plan->parent[task]);
        a->takes[task] = a->way_takes[a->way[task]];
        a->place[task] = a->inward ? task / (a->devices - 1) * a->devices + plan->parent[task] : -1;
        if (above < 0) continue;
        a->waits[a->inward ? above : task]++;
        a->after_offsets[(a->inward ? task : above) + 1]++;
    }
    for (int64_t task = 0; task < tasks; task++) a->after_offsets[task + 1] += a->after_offsets[task];
    memcpy(a->fill, a->after_offsets, (size_t)tasks * sizeof(int64_t));
    for (int64_t task = 0; task < tasks; task++) {
        int64_t above = beyond(a, plan, task);
        if (above >= 0) a->after[a->fill[a->inward ? task : above]++] = a->inward ? above : task;
    }
}

static void wait_on(Annealing *a, int64_t before, int64_t after) {
    a->before_edge[a->edges] = before, a->after_edge[a->edges++] = after;
    a->waits[after]++, a->after_offsets[before + 1]++;
}

/* In its turn a root waits for what it has and what its partner has, and its own exchange comes after both. */
static void exchange_after(Annealing *a, int64_t before, int64_t first, int64_t round, int64_t root) {
    int64_t begin = first + a->others + round * a->roots;
    wait_on(a, before, begin + root);
    wait_on(a, before, begin + a->partner[round * a->roots + root]);
}

/* What is sent out by a device waits for this. */
static void out_after(Annealing *a, int64_t before, int64_t first, int64_t device) {
    for (int64_t child = a->child[device]; child >= 0; child = a->sibling[child])
        wait_on(a, before, first + a->others + a->rounds * a->roots + child);
}

/* The messages of one chunk, with several roots. */
static void lay_out_chunk(Annealing *a, const Plan *plan, int64_t chunk) {
    int64_t first = chunk * a->each, between = a->rounds * a->roots;
    const int64_t *in = plan->parent + chunk * 2 * a->others, *out = in + a->others;
    for (int64_t device = 0; device < a->devices; device++) a->child[device] = -1;
    for (int64_t i = a->others - 1; i >= 0; i--) a->sibling[i] = a->child[out[i]], a->child[out[i]] = i;
    for (int64_t i = 0; i < a->others; i++) {
        int64_t above = a->at[in[i]];
        if (above >= 0) wait_on(a, first + i, first + above);
        else exchange_after(a, first + i, first, 0, -1 - above);
        out_after(a, first + a->others + between + i, first, a->other[i]);
    }
    for (int64_t i = 0; i < between; i++) {
        int64_t round = i / a->roots + 1, task = first + a->others + i;
        if (round < a->rounds) exchange_after(a, task, first, round, a->partner[i]);
        else out_after(a, task, first, a->root[a->partner[i]]);
    }
}

static void lay_out_exchanges(Annealing *a, const Plan *plan) {
    int64_t tasks = a->loop.tasks;
    memset(a->waits, 0, (size_t)tasks * sizeof(int64_t));
    memset(a->after_offsets, 0, (size_t)(tasks + 1) * sizeof(int64_t));
    a->edges = 0;
    for (int64_t chunk = 0; chunk < tasks / a->each; chunk++) lay_out_chunk(a, plan, chunk);
    for (int64_t task = 0; task < tasks; task++) {
        Ends ends = ends_of(a, plan, task);
        a->way[task] = a->offset_of[ends.to * a->devices + ends.from] - 1;
        a->takes[task] = a->way_takes[a->way[task]];
        int is_sum = task % a->each < a->others + a->rounds * a->roots;
        a->place[task] = is_sum ? task / a->each * a->devices + ends.to : -1;
        a->after_offsets[task + 1] += a->after_offsets[task];
    }
    memcpy(a->fill, a->after_offsets, (size_t)tasks * sizeof(int64_t));
    for (int64_t i = 0; i < a->edges; i++) a->after[a->fill[a->before_edge[i]]++] = a->after_edge[i];
}

/* The messages that one waits for, in `fill`; returns how many. */
static int64_t before_exchange(Annealing *a, const Plan *plan, int64_t task) {
    int64_t rest = task % a->each, first = task - rest, count = 0, begin = first + a->others;
    const int64_t *in = plan->parent + task / a->each * 2 * a->others;
    Ends ends = ends_of(a, plan, task);
    int64_t last = begin + (a->rounds - 1) * a->roots, *found = a->fill;
    if (rest >= a->others + a->rounds * a->roots) {
        int64_t above = a->at[ends.from];
        found[count++] = above < 0 ? last + a->partner[(a->rounds - 1) * a->roots - 1 - above] : last + a->roots + above;
        return count;
    }
    int64_t round = rest < a->others ? 0 : (rest - a->others) / a->roots;
    for (int64_t i = 0; !round && i < a->others; i++)
        if (in[i] == ends.from || (rest >= a->others && in[i] == ends.to)) found[count++] = first + i;
    if (!round) return count;
    const int64_t *partner = a->partner + (round - 1) * a->roots;
    found[count++] = begin + (round - 1) * a->roots + partner[-1 - a->at[ends.from]];
    found[count++] = begin + (round - 1) * a->roots + partner[-1 - a->at[ends.to]];
    return count;
}

#endif

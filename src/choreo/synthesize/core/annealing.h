/* Simulated annealing of trees: what `Search.run` does for `Trees`, many times as fast. Numbers at random are others, so
 * the plans are too. */
#ifndef CHOREO_ANNEALING_H
#define CHOREO_ANNEALING_H
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

/* The constants of the same names in `search.py` and `trees.py`. */
typedef struct { double warm, cold, shape, one, all, late, moved, moved_all, longer, lateness, near, join, again; } Tuning;

/* Trees of chunks: the parent of each device but 0 for one chunk after another, and when messages should start. */
typedef struct { int64_t *parent; double *order, longest, *start, end, cost; } Plan;

typedef struct {
    Loop loop;
    Tuning tuning;
    Random random;
    int64_t devices, chunks;
    int inward;
    const int64_t *offset_of, *near_offsets, *near;
    const double *way_takes;
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

/* The messages of a plan, and what waits for what. */
static void lay_out(Annealing *a, const Plan *plan) {
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

/* When the messages of a plan arrive, if none were made of several. */
static void arrivals(Annealing *a, const Plan *plan) {
    for (int64_t task = 0; task < a->loop.tasks; task++) {
        int64_t way = way_between(a, child_of(a, task), plan->parent[task]);
        a->arrived[task] = plan->start[task] + a->way_takes[way] + a->loop.latency[way];
    }
}

/* Put a plan in time. */
static void put_in_time(Annealing *a, Plan *plan) {
    Loop *loop = &a->loop;
    lay_out(a, plan);
    loop->latest = plan->order, loop->most = plan->longest;
    reset(loop);
    run(loop);
    memcpy(plan->start, loop->start, (size_t)loop->tasks * sizeof(double));
    plan->end = loop->end;
    arrivals(a, plan);
    double sum = 0.0;
    for (int64_t task = 0; task < loop->tasks; task++) {
        double late = a->arrived[task] / plan->end, power = late;
        for (int factor = 1; factor < (int)a->tuning.lateness; factor++) power *= late;
        sum += power;
    }
    plan->cost = plan->end * (1.0 + pow(sum / (double)loop->tasks, 1.0 / a->tuning.lateness));
}

static int64_t last_of(const Annealing *a, const int64_t *tasks, int64_t count) {
    int64_t last = -1;
    for (int64_t i = 0; i < count; i++) {
        int64_t task = tasks ? tasks[i] : i;
        if (last < 0 || a->arrived[task] > a->arrived[last]) last = task;
    }
    return last;
}

/* What a message has waited for last; -1 if for nothing. */
static int64_t waited_for(const Annealing *a, const Plan *plan, int64_t task) {
    if (!a->inward) return beyond(a, plan, task);
    int64_t count = 0, first = task - child_of(a, task) + 1;
    for (int64_t other = first; other < first + a->devices - 1; other++)
        if (plan->parent[other] == child_of(a, task)) a->fill[count++] = other;
    return last_of(a, a->fill, count);
}

/* A message: any, or one of those that the last of all has waited for. */
static int64_t chosen(Annealing *a, const Plan *plan) {
    if (fraction(&a->random) >= a->tuning.late) return one_of(&a->random, a->loop.tasks);
    int64_t count = 0;
    arrivals(a, plan);
    for (int64_t task = last_of(a, NULL, a->loop.tasks); task >= 0; task = waited_for(a, plan, task)) a->chain[count++] = task;
    return a->chain[one_of(&a->random, count)];
}

/* Give one device another parent; 0 if that is behind it. */
static int reshape(Annealing *a, const Plan *plan, Plan *changed) {
    int64_t task = chosen(a, plan), child = child_of(a, task), first = task - child + 1, other = 0, joined = -1;
    if (fraction(&a->random) < a->tuning.join) {
        joined = one_of(&a->random, a->loop.tasks);
        int64_t way = way_between(a, child_of(a, joined), plan->parent[joined]);
        while (other < a->devices && way_between(a, child, other) != way) other++;
        if (other == a->devices) return 0;
    } else if (fraction(&a->random) < a->tuning.near) {
        int64_t from = a->near_offsets[child];
        other = a->near[from + one_of(&a->random, a->near_offsets[child + 1] - from)];
    } else other = one_of(&a->random, a->devices);
    for (int64_t device = other; device; device = plan->parent[first + device - 1])
        if (device == child) return 0;
    changed->parent[task] = other;
    if (joined >= 0) changed->order[task] = plan->start[joined];
    else if (fraction(&a->random) < 0.5) changed->order[task] = fraction(&a->random) * plan->end;
    return 1;
}

/* Change a plan a little; 0 if that is impossible. */
static int change(Annealing *a, const Plan *plan, Plan *changed) {
    const Tuning *tuning = &a->tuning;
    int64_t tasks = a->loop.tasks;
    double which = fraction(&a->random);
    memcpy(changed->parent, plan->parent, (size_t)tasks * sizeof(int64_t));
    memcpy(changed->order, plan->order, (size_t)tasks * sizeof(double));
    changed->longest = plan->longest;
    if (which < tuning->shape) return reshape(a, plan, changed);
    which -= tuning->shape;
    if (which < tuning->one) {
        changed->order[one_of(&a->random, tasks)] += normal(&a->random) * tuning->moved * plan->end;
        return 1;
    }
    if (which - tuning->one < tuning->all) {
        double by = tuning->moved_all * plan->end * fraction(&a->random);
        for (int64_t task = 0; task < tasks; task++) changed->order[task] = plan->start[task] + by * normal(&a->random);
        return 1;
    }
    double least = a->way_takes[0];
    for (int64_t way = 1; way < a->loop.hops; way++) least = a->way_takes[way] < least ? a->way_takes[way] : least;
    if (least < plan->longest) least = plan->longest;
    changed->longest = fraction(&a->random) < 0.5 ? least * exp(tuning->longer * normal(&a->random)) : 0.0;
    return 1;
}

static void copy_plan(const Annealing *a, Plan *to, const Plan *from) {
    size_t size = (size_t)a->loop.tasks * 8;
    memcpy(to->parent, from->parent, size), memcpy(to->order, from->order, size), memcpy(to->start, from->start, size);
    to->longest = from->longest, to->end = from->end, to->cost = from->cost;
}

/* Make a plan with messages prepared in the order in which they start, as ranks do. */
static void settle(Annealing *a, const Plan *plan, Plan *settled) {
    size_t size = (size_t)a->loop.tasks * sizeof(double);
    copy_plan(a, settled, plan);
    for (int time = 0; time < a->tuning.again; time++) {
        memcpy(settled->order, settled->start, size);
        put_in_time(a, settled);
        if (!memcmp(settled->order, settled->start, size)) return;
    }
}

/* Change plans[0] so many times; the best is plans[2]. -1 if the user wants to stop. */
static int anneal(Annealing *a, Plan plans[4], int64_t count) {
    Plan *plan = &plans[0], *changed = &plans[1], *best = &plans[2], *settled = &plans[3];
    put_in_time(a, plan);
    copy_plan(a, best, plan);
    for (int64_t number = 0; number < count; number++) {
        if (number % 1024 == 1023 && PyErr_CheckSignals()) return -1;
        double warmth = plan->end * a->tuning.warm * pow(a->tuning.cold / a->tuning.warm, (double)number / (double)count);
        if (!change(a, plan, changed)) continue;
        put_in_time(a, changed);
        if (changed->cost > plan->cost && fraction(&a->random) >= exp((plan->cost - changed->cost) / warmth)) continue;
        Plan *former = plan;
        plan = changed, changed = former;
        if (plan->end >= best->end) continue;
        settle(a, plan, settled);
        if (settled->end < best->end) copy_plan(a, best, settled);
    }
    return 0;
}

#endif

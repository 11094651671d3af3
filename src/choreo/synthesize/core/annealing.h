/* Simulated annealing of trees, and of trees with exchanges between their roots: what `Search.run` does for `Trees` and
 * `Exchanges`, many times as fast. Numbers at random are others, so the plans are too. */
#ifndef CHOREO_ANNEALING_H
#define CHOREO_ANNEALING_H
#include "plans.h"

/* When the messages of a plan arrive, if none were made of several. */
static void arrivals(Annealing *a, const Plan *plan) {
    for (int64_t task = 0; task < a->loop.tasks; task++) {
        int64_t way = way_of_task(a, plan, task);
        a->arrived[task] = plan->start[task] + a->way_takes[way] + a->loop.latency[way];
    }
}

/* Put a plan in time. */
static void put_in_time(Annealing *a, Plan *plan) {
    Loop *loop = &a->loop;
    if (a->roots) lay_out_exchanges(a, plan);
    else lay_out_trees(a, plan);
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
static int64_t waited_for(Annealing *a, const Plan *plan, int64_t task) {
    if (a->roots) return last_of(a, a->fill, before_exchange(a, plan, task));
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
        int64_t way = way_of_task(a, plan, joined);
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

/* The device from which, or in to which, a device's message would take a way; -1 if none. */
static int64_t along(const Annealing *a, int64_t device, int64_t way, int inward) {
    for (int64_t other = 0; other < a->devices; other++) {
        int64_t offset = inward ? a->offset_of[other * a->devices + device] : a->offset_of[device * a->devices + other];
        if (offset == way + 1) return other;
    }
    return -1;
}

/* With several roots: give one device another parent in one tree; 0 if that is behind it. */
static int reshape_exchanges(Annealing *a, const Plan *plan, Plan *changed) {
    int64_t task = chosen(a, plan), between = a->rounds * a->roots, both = 2 * a->others, joined = -1, other;
    if (!a->others) return 0;
    while (task % a->each >= a->others && task % a->each < a->others + between) task = one_of(&a->random, a->loop.tasks);
    int64_t rest = task % a->each, is_in = rest < a->others, at = is_in ? rest : rest - between;
    const int64_t *tree = plan->parent + task / a->each * both + (is_in ? 0 : a->others);
    int64_t device = a->other[at % a->others];
    if (fraction(&a->random) < a->tuning.join) {
        joined = one_of(&a->random, a->loop.tasks);
        other = along(a, device, way_of_task(a, plan, joined), (int)is_in);
        if (other < 0) return 0;
    } else if (fraction(&a->random) < a->tuning.near) {
        int64_t from = a->near_offsets[device];
        other = a->near[from + one_of(&a->random, a->near_offsets[device + 1] - from)];
    } else other = one_of(&a->random, a->devices);
    int64_t above = other;
    while (above != device && a->at[above] >= 0) above = tree[a->at[above]];
    if (above == device) return 0;
    changed->parent[task / a->each * both + at] = other;
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
    if (which < tuning->shape) return a->roots ? reshape_exchanges(a, plan, changed) : reshape(a, plan, changed);
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

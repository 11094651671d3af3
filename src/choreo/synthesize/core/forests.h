/* Simulated annealing of forests: of each chunk trees in to its roots, rounds in which these exchange their sums, and
 * trees out from them. `forests.py` says what the columns are, and puts the plan that is returned in time again. */
#ifndef CHOREO_FORESTS_H
#define CHOREO_FORESTS_H
#include "annealing.h"

enum { NOBODY = -1 };

/* Parents by task, when messages should start, the size of each chunk, and how long a message of several chunks may be.
 * Of a plan that is to be changed also each task's way, and the last task, what it has waited for, and so on. */
typedef struct { int64_t *parent, *way, *chain, links; double *order, *bytes, longest, *start, end, cost; } Forest;

typedef struct {
    Loop loop;
    Tuning tuning;
    Random random;
    int64_t members, devices, chunks, roots, rounds, each; /* `each`: the tasks of a chunk */
    int inward, outward;
    double resized, alike, least;
    const int64_t *way_of, *root, *partner, *block;
    const double *second_a_byte;
    int64_t *way, *waits, *place, *after_offsets, *after, *fill, *edges, num_edges;
    double *takes, *arrived;
    char *active;
} Forests;

/* The first task of a chunk's trees in (0) or out (1). */
static int64_t first_of(const Forests *f, int64_t chunk, int tree) {
    return chunk * f->each + (tree ? (f->inward ? f->members : 0) + f->rounds * f->roots : 0);
}

static int64_t round_of(const Forests *f, int64_t chunk, int64_t round, int64_t root) {
    return chunk * f->each + (f->inward ? f->members : 0) + round * f->roots + root;
}

/* Which of a chunk's roots a member is; NOBODY if none. */
static int64_t as_root(const Forests *f, int64_t chunk, int64_t member) {
    for (int64_t root = 0; root < f->roots; root++)
        if (f->root[chunk * f->roots + root] == member) return root;
    return NOBODY;
}

static void waits_for(Forests *f, int64_t task, int64_t before) {
    f->edges[2 * f->num_edges] = before, f->edges[2 * f->num_edges++ + 1] = task;
    f->waits[task]++, f->after_offsets[before + 1]++;
}

static void set_task(Forests *f, const Forest *plan, int64_t task, int64_t chunk, int64_t src, int64_t dst, int adds) {
    f->active[task] = 1;
    f->waits[task] = 0;
    f->way[task] = f->way_of[dst * f->members + src] - 1;
    f->takes[task] = plan->bytes[chunk] * f->second_a_byte[f->way[task]];
    f->place[task] = adds ? chunk * f->members + dst : -1;
}

/* The tasks of one tree: those of devices, and of switches that something goes through. */
static void set_tree(Forests *f, const Forest *plan, int64_t chunk, int tree) {
    int64_t first = first_of(f, chunk, tree);
    for (int64_t device = 0; device < f->devices; device++)
        for (int64_t member = device; plan->parent[first + member] >= 0 && !f->active[first + member];
             member = plan->parent[first + member]) {
            int64_t other = plan->parent[first + member];
            set_task(f, plan, first + member, chunk, tree ? other : member, tree ? member : other, !tree);
        }
}

/* What waits for what in one chunk. */
static void set_waits(Forests *f, const Forest *plan, int64_t chunk) {
    int64_t in = first_of(f, chunk, 0), out = first_of(f, chunk, 1), last = f->rounds - 1;
    for (int64_t member = 0; f->inward && member < f->members; member++) {
        int64_t task = in + member, above = plan->parent[task];
        if (!f->active[task]) continue;
        int64_t root = as_root(f, chunk, above);
        if (root < 0) waits_for(f, in + above, task);
        else if (f->rounds) waits_for(f, round_of(f, chunk, 0, root), task),
            waits_for(f, round_of(f, chunk, 0, f->partner[root]), task);
        else for (int64_t other = 0; f->outward && other < f->members; other++)
            if (f->active[out + other] && plan->parent[out + other] == above) waits_for(f, out + other, task);
    }
    for (int64_t round = 1; round < f->rounds; round++) /* data must be sent before anything is added to it */
        for (int64_t root = 0; root < f->roots; root++) {
            const int64_t *former = f->partner + (round - 1) * f->roots;
            int64_t to = f->partner[round * f->roots + root], task = round_of(f, chunk, round, root);
            waits_for(f, task, round_of(f, chunk, round - 1, former[root]));
            waits_for(f, task, round_of(f, chunk, round - 1, former[to]));
        }
    for (int64_t member = 0; f->outward && member < f->members; member++) {
        if (!f->active[out + member]) continue;
        int64_t above = plan->parent[out + member], root = as_root(f, chunk, above);
        if (root < 0) waits_for(f, out + member, out + above);
        else if (f->rounds) waits_for(f, out + member, round_of(f, chunk, last, f->partner[last * f->roots + root]));
    }
}

static void plant(Forests *f, const Forest *plan) {
    int64_t tasks = f->loop.tasks;
    memset(f->active, 0, (size_t)tasks);
    memset(f->way, 0, (size_t)tasks * sizeof(int64_t));
    memset(f->takes, 0, (size_t)tasks * sizeof(double));
    memset(f->after_offsets, 0, (size_t)(tasks + 1) * sizeof(int64_t));
    for (int64_t task = 0; task < tasks; task++) f->waits[task] = 1, f->place[task] = -1; /* until it is active */
    f->num_edges = 0;
    for (int64_t chunk = 0; chunk < f->chunks; chunk++) {
        const int64_t *root = f->root + chunk * f->roots;
        if (f->inward) set_tree(f, plan, chunk, 0);
        if (f->outward) set_tree(f, plan, chunk, 1);
        for (int64_t round = 0; round < f->rounds; round++)
            for (int64_t one = 0; one < f->roots; one++)
                set_task(f, plan, round_of(f, chunk, round, one), chunk, root[one],
                         root[f->partner[round * f->roots + one]], 1);
        set_waits(f, plan, chunk);
    }
    for (int64_t task = 0; task < tasks; task++) f->after_offsets[task + 1] += f->after_offsets[task];
    memcpy(f->fill, f->after_offsets, (size_t)tasks * sizeof(int64_t));
    for (int64_t edge = 0; edge < f->num_edges; edge++) f->after[f->fill[f->edges[2 * edge]]++] = f->edges[2 * edge + 1];
}

/* Put a plan in time. */
static void time_forest(Forests *f, Forest *plan) {
    Loop *loop = &f->loop;
    plant(f, plan);
    loop->latest = plan->order, loop->most = plan->longest;
    reset(loop);
    run(loop);
    memcpy(plan->start, loop->start, (size_t)loop->tasks * sizeof(double));
    plan->end = loop->end;
    double sum = 0.0;
    int64_t count = 0;
    for (int64_t task = 0; task < loop->tasks; task++) {
        if (!f->active[task]) continue;
        double late = (plan->start[task] + f->takes[task] + loop->latency[f->way[task]]) / plan->end, power = late;
        for (int factor = 1; factor < (int)f->tuning.lateness; factor++) power *= late;
        sum += power, count++;
    }
    plan->cost = plan->end * (1.0 + pow(sum / (double)(count ? count : 1), 1.0 / f->tuning.lateness));
}

/* Note of the plan that was put in time last what the last message has waited for. */
static void trace(Forests *f, Forest *plan) {
    int64_t at = NOBODY;
    memcpy(plan->way, f->way, (size_t)f->loop.tasks * sizeof(int64_t));
    for (int64_t task = 0; task < f->loop.tasks; task++) {
        f->arrived[task] = plan->start[task] + f->takes[task] + f->loop.latency[f->way[task]];
        if (f->active[task] && (at < 0 || f->arrived[task] > f->arrived[at])) at = task;
    }
    for (plan->links = 0; at >= 0;) {
        plan->chain[plan->links++] = at;
        int64_t last = NOBODY;
        for (int64_t edge = 0; edge < f->num_edges; edge++) {
            int64_t before = f->edges[2 * edge];
            if (f->edges[2 * edge + 1] == at && (last < 0 || f->arrived[before] > f->arrived[last])) last = before;
        }
        at = last;
    }
}

/* A task: any, or one of those that the last of all has waited for. */
static int64_t one_task(Forests *f, const Forest *plan) {
    if (fraction(&f->random) >= f->tuning.late) return one_of(&f->random, f->loop.tasks);
    return plan->chain[one_of(&f->random, plan->links)];
}

/* Give a member another parent in one tree; 0 if it has none there, or that one cannot be reached or is behind it. */
static int transplant(Forests *f, const Forest *plan, Forest *changed) {
    int64_t task = one_task(f, plan), chunk = task / f->each;
    int tree = f->outward && task >= first_of(f, chunk, 1);
    int64_t first = first_of(f, chunk, tree), member = task - first, other = one_of(&f->random, f->members);
    if (member >= f->members || plan->parent[task] < 0 || other == plan->parent[task]) return 0;
    if (!f->way_of[tree ? member * f->members + other : other * f->members + member]) return 0;
    for (int64_t above = other; above >= 0; above = plan->parent[first + above])
        if (above == member) return 0;
    changed->parent[task] = other;
    if (fraction(&f->random) < 0.5) changed->order[task] = fraction(&f->random) * plan->end;
    return 1;
}

/* Make one chunk larger or smaller, and the others of its block the other way; 0 if some become too small. */
static int resize(Forests *f, Forest *changed) {
    int64_t one = one_of(&f->random, f->chunks);
    double before = 0.0, after = 0.0;
    for (int64_t chunk = 0; chunk < f->chunks; chunk++)
        if (f->block[chunk] == f->block[one]) before += changed->bytes[chunk];
    double least = f->least < before ? f->least : before;
    changed->bytes[one] *= exp(f->tuning.longer * normal(&f->random));
    for (int64_t chunk = 0; chunk < f->chunks; chunk++)
        if (f->block[chunk] == f->block[one]) after += changed->bytes[chunk];
    for (int64_t chunk = 0; chunk < f->chunks; chunk++) {
        if (f->block[chunk] != f->block[one]) continue;
        changed->bytes[chunk] *= before / after;
        if (changed->bytes[chunk] < least) return 0;
    }
    return 1;
}

/* Move a task, and those that start with it on the same way. */
static void move(Forests *f, const Forest *plan, Forest *changed) {
    int64_t one = one_task(f, plan);
    double by = normal(&f->random) * f->tuning.moved * plan->end;
    int alone = fraction(&f->random) >= f->alike;
    for (int64_t task = 0; task < f->loop.tasks; task++)
        if (task == one || (!alone && plan->way[task] == plan->way[one] && plan->start[task] == plan->start[one]))
            changed->order[task] = plan->start[task] + by;
}

/* Change a plan a little; 0 if that is impossible. */
static int grow(Forests *f, const Forest *plan, Forest *changed) {
    const Tuning *tuning = &f->tuning;
    int64_t tasks = f->loop.tasks;
    double which = fraction(&f->random);
    memcpy(changed->parent, plan->parent, (size_t)tasks * sizeof(int64_t));
    memcpy(changed->order, plan->order, (size_t)tasks * sizeof(double));
    memcpy(changed->bytes, plan->bytes, (size_t)f->chunks * sizeof(double));
    changed->longest = plan->longest;
    if (f->chunks > 1 && fraction(&f->random) < f->resized) return resize(f, changed);
    if (which < tuning->shape) return transplant(f, plan, changed);
    which -= tuning->shape;
    if (which < tuning->one) {
        move(f, plan, changed);
        return 1;
    }
    if (which - tuning->one < tuning->all) {
        double by = tuning->moved_all * plan->end * fraction(&f->random);
        for (int64_t task = 0; task < tasks; task++) changed->order[task] = plan->start[task] + by * normal(&f->random);
        return 1;
    }
    double least = plan->longest > 0.0 ? plan->longest : plan->end * tuning->moved;
    changed->longest = fraction(&f->random) < 0.7 ? least * exp(tuning->longer * normal(&f->random)) : 0.0;
    return 1;
}

static void copy_forest(const Forests *f, Forest *to, const Forest *from) {
    size_t size = (size_t)f->loop.tasks * 8;
    memcpy(to->parent, from->parent, size), memcpy(to->order, from->order, size), memcpy(to->start, from->start, size);
    memcpy(to->bytes, from->bytes, (size_t)f->chunks * 8);
    to->longest = from->longest, to->end = from->end, to->cost = from->cost;
}

/* Make a plan with messages prepared in the order in which they start, as ranks do. */
static void settle_forest(Forests *f, const Forest *plan, Forest *settled) {
    size_t size = (size_t)f->loop.tasks * sizeof(double);
    copy_forest(f, settled, plan);
    for (int time = 0; time < f->tuning.again; time++) {
        memcpy(settled->order, settled->start, size);
        time_forest(f, settled);
        if (!memcmp(settled->order, settled->start, size)) return;
    }
}

/* Change plans[0] so many times; the best is plans[2]. -1 if the user wants to stop. */
static int anneal_forest(Forests *f, Forest plans[4], int64_t count) {
    Forest *plan = &plans[0], *changed = &plans[1], *best = &plans[2], *settled = &plans[3];
    time_forest(f, plan);
    trace(f, plan);
    copy_forest(f, best, plan);
    for (int64_t number = 0; number < count; number++) {
        if (number % 1024 == 1023 && PyErr_CheckSignals()) return -1;
        double warmth = plan->end * f->tuning.warm * pow(f->tuning.cold / f->tuning.warm, (double)number / (double)count);
        if (!grow(f, plan, changed)) continue;
        time_forest(f, changed);
        if (changed->cost > plan->cost && fraction(&f->random) >= exp((plan->cost - changed->cost) / warmth)) continue;
        Forest *former = plan;
        plan = changed, changed = former;
        trace(f, plan);
        if (plan->end >= best->end) continue;
        settle_forest(f, plan, settled);
        if (settled->end < best->end) copy_forest(f, best, settled);
    }
    return 0;
}

#endif

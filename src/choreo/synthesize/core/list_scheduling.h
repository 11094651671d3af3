/* List scheduling by events. `list_scheduling.py` is the same thing in Python, says what is computed, and is the oracle
 * of this code in the tests. Times are sums of the same terms in the same order, so they have the same bits. */
#ifndef CHOREO_LIST_SCHEDULING_H
#define CHOREO_LIST_SCHEDULING_H
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SENT, OUT, ARRIVED, WRITTEN };

/* Parts of a link add up to a little more or less than the whole. */
static const double ROUNDING = 1e-9;

/* Something that waits: first by `first`, then by `second`, then by `third` and by its task. */
typedef struct { double first, second; int64_t third, task; } Entry;
typedef struct { Entry *entries; int64_t count; } Heap;

static int is_less(const Entry *a, const Entry *b) {
    if (a->first != b->first) return a->first < b->first;
    if (a->second != b->second) return a->second < b->second;
    if (a->third != b->third) return a->third < b->third;
    return a->task < b->task;
}

static int compare(const void *a, const void *b) { return is_less(a, b) ? -1 : is_less(b, a); }

static void push(Heap *heap, Entry entry) {
    int64_t at = heap->count++;
    while (at && is_less(&entry, &heap->entries[(at - 1) / 2])) {
        heap->entries[at] = heap->entries[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap->entries[at] = entry;
}

static Entry pop(Heap *heap) {
    Entry top = heap->entries[0], last = heap->entries[--heap->count];
    int64_t at = 0;
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= heap->count) break;
        if (child + 1 < heap->count && is_less(&heap->entries[child + 1], &heap->entries[child])) child++;
        if (!is_less(&heap->entries[child], &last)) break;
        heap->entries[at] = heap->entries[child];
        at = child;
    }
    heap->entries[at] = last;
    return top;
}

/* Numbers, each at most once. */
typedef struct { int64_t *numbers, count; char *has; } Set;

static void add(Set *set, int64_t number) {
    if (set->has[number]) return;
    set->has[number] = 1;
    set->numbers[set->count++] = number;
}

static void clear(Set *set) {
    while (set->count) set->has[set->numbers[--set->count]] = 0;
}

typedef struct {
    int64_t tasks, hops, links, members, places;
    const int64_t *hop, *place, *after_offsets, *after, *link_offsets, *hop_links, *payers;
    const double *latest, *latency, *costs;
    /* The part of each link in hop_links that a message takes, all of it if NULL; and which links are ports. */
    const double *taken;
    const int64_t *is_port;
    const int64_t *waits;   /* how many tasks come before each */
    const double *takes_it; /* how long each task occupies its links */
    double most; /* how long a message of several tasks may take its links */
    int busiest_first;
    int64_t *next_part, *last_part, *first_part; /* the tasks of a message are a list, by the first of them */
    /* The last task that adds at a place, the one that adds after each, and what a message waits for to be taken in. */
    int64_t *last_at, *next_at, *held;
    int64_t *missing, *at_offsets, *hops_at;
    int64_t *flows;        /* on each link, */
    double *room, *opened; /* the part of it that they leave, and when the first of them began */
    double *takes, *start, *left, *free_at, now, end;
    char *busy, *joined, *is_written;
    Heap events, *waiting, *unsent, *queues; /* queues: of the senders, then of the receivers */
    Entry *entries, *urgent;
    int64_t *counts;
    Set touched, touched_queues;
} Loop;

static double cost(const Loop *loop, int row, int64_t task) { return loop->costs[row * loop->hops + loop->hop[task]]; }

static int64_t queue_of(const Loop *loop, int side, int64_t task) {
    return side * loop->members + loop->payers[side * loop->hops + loop->hop[task]];
}

static void wait_for(Loop *loop, int side, int64_t task) {
    int64_t queue = queue_of(loop, side, task);
    Entry entry = {side ? loop->now : loop->latest[task], loop->latest[task], 0, task};
    push(&loop->queues[queue], entry);
    if (!side && loop->most > 0) push(&loop->unsent[loop->hop[task]], entry);
    add(&loop->touched_queues, queue);
}

static void offer(Loop *loop, int64_t task) {
    push(&loop->waiting[loop->hop[task]], (Entry){loop->latest[task], 0, 0, task});
    add(&loop->touched, loop->hop[task]);
}

static void ready(Loop *loop, int64_t task) {
    if (cost(loop, 1, task) > 0) wait_for(loop, 0, task);
    else offer(loop, task);
}

static void next_message(Loop *loop, int side, int64_t task) {
    int64_t queue = queue_of(loop, side, task);
    loop->busy[queue] = 0;
    add(&loop->touched_queues, queue);
}

/* Make a task part of the message of another, if that is not too long then. */
static int joins(Loop *loop, int64_t task, int64_t first) {
    if (loop->hop[task] != loop->hop[first] || loop->takes[first] + loop->takes[task] > loop->most) return 0;
    loop->next_part[loop->last_part[first]] = task;
    loop->last_part[first] = task;
    loop->first_part[task] = first;
    loop->joined[task] = 1;
    loop->takes[first] += loop->takes[task];
    return 1;
}

static void written(Loop *loop, int64_t task);

/* One thing less to wait for: the message's arrival, or what is added before it where it adds. */
static void let_in(Loop *loop, int64_t first) {
    if (--loop->held[first]) return;
    if (cost(loop, 3, first) > 0) wait_for(loop, 1, first);
    else written(loop, first);
}

static void written(Loop *loop, int64_t task) {
    if (cost(loop, 3, task) > 0) next_message(loop, 1, task);
    if (loop->now > loop->end) loop->end = loop->now;
    for (; task >= 0; task = loop->next_part[task]) {
        loop->is_written[task] = 1;
        if (loop->next_at[task] >= 0) let_in(loop, loop->first_part[loop->next_at[task]]);
        for (int64_t i = loop->after_offsets[task]; i < loop->after_offsets[task + 1]; i++)
            if (!--loop->missing[loop->after[i]]) ready(loop, loop->after[i]);
    }
}

/* What a message adds goes after what started before it and adds at the same places. */
static void add_in_turn(Loop *loop, int64_t first) {
    loop->held[first] = 1;
    for (int64_t task = first; task >= 0; task = loop->next_part[task]) {
        if (loop->place[task] < 0) continue;
        int64_t *last = &loop->last_at[loop->place[task]];
        if (*last >= 0 && !loop->is_written[*last] && loop->first_part[*last] != first) {
            loop->next_at[*last] = task;
            loop->held[first]++;
        }
        *last = task;
    }
}

/* The part of the i-th link of all hops that a message takes. */
static double taken(const Loop *loop, int64_t i) { return loop->taken ? loop->taken[i] : 1.0; }

/* Whether the i-th link of all hops has room for one more. What enters a port begins at the same time. */
static int has_room(const Loop *loop, int64_t i) {
    int64_t link = loop->hop_links[i];
    if (!loop->flows[link]) return 1;
    if (!loop->taken || (loop->is_port[link] && loop->opened[link] != loop->now)) return 0;
    return taken(loop, i) <= loop->room[link] + ROUNDING;
}

static void enter(Loop *loop, int64_t i, double takes) {
    int64_t link = loop->hop_links[i];
    if (!loop->flows[link]++) loop->opened[link] = loop->now, loop->room[link] = 1.0;
    loop->room[link] -= taken(loop, i);
    loop->left[link] -= takes * taken(loop, i);
}

static void happens(Loop *loop, int kind, int64_t task) {
    int64_t hop = loop->hop[task];
    switch (kind) {
    case SENT:
        next_message(loop, 0, task);
        offer(loop, task);
        break;
    case OUT:
        for (int64_t i = loop->link_offsets[hop]; i < loop->link_offsets[hop + 1]; i++) {
            int64_t link = loop->hop_links[i];
            loop->flows[link]--;
            loop->room[link] += taken(loop, i);
            for (int64_t j = loop->at_offsets[link]; j < loop->at_offsets[link + 1]; j++)
                if (loop->waiting[loop->hops_at[j]].count) add(&loop->touched, loop->hops_at[j]);
        }
        break;
    case ARRIVED:
        let_in(loop, task);
        break;
    default:
        written(loop, task);
    }
}

static void begin_messages(Loop *loop) {
    for (int64_t i = 0; i < loop->touched_queues.count; i++) {
        int64_t queue = loop->touched_queues.numbers[i];
        int side = queue >= loop->members;
        Heap *waiting = &loop->queues[queue];
        while (!side && waiting->count && loop->joined[waiting->entries[0].task]) pop(waiting);
        if (loop->busy[queue] || !waiting->count) continue;
        Entry entry = pop(waiting);
        Heap *others = &loop->unsent[loop->hop[entry.task]];
        while (!side && others->count &&
               (others->entries[0].task == entry.task || joins(loop, others->entries[0].task, entry.task))) pop(others);
        double begin = loop->now > loop->free_at[queue] ? loop->now : loop->free_at[queue];
        loop->busy[queue] = 1;
        loop->free_at[queue] = begin + cost(loop, 2 * side + 1, entry.task);
        push(&loop->events, (Entry){begin + cost(loop, 2 * side, entry.task), side ? WRITTEN : SENT, 0, entry.task});
    }
    clear(&loop->touched_queues);
}

static void begin_flows(Loop *loop) {
    int64_t count = 0;
    for (int64_t i = 0; i < loop->touched.count; i++) {
        int64_t hop = loop->touched.numbers[i];
        if (!loop->waiting[hop].count) continue;
        const Entry *top = &loop->waiting[hop].entries[0];
        double busiest = 0.0;
        for (int64_t j = loop->link_offsets[hop]; loop->busiest_first && j < loop->link_offsets[hop + 1]; j++)
            if (-loop->left[loop->hop_links[j]] < busiest || j == loop->link_offsets[hop])
                busiest = -loop->left[loop->hop_links[j]];
        loop->urgent[count++] = (Entry){busiest, top->first, top->task, hop};
    }
    clear(&loop->touched);
    if (count > 1) qsort(loop->urgent, (size_t)count, sizeof(Entry), compare);
    for (int64_t i = 0; i < count; i++) {
        int64_t hop = loop->urgent[i].task, task = loop->urgent[i].third;
        int64_t first = loop->link_offsets[hop], last = loop->link_offsets[hop + 1];
        int all_free = 1;
        for (int64_t j = first; j < last; j++) all_free &= has_room(loop, j);
        if (!all_free) continue;
        Heap *waiting = &loop->waiting[hop];
        pop(waiting);
        while (cost(loop, 1, task) <= 0 && waiting->count && joins(loop, waiting->entries[0].task, task)) pop(waiting);
        for (int64_t j = first; j < last; j++) enter(loop, j, loop->takes[task]);
        for (int64_t part = task; part >= 0; part = loop->next_part[part]) loop->start[part] = loop->now;
        add_in_turn(loop, task);
        double out = loop->now + loop->takes[task];
        push(&loop->events, (Entry){out, OUT, 0, task});
        push(&loop->events, (Entry){out + loop->latency[hop], ARRIVED, 0, task});
    }
}

/* Go through everything once; `reset` comes before it. */
static void run(Loop *loop) {
    for (int64_t task = 0; task < loop->tasks; task++)
        if (!loop->missing[task]) ready(loop, task);
    for (;;) {
        begin_messages(loop);
        if (!(loop->events.count && loop->events.entries[0].first == loop->now)) {
            begin_flows(loop);
            if (!loop->events.count) return;
        }
        loop->now = loop->events.entries[0].first;
        while (loop->events.count && loop->events.entries[0].first == loop->now) {
            Entry event = pop(&loop->events);
            happens(loop, (int)event.second, event.task);
        }
    }
}

/* Room for `count` things, never none. */
#define ROOM(count, type) calloc((size_t)(count) + 1, sizeof(type))

/* Make room for everything that the loop changes; 0, or -1 where there is none. */
static int prepare(Loop *loop) {
    int64_t tasks = loop->tasks, hops = loop->hops, links = loop->links, members = loop->members;
    int64_t *fill = ROOM(links, int64_t);
    loop->at_offsets = ROOM(links + 1, int64_t), loop->hops_at = ROOM(loop->link_offsets[hops], int64_t);
    loop->next_part = ROOM(tasks, int64_t), loop->last_part = ROOM(tasks, int64_t);
    loop->first_part = ROOM(tasks, int64_t), loop->next_at = ROOM(tasks, int64_t), loop->held = ROOM(tasks, int64_t);
    loop->last_at = ROOM(loop->places, int64_t), loop->is_written = ROOM(tasks, char);
    loop->missing = ROOM(tasks, int64_t), loop->takes = ROOM(tasks, double), loop->counts = ROOM(hops, int64_t);
    loop->start = ROOM(tasks, double), loop->left = ROOM(links, double), loop->free_at = ROOM(2 * members, double);
    loop->flows = ROOM(links, int64_t), loop->room = ROOM(links, double), loop->opened = ROOM(links, double);
    loop->busy = ROOM(2 * members, char);
    loop->joined = ROOM(tasks, char), loop->unsent = ROOM(hops, Heap);
    loop->waiting = ROOM(hops, Heap), loop->queues = ROOM(2 * members, Heap);
    /* A task waits on its hop, at its sender (twice), at its receiver, and for two events at most. */
    loop->entries = ROOM(6 * tasks, Entry), loop->urgent = ROOM(hops, Entry);
    loop->touched.numbers = ROOM(hops, int64_t), loop->touched.has = ROOM(hops, char);
    loop->touched_queues.numbers = ROOM(2 * members, int64_t), loop->touched_queues.has = ROOM(2 * members, char);
    int failed = !fill || !loop->at_offsets || !loop->hops_at || !loop->next_part || !loop->last_part ||
        !loop->first_part || !loop->next_at || !loop->held || !loop->last_at || !loop->is_written || !loop->missing ||
        !loop->takes || !loop->counts || !loop->start || !loop->left || !loop->free_at || !loop->flows || !loop->room ||
        !loop->opened || !loop->busy || !loop->joined || !loop->unsent || !loop->waiting || !loop->queues ||
        !loop->entries || !loop->urgent || !loop->touched.numbers || !loop->touched.has || !loop->touched_queues.numbers ||
        !loop->touched_queues.has;
    if (!failed) {
        for (int64_t i = 0; i < loop->link_offsets[hops]; i++) loop->at_offsets[loop->hop_links[i] + 1]++;
        for (int64_t link = 0; link < links; link++) loop->at_offsets[link + 1] += loop->at_offsets[link];
        for (int64_t hop = 0; hop < hops; hop++)
            for (int64_t i = loop->link_offsets[hop]; i < loop->link_offsets[hop + 1]; i++) {
                int64_t link = loop->hop_links[i];
                loop->hops_at[loop->at_offsets[link] + fill[link]++] = hop;
            }
    }
    free(fill);
    return failed ? -1 : 0;
}

/* Make everything as it is before the first event, for these tasks. */
static void reset(Loop *loop) {
    int64_t tasks = loop->tasks, hops = loop->hops, links = loop->links, members = loop->members;
    Entry *room = loop->entries;
    loop->now = loop->end = 0.0;
    loop->events.entries = room, loop->events.count = 0, room += 2 * tasks;
    clear(&loop->touched), clear(&loop->touched_queues);
    memset(loop->counts, 0, (size_t)hops * sizeof(int64_t));
    for (int64_t task = 0; task < tasks; task++) loop->counts[loop->hop[task]]++;
    for (int64_t queue = 0; queue < 2 * members; queue++) loop->queues[queue].count = 0;
    for (int64_t hop = 0; hop < hops; hop++) {
        int64_t count = loop->counts[hop];
        loop->waiting[hop] = (Heap){room, 0}, room += count;
        loop->unsent[hop] = (Heap){room, 0}, room += count;
        for (int side = 0; side < 2; side++) loop->queues[side * members + loop->payers[side * hops + hop]].count += count;
    }
    for (int64_t queue = 0; queue < 2 * members; queue++) { /* first only counted */
        int64_t count = loop->queues[queue].count;
        loop->queues[queue] = (Heap){room, 0}, room += count;
        loop->free_at[queue] = 0.0, loop->busy[queue] = 0;
    }
    memset(loop->flows, 0, (size_t)links * sizeof(int64_t));
    memset(loop->joined, 0, (size_t)tasks);
    memset(loop->is_written, 0, (size_t)tasks);
    memset(loop->start, 0, (size_t)tasks * sizeof(double));
    memcpy(loop->missing, loop->waits, (size_t)tasks * sizeof(int64_t));
    memcpy(loop->takes, loop->takes_it, (size_t)tasks * sizeof(double));
    for (int64_t task = 0; task < tasks; task++) {
        loop->next_part[task] = loop->next_at[task] = -1;
        loop->last_part[task] = loop->first_part[task] = task;
    }
    for (int64_t place = 0; place < loop->places; place++) loop->last_at[place] = -1;
    if (!loop->busiest_first) return;
    for (int64_t link = 0; link < links; link++) loop->left[link] = 0.0;
    for (int64_t task = 0; task < tasks; task++)
        for (int64_t i = loop->link_offsets[loop->hop[task]]; i < loop->link_offsets[loop->hop[task] + 1]; i++)
            loop->left[loop->hop_links[i]] += loop->takes[task] * taken(loop, i);
}

static void release(Loop *loop) {
    void *owned[] = {loop->missing, loop->takes, loop->next_part, loop->last_part, loop->first_part, loop->next_at, loop->held,
        loop->last_at, loop->is_written, loop->at_offsets, loop->hops_at, loop->start, loop->left, loop->free_at,
        loop->flows, loop->room, loop->opened, loop->busy, loop->joined, loop->unsent, loop->waiting, loop->queues,
        loop->entries, loop->urgent, loop->counts, loop->touched.numbers, loop->touched.has, loop->touched_queues.numbers,
        loop->touched_queues.has};
    for (size_t i = 0; i < sizeof(owned) / sizeof(*owned); i++) free(owned[i]);
}

#endif

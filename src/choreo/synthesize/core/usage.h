/* When links, senders and receivers are busy, with gaps that a message can take, and a way back to what was before. */
#ifndef CHOREO_USAGE_H
#define CHOREO_USAGE_H
#include "list_scheduling.h"

/* The time that a message of a chunk takes. */
typedef struct { double begin, end; int64_t chunk; } Interval;

/* Intervals in order of time, now and before the last changes. */
typedef struct { Interval *now, *former; int64_t count, room, former_count, former_room; int changed; } Usage;

/* Keep what is there as the former state, once; -1 where there is no room. */
static int remember(Usage *usage) {
    if (usage->changed) return 0;
    if (usage->former_room < usage->count) {
        Interval *larger = realloc(usage->former, (size_t)usage->room * sizeof(Interval));
        if (!larger) return -1;
        usage->former = larger, usage->former_room = usage->room;
    }
    if (usage->count) memcpy(usage->former, usage->now, (size_t)usage->count * sizeof(Interval));
    usage->former_count = usage->count, usage->changed = 1;
    return 0;
}

static void go_back(Usage *usage) {
    if (!usage->changed) return;
    Usage was = *usage;
    usage->now = was.former, usage->count = was.former_count, usage->room = was.former_room;
    usage->former = was.now, usage->former_room = was.room, usage->changed = 0;
}

/* -1 where there is no room. */
static int occupy(Usage *usage, double begin, double end, int64_t chunk) {
    if (end <= begin) return 0;
    if (remember(usage)) return -1;
    if (usage->count == usage->room) {
        int64_t room = usage->room ? 2 * usage->room : 16;
        Interval *larger = realloc(usage->now, (size_t)room * sizeof(Interval));
        if (!larger) return -1;
        usage->now = larger, usage->room = room;
    }
    int64_t at = usage->count++;
    for (; at && usage->now[at - 1].begin > begin; at--) usage->now[at] = usage->now[at - 1];
    usage->now[at] = (Interval){begin, end, chunk};
    return 0;
}

/* Take out what belongs to a chunk; -1 where there is no room. */
static int vacate(Usage *usage, int64_t chunk) {
    int64_t first = 0;
    while (first < usage->count && usage->now[first].chunk != chunk) first++;
    if (first == usage->count) return 0;
    if (remember(usage)) return -1;
    int64_t kept = first;
    for (int64_t i = first; i < usage->count; i++)
        if (usage->now[i].chunk != chunk) usage->now[kept++] = usage->now[i];
    usage->count = kept;
    return 0;
}

/* The first moment from which on it is free for so long, but for rounding. */
static double gap(const Usage *usage, double from, double takes) {
    int64_t low = 0, high = usage->count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (usage->now[middle].end > from) high = middle;
        else low = middle + 1;
    }
    for (; low < usage->count && usage->now[low].begin < from + takes * (1.0 - ROUNDING); low++)
        if (usage->now[low].end > from) from = usage->now[low].end;
    return from;
}

#endif

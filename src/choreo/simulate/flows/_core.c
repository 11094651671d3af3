/* The inner loops of the network simulator. `twin.py` is the same thing in Python: the oracle of this file in the tests,
 * and what runs where there is no compiler. docs/explanation/simulation.md says what is computed; in short:
 *
 *   message   the rows of one step between the same two ranks; starts when what it reads has been written and the messages
 *             of earlier steps at its ports (the links by which it leaves its sender) are out; is out when its last byte
 *             has left; arrives a latency later; is written when nobody has still to read the places it writes, in order
 *             of (step, src) among those that write them, and after its reduction.
 *   lone      one pass over the rows in order of steps, as long as no two messages are on a link, or in a rank's
 *             reduction, at the same time. It gives up when they are.
 *   shared    an event loop over all messages at once, with max-min fair rates on the links.
 *
 * A cell is a range of chunks at one rank that no row cuts: what is known of a place is kept by cell.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

/* Moments closer together than this part of the time are one moment: they differ by rounding. */
#define SAME_MOMENT 1e-12
/* Rates closer together than this part are one rate. */
#define SAME_RATE 1e-14
#define NONE (-1)
/* After so much work others are heard: signals, and whoever wants to know how far it is. An action or a rate is one unit
 * of work, and a moment a few. */
#define LONG_WORK 65536
#define WORK_OF_MOMENT 16

/* 64 chunks of a rank: which of them begin a cell, and how many cells begin before them. */
typedef struct { uint64_t bits; int64_t before; } Word;
/* Cells of one row: the first, and how many; the next is `stride` on, around the end. */
typedef struct { int64_t first; int32_t count; } Range;

typedef struct { double written, read; } LoneCell;
typedef struct { int32_t writer, readers; } SharedCell;

typedef struct {
    double bytes, reduce_s;
    double start, out, arrived, written;
    int64_t start_cause, write_cause; /* 2 * message + kind, or NONE */
    int32_t route, step, src, dst, engine;
    int32_t need_start, need_write;
    int32_t out_edges, written_edges;
    int32_t first_turn, next_waiting;
    int32_t bottleneck, moment;
} Message;

enum { BY_WRITE = 0, BY_OUT = 1 }; /* the kinds of causes: that message was written, was out */

typedef struct { int32_t to, next; } Edge;   /* to >= 0: that message may start; ~to: it may be written */
typedef struct { int32_t message, next; } Reader;
/* The messages of one step at one port: how many have still to be out, and who was out last. */
typedef struct { double out; int32_t step, pending, first, next, last; } Group;
/* A message in a group, and the next one there. A message has one for each of its ports, one after another. */
typedef struct { int32_t message, group, next; } Turn;
typedef struct { double free_at; int32_t busy, last, waiting, listed; } Engine;
typedef struct { double time; int32_t kind, id, hop; } Event;
typedef struct { int32_t slot, at; } Use;
typedef struct { Use *uses; int32_t count, room; } LinkFlows;

typedef struct {
    double remaining, rate, since, finish;
    int32_t message, count, room, heap_at, hop, seen;
    int32_t *links, *at;
    double *share;
} Slot;

#define VECTOR(type, name) type *name; int64_t name##_count, name##_room

/* What may be called next: a job is begun, made ready for one of the two passes, and the shared one is run once. */
typedef enum { NEW, BEGUN, LONE, SHARED, RAN } Stage;

typedef struct {
    PyObject_HEAD
    Stage stage;
    int64_t num_links;
    double *bandwidth, *latency;
    int store_and_forward;
    PyObject *progress;
    /* routes, found by a hash of their two ends */
    int64_t num_nodes;
    VECTOR(int64_t, route_key);
    VECTOR(int64_t, route_first);
    VECTOR(double, route_latency);
    VECTOR(double, route_alone);
    VECTOR(int32_t, route_leaving); /* how many of its links leave the sender: they come first */
    VECTOR(int32_t, hop_link);
    VECTOR(double, hop_share);
    int32_t *table;
    int64_t table_size;
    int64_t *route_stamp; /* the step in which a route last had a message, and that message */
    int32_t *route_message;
    int64_t route_room;
    int64_t stamp;
    /* the current job */
    int64_t ranks, num_chunks, words;
    int64_t *place;
    int32_t *layer; /* how many members before it are at the same node: each of them has ports of its own */
    int64_t layers;
    double *gamma;
    double unit, job_start;
    Word *cuts; /* for every rank, where cells begin; NULL where every chunk is a cell */
    int64_t num_cells, stride;
    LoneCell *lone_cells;
    SharedCell *shared_cells;
    int32_t first_engine;
    /* lone */
    double *busy_until, *port_out, *port_before, *engine_free, *rank_finish;
    int64_t *port_stamp;
    VECTOR(int32_t, row_message);
    VECTOR(int32_t, row_guess);
    VECTOR(int32_t, row_order);
    VECTOR(int32_t, row_lead);
    VECTOR(int32_t, row_tail);
    VECTOR(int32_t, row_next);
    VECTOR(int32_t, row_other);
    VECTOR(Range, row_reads);
    VECTOR(Range, row_writes);
    double *link_bytes, *link_busy;
    /* shared */
    VECTOR(Message, messages);
    VECTOR(Edge, edges);
    VECTOR(Reader, readers);
    VECTOR(Group, groups);
    VECTOR(Turn, turns);
    VECTOR(Engine, engines);
    VECTOR(int32_t, seen_start);
    VECTOR(int32_t, seen_write);
    VECTOR(int32_t, seen_read);
    int32_t *port_group;
    VECTOR(Event, events);
    VECTOR(Event, actions);
    VECTOR(Slot, slots);
    VECTOR(int32_t, free_slots);
    VECTOR(int32_t, flow_heap);
    VECTOR(int32_t, dirty);
    VECTOR(int32_t, touched);
    VECTOR(int32_t, part_links);
    VECTOR(int32_t, part_slots);
    VECTOR(int32_t, link_heap);
    LinkFlows *flows;
    int32_t *link_mark, *link_open;
    double *link_left, *link_weight, *link_key, *busy_since;
    int32_t mark;
    int64_t written, work;
} Core;

/* Zeroed memory that is read here and there: in large pages where the system has them, so that finding a page is cheap. */
static void *zeroed(size_t count, size_t size) {
#ifdef MADV_HUGEPAGE
    const size_t page = 2 << 20;
    if (count && size > SIZE_MAX / 2 / count) return NULL;
    if (count * size >= 4 * page) {
        size_t bytes = (count * size + page - 1) / page * page;
        void *memory = aligned_alloc(page, bytes);
        if (!memory) return NULL;
        madvise(memory, bytes, MADV_HUGEPAGE);
        return memset(memory, 0, bytes);
    }
#endif
    return calloc(count, size);
}

static int grow(void **data, int64_t *room, int64_t need, size_t size) {
    if (need <= *room) return 0;
    int64_t wanted = *room < 16 ? 16 : *room;
    while (wanted < need) wanted *= 2;
    void *larger = realloc(*data, (size_t)wanted * size);
    if (!larger) { PyErr_NoMemory(); return -1; }
    *data = larger;
    *room = wanted;
    return 0;
}

static int refuse(const char *why) {
    PyErr_SetString(PyExc_ValueError, why);
    return -1;
}

#define ROOM(core, name, need) \
    grow((void **)&(core)->name, &(core)->name##_room, (need), sizeof(*(core)->name))
#define PUSH(core, name, value) \
    (ROOM(core, name, (core)->name##_count + 1) ? -1 : ((core)->name[(core)->name##_count++] = (value), 0))

/* ---- reading NumPy columns ---- */

typedef struct { Py_buffer view; int held; } Column;
typedef enum { INT64, INT32, FLOAT64, FLAG } Kind;

/* The values of a one-dimensional column of `count` items, or of any number of them if that is negative. */
static void *column(PyObject *object, Column *into, Kind kind, Py_ssize_t *count) {
    static const char *const formats[] = {"lq", "il", "d", "?"};
    static const Py_ssize_t sizes[] = {8, 4, 8, 1};
    into->held = !PyObject_GetBuffer(object, &into->view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT);
    if (into->held) {
        const char *format = into->view.format ? into->view.format : "B";
        int right = into->view.itemsize == sizes[kind] && *format && !format[1] && strchr(formats[kind], *format);
        if (right && (*count < 0 || into->view.len / sizes[kind] == *count)) {
            *count = into->view.len / sizes[kind];
            return into->view.buf;
        }
    } else if (PyErr_ExceptionMatches(PyExc_MemoryError)) return NULL;
    PyErr_SetString(PyExc_ValueError, "a column has the wrong type or length");
    return NULL;
}

static void release(Column *columns, int count) {
    for (int i = 0; i < count; i++)
        if (columns[i].held) PyBuffer_Release(&columns[i].view);
}

static double *copied(PyObject *object, Py_ssize_t *count) {
    Column in = {0};
    double *values = column(object, &in, FLOAT64, count), *own = NULL;
    if (values) {
        own = malloc((size_t)(*count + 1) * sizeof(double));
        if (own) memcpy(own, values, (size_t)*count * sizeof(double));
        else PyErr_NoMemory();
    }
    release(&in, 1);
    return own;
}

/* ---- routes ---- */

static uint64_t mixed(uint64_t key) {
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9ULL;
    key = (key ^ (key >> 27)) * 0x94D049BB133111EBULL;
    return key ^ (key >> 31);
}

static int32_t find_route(const Core *core, int64_t key) {
    if (!core->table_size) return NONE;
    uint64_t mask = (uint64_t)core->table_size - 1, at = mixed((uint64_t)key) & mask;
    while (core->table[at] != NONE) {
        if (core->route_key[core->table[at]] == key) return core->table[at];
        at = (at + 1) & mask;
    }
    return NONE;
}

static int insert_routes(Core *core, int64_t first) {
    if (core->table_size < 2 * core->route_key_count) {
        int64_t size = core->table_size ? core->table_size : 64;
        while (size < 2 * core->route_key_count) size *= 2;
        int32_t *table = malloc((size_t)size * sizeof(int32_t));
        if (!table) { PyErr_NoMemory(); return -1; }
        memset(table, 0xFF, (size_t)size * sizeof(int32_t));
        free(core->table);
        core->table = table;
        core->table_size = size;
        first = 0;
    }
    uint64_t mask = (uint64_t)core->table_size - 1;
    for (int64_t route = first; route < core->route_key_count; route++) {
        uint64_t at = mixed((uint64_t)core->route_key[route]) & mask;
        while (core->table[at] != NONE) at = (at + 1) & mask;
        core->table[at] = (int32_t)route;
    }
    return 0;
}

/* Whether both ends of all rows are ranks of the job. */
static int inside(const Core *core, const int64_t *src, const int64_t *dst, Py_ssize_t rows) {
    uint64_t ranks = core->stage == NEW ? 0 : (uint64_t)core->ranks;
    int bad = 0;
    for (Py_ssize_t row = 0; row < rows; row++) bad |= (uint64_t)src[row] >= ranks || (uint64_t)dst[row] >= ranks;
    return bad ? refuse("a row is from or to a rank that is not there") : 0;
}

static PyObject *core_missing(Core *core, PyObject *args) {
    /* The pairs of nodes, as src * nodes + dst, that have no route yet; each once, in the order they appear. */
    PyObject *objects[2], *answer = NULL;
    if (!PyArg_ParseTuple(args, "OO", &objects[0], &objects[1])) return NULL;
    Column in[2];
    memset(in, 0, sizeof(in));
    Py_ssize_t count = -1;
    int64_t *src = column(objects[0], &in[0], INT64, &count);
    int64_t *dst = src ? column(objects[1], &in[1], INT64, &count) : NULL;
    if (dst && !inside(core, src, dst, count)) {
        int64_t *found = NULL, num_found = 0, room = 0, size = 64, failed = 0;
        int64_t *seen = malloc((size_t)size * 8);
        if (!seen) failed = 1;
        else memset(seen, 0xFF, (size_t)size * 8);
        for (Py_ssize_t row = 0; row < count && !failed; row++) {
            int64_t key = core->place[src[row]] * core->num_nodes + core->place[dst[row]];
            if (find_route(core, key) != NONE) continue;
            uint64_t mask = (uint64_t)size - 1, at = mixed((uint64_t)key) & mask;
            while (seen[at] != NONE && seen[at] != key) at = (at + 1) & mask;
            if (seen[at] == key) continue;
            if (grow((void **)&found, &room, num_found + 1, 8)) { failed = 1; break; }
            found[num_found++] = key;
            seen[at] = key;
            if (2 * num_found >= size) {
                free(seen);
                size *= 4;
                seen = malloc((size_t)size * 8);
                if (!seen) { failed = 1; break; }
                memset(seen, 0xFF, (size_t)size * 8);
                for (int64_t i = 0; i < num_found; i++) {
                    at = mixed((uint64_t)found[i]) & ((uint64_t)size - 1);
                    while (seen[at] != NONE) at = (at + 1) & ((uint64_t)size - 1);
                    seen[at] = found[i];
                }
            }
        }
        if (failed) PyErr_NoMemory();
        else answer = PyBytes_FromStringAndSize((char *)found, num_found * 8);
        free(found);
        free(seen);
    }
    release(in, 2);
    return answer;
}

/* Whether routes are made of links that there are, each route after the one before, and leave by some of their own. */
static int routes_fit(const Core *core, const int64_t *offset, const int64_t *leaving, Py_ssize_t count,
                      const int32_t *link, Py_ssize_t hops) {
    int bad = offset[0] != 0 || offset[count] != hops || core->route_key_count + count >= INT32_MAX;
    for (Py_ssize_t i = 0; i < count; i++) {
        bad |= offset[i] > offset[i + 1] || leaving[i] < (offset[i] < offset[i + 1]);
        bad |= leaving[i] > offset[i + 1] - offset[i] || leaving[i] > INT32_MAX;
    }
    for (Py_ssize_t i = 0; i < hops; i++) bad |= link[i] < 0 || link[i] >= core->num_links;
    return bad ? refuse("a route is not made of links that are there") : 0;
}

static PyObject *core_add_routes(Core *core, PyObject *args) {
    /* keys, offsets, number of links that leave the sender, links, share, latency and lone bandwidth of new routes */
    PyObject *o[7], *answer = NULL;
    if (!PyArg_ParseTuple(args, "OOOOOOO", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5], &o[6])) return NULL;
    Column in[7];
    memset(in, 0, sizeof(in));
    Py_ssize_t count = -1, more = -1, hops = -1;
    int64_t *key = column(o[0], &in[0], INT64, &count), *offset = NULL, *leaving = NULL;
    int32_t *link = NULL;
    double *share = NULL, *latency = NULL, *alone = NULL;
    if (key) { more = count + 1; offset = column(o[1], &in[1], INT64, &more); }
    if (offset) leaving = column(o[2], &in[2], INT64, &count);
    if (leaving) link = column(o[3], &in[3], INT32, &hops);
    if (link) share = column(o[4], &in[4], FLOAT64, &hops);
    if (share) latency = column(o[5], &in[5], FLOAT64, &count);
    if (latency) alone = column(o[6], &in[6], FLOAT64, &count);
    if (alone && !routes_fit(core, offset, leaving, count, link, hops)) {
        int64_t first = core->route_key_count, base = core->hop_link_count, total = first + count;
        int bad = ROOM(core, route_key, total) || ROOM(core, route_first, total + 1) ||
                  ROOM(core, route_latency, total) || ROOM(core, route_alone, total) ||
                  ROOM(core, route_leaving, total) || ROOM(core, hop_link, base + hops) ||
                  ROOM(core, hop_share, base + hops);
        if (!bad && total > core->route_room) {
            int64_t room = core->route_room;
            bad = grow((void **)&core->route_stamp, &room, total, 8);
            room = core->route_room;
            if (!bad) bad = grow((void **)&core->route_message, &room, total, 4);
            if (!bad) core->route_room = room;
        }
        if (!bad) {
            for (int64_t i = 0; i < count; i++) {
                core->route_key[first + i] = key[i];
                core->route_first[first + i] = base + offset[i];
                core->route_latency[first + i] = latency[i];
                core->route_alone[first + i] = alone[i];
                core->route_leaving[first + i] = (int32_t)leaving[i];
                core->route_stamp[first + i] = NONE;
            }
            core->route_first[total] = base + hops;
            memcpy(core->hop_link + base, link, (size_t)hops * 4);
            memcpy(core->hop_share + base, share, (size_t)hops * 8);
            core->route_key_count = core->route_first_count = core->route_latency_count = core->route_alone_count = total;
            core->route_leaving_count = total;
            core->hop_link_count = core->hop_share_count = base + hops;
            if (!insert_routes(core, first)) answer = Py_NewRef(Py_None);
        }
    }
    release(in, 7);
    return answer;
}

/* ---- cells ---- */

static int64_t cell_of(const Core *core, int64_t rank, int64_t chunk) {
    const Word *word = &core->cuts[rank * core->words + (chunk >> 6)];
    if (chunk == core->num_chunks) return core->cuts[(rank + 1) * core->words].before;
    return word->before + __builtin_popcountll(word->bits & ((2ULL << (chunk & 63)) - 1)) - 1;
}

static Range range_of(const Core *core, int64_t rank, int64_t chunk, int64_t count) {
    if (core->cuts) {
        int64_t first = cell_of(core, rank, chunk);
        return (Range){first, (int32_t)(cell_of(core, rank, chunk + count) - first)};
    }
    /* Every chunk is a cell. What matters is that ranks which work on neighbouring chunks in one step, as neighbours often
     * do, find them side by side in memory: so rank r's chunks are numbered from chunk r on. */
    int64_t from = chunk - rank;
    if (from < 0 && (from += core->num_chunks) < 0) from = (from % core->num_chunks + core->num_chunks) % core->num_chunks;
    return (Range){from * core->ranks + rank, (int32_t)count};
}

/* Run through the cells of a range. */
#define EACH_CELL(core, range, cell)                                                                          \
    for (int64_t cell = (range).first, left_ = (range).count; left_ > 0;                                      \
         left_--, cell += (core)->stride, cell = cell >= (core)->num_cells ? cell - (core)->num_cells : cell)

static int find_layers(Core *core, int64_t ranks, int64_t nodes) {
    int32_t *members = calloc((size_t)nodes, 4);
    free(core->layer);
    core->layer = malloc((size_t)ranks * 4);
    if (!members || !core->layer) { free(members); PyErr_NoMemory(); return -1; }
    core->layers = 1;
    for (int64_t rank = 0; rank < ranks; rank++) {
        core->layer[rank] = members[core->place[rank]]++;
        if (core->layer[rank] >= core->layers) core->layers = core->layer[rank] + 1;
    }
    free(members);
    return 0;
}

/* A member's port: a link by which a message of his leaves him. */
static int64_t port_of(const Core *core, int64_t src, int32_t link) {
    return core->layer[src] * core->num_links + link;
}

static PyObject *core_begin_job(Core *core, PyObject *args) {
    /* ranks, chunks, nodes, place of each rank, gamma of each rank, bytes a unit of weight, start, whether to mark cells */
    PyObject *place, *gamma;
    int mark;
    long long ranks, chunks, nodes;
    if (!PyArg_ParseTuple(args, "LLLOOddp", &ranks, &chunks, &nodes, &place, &gamma, &core->unit, &core->job_start, &mark))
        return NULL;
    if (core->stage == RAN || !core->bandwidth) { refuse("a job must begin before the run"); return NULL; }
    int64_t places;
    if (ranks < 1 || chunks < 1 || nodes < 1 || ranks >= INT32_MAX || __builtin_mul_overflow(ranks, chunks, &places) ||
        places > INT64_MAX / 32) {
        refuse("a job has too few or too many ranks, chunks or nodes");
        return NULL;
    }
    core->stage = NEW;
    Column in = {0};
    Py_ssize_t count = (Py_ssize_t)ranks;
    int64_t *given = column(place, &in, INT64, &count);
    for (Py_ssize_t rank = 0; given && rank < count; rank++)
        if (given[rank] < 0 || given[rank] >= nodes) {
            refuse("a rank is on a node that is not there");
            given = NULL;
        }
    free(core->place);
    core->place = NULL;
    if (given) {
        core->place = malloc((size_t)ranks * 8);
        if (core->place) memcpy(core->place, given, (size_t)ranks * 8);
        else PyErr_NoMemory();
    }
    release(&in, 1);
    if (!core->place || find_layers(core, ranks, nodes)) return NULL;
    free(core->gamma);
    if (!(core->gamma = copied(gamma, &count))) return NULL;
    core->ranks = ranks;
    core->num_chunks = chunks;
    core->num_nodes = nodes;
    free(core->cuts);
    core->cuts = NULL;
    core->words = chunks / 64 + 1;
    if (mark) {
        core->cuts = zeroed((size_t)(ranks * core->words + 1), sizeof(Word));
        if (!core->cuts) return PyErr_NoMemory();
        for (int64_t rank = 0; rank < ranks; rank++) core->cuts[rank * core->words].bits = 1;
    }
    core->num_cells = places;
    core->stride = mark ? 1 : ranks;
    core->first_engine = (int32_t)core->engines_count;
    core->stage = BEGUN;
    Py_RETURN_NONE;
}

/* Whether all rows carry chunks of the vector, and some. */
static int in_vector(const Core *core, const int64_t *chunk, const int64_t *count, Py_ssize_t rows) {
    uint64_t most = (uint64_t)core->num_chunks;
    int bad = 0;
    for (Py_ssize_t row = 0; row < rows; row++)
        bad |= (uint64_t)chunk[row] >= most || (uint64_t)count[row] - 1 >= most - (uint64_t)chunk[row];
    return bad ? refuse("a row carries chunks that are not there") : 0;
}

static PyObject *core_mark(Core *core, PyObject *args) {
    /* Note where the rows cut the vector: src, dst, chunk, count. */
    PyObject *objects[4];
    if (!PyArg_ParseTuple(args, "OOOO", &objects[0], &objects[1], &objects[2], &objects[3])) return NULL;
    Column in[4];
    memset(in, 0, sizeof(in));
    int64_t *values[4];
    Py_ssize_t rows = -1;
    int good = 1;
    for (int i = 0; i < 4 && good; i++) good = (values[i] = column(objects[i], &in[i], INT64, &rows)) != NULL;
    if (good) good = !inside(core, values[0], values[1], rows) && !in_vector(core, values[2], values[3], rows);
    if (good && (core->stage != BEGUN || !core->cuts)) good = !refuse("rows are marked between begin_job and ready");
    /* The words lie far apart: ask for them some rows ahead. */
    const Py_ssize_t ahead = 16;
    for (Py_ssize_t row = 0; good && row < rows; row++)
        for (int end = 0; end < 2; end++) {
            if (row + ahead < rows) {
                int64_t later = values[end][row + ahead] * core->words, chunk = values[2][row + ahead];
                __builtin_prefetch(&core->cuts[later + (chunk >> 6)], 1);
                __builtin_prefetch(&core->cuts[later + ((chunk + values[3][row + ahead]) >> 6)], 1);
            }
            int64_t base = values[end][row] * core->words, low = values[2][row], high = low + values[3][row];
            core->cuts[base + (low >> 6)].bits |= 1ULL << (low & 63);
            core->cuts[base + (high >> 6)].bits |= 1ULL << (high & 63);
        }
    release(in, 4);
    if (!good) return NULL;
    Py_RETURN_NONE;
}

static PyObject *core_ready(Core *core, PyObject *args) {
    /* Number the cells and make room for what is known of each: for a lone pass or for a shared one. */
    int lone;
    if (!PyArg_ParseTuple(args, "p", &lone)) return NULL;
    if (core->stage != BEGUN) { refuse("a job must have begun"); return NULL; }
    core->stage = NEW;
    if (core->cuts) {
        int64_t total = 0;
        for (int64_t rank = 0; rank < core->ranks; rank++) {
            /* The end of the vector is no beginning of a cell. */
            core->cuts[rank * core->words + (core->num_chunks >> 6)].bits &= ~(1ULL << (core->num_chunks & 63));
            for (Word *word = &core->cuts[rank * core->words]; word < &core->cuts[(rank + 1) * core->words]; word++) {
                word->before = total;
                total += __builtin_popcountll(word->bits);
            }
        }
        core->cuts[core->ranks * core->words].before = total;
        core->num_cells = total;
    }
    free(core->lone_cells);
    free(core->shared_cells);
    core->lone_cells = NULL;
    core->shared_cells = NULL;
    int64_t links = core->num_links + 1, ports = core->num_links * core->layers + 1;
    if (lone) {
        core->lone_cells = zeroed((size_t)core->num_cells, sizeof(LoneCell));
        free(core->busy_until); free(core->port_out); free(core->port_before); free(core->port_stamp);
        free(core->engine_free); free(core->rank_finish);
        core->busy_until = calloc((size_t)links, 8);
        core->port_out = calloc((size_t)ports, 8);
        core->port_before = calloc((size_t)ports, 8);
        core->port_stamp = calloc((size_t)ports, 8);
        core->engine_free = calloc((size_t)core->ranks + 1, 8);
        core->rank_finish = calloc((size_t)core->ranks + 1, 8);
        if (!core->lone_cells || !core->busy_until || !core->port_out || !core->port_before || !core->port_stamp ||
            !core->engine_free || !core->rank_finish)
            return PyErr_NoMemory();
        memset(core->link_bytes, 0, (size_t)links * 8);
        memset(core->link_busy, 0, (size_t)links * 8);
    } else {
        core->shared_cells = malloc((size_t)core->num_cells * sizeof(SharedCell) + 1);
        free(core->port_group);
        core->port_group = malloc((size_t)ports * 4);
        if (!core->shared_cells || !core->port_group) return PyErr_NoMemory();
        memset(core->shared_cells, 0xFF, (size_t)core->num_cells * sizeof(SharedCell));
        memset(core->port_group, 0xFF, (size_t)ports * 4);
        if (ROOM(core, engines, core->engines_count + core->ranks)) return NULL;
        for (int64_t rank = 0; rank < core->ranks; rank++)
            core->engines[core->engines_count++] = (Engine){0.0, NONE, NONE, NONE, 0};
    }
    core->stage = lone ? LONE : SHARED;
    return PyLong_FromLongLong(core->num_cells);
}

/* ---- the rows of a step, put together to messages ---- */

typedef struct {
    int64_t *step, *src, *dst, *chunk, *count, *weight;
    uint8_t *reduce, *from_input;
    Py_ssize_t rows;
    Column in[8];
} Rows;

static int read_rows(const Core *core, PyObject *args, Rows *rows) {
    PyObject *o[8];
    memset(rows, 0, sizeof(*rows));
    rows->rows = -1;
    if (!PyArg_ParseTuple(args, "OOOOOOOO", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5], &o[6], &o[7])) return -1;
    int64_t **numbers[6] = {&rows->step, &rows->src, &rows->dst, &rows->chunk, &rows->count, &rows->weight};
    for (int i = 0; i < 6; i++)
        if (!(*numbers[i] = column(o[i], &rows->in[i], INT64, &rows->rows))) return -1;
    uint8_t **flags[2] = {&rows->reduce, &rows->from_input};
    for (int i = 0; i < 2; i++)
        if (!(*flags[i] = column(o[6 + i], &rows->in[6 + i], FLAG, &rows->rows))) return -1;
    return inside(core, rows->src, rows->dst, rows->rows) || in_vector(core, rows->chunk, rows->count, rows->rows);
}

/* Put the rows first..last - 1 of one step together to messages, one for each two ends: `row_message[i]` is row i's,
 * `row_lead[m]` the first row of message m, `row_next[i]` the next row of row i's message, and `row_order` the messages
 * in order of src. `row_reads` and `row_writes` are the rows' cells; an input is none. Returns how many there are. */
static int64_t put_together(Core *core, const Rows *rows, int64_t first, int64_t last) {
    int64_t width = last - first, made = 0;
    if (ROOM(core, row_message, width) || ROOM(core, row_lead, width) || ROOM(core, row_order, width) ||
        ROOM(core, row_tail, width) || ROOM(core, row_next, width) || ROOM(core, row_other, width) ||
        ROOM(core, row_reads, width) || ROOM(core, row_writes, width))
        return -1;
    if (core->row_guess_count < width) {
        if (ROOM(core, row_guess, width)) return -1;
        while (core->row_guess_count < width) core->row_guess[core->row_guess_count++] = NONE;
    }
    const int64_t ahead = 16;
    for (int64_t i = 0; i < width; i++) {
        int64_t row = first + i;
        if (core->cuts && i + ahead < width) {
            int64_t low = rows->chunk[row + ahead], high = low + rows->count[row + ahead];
            const Word *src = &core->cuts[rows->src[row + ahead] * core->words];
            const Word *dst = &core->cuts[rows->dst[row + ahead] * core->words];
            __builtin_prefetch(src + (low >> 6));
            __builtin_prefetch(src + (high >> 6));
            __builtin_prefetch(dst + (low >> 6));
            __builtin_prefetch(dst + (high >> 6));
        }
        core->row_reads[i] = range_of(core, rows->src[row], rows->chunk[row], rows->count[row]);
        core->row_writes[i] = range_of(core, rows->dst[row], rows->chunk[row], rows->count[row]);
        if (rows->from_input[row]) core->row_reads[i].count = 0;
    }
    core->stamp++;
    int sorted = 1;
    int64_t before = -1;
    for (int64_t i = 0; i < width; i++) {
        int64_t row = first + i, key = core->place[rows->src[row]] * core->num_nodes + core->place[rows->dst[row]];
        /* The same row of the step before usually went the same way. */
        int32_t route = core->row_guess[i];
        if (route == NONE || core->route_key[route] != key) core->row_guess[i] = route = find_route(core, key);
        if (route == NONE) { PyErr_SetString(PyExc_ValueError, "a row has no route"); return -1; }
        int32_t message = core->route_stamp[route] == core->stamp ? core->route_message[route] : NONE, other = message;
        /* Of several switches of a schedule at one node each has messages of its own on the same route. */
        while (message != NONE && (rows->src[first + core->row_lead[message]] != rows->src[row] ||
                                   rows->dst[first + core->row_lead[message]] != rows->dst[row]))
            message = core->row_other[message];
        if (message == NONE) {
            message = (int32_t)made;
            core->route_stamp[route] = core->stamp;
            core->route_message[route] = message;
            core->row_other[made] = other;
            core->row_lead[made] = (int32_t)i;
            core->row_order[made] = (int32_t)made;
            core->row_tail[made] = (int32_t)i;
            sorted &= rows->src[row] >= before;
            before = rows->src[row];
            made++;
        }
        core->row_message[i] = message;
        core->row_next[i] = NONE;
        if (core->row_tail[message] != i) {
            core->row_next[core->row_tail[message]] = (int32_t)i;
            core->row_tail[message] = (int32_t)i;
        }
    }
    if (!sorted) { /* by src; a counting sort keeps the order of equal ones */
        int64_t *starts = calloc((size_t)core->ranks + 1, 8);
        if (!starts) { PyErr_NoMemory(); return -1; }
        for (int64_t m = 0; m < made; m++) starts[rows->src[first + core->row_lead[m]] + 1]++;
        for (int64_t rank = 0; rank < core->ranks; rank++) starts[rank + 1] += starts[rank];
        for (int64_t m = 0; m < made; m++) core->row_order[starts[rows->src[first + core->row_lead[m]]]++] = (int32_t)m;
        free(starts);
    }
    return made;
}

/* ---- alone on every link ---- */

typedef struct { double ready, bytes, reduced, time; } LoneMessage;

static int lone_step(Core *core, const Rows *rows, int64_t first, int64_t last, LoneMessage *messages) {
    int64_t made = put_together(core, rows, first, last), width = last - first;
    if (made < 0) return -1;
    LoneCell *cells = core->lone_cells;
    const int64_t ahead = 16;
    for (int64_t m = 0; m < made; m++) messages[m] = (LoneMessage){0.0, 0.0, 0.0, 0.0};
    for (int64_t i = 0; i < width; i++) {
        int64_t row = first + i;
        LoneMessage *message = &messages[core->row_message[i]];
        double bytes = (double)rows->weight[row] * core->unit;
        message->bytes += bytes;
        if (rows->reduce[row]) message->reduced += bytes;
        if (i + ahead < width) __builtin_prefetch(&cells[core->row_reads[i + ahead].first], 1);
        EACH_CELL(core, core->row_reads[i], cell)
            if (cells[cell].written > message->ready) message->ready = cells[cell].written;
    }
    for (int64_t m = 0; m < made; m++) {
        LoneMessage *message = &messages[m];
        int32_t route = core->row_guess[core->row_lead[m]];
        int64_t hop = core->route_first[route], end = core->route_first[route + 1];
        int64_t src = rows->src[first + core->row_lead[m]], left = hop + core->route_leaving[route];
        double start = message->ready, out = start;
        if (hop < end) {
            for (int64_t h = hop; h < left; h++) {
                int64_t port = port_of(core, src, core->hop_link[h]);
                if (core->port_stamp[port] != core->stamp) {
                    core->port_stamp[port] = core->stamp;
                    core->port_before[port] = core->port_out[port];
                }
                if (core->port_before[port] > start) start = core->port_before[port];
            }
            out = start;
            if (message->bytes > 0) {
                out = start + message->bytes / core->route_alone[route];
                for (int64_t h = hop; h < end; h++) {
                    int32_t link = core->hop_link[h];
                    if (core->busy_until[link] > start * (1 + SAME_MOMENT)) return 0;
                    core->busy_until[link] = out;
                    core->link_bytes[link] += message->bytes * core->hop_share[h];
                    core->link_busy[link] += out - start;
                }
            }
            for (int64_t h = hop; h < left; h++) {
                int64_t port = port_of(core, src, core->hop_link[h]);
                if (out > core->port_out[port]) core->port_out[port] = out;
            }
        }
        message->ready = out;
        message->time = out + core->route_latency[route];
        if (out > core->rank_finish[src]) core->rank_finish[src] = out;
    }
    for (int64_t i = 0; i < width; i++) {
        double out = messages[core->row_message[i]].ready;
        EACH_CELL(core, core->row_reads[i], cell)
            if (cells[cell].read < out) cells[cell].read = out;
    }
    /* Writes, in order of src. Where a message has several rows they must all be looked at before any is written. */
    for (int64_t at = 0; at < made; at++) {
        int32_t m = core->row_order[at];
        LoneMessage *message = &messages[m];
        if (at + ahead < made)
            __builtin_prefetch(&cells[core->row_writes[core->row_lead[core->row_order[at + ahead]]].first], 1);
        int64_t dst = rows->dst[first + core->row_lead[m]];
        double time = message->time;
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t i = core->row_lead[m]; i != NONE; i = core->row_next[i]) {
                EACH_CELL(core, core->row_writes[i], cell) {
                    if (pass) { cells[cell].written = time; continue; }
                    if (cells[cell].read > time) time = cells[cell].read;
                    if (cells[cell].written > time) time = cells[cell].written;
                }
            }
            if (!pass && message->reduced > 0 && core->gamma[dst] > 0) {
                if (core->engine_free[dst] > time * (1 + SAME_MOMENT)) return 0;
                time += message->reduced * core->gamma[dst];
                core->engine_free[dst] = time;
            }
        }
        if (time > core->rank_finish[dst]) core->rank_finish[dst] = time;
    }
    return 1;
}

static PyObject *core_lone(Core *core, PyObject *args) {
    /* Take some whole steps; false when two messages would have to share something. */
    Rows rows;
    int answer = -1;
    if (!read_rows(core, args, &rows) && (core->stage == LONE || !refuse("the job is not ready for a lone pass"))) {
        answer = 1;
        LoneMessage *messages = NULL;
        int64_t room = 0;
        for (int64_t first = 0, last; first < rows.rows && answer == 1; first = last) {
            for (last = first + 1; last < rows.rows && rows.step[last] == rows.step[first];) last++;
            answer = grow((void **)&messages, &room, last - first, sizeof(LoneMessage)) ? -1
                     : lone_step(core, &rows, first, last, messages);
        }
        free(messages);
    }
    release(rows.in, 8);
    return answer < 0 ? NULL : PyBool_FromLong(answer);
}

/* ---- sharing links: what waits for what ---- */

static int add_edge(Core *core, int32_t *head, int32_t to) {
    if (core->edges_count >= INT32_MAX) { PyErr_NoMemory(); return -1; }
    Edge edge = {to, *head};
    *head = (int32_t)core->edges_count;
    return PUSH(core, edges, edge);
}

static int join_port(Core *core, int32_t id, int64_t port) {
    Message *message = &core->messages[id];
    int32_t group = core->port_group[port];
    if (group == NONE || core->groups[group].step != message->step) {
        Group fresh = {0.0, message->step, 0, NONE, NONE, NONE};
        if (PUSH(core, groups, fresh)) return -1;
        int32_t latest = (int32_t)core->groups_count - 1;
        if (group != NONE) core->groups[group].next = latest;
        core->port_group[port] = latest;
        /* Bit 30 of `pending` says that the group must wait for the one before it. */
        if (group != NONE) core->groups[latest].pending = 1 << 30;
        group = latest;
    }
    if (core->groups[group].pending & (1 << 30)) message->need_start++;
    core->groups[group].pending++;
    if (core->turns_count >= INT32_MAX) { PyErr_NoMemory(); return -1; }
    Turn turn = {id, group, core->groups[group].first};
    core->groups[group].first = (int32_t)core->turns_count;
    return PUSH(core, turns, turn);
}

static int gather_reads(Core *core, Range range, int32_t id) {
    EACH_CELL(core, range, cell) {
        int32_t writer = core->shared_cells[cell].writer;
        if (writer != NONE && core->seen_start[writer] != id) {
            core->seen_start[writer] = id;
            if (add_edge(core, &core->messages[writer].written_edges, id)) return -1;
            core->messages[id].need_start++;
        }
        if (core->readers_count >= INT32_MAX) { PyErr_NoMemory(); return -1; }
        Reader reader = {id, core->shared_cells[cell].readers};
        core->shared_cells[cell].readers = (int32_t)core->readers_count;
        if (PUSH(core, readers, reader)) return -1;
    }
    return 0;
}

static int gather_writes(Core *core, Range range, int32_t id) {
    EACH_CELL(core, range, cell) {
        SharedCell *known = &core->shared_cells[cell];
        if (known->writer != NONE && known->writer != id && core->seen_write[known->writer] != id) {
            core->seen_write[known->writer] = id;
            if (add_edge(core, &core->messages[known->writer].written_edges, ~id)) return -1;
            core->messages[id].need_write++;
        }
        for (int32_t at = known->readers; at != NONE; at = core->readers[at].next) {
            int32_t reader = core->readers[at].message;
            if (core->seen_read[reader] == id) continue;
            core->seen_read[reader] = id;
            if (add_edge(core, &core->messages[reader].out_edges, ~id)) return -1;
            core->messages[id].need_write++;
        }
        known->writer = id;
        known->readers = NONE;
    }
    return 0;
}

static int shared_step(Core *core, const Rows *rows, int64_t first, int64_t last) {
    int64_t made = put_together(core, rows, first, last), width = last - first;
    if (made < 0) return -1;
    int32_t base = (int32_t)core->messages_count;
    int64_t total = core->messages_count + made;
    if (total >= 1 << 29) { PyErr_NoMemory(); return -1; }
    if (ROOM(core, messages, total) || ROOM(core, seen_start, total) || ROOM(core, seen_write, total) ||
        ROOM(core, seen_read, total))
        return -1;
    for (int64_t m = 0; m < made; m++) {
        int64_t row = first + core->row_lead[m];
        int32_t id = base + (int32_t)m;
        Message *message = &core->messages[id];
        memset(message, 0, sizeof(*message));
        message->start = core->job_start;
        message->start_cause = message->write_cause = NONE;
        message->route = core->row_guess[core->row_lead[m]];
        message->step = (int32_t)rows->step[row];
        message->src = (int32_t)rows->src[row];
        message->dst = (int32_t)rows->dst[row];
        message->engine = core->first_engine + message->dst;
        message->need_write = 1; /* its own arrival */
        message->out_edges = message->written_edges = NONE;
        message->next_waiting = message->bottleneck = NONE;
        message->first_turn = (int32_t)core->turns_count;
        core->seen_start[id] = core->seen_write[id] = core->seen_read[id] = NONE;
        core->messages_count++;
        int64_t hop = core->route_first[message->route], left = hop + core->route_leaving[message->route];
        for (; hop < left; hop++)
            if (join_port(core, id, port_of(core, message->src, core->hop_link[hop]))) return -1;
    }
    for (int64_t i = 0; i < width; i++) {
        int64_t row = first + i;
        int32_t id = base + core->row_message[i];
        double bytes = (double)rows->weight[row] * core->unit;
        core->messages[id].bytes += bytes;
        if (rows->reduce[row]) core->messages[id].reduce_s += bytes * core->gamma[rows->dst[row]];
        if (gather_reads(core, core->row_reads[i], id)) return -1;
    }
    for (int64_t at = 0; at < made; at++)
        for (int64_t i = core->row_lead[core->row_order[at]]; i != NONE; i = core->row_next[i])
            if (gather_writes(core, core->row_writes[i], base + core->row_order[at])) return -1;
    return 0;
}

static PyObject *core_gather(Core *core, PyObject *args) {
    /* Take some whole steps for a shared run. */
    Rows rows;
    int bad = read_rows(core, args, &rows);
    if (!bad && core->stage != SHARED) bad = refuse("the job is not ready for a shared run");
    for (int64_t first = 0, last; !bad && first < rows.rows; first = last) {
        for (last = first + 1; last < rows.rows && rows.step[last] == rows.step[first];) last++;
        bad = shared_step(core, &rows, first, last);
    }
    release(rows.in, 8);
    if (bad) return NULL;
    Py_RETURN_NONE;
}

/* ---- heaps ---- */

static int sooner(const Event *a, const Event *b) {
    if (a->time != b->time) return a->time < b->time;
    return a->id < b->id;
}

static int push_event(Core *core, double time, int32_t kind, int32_t id, int32_t hop) {
    Event event = {time, kind, id, hop};
    if (PUSH(core, events, event)) return -1;
    int64_t at = core->events_count - 1;
    while (at > 0 && sooner(&event, &core->events[(at - 1) / 2])) {
        core->events[at] = core->events[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    core->events[at] = event;
    return 0;
}

static Event pop_event(Core *core) {
    Event top = core->events[0], last = core->events[--core->events_count];
    int64_t at = 0, count = core->events_count;
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= count) break;
        if (child + 1 < count && sooner(&core->events[child + 1], &core->events[child])) child++;
        if (!sooner(&core->events[child], &last)) break;
        core->events[at] = core->events[child];
        at = child;
    }
    if (count) core->events[at] = last;
    return top;
}

static int flow_sooner(const Core *core, int32_t a, int32_t b) {
    if (core->slots[a].finish != core->slots[b].finish) return core->slots[a].finish < core->slots[b].finish;
    return core->slots[a].message < core->slots[b].message;
}

static void settle_flow(Core *core, int64_t at) {
    int32_t slot = core->flow_heap[at];
    while (at > 0 && flow_sooner(core, slot, core->flow_heap[(at - 1) / 2])) {
        core->flow_heap[at] = core->flow_heap[(at - 1) / 2];
        core->slots[core->flow_heap[at]].heap_at = (int32_t)at;
        at = (at - 1) / 2;
    }
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= core->flow_heap_count) break;
        if (child + 1 < core->flow_heap_count && flow_sooner(core, core->flow_heap[child + 1], core->flow_heap[child]))
            child++;
        if (!flow_sooner(core, core->flow_heap[child], slot)) break;
        core->flow_heap[at] = core->flow_heap[child];
        core->slots[core->flow_heap[at]].heap_at = (int32_t)at;
        at = child;
    }
    core->flow_heap[at] = slot;
    core->slots[slot].heap_at = (int32_t)at;
}

/* ---- flows ---- */

static int touch(Core *core, int32_t link) {
    if (core->link_mark[link] == NONE) return 0;
    core->link_mark[link] = NONE;
    return PUSH(core, dirty, link);
}

static int start_flow(Core *core, int32_t id, int32_t hop, double time) {
    Message *message = &core->messages[id];
    int64_t low = core->route_first[message->route], high = core->route_first[message->route + 1];
    if (core->store_and_forward) { low += hop; high = low + 1; }
    int32_t count = (int32_t)(high - low), index;
    if (core->free_slots_count) index = core->free_slots[--core->free_slots_count];
    else {
        Slot fresh;
        memset(&fresh, 0, sizeof(fresh));
        if (PUSH(core, slots, fresh)) return -1;
        index = (int32_t)core->slots_count - 1;
    }
    Slot *slot = &core->slots[index];
    if (slot->room < count) {
        int32_t *links = realloc(slot->links, (size_t)count * 4), *at = links ? realloc(slot->at, (size_t)count * 4) : NULL;
        double *share = at ? realloc(slot->share, (size_t)count * 8) : NULL;
        if (links) slot->links = links;
        if (at) slot->at = at;
        if (!share) { PyErr_NoMemory(); return -1; }
        slot->share = share;
        slot->room = count;
    }
    slot->message = id;
    slot->count = count;
    slot->hop = hop;
    slot->remaining = message->bytes;
    slot->rate = 0;
    slot->since = time;
    slot->finish = INFINITY;
    slot->seen = 0;
    for (int32_t k = 0; k < count; k++) {
        int32_t link = slot->links[k] = core->hop_link[low + k];
        slot->share[k] = core->hop_share[low + k];
        core->link_bytes[link] += message->bytes * slot->share[k];
        LinkFlows *flows = &core->flows[link];
        if (flows->count == flows->room) {
            int32_t room = flows->room ? 2 * flows->room : 4;
            Use *uses = realloc(flows->uses, (size_t)room * sizeof(Use));
            if (!uses) { PyErr_NoMemory(); return -1; }
            flows->uses = uses;
            flows->room = room;
        }
        if (!flows->count) core->busy_since[link] = time;
        slot->at[k] = flows->count;
        flows->uses[flows->count++] = (Use){index, k};
        if (touch(core, link)) return -1;
    }
    if (PUSH(core, flow_heap, index)) return -1;
    settle_flow(core, core->flow_heap_count - 1);
    return 0;
}

static int end_flow(Core *core, int32_t index) {
    Slot *slot = &core->slots[index];
    for (int32_t k = 0; k < slot->count; k++) {
        int32_t link = slot->links[k];
        LinkFlows *flows = &core->flows[link];
        Use moved = flows->uses[--flows->count];
        flows->uses[slot->at[k]] = moved;
        core->slots[moved.slot].at[moved.at] = slot->at[k];
        if (!flows->count) core->link_busy[link] += slot->finish - core->busy_since[link];
        if (touch(core, link)) return -1;
    }
    int32_t at = slot->heap_at, last = core->flow_heap[--core->flow_heap_count];
    if (last != index) {
        core->flow_heap[at] = last;
        core->slots[last].heap_at = at;
        settle_flow(core, at);
    }
    return PUSH(core, free_slots, index);
}

static void give_rate(Core *core, Slot *slot, double rate, int32_t link, double now) {
    core->messages[slot->message].bottleneck = link;
    if (fabs(rate - slot->rate) <= SAME_RATE * rate) return;
    if (slot->rate > 0) {
        slot->remaining -= slot->rate * (now - slot->since);
        if (slot->remaining < 0) slot->remaining = 0;
        slot->since = now;
    }
    slot->rate = rate;
    slot->finish = slot->since + slot->remaining / rate;
    settle_flow(core, slot->heap_at);
}

static int link_first(const Core *core, int32_t a, int32_t b) {
    return core->link_key[a] != core->link_key[b] ? core->link_key[a] < core->link_key[b] : a < b;
}

static void sink_link(Core *core, int64_t at) {
    int32_t link = core->link_heap[at];
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= core->link_heap_count) break;
        if (child + 1 < core->link_heap_count && link_first(core, core->link_heap[child + 1], core->link_heap[child]))
            child++;
        if (!link_first(core, core->link_heap[child], link)) break;
        core->link_heap[at] = core->link_heap[child];
        at = child;
    }
    core->link_heap[at] = link;
}

/* Max-min fair rates for the flows that a link's flows share links with, directly or through others. */
static int share_part(Core *core, int32_t start, double now) {
    core->part_links_count = core->part_slots_count = core->link_heap_count = 0;
    core->link_mark[start] = core->mark;
    if (PUSH(core, part_links, start)) return -1;
    for (int64_t i = 0; i < core->part_links_count; i++) {
        int32_t link = core->part_links[i];
        LinkFlows *flows = &core->flows[link];
        core->link_left[link] = core->bandwidth[link];
        core->link_open[link] = flows->count;
        double weight = 0;
        for (int32_t f = 0; f < flows->count; f++) {
            Slot *slot = &core->slots[flows->uses[f].slot];
            weight += slot->share[flows->uses[f].at];
            if (slot->seen == core->mark) continue;
            slot->seen = core->mark;
            if (PUSH(core, part_slots, flows->uses[f].slot)) return -1;
            for (int32_t k = 0; k < slot->count; k++)
                if (core->link_mark[slot->links[k]] != core->mark) {
                    core->link_mark[slot->links[k]] = core->mark;
                    if (PUSH(core, part_links, slot->links[k])) return -1;
                }
        }
        core->link_weight[link] = weight;
        core->link_key[link] = weight > 0 ? core->bandwidth[link] / weight : INFINITY;
    }
    if (core->part_slots_count == 1) { /* alone */
        Slot *slot = &core->slots[core->part_slots[0]];
        double rate = INFINITY;
        int32_t narrow = NONE;
        for (int32_t k = 0; k < slot->count; k++) {
            double most = core->bandwidth[slot->links[k]] / slot->share[k];
            if (most < rate || (most == rate && slot->links[k] < narrow)) { rate = most; narrow = slot->links[k]; }
        }
        give_rate(core, slot, rate, narrow, now);
        return 0;
    }
    if (ROOM(core, link_heap, core->part_links_count)) return -1;
    for (int64_t i = 0; i < core->part_links_count; i++)
        if (core->link_open[core->part_links[i]]) core->link_heap[core->link_heap_count++] = core->part_links[i];
    for (int64_t i = core->link_heap_count / 2; i-- > 0;) sink_link(core, i);
    while (core->link_heap_count) {
        int32_t link = core->link_heap[0];
        int drop = !core->link_open[link];
        if (!drop) {
            double left = core->link_left[link] > 0 ? core->link_left[link] : 0, weight = core->link_weight[link];
            /* A link's fair share only rises while others fill up: look again when its turn comes. Shares so small that
             * nothing is left of them after rounding stay where they are. */
            double key = weight > 0 ? left / weight : 0;
            if (key > core->link_key[link] * (1 + SAME_RATE)) {
                core->link_key[link] = key;
                sink_link(core, 0);
                continue;
            }
            double rate = core->link_key[link];
            LinkFlows *flows = &core->flows[link];
            for (int32_t f = 0; f < flows->count; f++) {
                Slot *slot = &core->slots[flows->uses[f].slot];
                if (slot->seen != core->mark) continue;
                slot->seen = -core->mark; /* settled */
                for (int32_t k = 0; k < slot->count; k++) {
                    core->link_left[slot->links[k]] -= rate * slot->share[k];
                    core->link_weight[slot->links[k]] -= slot->share[k];
                    core->link_open[slot->links[k]]--;
                }
                give_rate(core, slot, rate, link, now);
            }
            drop = 1;
        }
        core->link_heap[0] = core->link_heap[--core->link_heap_count];
        if (core->link_heap_count) sink_link(core, 0);
    }
    return 0;
}

/* Let others be heard now and then: after long work, be it in one moment or in many. */
static int hear_others(Core *core) {
    if (core->work < LONG_WORK) return 0;
    core->work = 0;
    if (PyErr_CheckSignals()) return -1;
    if (core->progress == Py_None) return 0;
    PyObject *said = PyObject_CallFunction(core->progress, "LL", (long long)core->written, (long long)core->messages_count);
    Py_XDECREF(said);
    return said ? 0 : -1;
}

static int share_links(Core *core, double now) {
    /* Marks count up; a touched link has the mark NONE until its part has been looked at. */
    core->mark++;
    for (int64_t i = 0; i < core->dirty_count; i++) {
        int32_t link = core->dirty[i];
        if (core->link_mark[link] == core->mark) continue;
        if (!core->flows[link].count) { core->link_mark[link] = core->mark; continue; }
        if (share_part(core, link, now)) return -1;
        core->work += core->part_slots_count;
        if (hear_others(core)) return -1;
    }
    core->dirty_count = 0;
    return 0;
}

/* ---- the event loop ---- */

enum { START, OUT, ARRIVE, READY, WRITTEN, HOP, REDUCED };

static int act(Core *core, int32_t kind, int32_t id, double time) {
    Event event = {time, kind, id, 0};
    return PUSH(core, actions, event);
}

/* What a message waited for last; of several at once the highest, so that it does not depend on who came first. */
static int may_start(Core *core, int32_t id, double time, int64_t cause) {
    Message *message = &core->messages[id];
    if (time > message->start || (time == message->start && cause > message->start_cause)) {
        message->start = time;
        message->start_cause = cause;
    }
    return --message->need_start ? 0 : act(core, START, id, message->start);
}

/* Likewise; but a message that arrives at that moment waited for nobody. */
static int may_write(Core *core, int32_t id, double time, int64_t cause) {
    Message *message = &core->messages[id];
    int64_t known = message->write_cause;
    if (time > message->written || (time == message->written && known != NONE && (cause == NONE || cause > known))) {
        message->written = time;
        message->write_cause = cause;
    }
    return --message->need_write ? 0 : act(core, READY, id, message->written);
}

static int open_group(Core *core, int32_t group, double time, int64_t cause) {
    core->groups[group].pending &= ~(1 << 30);
    for (int32_t at = core->groups[group].first; at != NONE; at = core->turns[at].next)
        if (may_start(core, core->turns[at].message, time, cause)) return -1;
    return 0;
}

static int is_out(Core *core, int32_t id, double time) {
    Message *message = &core->messages[id];
    message->out = time;
    for (int32_t at = message->out_edges; at != NONE; at = core->edges[at].next)
        if (may_write(core, ~core->edges[at].to, time, 2 * (int64_t)id + BY_OUT)) return -1;
    int32_t turn = message->first_turn, end = turn + core->route_leaving[message->route];
    for (; turn < end; turn++) {
        Group *group = &core->groups[core->turns[turn].group];
        if (time > group->out || (time == group->out && id > group->last)) { group->out = time; group->last = id; }
        if (--group->pending || group->next == NONE) continue;
        if (open_group(core, group->next, group->out, 2 * (int64_t)group->last + BY_OUT)) return -1;
    }
    return 0;
}

static int is_ready(Core *core, int32_t id, double time, int32_t moment) {
    Message *message = &core->messages[id];
    if (message->reduce_s <= 0) return act(core, WRITTEN, id, time);
    Engine *engine = &core->engines[message->engine];
    message->moment = moment;
    message->next_waiting = engine->waiting;
    engine->waiting = id;
    if (engine->listed) return 0;
    engine->listed = 1;
    return PUSH(core, touched, message->engine);
}

static int is_written(Core *core, int32_t id, double time) {
    core->messages[id].written = time;
    core->written++;
    for (int32_t at = core->messages[id].written_edges; at != NONE; at = core->edges[at].next) {
        int32_t to = core->edges[at].to;
        if (to >= 0 ? may_start(core, to, time, 2 * (int64_t)id) : may_write(core, ~to, time, 2 * (int64_t)id)) return -1;
    }
    return 0;
}

static int is_started(Core *core, int32_t id, double time) {
    Message *message = &core->messages[id];
    int64_t hops = core->route_first[message->route + 1] - core->route_first[message->route];
    if (message->bytes > 0 && hops) return start_flow(core, id, 0, time);
    if (act(core, OUT, id, time)) return -1;
    return push_event(core, time + core->route_latency[message->route], ARRIVE, id, 0);
}

static int flow_ended(Core *core, int32_t index) {
    Slot *slot = &core->slots[index];
    int32_t id = slot->message, hop = slot->hop;
    double time = slot->finish;
    if (end_flow(core, index)) return -1;
    if (hop == 0 && act(core, OUT, id, time)) return -1;
    Message *message = &core->messages[id];
    if (!core->store_and_forward) return push_event(core, time + core->route_latency[message->route], ARRIVE, id, 0);
    int64_t at = core->route_first[message->route] + hop;
    time += core->latency[core->hop_link[at]];
    int last = at + 1 == core->route_first[message->route + 1];
    return push_event(core, time, last ? ARRIVE : HOP, id, hop + 1);
}

static int do_action(Core *core, Event action, int32_t moment) {
    switch (action.kind) {
        case START: return is_started(core, action.id, action.time);
        case OUT: return is_out(core, action.id, action.time);
        case ARRIVE:
            core->messages[action.id].arrived = action.time;
            return may_write(core, action.id, action.time, NONE);
        case READY: return is_ready(core, action.id, action.time, moment);
        case WRITTEN: return is_written(core, action.id, action.time);
        case HOP: return start_flow(core, action.id, action.hop, action.time);
        default: { /* REDUCED */
            Engine *engine = &core->engines[core->messages[action.id].engine];
            engine->busy = NONE;
            if (!engine->listed) {
                engine->listed = 1;
                if (PUSH(core, touched, core->messages[action.id].engine)) return -1;
            }
            return is_written(core, action.id, action.time);
        }
    }
}

/* An idle rank takes up the reduction that has been ready longest; of those of one moment the first by step and src. */
static int begin_reduction(Core *core, int32_t number) {
    Engine *engine = &core->engines[number];
    engine->listed = 0;
    if (engine->busy != NONE || engine->waiting == NONE) return 0;
    int32_t best = engine->waiting, before_best = NONE;
    for (int32_t before = best, id = core->messages[best].next_waiting; id != NONE; before = id, id = core->messages[id].next_waiting) {
        const Message *a = &core->messages[id], *b = &core->messages[best];
        if (a->moment != b->moment ? a->moment < b->moment : a->step != b->step ? a->step < b->step : a->src < b->src) {
            best = id;
            before_best = before;
        }
    }
    Message *message = &core->messages[best];
    if (before_best == NONE) engine->waiting = message->next_waiting;
    else core->messages[before_best].next_waiting = message->next_waiting;
    double begin = message->written;
    if (engine->free_at > begin) {
        begin = engine->free_at;
        message->write_cause = 2 * (int64_t)engine->last + BY_WRITE;
    }
    engine->busy = engine->last = best;
    engine->free_at = begin + message->reduce_s;
    return push_event(core, engine->free_at, REDUCED, best, 0);
}

static int one_moment(Core *core, int32_t moment) {
    double first = core->events_count ? core->events[0].time : INFINITY, now;
    if (core->flow_heap_count && core->slots[core->flow_heap[0]].finish < first) first = core->slots[core->flow_heap[0]].finish;
    double limit = first + fabs(first) * SAME_MOMENT;
    now = first;
    for (;;) {
        int more = 0;
        while (core->flow_heap_count && core->slots[core->flow_heap[0]].finish <= limit) {
            if (core->slots[core->flow_heap[0]].finish > now) now = core->slots[core->flow_heap[0]].finish;
            if (flow_ended(core, core->flow_heap[0])) return -1;
            more = 1;
        }
        while (core->events_count && core->events[0].time <= limit) {
            Event event = pop_event(core);
            if (event.time > now) now = event.time;
            if (PUSH(core, actions, event)) return -1;
            more = 1;
        }
        for (int64_t at = 0; at < core->actions_count; at++) {
            if (do_action(core, core->actions[at], moment)) return -1;
            core->work++;
            if (hear_others(core)) return -1;
        }
        core->actions_count = 0;
        if (more) continue;
        for (int64_t at = 0; at < core->touched_count; at++)
            if (begin_reduction(core, core->touched[at])) return -1;
        core->touched_count = 0;
        if (core->events_count && core->events[0].time <= limit) continue;
        return share_links(core, now);
    }
}

static PyObject *core_run(Core *core, PyObject *Py_UNUSED(ignored)) {
    if (core->stage != SHARED) { refuse("there is nothing to run, or it has run"); return NULL; }
    core->stage = RAN;
    int64_t links = core->num_links + 1;
    memset(core->link_bytes, 0, (size_t)links * 8);
    memset(core->link_busy, 0, (size_t)links * 8);
    core->flows = calloc((size_t)links, sizeof(LinkFlows));
    core->link_mark = calloc((size_t)links, 4);
    core->link_open = calloc((size_t)links, 4);
    core->link_left = calloc((size_t)links, 8);
    core->link_weight = calloc((size_t)links, 8);
    core->link_key = calloc((size_t)links, 8);
    core->busy_since = calloc((size_t)links, 8);
    if (!core->flows || !core->link_mark || !core->link_open || !core->link_left || !core->link_weight ||
        !core->link_key || !core->busy_since)
        return PyErr_NoMemory();
    for (int64_t id = 0; id < core->messages_count; id++)
        if (!core->messages[id].need_start && push_event(core, core->messages[id].start, START, (int32_t)id, 0)) return NULL;
    int32_t moment = 0;
    while (core->events_count || core->flow_heap_count) {
        if (one_moment(core, moment++)) return NULL;
        core->work += WORK_OF_MOMENT;
        if (hear_others(core)) return NULL;
    }
    if (core->written != core->messages_count) {
        PyErr_SetString(PyExc_RuntimeError, "some messages were never written");
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- results ---- */

static PyObject *doubles(const double *values, int64_t count) {
    return PyBytes_FromStringAndSize((const char *)values, (Py_ssize_t)count * 8);
}

static PyObject *core_links(Core *core, PyObject *Py_UNUSED(ignored)) {
    return Py_BuildValue("NN", doubles(core->link_bytes, core->num_links), doubles(core->link_busy, core->num_links));
}

static PyObject *core_finish(Core *core, PyObject *Py_UNUSED(ignored)) {
    if (core->stage != LONE) { refuse("there was no lone pass"); return NULL; }
    return doubles(core->rank_finish, core->ranks);
}

#define FIELD(kind, name)                                                                  \
    do {                                                                                   \
        PyObject *bytes = PyBytes_FromStringAndSize(NULL, core->messages_count * sizeof(kind)); \
        if (!bytes) goto failed;                                                           \
        kind *into = (kind *)PyBytes_AS_STRING(bytes);                                     \
        for (int64_t id = 0; id < core->messages_count; id++) into[id] = core->messages[id].name; \
        int bad = PyDict_SetItemString(all, #name, bytes);                                 \
        Py_DECREF(bytes);                                                                  \
        if (bad) goto failed;                                                              \
    } while (0)

static PyObject *core_messages(Core *core, PyObject *Py_UNUSED(ignored)) {
    PyObject *all = PyDict_New();
    if (!all) return NULL;
    FIELD(double, bytes);
    FIELD(double, start);
    FIELD(double, out);
    FIELD(double, arrived);
    FIELD(double, written);
    FIELD(int64_t, start_cause);
    FIELD(int64_t, write_cause);
    FIELD(int32_t, step);
    FIELD(int32_t, src);
    FIELD(int32_t, dst);
    FIELD(int32_t, engine);
    FIELD(int32_t, route);
    FIELD(int32_t, bottleneck);
    return all;
failed:
    Py_DECREF(all);
    return NULL;
}

static PyObject *core_routes(Core *core, PyObject *Py_UNUSED(ignored)) {
    if (!core->route_first) { refuse("this core was not made"); return NULL; }
    return Py_BuildValue("NNN", PyBytes_FromStringAndSize((char *)core->route_first, (core->route_key_count + 1) * 8),
                         PyBytes_FromStringAndSize((char *)core->hop_link, core->hop_link_count * 4),
                         doubles(core->route_alone, core->route_key_count));
}

/* ---- the type ---- */

static int core_init(Core *core, PyObject *args, PyObject *Py_UNUSED(keywords)) {
    PyObject *bandwidth, *latency, *progress;
    Py_ssize_t count = -1;
    if (!PyArg_ParseTuple(args, "OOpO", &bandwidth, &latency, &core->store_and_forward, &progress)) return -1;
    if (core->bandwidth) return refuse("a core is made once");
    if (!(core->bandwidth = copied(bandwidth, &count)) || !(core->latency = copied(latency, &count))) return -1;
    core->num_links = count;
    core->progress = Py_NewRef(progress);
    core->link_bytes = calloc((size_t)count + 1, 8);
    core->link_busy = calloc((size_t)count + 1, 8);
    if (!core->link_bytes || !core->link_busy || ROOM(core, route_first, 1)) { PyErr_NoMemory(); return -1; }
    core->route_first[0] = 0;
    return 0;
}

static void core_dealloc(Core *core) {
    for (int64_t i = 0; i < core->slots_count; i++) {
        free(core->slots[i].links); free(core->slots[i].at); free(core->slots[i].share);
    }
    for (int64_t i = 0; core->flows && i < core->num_links; i++) free(core->flows[i].uses);
    void *owned[] = {
        core->bandwidth, core->latency, core->route_key, core->route_first, core->route_latency, core->route_alone,
        core->route_leaving, core->hop_link, core->hop_share, core->table, core->route_stamp, core->route_message, core->place,
        core->layer, core->gamma,
        core->cuts, core->lone_cells, core->shared_cells, core->busy_until, core->port_out,
        core->port_before, core->engine_free, core->rank_finish, core->port_stamp, core->row_message, core->row_guess,
        core->row_order, core->row_lead, core->row_tail, core->row_next, core->row_other, core->row_reads,
        core->row_writes, core->link_bytes, core->link_busy,
        core->messages, core->edges, core->readers, core->groups, core->turns, core->engines, core->seen_start, core->seen_write,
        core->seen_read, core->port_group, core->events, core->actions, core->slots, core->free_slots, core->flow_heap,
        core->dirty, core->touched, core->part_links, core->part_slots, core->link_heap, core->flows, core->link_mark,
        core->link_open, core->link_left, core->link_weight, core->link_key, core->busy_since,
    };
    for (size_t i = 0; i < sizeof(owned) / sizeof(*owned); i++) free(owned[i]);
    Py_XDECREF(core->progress);
    PyTypeObject *type = Py_TYPE(core);
    type->tp_free((PyObject *)core);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"begin_job", (PyCFunction)core_begin_job, METH_VARARGS, "Begin a collective."},
    {"mark", (PyCFunction)core_mark, METH_VARARGS, "Note where rows cut the vector."},
    {"ready", (PyCFunction)core_ready, METH_VARARGS, "Number the cells."},
    {"missing", (PyCFunction)core_missing, METH_VARARGS, "Pairs of nodes without a route."},
    {"add_routes", (PyCFunction)core_add_routes, METH_VARARGS, "Routes for pairs of nodes."},
    {"lone", (PyCFunction)core_lone, METH_VARARGS, "Take steps while nothing is shared."},
    {"gather", (PyCFunction)core_gather, METH_VARARGS, "Take steps for a shared run."},
    {"run", (PyCFunction)core_run, METH_NOARGS, "Run all that was gathered."},
    {"links", (PyCFunction)core_links, METH_NOARGS, "Bytes and busy seconds of each link."},
    {"finish", (PyCFunction)core_finish, METH_NOARGS, "When each rank was done, after a lone pass."},
    {"messages", (PyCFunction)core_messages, METH_NOARGS, "What happened to each message of a shared run."},
    {"routes", (PyCFunction)core_routes, METH_NOARGS, "The routes: offsets, links, and what a lone message gets."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, core_init},
    {Py_tp_dealloc, core_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_doc, "The state of one simulation."},
    {0, NULL},
};

static PyType_Spec type_spec = {"choreo.simulate.flows._core.Core", sizeof(Core), 0, Py_TPFLAGS_DEFAULT, type_slots};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_core", "The simulator's inner loops.", -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__core(void) {
    PyObject *made = PyModule_Create(&module);
    if (!made) return NULL;
    PyObject *type = PyType_FromSpec(&type_spec);
    if (!type || PyModule_AddObject(made, "Core", type)) {
        Py_XDECREF(type);
        Py_DECREF(made);
        return NULL;
    }
    return made;
}

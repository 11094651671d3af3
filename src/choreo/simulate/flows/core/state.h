/* The state of one simulation: what both passes read, and what each of them keeps. */

/* Moments closer together than this part of the time are one moment: they differ by rounding. */
#define SAME_MOMENT 1e-12
/* Rates closer together than this part are one rate. */
#define SAME_RATE 1e-14
#define NONE (-1)

/* What a message costs the members at its ends: how long until it is sent or taken in, and how long until the next may be. */
typedef struct { double send, send_busy, receive, receive_busy; } Cost;

/* Routes, found by a hash of their two ends. Route r crosses the hops first_hop[r] to first_hop[r + 1] - 1. */
typedef struct {
    int64_t num_nodes;
    VECTOR(int64_t, key);       /* src * num_nodes + dst */
    VECTOR(int64_t, first_hop);
    VECTOR(double, latency);
    VECTOR(double, alone);      /* bytes a second of a message that has all of its links to itself */
    VECTOR(Cost, cost);
    VECTOR(int32_t, narrow);    /* the link that limits such a message */
    VECTOR(int32_t, leaving);   /* how many of its links leave the sender: they come first */
    VECTOR(int32_t, hop_link);
    VECTOR(double, hop_share);  /* the part of a message that crosses the link */
    int32_t *table;
    int64_t table_size;
    int charge;                 /* whether any message costs its ends anything */
} Routes;

/* 64 chunks of a rank: which of them begin a cell, and how many cells begin before them. */
typedef struct { uint64_t bits; int64_t before; } Word;
/* Cells of one row: the first, and how many; the next is `stride` on, around the end. */
typedef struct { int64_t first; int32_t count; } Range;

/* The current job. A cell is a range of chunks at one rank that no row cuts: what is known of a place is kept by cell. */
typedef struct {
    int64_t ranks, num_chunks, words;
    int64_t *place; /* the node of each rank */
    int32_t *layer; /* how many members before it are at the same node: each of them has ports of its own */
    int64_t layers;
    double *gamma;  /* seconds a reduced byte, by rank */
    double unit;    /* bytes a unit of weight */
    double start;
    Word *cuts;     /* for every rank, where cells begin; NULL where every chunk is a cell */
    int64_t num_cells, stride;
    int32_t first_engine;
} Job;

/* The rows and messages of the current step; see look_up_step. */
typedef struct {
    int64_t stamp; /* counts the steps */
    VECTOR(int32_t, route);
    VECTOR(int32_t, order);
    VECTOR(int32_t, lead);
    VECTOR(int32_t, tail);
    VECTOR(int32_t, next);
    VECTOR(Range, reads);
    VECTOR(Range, writes);
} Step;

/* The alone pass: when a cell was last written and last read, and until when links, ports and reductions are taken. */
typedef struct { double written, read; } AloneCell;
/* Where messages are kept: who wrote a cell last, and who was the last of its readers since to be out. */
typedef struct { int32_t writer, reader; } CellUsers;
/* A rank that does one thing after another: since when it has not been idle, when it begins the last one and is free after
 * it, and the last one's step, peer and message. What gets ready before `idle_until` is out of turn. */
typedef struct { double idle_until, begin, free_at; int64_t stamp; int32_t peer, last; } Queue;

typedef struct {
    AloneCell *cells;
    double *busy_until, *port_out, *port_before, *rank_finish;
    int64_t *port_stamp;
    int keep;
    CellUsers *users;
    int32_t *port_last, *port_last_before; /* whose moment that was */
    Queue *sender, *receiver; /* by rank */
} Alone;

/* The shared pass. A cell knows its last writer and the readers since. */
typedef struct { int32_t writer, readers; } SharedCell;

typedef struct {
    double bytes, reduce_s;
    union { double ready, out; }; /* when all that it reads is written; then, when it is out */
    double start, arrived, written;
    int32_t ready_cause, start_cause, write_cause; /* CAUSE, or NONE */
    int32_t route, step, src, dst, engine;
    int32_t need_ready, need_start, need_write;
    int32_t out_edges, written_edges;
    int32_t first_turn;
    int32_t waits_left, waits_right, waits_depth; /* in the heap of those that wait for their sender or receiver */
    int32_t bottleneck, moment, reduces;
} Message;

/* The messages of an alone pass, as columns; and those columns from the first message of a step on. */
enum { NUM_COLUMNS = 15, NUM_KEPT = 14 };
typedef struct {
    PyObject *columns[NUM_KEPT];
    int64_t count, room, steps;
} Kept;
typedef struct {
    double *bytes, *start, *out, *arrived, *written;
    int32_t *ready_cause, *start_cause, *write_cause;
    int32_t *step, *src, *dst, *route, *bottleneck, *reduces;
} KeptStep;

/* A cause is three times a message's number, and must fit into 32 bits. */
enum { MOST_MESSAGES = 1 << 29 };

/* The kinds of causes: that message was written, was out, or kept the sender busy. */
enum { BY_WRITE = 0, BY_OUT = 1, BY_SENDER = 2 };
#define CAUSE(message, kind) (3 * (int32_t)(message) + (kind)) /* there are fewer than MOST_MESSAGES */

typedef struct { int32_t to, next; } Edge;   /* to >= 0: that message may start; ~to: it may be written */
typedef struct { int32_t message, next; } Reader;
/* Message << 32 | another that it waits for: which must be written before it is sent, be written before it is written, or have
 * been read before it is written. */
typedef struct { VECTOR(uint64_t, all); } Waits;
typedef struct { uint64_t key; int32_t message; } Ordered;
enum { TO_SEND, TO_WRITE, TO_OVERWRITE, NUM_WAITS };
/* The messages of one step at one port: how many have still to be out, and who was out last. */
typedef struct { double out; int32_t step, pending, first, next, last; } Group;
/* A message in a group, and the next one there. A message has one for each of its ports, one after another. */
typedef struct { int32_t message, group, next; } Turn;
/* A rank's sends, or what it takes in and reduces: one at a time. What it takes in knows also how many messages the rank has
 * still to get out or written, and when the last one was. */
typedef struct { double free_at; int32_t busy, last, waiting, listed, left; double done; } Engine;
typedef struct { double time; int32_t kind, id, hop; } Event;
typedef struct { int32_t slot, at; } Use;
typedef struct { Use *uses; int32_t count, room; } LinkFlows;

typedef struct {
    double remaining, rate, since, finish;
    int32_t message, count, room, heap_at, hop, seen;
    int32_t *links, *at;
    double *share;
} Slot;

typedef struct {
    /* what waits for what */
    SharedCell *cells;
    VECTOR(Message, messages);
    VECTOR(Edge, edges);
    VECTOR(Reader, readers);
    VECTOR(Group, groups);
    VECTOR(Turn, turns);
    VECTOR(Engine, engines);     /* by rank: what it takes in and reduces */
    VECTOR(Engine, senders);     /* by rank, where messages cost their sender something */
    VECTOR(int32_t, seen_start); /* by message: the last message that an edge was made to */
    VECTOR(int32_t, seen_write);
    VECTOR(int32_t, seen_read);
    int32_t *port_group;
    /* for another simulator: what waits for what, as columns */
    Waits waits[NUM_WAITS];
    int64_t told;                /* messages that were told already */
    VECTOR(Ordered, sorted);     /* the messages of a step by sender and peer, and the place of each then */
    VECTOR(int32_t, place);
    int32_t free_reader;         /* of `readers` */
    VECTOR(int32_t, reach);      /* by message of a step: the last step of those that it waits for */
    VECTOR(int32_t, sent);       /* the last step in which a rank sent, or sent to a peer */
    int in_port_order, one_port;
    int32_t least_reach;
    /* the event loop */
    VECTOR(Event, events);       /* a heap by time */
    VECTOR(Event, actions);      /* what happens in this moment, in order */
    VECTOR(int32_t, touched);    /* engines that may take up a message */
    VECTOR(int32_t, touched_senders);
    VECTOR(int32_t, finished);   /* engines of ranks that have done all, since it was last asked */
    int64_t written, work, begun_messages, begun_engines;
    int32_t moment;
    /* the flows on the links */
    VECTOR(Slot, slots);
    VECTOR(int32_t, free_slots);
    VECTOR(int32_t, flow_heap);  /* slots by when they finish */
    VECTOR(int32_t, dirty);      /* links whose flows changed */
    VECTOR(int32_t, part_links); /* the links and flows that share with one another, while rates are given */
    VECTOR(int32_t, part_slots);
    VECTOR(int32_t, link_heap);
    LinkFlows *flows;
    int32_t *link_mark, *link_open;
    double *link_left, *link_weight, *link_key, *busy_since;
    int32_t mark;
} Shared;

/* What may be called next: a job is begun, made ready for one of the two passes, and the shared one is run once. */
typedef enum { NEW, BEGUN, ALONE, SHARED, RAN } Stage;

typedef struct {
    PyObject_HEAD
    Stage stage;
    int64_t num_links;
    double *bandwidth, *latency;
    double *link_bytes, *link_busy; /* what the links carried, and how long they were busy */
    int store_and_forward;
    PyObject *progress;
    Routes routes;
    Job job;
    Step step;
    Alone alone;
    Kept kept;
    Shared shared;
} Core;

/* The state of one simulation. Times are picoseconds. A link is the port that sends into it (at its source), the wire, and
 * the port that receives from it (at its end); so ports have the numbers of links. */

#define NONE (-1)
/* A queue's history: the most bytes in each of this many equal parts of the time. */
#define PARTS 256

/* What happens, in the order in which it happens at one time; within a kind, in order of ids. A port sends last, when it
 * knows all that has come. */
enum { ARRIVE, PAUSE, RESUME, WAKE, TIMEOUT, READABLE, START, READY, PREPARE, TAKE_IN, SEND };

typedef struct { int64_t time; uint64_t key; } Event; /* key: kind << 32 | id */

/* What a packet is. Acknowledgements, requests to go back, and notifications of congestion go before data. */
enum { DATA, ACK, BACK, NOTIFY };

typedef struct {
    int64_t due;      /* when it comes off the wire */
    int32_t conn, at; /* whose it is; its hop: an index into the hops of all routes */
    uint32_t psn;     /* its sequence number; of an acknowledgement, the first that is missing */
    uint32_t seen;    /* of an acknowledgement: the packet that it answers */
    int32_t size, next;
    int32_t ingress;  /* the link it came by, while it is in a switch */
    uint8_t kind, marked, headroom;
} Packet;

typedef struct { int32_t head, tail; } Queue;

typedef struct {
    int64_t free_at, latency, full_ps; /* full_ps: what a whole packet takes */
    double ps_per_byte;
    Queue control, data, wire, ring; /* ring: the sources that wait for a turn at this port */
    int32_t src, dst;
    int32_t pauses_held;             /* pauses received that were not taken back */
    uint8_t scheduled, own_turn, pause_sent;
    int64_t queued, held, headroom;  /* bytes: in `data`; in the switch at its end that came by it; of these in headroom */
    double mark_from, mark_all;      /* the queue from which packets are marked, and from which all are */
    /* what is reported */
    int64_t bytes, busy, peak, peak_headroom, paused_since, paused_ps, packets, marks, drops, pauses;
    int64_t *history, part;
    int32_t shift;
} Link;

/* A port that a connection may send by: the hop there, and the next source in the port's ring. */
typedef struct { int32_t conn, at, next; uint8_t waiting; } Source;

/* Bits for the packets from some number on; it grows with what is out of order. */
typedef struct { uint64_t *words; uint32_t room; } Window;

/* What every packet needs comes first, within one cache line. */
typedef struct {
    uint32_t next, fresh, unacked, end; /* sequence numbers: to send, never sent, without acknowledgement, after the last */
    uint32_t window;                    /* how many may be without acknowledgement */
    uint32_t lost;                      /* selective repeat: what is without acknowledgement below this is lost */
    uint32_t expected;                  /* the receiver's */
    int32_t sending, receiving, unacked_message; /* messages */
    int32_t first_source, sources;      /* one, or when sprayed one for each port it may leave by */
    int32_t back_at, back_ways;         /* the first hops of what the receiver answers */
    uint8_t asked_back, timer_set, asleep, timed, backoff;
    uint32_t timed_psn;
    int64_t deadline, timed_at, base_rtt, smooth_rtt, rtt_spread;
    uint32_t highest, repeat;           /* selective repeat: the highest that arrived, the next to look at */
    int32_t last;                       /* the last message */
    int64_t send_ps, send_busy_ps, receive_busy_ps; /* what a message costs its ends; see flows/core/state.h */
    Window arrived, answered;           /* at the receiver; at the sender */
} Conn;

/* The rate of a connection under DCQCN, in bytes a second. */
typedef struct {
    double rate, target, alpha, line;
    int64_t next_send, alpha_at, timer_at, bytes, notify_at;
    int32_t timer_stage, byte_stage;
    uint8_t slowed;
} Control;

/* Edges to the messages that wait for one, in their order. */
typedef struct { int32_t to, next; } Edge;
typedef struct { int32_t first, last; } Edges;

typedef struct {
    int64_t bytes, reduce_ps, ready, start, out, arrived, written;
    int32_t conn, member, step, src, dst;
    int32_t need_ready, need_start, need_write;
    int32_t ready_cause, start_cause, write_cause; /* CAUSE, or NONE */
    uint32_t first, end;              /* its packets' sequence numbers */
    int32_t next;                     /* of its connection */
    int32_t first_turn;
    int32_t waits_child, waits_next;  /* in the heap of those that wait for their sender or receiver */
    Edges lets_send, lets_write;      /* once it is written */
    Edges lets_overwrite;             /* once it has been read: it will not be sent again */
    uint8_t is_written, is_read;
} Message;

enum { BY_WRITE = 0, BY_OUT = 1, BY_SENDER = 2 };
#define CAUSE(message, kind) (3 * (message) + (kind))

/* The messages of one step at one port; see flows/core/state.h. */
typedef struct { int64_t out; int32_t step, pending, waits, first, next, last; } Group;
typedef struct { int32_t message, group, next; } Turn;
/* What a member does one after another: prepare messages, or take them in and reduce them. The one at work, the last one, and
 * the first of those that wait, which are a heap. */
typedef struct { int64_t free_at; int32_t busy, last, waiting; uint8_t scheduled; } Engine;

typedef struct {
    int64_t nodes, mtu, buffer, lossless, spray, selective, acks, dcqcn, seed, resume_below, reorder, answer_bytes, messages,
        keep;                                           /* messages in all; whether all are kept to the end */
    double threshold;                                   /* of the free memory that one port may take */
    double mark_most;                                   /* the part marked just before all are */
    double gain, additive, hyper, least_rate;           /* DCQCN; the last three as parts of the line's rate */
    int64_t alpha_ps, timer_ps, notify_ps, byte_counter, fast_stages;
} Settings;

typedef struct {
    PyObject_HEAD
    Settings set;
    PyObject *progress;
    int64_t now, events_done, messages_done;
    int64_t num_links, num_conns, num_hops, num_members;
    Link *links;
    int32_t *hop_link, *hop_next, *hop_ways; /* next: the first hop at the link's end, NONE where the packet has arrived */
    uint32_t *hop_until;                     /* of several ways: up to which draw a hop is taken */
    Conn *conns;
    Control *controls;
    Source *sources;
    /* Messages oldest..added - 1 are there, each at its number modulo `room`; MESSAGE(id) finds one. Likewise turns. */
    Message *messages;
    int64_t oldest, added, room;
    Turn *turns;
    int64_t turns_oldest, turns_added, turns_room;
    VECTOR(Edge, edges);
    VECTOR(Group, groups);
    int32_t free_edge, free_group;
    int32_t *layer;                          /* of each member: how many before it are at the same node */
    int32_t *port_group;                     /* by layer and link: the latest group of a member's port */
    int64_t last_started;                    /* the highest step of a message that has started; -1 before any has */
    Engine *senders, *receivers;
    int64_t *finish;                         /* by member: when its last message was out or written */
    VECTOR(Event, heap);
    VECTOR(Packet, packets);
    int32_t free_packet;
    int64_t *node_used, *node_peak;
    int64_t sent, repeated, timeouts, notified, backs, in_flight, most_in_flight, delivered_bytes, dropped_bytes, sent_bytes,
        discarded_bytes; /* discarded: received once more, or out of order where that does not count */
} Core;

#define MESSAGE(core, id) ((core)->messages[(id) & ((core)->room - 1)])
#define TURN(core, at) ((core)->turns[(at) & ((core)->turns_room - 1)])

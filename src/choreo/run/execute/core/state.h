/* The private state of a rank: its endpoint, what it knows of each peer, programs, and the call in progress. */

typedef struct {
    int fd;
    Seal *seal;          /* NULL: its bytes are plain */
    struct iovec *queue; /* ranges to write */
    uint32_t *numbers;   /* the message that each range belongs to */
    size_t room, queued, written;
} Stream;

typedef struct {
    const Header *header; /* NULL: on another host */
    const Channel *to_us;
    Channel *from_us;
    uint64_t returned;                     /* the last call that it is known to have returned from */
    uint64_t mailbox_read, mailbox_written; /* the last call whose mailbox was read, and written */
    uint64_t modes, address[2];            /* from the mailbox that was read */
    uint64_t posted, part_ends[2];         /* the last message that was made ready: by now, and in the last two parts */
    uint64_t verified;                     /* the last call that both are known to have made alike */
    Py_buffer map;
    PyObject *control; /* the control connection to a peer on another host, which Python reads and writes */
    int pidfd, pid;    /* pidfd: of a peer on another host, its control connection */
    int sleeps_often, wary; /* because ranks share cores; how many messages ago it slept, counted down */
    int num_streams;
    Stream *streams;
    int asked, ended;          /* whether its control connection was read; why nothing more comes from it */
    uint32_t outcome, culprit; /* what it said on its control connection before it went */
    uint64_t outcome_call;
} Peer;

typedef struct {
    PyObject_HEAD
    _Atomic int busy; /* a thread is in a call */
    _Atomic int aborted;
    int rank, world, mapped, fork_generation, in_main_thread, in_interpreter;
    int spins; /* how often it looks before it yields, if it may not spin longer */
    Patience patience;
    int apart, yields;   /* whether ranks of this host are in several scheduling groups; how often it yields before it sleeps */
    unsigned sleeps, trial; /* since it stopped yielding, and after how many of them it tries again */
    uint64_t serial;
    Py_buffer own;
    Header *header;
    size_t stage_at, stage_bytes, slot_bytes;
    Peer *peers;
    struct pollfd *polled_peers, *polled_streams;
    int *polled_ranks, pending; /* pending: streams that have something to write */
    uint64_t written;           /* bytes that sockets have taken */
    char *scratch, *buffer, *stream_buffers;
    size_t scratch_room;
    uint64_t call, done, chain;
    uint64_t calls[WINDOW], chains[WINDOW]; /* the last calls, by their number modulo WINDOW */
    uint64_t used[STAGING_SLOTS]; /* the last call that staged something in each slot */
    uint64_t returned;            /* the last call that all peers are known to have returned from */
    double checked_s, signals_s, moved_s; /* when peers and signals were checked last, and when the rank changed its core */
    unsigned long main_thread;
    PyThreadState *thread_state;
    int culprit, failed_op;
    uint64_t modes, address[2]; /* what our mailboxes of this call say */
    uint64_t read_in_place;     /* the last call in which we read a sender's array where it is */
    double *watched;            /* when the last call began, and when each of its first operations was done; NULL: nobody asks */
    size_t watched_room;
} Endpoint;

#define LEARN_BYTES ((uint64_t)16 << 10) /* a program whose ranges are shorter always stages past the caches */

/* How a program stages: past the caches or through them, and what it has learnt about that. */
typedef struct {
    int learns;       /* whether its ranges are long enough */
    int through;      /* the caches */
    uint32_t parts;   /* that it has run */
    int64_t began;    /* when this part did */
    int64_t spent[2], slowest[2]; /* in the last trial, past the caches and through them: ns of all parts, and of the slowest */
} Staging;

typedef struct {
    PyObject_HEAD
    int world, parts;           /* parts: whether there are several */
    int receives;                /* whether anything comes in */
    int fills_slot;              /* whether it stages anything that is not inlined */
    int staged, exposed, remote; /* whether anything is sent this way; known once it was checked for an endpoint */
    int shares_work;             /* whether peers read its work in place; likewise */
    _Atomic uint64_t runs;       /* to its end */
    Op *ops;
    Guard *guards;
    uint32_t *sent, *received; /* messages, by peer */
    uint32_t *fused;           /* how many operations from here on reduce into the same range */
    uint16_t *partners;        /* the peers that it exchanges something with */
    uint32_t num_partners;
    uint8_t *inline_at; /* where in a mailbox the range of an operation is, plus 1; 0: in none */
    uint64_t bytes;     /* moved in all */
    Frame *frames;      /* of sends through sockets; they live until the queue is written */
    size_t num_ops, num_guards;
    uint64_t scratch, input, work; /* bytes that it needs */
    uint64_t grain;                /* the bitwise or of all lengths that are reduced: whole elements divide it */
    uint64_t work_at;              /* where in the logical vector the work array begins */
    uint64_t checked_for;          /* the serial number of the endpoint that it was checked for */
    Staging staging;
} Program;

typedef struct {
    Program *program;
    char *input, *work, *stage; /* stage: the staging slot in use */
    size_t slot;
    int uncached; /* the result is larger than the caches, and is written past them */
    int cached;   /* all the same, the caches hold what this part replaces */
    int shared;   /* peers read the work in place, so that their caches hold it */
    int learns;   /* whether the time of this part says how to stage */
    int through;  /* this part is staged through the caches */
    int parts;    /* begun after the first */
    double began_s, deadline_s;
    Kernel kernel;
    size_t item;
} Task;

static int fork_generation; /* an endpoint belongs to the process that made it, and not to its forks */
static void count_fork(void) { fork_generation++; }

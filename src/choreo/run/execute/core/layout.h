/* The layout of shared data: the segment, a program's operations, and frames on a socket.
 *
 * `layout.py` and `program.py` have the same in Python. module.c exports this one, and a test compares them.
 */
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "programs are little-endian, and a futex is the low half of its counter; the Python executor runs here"
#endif

#define PAGE 4096
#define MAGIC 0x33306F65726F6843ULL /* "Choreo03" */
#define FRAME 0x4D415246U           /* "FRAM" */
#define MAX_STREAMS 8
#define STRIPE_BYTES ((size_t)512 << 10) /* a stripe of a long range is at least this long */
#define WINDOW 64                   /* mailboxes a peer: a call reuses the one of 64 calls ago */
#define STAGING_SLOTS 8             /* of the staging; a call that stages nothing takes none */
#define INLINE_BYTES 40             /* data in a mailbox */
#define MESSAGE_BITS 24             /* of a counter: a message's number within its call; the call's number is above them */
#define CHAIN_FACTOR 0x9E3779B97F4A7C15ULL /* odd, so that chains that differ once differ for good */

/* What an operation does. NEXT_PART: what is staged from here on goes to the other of two slots. */
enum { SEND, RECEIVE, TO_SCRATCH, FROM_SCRATCH, COPY, NEXT_PART, KINDS };
enum { REDUCE = 1, LAST = 2, THEIR_INPUT = 4, OWN_INPUT = 8, EXPOSED = 16, ALREADY_STAGED = 32, ALL_FLAGS = 63 };

/* How peers read an array: from staging, at an offset of the segment, or at an address of the process. */
enum { STAGED, REGISTERED, PRIVATE };

/* How a call ends. LEFT: the communicator was closed after its last call. ALTERED: sealed bytes do not open. */
enum { OK, TIMED_OUT, PEER_DIED, PEER_GAVE_UP, MISMATCHED, BROKEN, INTERRUPTED, LEFT, ALTERED };

/* One of the last calls of a rank. Its chain is a hash of this call's signature and of all calls before. */
typedef struct {
    _Atomic uint64_t number; /* 0: never used, or being changed */
    _Atomic uint64_t signature, chain;
    uint64_t pad[5];
} CallRecord;

/* The first two pages of a segment. */
typedef struct {
    uint64_t magic;
    uint32_t rank, world;
    uint64_t bytes, stage_at, stage_bytes, heap_at;
    _Atomic uint32_t outcome;      /* why this rank stopped; 0 while it runs */
    _Atomic uint32_t culprit;      /* whom it blames */
    _Atomic uint64_t outcome_call; /* the call in which it stopped, or after which it left */
    char pad0[64];
    _Atomic uint64_t returned; /* the last call that it has returned from; it reads nothing of that call any more */
    _Atomic uint32_t core;     /* where it ran then, plus 1 */
    char pad1[372];
    char reports[3072]; /* Python's: what the rank says about a failure */
    CallRecord calls[WINDOW];
    char pad2[512];
} Header;

/* What a rank tells one peer about one call, in one cache line. `modes` is how to read its work (bits 0 to 7) and its input
 * (8 to 15), the flags below, and the slot in which the call begins to stage. `addresses` are those of work and input. */
typedef struct {
    _Atomic uint64_t ready; /* the last message that is ready */
    uint64_t chain, modes;
    union { uint64_t addresses[2]; char data[INLINE_BYTES]; };
} Mailbox;

#define INLINED ((uint64_t)1 << 16)      /* the first message is in the mailbox itself */
#define ACKNOWLEDGED ((uint64_t)2 << 16) /* the sender waits until its messages have been consumed */
#define SLOT_BIT 24                      /* where in `modes` the slot is */

/* What a rank tells one peer: mailboxes, and what the peer needs while nothing fails, so that it need not read the header. */
typedef struct {
    Mailbox mailboxes[WINDOW];
    _Atomic uint64_t consumed;     /* the last message of the peer that was consumed */
    _Atomic uint64_t outcome_call; /* as in the header */
    _Atomic uint32_t outcome;
    _Atomic uint32_t asleep; /* the rank sleeps until this peer changes a counter */
    char pad[40];
} Channel;

/* One operation of a program; `program.py` says what the fields mean. */
typedef struct {
    uint8_t kind, flags;
    uint16_t peer;
    uint32_t number, step, guards;
    uint64_t first_guard, at, base, there, staged, length;
} Op;

/* Wait until a peer has consumed this message before overwriting what it reads. */
typedef struct { uint32_t peer, number; } Guard;

/* What stands before every range of bytes on a socket. */
typedef struct { uint32_t magic, number; uint64_t call, signature, length; } Frame;

_Static_assert(sizeof(Header) == 2 * PAGE && sizeof(Mailbox) == 64 && sizeof(Channel) == 4160 && sizeof(CallRecord) == 64, "layout");
_Static_assert(sizeof(Op) == 64 && sizeof(Frame) == 32 && sizeof(Guard) == 8 && ATOMIC_LLONG_LOCK_FREE == 2, "layout");

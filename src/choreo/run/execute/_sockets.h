/* Peers on other machines; a part of `_core.c`, and twin/frames.py in Python.
 *
 * Each is reached through a control connection and one or more streams. A stream carries frames of 32 bytes, each followed
 * by its payload straight from the sender's array, in the order of the sender's program; a long range is cut into parts,
 * one a stream, in a way that both ends derive from its length. So a receiver knows of every frame what it must say, and
 * how many bytes follow: a frame that says something else is refused, and no length from outside is ever used.
 *
 * The control connection is quiet while all is well. Here only its first 32 bytes are looked at: whether a peer has given
 * up or left (GOODBYE), has something to say to Python (anything else, which stays where it is), or is gone (its end).
 * NOTE, which a rank sends when it has the result of a call that is to survive failures, is taken out and kept.
 */

#define STRIPE ((size_t)512 << 10) /* a range is cut into at most so many parts of at least this length */
#define SMALL ((size_t)16 << 10)   /* up to here a frame and its payload are read at once */

static void forget_queues(Endpoint *here) {
    for (int peer = 0; peer < here->world; peer++)
        for (int i = 0; i < here->peers[peer].num_streams; i++)
            here->peers[peer].streams[i].queued = here->peers[peer].streams[i].written = 0;
    here->pending = 0;
}

/* What a peer elsewhere says when it says something beside its data. */
static int look_at_control(Endpoint *here, int peer) {
    Peer *other = &here->peers[peer];
    Frame frame;
    if (other->pidfd < 0) return FINE;
    for (;;) {
        ssize_t got = recv(other->pidfd, &frame, sizeof(frame), MSG_PEEK | MSG_DONTWAIT);
        if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? FINE : PEER_DIED;
        if (got == 0) return PEER_DIED;
        if ((size_t)got < sizeof(frame)) return FINE;
        if (frame.magic != NOTE) break;
        got = recv(other->pidfd, &frame, sizeof(frame), MSG_DONTWAIT);
        if (got != sizeof(frame)) return PEER_DIED;
        other->noted[frame.number & 1] = frame.call;
    }
    if (frame.magic != GOODBYE) return PEER_GAVE_UP;
    other->told = frame.number;
    other->told_culprit = (uint32_t)frame.signature;
    other->told_in = frame.call;
    return ends(frame.number, frame.call, here->call) ? PEER_GAVE_UP : FINE;
}

static void say_goodbye(Endpoint *here, uint32_t outcome, uint64_t culprit, uint64_t call) {
    Frame frame = {GOODBYE, outcome, call, culprit, 0};
    for (int peer = 0; peer < here->world; peer++) {
        Peer *other = &here->peers[peer];
        if (!other->num_streams || other->pidfd < 0) continue;
        ssize_t ignored = send(other->pidfd, &frame, sizeof(frame), MSG_NOSIGNAL | MSG_DONTWAIT);
        (void)ignored; /* the end of the connection will do */
    }
}

/* A stream has ended: its peer is gone, or has said before why. */
static int lost(Endpoint *here, int peer) {
    int outcome = look_at_control(here, peer);
    return gave_up(here, outcome ? outcome : PEER_DIED, peer);
}

/* ---- writing ---- */

static int queue_range(Endpoint *here, Stream *stream, const void *data, size_t length, uint32_t number) {
    if (!length) return FINE;
    if (stream->written == stream->queued) stream->written = stream->queued = 0;
    if (stream->queued == stream->room) {
        size_t room = stream->room ? 2 * stream->room : 16;
        struct iovec *queue = realloc(stream->queue, room * sizeof(*queue));
        if (queue) stream->queue = queue;
        uint32_t *numbers = queue ? realloc(stream->numbers, room * sizeof(*numbers)) : NULL;
        if (!numbers) return gave_up(here, BROKEN, here->rank);
        stream->numbers = numbers;
        stream->room = room;
    }
    here->pending += stream->queued == 0;
    stream->queue[stream->queued] = (struct iovec){(void *)data, length};
    stream->numbers[stream->queued++] = number;
    return FINE;
}

static int write_stream(Endpoint *here, int peer, Stream *stream) {
    while (stream->written < stream->queued) {
        size_t count = stream->queued - stream->written;
        struct msghdr message = {.msg_iov = stream->queue + stream->written, .msg_iovlen = count < 64 ? count : 64};
        ssize_t sent = sendmsg(stream->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) {
            if (errno == EAGAIN || errno == EWOULDBLOCK) return FINE;
            if (errno == EINTR) continue;
            return lost(here, peer);
        }
        while (stream->written < stream->queued) {
            struct iovec *range = &stream->queue[stream->written];
            size_t part = (size_t)sent < range->iov_len ? (size_t)sent : range->iov_len;
            range->iov_base = (char *)range->iov_base + part;
            range->iov_len -= part;
            sent -= (ssize_t)part;
            if (range->iov_len) break;
            stream->written++;
        }
    }
    if (stream->queued) {
        stream->queued = stream->written = 0;
        here->pending--;
    }
    return FINE;
}

static int write_all(Endpoint *here) {
    int outcome = FINE;
    for (int peer = 0; peer < here->world && here->pending && !outcome; peer++)
        for (int i = 0; i < here->peers[peer].num_streams && !outcome; i++)
            if (here->peers[peer].streams[i].queued) outcome = write_stream(here, peer, &here->peers[peer].streams[i]);
    return outcome;
}

static int any_queued(const Endpoint *here) { return here->pending; }

/* Has everything up to this message been handed to the system? */
static int has_written(const Peer *other, uint32_t number) {
    for (int i = 0; i < other->num_streams; i++) {
        const Stream *stream = &other->streams[i];
        if (stream->queued && stream->numbers[stream->written] <= number) return 0;
    }
    return 1;
}

/* Write what is queued; wait at most so long until more can be written, or one of these streams of `reading` be read. */
static int push_sockets(Endpoint *here, int reading, unsigned streams, int milliseconds) {
    nfds_t count = 0;
    int outcome = write_all(here);
    if (outcome || !milliseconds) return outcome;
    for (int peer = 0; peer < here->world; peer++)
        for (int i = 0; i < here->peers[peer].num_streams; i++) {
            const Stream *stream = &here->peers[peer].streams[i];
            short events = (short)((stream->queued ? POLLOUT : 0) | (peer == reading && streams >> i & 1 ? POLLIN : 0));
            if (events) here->wires[count++] = (struct pollfd){stream->fd, events, 0};
        }
    if (!count || poll(here->wires, count, milliseconds) <= 0) return FINE;
    return write_all(here);
}

static int wait_for_sockets(Endpoint *here, int reading, unsigned streams, int peer, double deadline) {
    int culprit, outcome = push_sockets(here, reading, streams, 10);
    if (outcome) return outcome;
    outcome = still_well(here, peer, deadline, &culprit);
    return outcome ? gave_up(here, outcome, culprit) : FINE;
}

static int wait_written(Endpoint *here, int peer, uint32_t number, double deadline) {
    int outcome = FINE;
    while (!outcome && !has_written(&here->peers[peer], number)) outcome = wait_for_sockets(here, -1, 0, peer, deadline);
    return outcome;
}

/* ---- parts of a range, one a stream ---- */

static int count_parts(size_t length, int num_streams) {
    size_t most = length / STRIPE;
    return most < 2 ? 1 : most < (size_t)num_streams ? (int)most : num_streams;
}

/* All but the last have the same number of whole pages, so that no element is cut. */
static size_t part_length(size_t length, int count, int part) {
    size_t each = (length / (size_t)count + PAGE - 1) / PAGE * PAGE, at = each * (size_t)part;
    if (count == 1) return length;
    return at >= length ? 0 : length - at < each || part == count - 1 ? length - at : each;
}

static int send_parts(Endpoint *here, const Task *task, const Op *op, const char *from) {
    Peer *other = &here->peers[op->peer];
    int count = count_parts(op->length, other->num_streams), outcome = FINE;
    Frame *frames = task->program->frames + (size_t)(op - task->program->ops) * MAX_STREAMS;
    for (int i = 0; i < count && !outcome; i++) {
        size_t length = part_length(op->length, count, i);
        frames[i] = (Frame){FRAME, op->number, here->call, here->chain, length};
        outcome = queue_range(here, &other->streams[i], &frames[i], sizeof(Frame), op->number);
        if (!outcome) outcome = queue_range(here, &other->streams[i], from, length, op->number);
        if (from) from += length;
    }
    for (int i = 0; i < other->num_streams && op->flags & LAST && !outcome; i++)
        if (other->streams[i].queued) outcome = write_stream(here, op->peer, &other->streams[i]);
    return outcome;
}

/* ---- reading ---- */

typedef struct {
    Frame frame;
    size_t head;    /* bytes of the frame that have come */
    size_t at, end; /* what of the range is still to come */
    size_t filled;  /* bytes in the slice, before they are reduced */
} Part;

/* What there is to read, and no more than asked for; nothing, if nothing is there. */
static int read_some(Endpoint *here, int peer, int fd, struct iovec *into, size_t count, size_t *got) {
    struct msghdr message = {.msg_iov = into, .msg_iovlen = count};
    ssize_t found = recvmsg(fd, &message, MSG_DONTWAIT);
    *got = found > 0 ? (size_t)found : 0;
    if (found > 0 || (found < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))) return FINE;
    return lost(here, peer);
}

static int check_frame(Endpoint *here, const Op *op, const Frame *frame, size_t length) {
    if (frame->magic != FRAME) return gave_up(here, BROKEN, op->peer);
    if (frame->call != here->call || frame->signature != here->chain)
        return gave_up(here, MISMATCHED, op->peer);
    if (frame->number != op->number || frame->length != length) return gave_up(here, BROKEN, op->peer);
    return FINE;
}

/* Nothing came: look again a few times before sleeping, since what is waited for is often under way. */
static int rest(Endpoint *here, int *tries, int peer, unsigned streams, double deadline) {
    if (++*tries * 16 < here->spins) {
        sched_yield();
        return FINE;
    }
    return wait_for_sockets(here, peer, streams, peer, deadline);
}

static void put_away(Endpoint *here, const Task *task, const Op *op, const char *data, size_t at, size_t length) {
    if (op->kind == TO_SCRATCH) copy_bytes(here->scratch + op->at + at, data, length);
    else put(task, op, data, at, length);
}

static int receive_small(Endpoint *here, const Task *task, const Op *op) {
    Stream *stream = here->peers[op->peer].streams;
    Frame frame;
    size_t have = 0, got, whole = sizeof(frame) + op->length;
    int outcome, tries = 0, checked = 0;
    while (have < whole) {
        size_t head = have < sizeof(frame) ? sizeof(frame) - have : 0, body = have < sizeof(frame) ? 0 : have - sizeof(frame);
        struct iovec into[2] = {{(char *)&frame + have, head}, {here->slice + body, op->length - body}};
        if ((outcome = read_some(here, op->peer, stream->fd, into + !head, head ? 2 : 1, &got))) return outcome;
        have += got;
        if (!checked && have >= sizeof(frame)) {
            if ((outcome = check_frame(here, op, &frame, op->length))) return outcome;
            checked = 1;
        }
        if (have == whole) break;
        if (got) tries = 0;
        if (here->pending && (outcome = write_all(here))) return outcome;
        if (!got && (outcome = rest(here, &tries, op->peer, 1, task->deadline))) return outcome;
    }
    if ((outcome = wait_guards(here, task, op)) || !op->length) return outcome;
    put_away(here, task, op, here->slice, 0, op->length);
    return FINE;
}

/* Read more of a part: its frame first, then its payload to where it belongs, or through a slice that is reduced. */
static int advance(Endpoint *here, const Task *task, const Op *op, int which, Part *part, size_t *got) {
    int fd = here->peers[op->peer].streams[which].fd, outcome;
    if (part->head < sizeof(Frame)) {
        struct iovec into = {(char *)&part->frame + part->head, sizeof(Frame) - part->head};
        if ((outcome = read_some(here, op->peer, fd, &into, 1, got))) return outcome;
        part->head += *got;
        if (part->head < sizeof(Frame)) return FINE;
        if ((outcome = check_frame(here, op, &part->frame, part->end - part->at))) return outcome;
        return wait_guards(here, task, op); /* once they are met they stay so */
    }
    size_t left = part->end - part->at;
    if (op->kind == TO_SCRATCH || !(op->flags & REDUCE)) {
        struct iovec into = {(op->kind == TO_SCRATCH ? here->scratch : task->work) + op->at + part->at, left};
        if ((outcome = read_some(here, op->peer, fd, &into, 1, got))) return outcome;
        part->at += *got;
        return FINE;
    }
    char *slice = here->slices + (size_t)which * SLICE;
    size_t room = (left < SLICE ? left : SLICE) - part->filled;
    struct iovec into = {slice + part->filled, room};
    if ((outcome = read_some(here, op->peer, fd, &into, 1, got))) return outcome;
    size_t have = part->filled + *got, whole = have - have % task->item;
    if (!whole) { part->filled = have; return FINE; }
    put(task, op, slice, part->at, whole);
    part->at += whole;
    part->filled = have - whole;
    if (part->filled) memmove(slice, slice + whole, part->filled);
    return FINE;
}

static int receive_from_socket(Endpoint *here, const Task *task, const Op *op) {
    if (op->length <= SMALL) return receive_small(here, task, op);
    int count = count_parts(op->length, here->peers[op->peer].num_streams), tries = 0, outcome, culprit;
    Part parts[MAX_STREAMS];
    size_t at = 0;
    unsigned open = 0;
    for (int i = 0; i < count; i++) {
        size_t length = part_length(op->length, count, i);
        parts[i] = (Part){.at = at, .end = at + length};
        at += length;
        open |= 1U << i;
    }
    for (unsigned round = 1; open; round++) {
        size_t moved = 0;
        for (int i = 0; i < count; i++) {
            size_t got = 0;
            if (!(open >> i & 1)) continue;
            if ((outcome = advance(here, task, op, i, &parts[i], &got))) return outcome;
            if (parts[i].head == sizeof(Frame) && parts[i].at == parts[i].end) open &= ~(1U << i);
            moved += got;
        }
        /* Both directions at once: what we have to say must not wait until they have finished. */
        if (here->pending && (outcome = write_all(here))) return outcome;
        if (moved) tries = 0;
        else if (open && (outcome = rest(here, &tries, op->peer, open, task->deadline))) return outcome;
        if (round % 256 == 0 && (outcome = still_well(here, op->peer, task->deadline, &culprit)))
            return gave_up(here, outcome, culprit);
    }
    return FINE;
}

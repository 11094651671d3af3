/* Receiving from ranks of other hosts. A receiver knows what every frame must say and how many bytes follow it. It refuses a
 * frame that says anything else, and never uses a length from outside.
 */
#define SMALL_BYTES ((size_t)16 << 10) /* up to this length a frame and its payload are read at once */

typedef struct {
    Frame frame;
    size_t head;    /* bytes of the frame that were read */
    size_t at, end; /* the rest of the stripe */
    size_t filled;  /* bytes in the buffer that are not reduced yet */
} Stripe;

/* Open what is there, up to the ranges asked for. Only whole records are opened, each to where it belongs. */
static int read_sealed(Endpoint *here, int peer, Stream *stream, struct iovec *into, size_t count, size_t *got) {
    Seal *seal = stream->seal;
    size_t wanted = 0;
    for (size_t i = 0; i < count; i++) wanted += sealed_bytes(into[i].iov_len);
    size_t have = seal->in_end - seal->in_at;
    if (seal->in_at && (!have || SEALED_ROOM - seal->in_at < RECORD_BYTES + TAG_BYTES)) {
        memmove(seal->in, seal->in + seal->in_at, have);
        seal->in_at = 0;
        seal->in_end = have;
    }
    *got = 0;
    if (wanted > have) {
        size_t room = SEALED_ROOM - seal->in_end, rest = wanted - have;
        ssize_t found = recv(stream->fd, seal->in + seal->in_end, rest < room ? rest : room, MSG_DONTWAIT);
        if (!found || (found < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return lose_peer(here, peer);
        if (found > 0) seal->in_end += (size_t)found;
    }
    for (; count; into++, count--)
        while (into->iov_len) {
            size_t part = into->iov_len < RECORD_BYTES ? into->iov_len : RECORD_BYTES;
            if (seal->in_end - seal->in_at < part + TAG_BYTES) return OK;
            if (!open_record(&seal->opens, seal->in + seal->in_at, part, into->iov_base)) return give_up(here, ALTERED, peer);
            seal->in_at += part + TAG_BYTES;
            into->iov_base = (char *)into->iov_base + part;
            into->iov_len -= part;
            *got += part;
        }
    return OK;
}

/* Read what is there, up to the length asked for; it may be nothing. */
static int read_some(Endpoint *here, int peer, Stream *stream, struct iovec *into, size_t count, size_t *got) {
    if (stream->seal) return read_sealed(here, peer, stream, into, count, got);
    struct msghdr message = {.msg_iov = into, .msg_iovlen = count};
    ssize_t found = recvmsg(stream->fd, &message, MSG_DONTWAIT);
    *got = found > 0 ? (size_t)found : 0;
    if (found > 0 || (found < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))) return OK;
    return lose_peer(here, peer);
}

static int check_frame(Endpoint *here, const Op *op, const Frame *frame, size_t length) {
    if (frame->magic != FRAME) return give_up(here, BROKEN, op->peer);
    if (frame->call != here->call || frame->signature != here->chain)
        return give_up(here, MISMATCHED, op->peer);
    if (frame->number != op->number || frame->length != length) return give_up(here, BROKEN, op->peer);
    return OK;
}

/* Nothing came. */
static int wait_for_stream(Endpoint *here, int *tries, int peer, unsigned streams, double deadline) {
    return may_try_again(here, tries) ? OK : wait_for_sockets(here, peer, streams, peer, deadline);
}

static void store_received(Endpoint *here, const Task *task, const Op *op, const char *data, size_t at, size_t length) {
    if (op->kind == TO_SCRATCH) copy_bytes(here->scratch + op->at + at, data, length);
    else store(task, op, data, at, length);
}

static int receive_small(Endpoint *here, const Task *task, const Op *op) {
    Stream *stream = here->peers[op->peer].streams;
    Frame frame;
    size_t have = 0, got, whole = sizeof(frame) + op->length;
    int outcome, tries = 0, checked = 0;
    while (have < whole) {
        size_t head = have < sizeof(frame) ? sizeof(frame) - have : 0, body = have < sizeof(frame) ? 0 : have - sizeof(frame);
        struct iovec into[2] = {{(char *)&frame + have, head}, {here->buffer + body, op->length - body}};
        if ((outcome = read_some(here, op->peer, stream, into + !head, head ? 2 : 1, &got))) return outcome;
        have += got;
        if (!checked && have >= sizeof(frame)) {
            if ((outcome = check_frame(here, op, &frame, op->length))) return outcome;
            checked = 1;
        }
        if (have == whole) break;
        if (got) note_progress(here, &tries);
        if (here->pending && (outcome = write_all(here))) return outcome;
        if (!got && (outcome = wait_for_stream(here, &tries, op->peer, 1, task->deadline_s))) return outcome;
    }
    if ((outcome = wait_guards(here, task, op)) || !op->length) return outcome;
    store_received(here, task, op, here->buffer, 0, op->length);
    return OK;
}

/* Read more of a stripe: first its frame, then its payload, in place or through a buffer from which it is reduced. */
static int read_stripe(Endpoint *here, const Task *task, const Op *op, int which, Stripe *stripe, size_t *got) {
    Stream *stream = &here->peers[op->peer].streams[which];
    int outcome;
    if (stripe->head < sizeof(Frame)) {
        struct iovec into = {(char *)&stripe->frame + stripe->head, sizeof(Frame) - stripe->head};
        if ((outcome = read_some(here, op->peer, stream, &into, 1, got))) return outcome;
        stripe->head += *got;
        if (stripe->head < sizeof(Frame)) return OK;
        if ((outcome = check_frame(here, op, &stripe->frame, stripe->end - stripe->at))) return outcome;
        return wait_guards(here, task, op); /* once met, they stay met */
    }
    size_t left = stripe->end - stripe->at;
    if (op->kind == TO_SCRATCH || !(op->flags & REDUCE)) {
        struct iovec into = {(op->kind == TO_SCRATCH ? here->scratch : task->work) + op->at + stripe->at, left};
        if ((outcome = read_some(here, op->peer, stream, &into, 1, got))) return outcome;
        stripe->at += *got;
        return OK;
    }
    char *buffer = here->stream_buffers + (size_t)which * BUFFER_BYTES;
    size_t room = (left < BUFFER_BYTES ? left : BUFFER_BYTES) - stripe->filled;
    struct iovec into = {buffer + stripe->filled, room};
    if ((outcome = read_some(here, op->peer, stream, &into, 1, got))) return outcome;
    size_t have = stripe->filled + *got, whole = have - have % task->item;
    if (!whole) { stripe->filled = have; return OK; }
    store(task, op, buffer, stripe->at, whole);
    stripe->at += whole;
    stripe->filled = have - whole;
    if (stripe->filled) memmove(buffer, buffer + whole, stripe->filled);
    return OK;
}

static int receive_from_socket(Endpoint *here, const Task *task, const Op *op) {
    if (op->length <= SMALL_BYTES) return receive_small(here, task, op);
    int count = count_stripes(op->length, here->peers[op->peer].num_streams), tries = 0, outcome, culprit;
    Stripe stripes[MAX_STREAMS];
    size_t at = 0;
    unsigned open = 0;
    for (int i = 0; i < count; i++) {
        size_t length = stripe_length(op->length, count, i);
        stripes[i] = (Stripe){.at = at, .end = at + length};
        at += length;
        open |= 1U << i;
    }
    for (unsigned round = 1; open; round++) {
        size_t moved = 0;
        for (int i = 0; i < count; i++) {
            size_t got = 0;
            if (!(open >> i & 1)) continue;
            if ((outcome = read_stripe(here, task, op, i, &stripes[i], &got))) return outcome;
            if (stripes[i].head == sizeof(Frame) && stripes[i].at == stripes[i].end) open &= ~(1U << i);
            moved += got;
        }
        /* Write as well: what we send must not wait until the peer has sent everything. */
        if (here->pending && (outcome = write_all(here))) return outcome;
        if (moved) note_progress(here, &tries);
        else if (open && (outcome = wait_for_stream(here, &tries, op->peer, open, task->deadline_s))) return outcome;
        if (round % 256 == 0 && (outcome = check_health(here, op->peer, task->deadline_s, &culprit)))
            return give_up(here, outcome, culprit);
    }
    return OK;
}

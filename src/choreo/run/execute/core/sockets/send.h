/* Sending to ranks of other hosts.
 *
 * A peer on another host has a control connection and one or more streams. A stream carries frames of 32 bytes, each followed
 * by its payload straight from the sender's array, in the order of the sender's program. A long range is cut into stripes, one
 * per stream; both ends derive them from its length. If streams are sealed, frames and payloads are cut into records
 * (`record.h`), which are encrypted from the array into a buffer.
 */
static void clear_queues(Endpoint *here) {
    for (int peer = 0; peer < here->world; peer++)
        for (int i = 0; i < here->peers[peer].num_streams; i++) {
            Stream *stream = &here->peers[peer].streams[i];
            stream->queued = stream->written = 0;
            if (stream->seal) stream->seal->out_at = stream->seal->out_end = 0;
        }
    here->pending = 0;
}

/* A stream has ended: the peer is gone, or has said why on its control connection. */
static int lose_peer(Endpoint *here, int peer) {
    int outcome = check_control(here, peer, 1);
    return give_up(here, outcome ? outcome : PEER_DIED, outcome == INTERRUPTED ? here->rank : peer);
}

static int queue_range(Endpoint *here, Stream *stream, const void *data, size_t length, uint32_t number) {
    if (!length) return OK;
    int idle = !stream->queued;
    if (stream->written == stream->queued) stream->written = stream->queued = 0;
    if (stream->queued == stream->room) {
        size_t room = stream->room ? 2 * stream->room : 16;
        struct iovec *queue = realloc(stream->queue, room * sizeof(*queue));
        if (queue) stream->queue = queue;
        uint32_t *numbers = queue ? realloc(stream->numbers, room * sizeof(*numbers)) : NULL;
        if (!numbers) return give_up(here, BROKEN, here->rank);
        stream->numbers = numbers;
        stream->room = room;
    }
    here->pending += idle;
    stream->queue[stream->queued] = (struct iovec){(void *)data, length};
    stream->numbers[stream->queued++] = number;
    return OK;
}

/* Seal what is queued, as far as there is room. */
static int seal_queued(Endpoint *here, Stream *stream) {
    Seal *seal = stream->seal;
    while (stream->written < stream->queued) {
        struct iovec *range = &stream->queue[stream->written];
        size_t part = range->iov_len < RECORD_BYTES ? range->iov_len : RECORD_BYTES;
        if (part + TAG_BYTES > SEALED_ROOM - seal->out_end) break;
        if (!seal_record(&seal->seals, range->iov_base, part, seal->out + seal->out_end)) return give_up(here, BROKEN, here->rank);
        seal->out_end += part + TAG_BYTES;
        range->iov_base = (char *)range->iov_base + part;
        range->iov_len -= part;
        if (!range->iov_len) stream->written++;
    }
    return OK;
}

static int write_sealed(Endpoint *here, int peer, Stream *stream) {
    Seal *seal = stream->seal;
    for (;;) {
        if (seal->out_at == seal->out_end) {
            seal->out_at = seal->out_end = 0;
            int outcome = seal_queued(here, stream);
            if (outcome) return outcome;
            if (!seal->out_end) break;
        }
        ssize_t sent = send(stream->fd, seal->out + seal->out_at, seal->out_end - seal->out_at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0) seal->out_at += (size_t)sent, here->written += (uint64_t)sent;
        else if (errno == EAGAIN || errno == EWOULDBLOCK) return OK;
        else if (errno != EINTR) return lose_peer(here, peer);
    }
    if (stream->queued) {
        stream->queued = stream->written = 0;
        here->pending--;
    }
    return OK;
}

static int write_stream(Endpoint *here, int peer, Stream *stream) {
    if (stream->seal) return write_sealed(here, peer, stream);
    while (stream->written < stream->queued) {
        size_t count = stream->queued - stream->written;
        struct msghdr message = {.msg_iov = stream->queue + stream->written, .msg_iovlen = count < 64 ? count : 64};
        ssize_t sent = sendmsg(stream->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) {
            if (errno == EAGAIN || errno == EWOULDBLOCK) return OK;
            if (errno == EINTR) continue;
            return lose_peer(here, peer);
        }
        here->written += (uint64_t)sent;
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
    return OK;
}

static int write_all(Endpoint *here) {
    int outcome = OK;
    for (int peer = 0; peer < here->world && here->pending && !outcome; peer++)
        for (int i = 0; i < here->peers[peer].num_streams && !outcome; i++)
            if (here->peers[peer].streams[i].queued) outcome = write_stream(here, peer, &here->peers[peer].streams[i]);
    return outcome;
}

/* Has everything up to this message been handed to the system? A sealed stream may have sealed all, and not sent all. */
static int has_written(const Peer *other, uint32_t number) {
    for (int i = 0; i < other->num_streams; i++) {
        const Stream *stream = &other->streams[i];
        if (stream->queued && (stream->written == stream->queued || stream->numbers[stream->written] <= number)) return 0;
    }
    return 1;
}

/* Write what is queued. Then wait, for some milliseconds at most, until more can be written, or one of these streams of rank
 * `reading` can be read. */
static int write_and_poll(Endpoint *here, int reading, unsigned streams, int milliseconds) {
    nfds_t count = 0;
    int outcome = write_all(here);
    if (outcome || !milliseconds) return outcome;
    for (int peer = 0; peer < here->world; peer++)
        for (int i = 0; i < here->peers[peer].num_streams; i++) {
            const Stream *stream = &here->peers[peer].streams[i];
            short events = (short)((stream->queued ? POLLOUT : 0) | (peer == reading && streams >> i & 1 ? POLLIN : 0));
            if (events) here->polled_streams[count++] = (struct pollfd){stream->fd, events, 0};
        }
    if (!count || poll(here->polled_streams, count, milliseconds) <= 0) return OK;
    return write_all(here);
}

static int wait_for_sockets(Endpoint *here, int reading, unsigned streams, int peer, double deadline) {
    int culprit, outcome = write_and_poll(here, reading, streams, 10);
    if (outcome) return outcome;
    outcome = check_health(here, peer, deadline, &culprit);
    return outcome ? give_up(here, outcome, culprit) : OK;
}

static int count_stripes(size_t length, int num_streams) {
    size_t most = length / STRIPE_BYTES;
    return most < 2 ? 1 : most < (size_t)num_streams ? (int)most : num_streams;
}

/* All stripes but the last are the same number of whole pages, so that no element is cut in two. */
static size_t stripe_length(size_t length, int count, int stripe) {
    size_t each = (length / (size_t)count + PAGE - 1) / PAGE * PAGE, at = each * (size_t)stripe;
    if (count == 1) return length;
    return at >= length ? 0 : length - at < each || stripe == count - 1 ? length - at : each;
}

static int send_stripes(Endpoint *here, const Task *task, const Op *op, const char *from) {
    Peer *other = &here->peers[op->peer];
    int count = count_stripes(op->length, other->num_streams), outcome = OK;
    Frame *frames = task->program->frames + (size_t)(op - task->program->ops) * MAX_STREAMS;
    for (int i = 0; i < count && !outcome; i++) {
        size_t length = stripe_length(op->length, count, i);
        frames[i] = (Frame){FRAME, op->number, here->call, here->chain, length};
        outcome = queue_range(here, &other->streams[i], &frames[i], sizeof(Frame), op->number);
        if (!outcome) outcome = queue_range(here, &other->streams[i], from, length, op->number);
        if (from) from += length;
    }
    for (int i = 0; i < other->num_streams && op->flags & LAST && !outcome; i++)
        if (other->streams[i].queued) outcome = write_stream(here, op->peer, &other->streams[i]);
    return outcome;
}


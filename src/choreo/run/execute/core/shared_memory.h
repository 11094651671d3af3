/* Messages between ranks of one host. A sender fills the mailbox of its peer; a receiver waits for the mailbox's counter and
 * reads the data where it is: in the mailbox, in the sender's staging, in its heap, or in its private memory.
 */
#define BUFFER_BYTES ((size_t)128 << 10) /* read at once from private memory or a socket before it is reduced */

/* Reduce into a range that peers have read: in a buffer, which is then written past the caches. */
static void reduce_past_caches(const Task *task, char *to, const char *base, const void *const *data, size_t count, size_t length) {
    char sum[8 << 10] __attribute__((aligned(64)));
    const void *from[MAX_FUSED];
    for (size_t at = 0; at < length; at += sizeof(sum)) {
        size_t part = length - at < sizeof(sum) ? length - at : sizeof(sum);
        for (size_t i = 0; i < count; i++) from[i] = (const char *)data[i] + at;
        task->kernel(sum, base + at, from, count, part / task->item);
        share_bytes(to + at, sum, part);
    }
}

/* Reduce what came in, from several sources in their order, into what is there. */
static void reduce(const Task *task, const Op *op, const void *const *data, size_t count, size_t at, size_t length) {
    char *to = task->work + op->at + at;
    const char *base = ((op->flags & OWN_INPUT) ? task->input : task->work) + op->base + at;
    if (task->shared && length >= PAST_CACHES) reduce_past_caches(task, to, base, data, count, length);
    else task->kernel(to, base, data, count, length / task->item);
}

/* Store data that came in, or reduce it into what is there. */
static void store(const Task *task, const Op *op, const char *data, size_t at, size_t length) {
    const void *source = data;
    if (op->flags & REDUCE) reduce(task, op, &source, 1, at, length);
    else (task->shared ? share_bytes : copy_bytes)(task->work + op->at + at, data, length);
}

/* With the first message of a call: does the peer make the same call, and where is its data? The mailbox stays as it is until
 * we have returned from this call. */
static int open_mailbox(Endpoint *here, int peer, const Mailbox *mailbox) {
    Peer *other = &here->peers[peer];
    if (mailbox->chain != here->chain) return give_up(here, MISMATCHED, peer);
    other->modes = mailbox->modes;
    if (!(other->modes & INLINED)) {
        other->address[0] = mailbox->addresses[0];
        other->address[1] = mailbox->addresses[1];
    }
    if (other->modes & ACKNOWLEDGED) here->read_in_place = here->call;
    other->mailbox_read = here->call;
    return OK;
}

typedef struct { const char *data; uint64_t address; int staged; } Source; /* data NULL: in private memory */

/* Wait for a message, and find where it is. Nothing that the peer says is used before it was checked. */
static int locate_message(Endpoint *here, const Task *task, const Op *op, Source *source) {
    int peer = op->peer, outcome;
    Peer *other = &here->peers[peer];
    const Mailbox *mailbox = &other->to_us->mailboxes[here->call % WINDOW];
    if ((outcome = wait_for(here, &mailbox->ready, counter_of(here, op->number), peer, task->deadline_s))) return outcome;
    if (other->mailbox_read != here->call && (outcome = open_mailbox(here, peer, mailbox))) return outcome;
    if (op->guards && (outcome = wait_guards(here, task, op))) return outcome;
    if (!op->length) { *source = (Source){"", 0, 1}; return OK; }
    int in_input = (op->flags & THEIR_INPUT) != 0;
    uint64_t mode = other->modes >> 8 * in_input & 255, address, room = (uint64_t)other->map.len;
    if (mode == STAGED) {
        source->staged = 1;
        if (other->modes & INLINED && op->number == 1) {
            unsigned at = task->program->inline_at[op - task->program->ops];
            if (!at) return give_up(here, BROKEN, peer);
            source->data = mailbox->data + at - 1;
            return OK;
        }
        if (op->staged > here->slot_bytes || op->length > here->slot_bytes - op->staged) return give_up(here, BROKEN, peer);
        size_t slot = (other->modes >> SLOT_BIT) % STAGING_SLOTS ^ ((size_t)task->parts & 1);
        address = here->stage_at + slot * here->slot_bytes + op->staged;
    } else {
        if (other->modes & INLINED || mode > PRIVATE) return give_up(here, BROKEN, peer);
        address = other->address[in_input] + op->there;
        *source = (Source){NULL, address, 0};
        if (mode == PRIVATE) return OK;
    }
    if (address > room || op->length > room - address) return give_up(here, BROKEN, peer);
    source->data = (const char *)other->map.buf + address;
    return OK;
}

static int read_memory(Endpoint *here, int peer, char *into, uint64_t address, size_t length) {
    Peer *other = &here->peers[peer];
    while (length) {
        size_t part = length < ((size_t)8 << 20) ? length : (size_t)8 << 20;
        struct iovec mine = {into, part}, theirs = {(void *)(uintptr_t)address, part};
        errno = 0;
        ssize_t got = process_vm_readv(other->pid, &mine, 1, &theirs, 1, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return give_up(here, errno == ESRCH ? PEER_DIED : BROKEN, peer);
        into += got;
        address += (uint64_t)got;
        length -= (size_t)got;
    }
    return OK;
}

/* The pid of a peer that died may belong to another process by now, so what was read counts only if the peer lives. */
static int check_alive(Endpoint *here, int peer) {
    struct pollfd process = {here->peers[peer].pidfd, POLLIN, 0};
    return process.fd >= 0 && poll(&process, 1, 0) == 1 ? give_up(here, PEER_DIED, peer) : OK;
}

/* Take in bytes `at` to `at + length` of a range. */
static int transfer(Endpoint *here, const Task *task, const Op *op, Source source, size_t at, size_t length) {
    int scratch = op->kind == TO_SCRATCH, outcome;
    if (source.data) {
        if (scratch) copy_bytes(here->scratch + op->at + at, source.data + at, length);
        else if (task->uncached && !task->cached && !(op->flags & REDUCE)) stream_bytes(task->work + op->at + at, source.data + at, length, !source.staged);
        else store(task, op, source.data + at, at, length);
        return OK;
    }
    if (scratch) return read_memory(here, op->peer, here->scratch + op->at + at, source.address + at, length);
    if (!(op->flags & REDUCE)) return read_memory(here, op->peer, task->work + op->at + at, source.address + at, length);
    for (size_t end = at + length; at < end; at += BUFFER_BYTES) {
        size_t part = end - at < BUFFER_BYTES ? end - at : BUFFER_BYTES;
        if ((outcome = read_memory(here, op->peer, here->buffer, source.address + at, part))) return outcome;
        store(task, op, here->buffer, at, part);
    }
    return OK;
}


/* Running one call: take a staging slot, run the program's operations in order, and wait until the arrays may be touched. */
#define UNCACHED ((size_t)8 << 20)     /* a result of this length does not fit the caches */

/* Receive one range; or several that are reduced into the same range, in their order, so that the bits are the same. */
static int receive(Endpoint *here, const Task *task, const Op *ops, size_t count) {
    Source sources[MAX_FUSED];
    int outcome = OK, private = 0;
    if (!here->peers[ops->peer].header) return receive_from_socket(here, task, ops);
    for (size_t i = 0; i < count; i++) {
        if ((outcome = locate_message(here, task, &ops[i], &sources[i]))) return outcome;
        private |= !sources[i].data;
    }
    size_t length = ops->length, block = count > 1 ? BUFFER_BYTES : length, at = 0;
    if (count > 1 && !private) {
        const void *data[MAX_FUSED];
        for (size_t i = 0; i < count; i++) data[i] = sources[i].data;
        reduce(task, ops, data, count, 0, length);
        at = length;
    }
    for (; at < length && !outcome; at += block)
        for (size_t i = 0; i < count && !outcome; i++)
            outcome = transfer(here, task, &ops[i], sources[i], at, length - at < block ? length - at : block);
    for (size_t i = 0; i < count && !outcome; i++) {
        Peer *other = &here->peers[ops[i].peer];
        if (!sources[i].data && (outcome = check_alive(here, ops[i].peer))) break;
        if (ops[i].flags & LAST && other->modes & ACKNOWLEDGED) publish(&other->from_us->consumed, counter_of(here, ops[i].number), other);
    }
    return outcome;
}


static int send_range(Endpoint *here, const Task *task, const Op *op) {
    Peer *other = &here->peers[op->peer];
    const char *from = op->length ? ((op->flags & OWN_INPUT) ? task->input : task->work) + op->at : NULL;
    if (!other->header) return send_stripes(here, task, op, from);
    Mailbox *mailbox = &other->from_us->mailboxes[here->call % WINDOW];
    unsigned inline_at = task->program->inline_at[op - task->program->ops];
    if (inline_at) {
        if (op->length) memcpy(mailbox->data + inline_at - 1, from, op->length);
    } else if (!(op->flags & (EXPOSED | ALREADY_STAGED)) && op->length) stage_bytes(task, task->stage + op->staged, from, op->length);
    if (!(op->flags & LAST)) return OK;
    if (other->mailbox_written != here->call) {
        mailbox->chain = here->chain;
        mailbox->modes = here->modes | (inline_at ? INLINED : 0);
        if (!inline_at) memcpy(mailbox->addresses, here->address, sizeof(mailbox->addresses));
        other->mailbox_written = here->call;
    }
    other->posted = counter_of(here, op->number);
    publish(&mailbox->ready, other->posted, other);
    return OK;
}

/* Note when some operations were done, for whoever watches. */
static __attribute__((noinline)) void note_done(Endpoint *here, size_t at, size_t count) {
    double time_s = now_s();
    for (size_t i = at + 1; i <= at + count && i < here->watched_room; i++) here->watched[i] = time_s;
}

static int run_ops(Endpoint *here, Task *task) {
    const Program *program = task->program;
    if (here->watched) here->watched[0] = task->began_s;
    begin_staging(task);
    for (size_t at = 0; at < program->num_ops;) {
        const Op *op = &program->ops[at];
        size_t count = program->fused[at];
        int outcome = OK;
        here->failed_op = (int)at;
        switch (op->kind) {
            case SEND: outcome = send_range(here, task, op); break;
            case RECEIVE:
            case TO_SCRATCH:
                for (size_t i = 1; i < count; i++)
                    if (!here->peers[op[i].peer].header || !here->peers[op->peer].header) count = 1;
                outcome = receive(here, task, op, count);
                break;
            case FROM_SCRATCH:
                outcome = wait_guards(here, task, op);
                if (!outcome && op->length) store(task, op, here->scratch + op->there, 0, op->length);
                break;
            case NEXT_PART: /* this waits for readers of the slot, not for the peer of an operation */
                here->failed_op = -1;
                outcome = next_part(here, task);
                break;
            default:
                if (!op->length) break;
                if (task->uncached) stream_bytes(task->work + op->at, task->input + op->base, op->length, program->exposed);
                else (task->shared ? share_bytes : copy_bytes)(task->work + op->at, task->input + op->base, op->length);
        }
        if (outcome) return outcome;
        if (here->watched) note_done(here, at, count);
        at += count;
    }
    end_staging(task);
    here->failed_op = -1;
    return OK;
}

/* Wait until the caller may touch its arrays again, and check that it can trust what is in them. */
static int finish(Endpoint *here, const Task *task, int exposes) {
    const Program *program = task->program;
    for (uint32_t i = 0; i < program->num_partners; i++) {
        int peer = program->partners[i], outcome = OK;
        Peer *other = &here->peers[peer];
        uint32_t sent = program->sent[peer];
        if (other->header && exposes && sent)
            outcome = wait_for(here, &other->to_us->consumed, counter_of(here, sent), peer, task->deadline_s);
        if (!outcome && here->pending) outcome = wait_written(here, peer, UINT32_MAX, task->deadline_s);
        if (outcome) return outcome;
    }
    /* A rank that slept through the end of this call may have read what others have overwritten since. Before they did, they
     * said that they had given up. */
    atomic_thread_fence(memory_order_acquire);
    int in_place = exposes || here->read_in_place == here->call; /* then a bad result may have come through others */
    for (uint32_t i = 0; i < (in_place ? (uint32_t)here->world : program->num_partners); i++) {
        int peer = in_place ? (int)i : program->partners[i];
        const Channel *to_us = here->peers[peer].to_us;
        if (to_us && has_stopped(to_us, here->call)) return give_up(here, PEER_GAVE_UP, peer);
    }
    return OK;
}

/* Wait until nobody needs what this call is going to overwrite, and write down which call it is. */
static int begin(Endpoint *here, Task *task, uint64_t signature) {
    uint64_t last = here->call % WINDOW, before = here->calls[last]; /* which has had the same mailboxes */
    here->calls[last] = here->call;
    here->chains[last] = here->chain = (here->chain ^ signature) * CHAIN_FACTOR;
    if (task->began_s - here->checked_s > HEALTH_CHECK_S) {
        int culprit, outcome;
        here->checked_s = task->began_s;
        if ((outcome = check_peers(here, &culprit))) return give_up(here, outcome, culprit);
    }
    int outcome = wait_returned(here, task, before);
    if (!outcome && task->program->fills_slot) outcome = claim_slot(here, task);
    if (outcome) return outcome;
    CallRecord *slot = &here->header->calls[last];
    atomic_store_explicit(&slot->number, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&slot->signature, signature, memory_order_relaxed);
    atomic_store_explicit(&slot->chain, here->chain, memory_order_relaxed);
    atomic_store_explicit(&slot->number, here->call, memory_order_release);
    return OK;
}

static int run_call(Endpoint *here, Task *task, uint64_t signature, int stages) {
    here->failed_op = -1;
    int outcome = begin(here, task, signature);
    if (!outcome) outcome = run_ops(here, task);
    if (!outcome) outcome = finish(here, task, !stages);
    if (outcome) {
        say_goodbye(here, outcome == ABORTED ? INTERRUPTED : (uint32_t)outcome, (uint64_t)here->culprit, here->call);
        clear_queues(here);
        return outcome;
    }
    atomic_store_explicit(&here->header->core, (uint32_t)sched_getcpu() + 1, memory_order_relaxed);
    atomic_store_explicit(&here->header->returned, here->call, memory_order_release);
    /* A peer that waits for this is calls ahead, and can wait a few more. */
    for (int peer = 0; here->call % (STAGING_SLOTS / 2) == 0 && peer < here->world; peer++)
        if (here->peers[peer].header) wake_if_asleep(&here->peers[peer], &here->header->returned);
    if (task->program->fills_slot) {
        here->used[task->slot] = here->call;
        if (task->parts) here->used[task->slot ^ 1] = here->call;
    }
    here->done = here->call;
    atomic_store_explicit(&task->program->runs, atomic_load_explicit(&task->program->runs, memory_order_relaxed) + 1, memory_order_relaxed);
    return OK;
}

static int is_registered(const Endpoint *here, const void *data) {
    return (uintptr_t)data - (uintptr_t)here->own.buf < (uintptr_t)here->own.len;
}

/* Is a result written past the caches? One that is reduced is read again, so only if it is larger. */
static int is_uncached(const Program *program, size_t length) { return length >= (program->grain ? 2 * UNCACHED : UNCACHED); }

/* What our mailboxes say: how peers read our arrays, and where they are. */
static void describe_arrays(Endpoint *here, const Task *task, int stages) {
    const char *arrays[2] = {task->work, task->input};
    here->modes = !stages || task->program->parts ? ACKNOWLEDGED : 0;
    for (int i = 0; i < 2; i++) {
        here->address[i] = 0;
        if (stages || !arrays[i]) continue;
        int registered = is_registered(here, arrays[i]);
        here->modes |= (uint64_t)(registered ? REGISTERED : PRIVATE) << 8 * i;
        here->address[i] = (uint64_t)(uintptr_t)(registered ? arrays[i] - (uintptr_t)here->own.buf : arrays[i]);
        if (!i) here->address[i] -= task->program->work_at; /* peers count from the start of the vector */
    }
}

/* One thread at a time uses an endpoint. It need not hold the GIL. */
static int claim(Endpoint *here) {
    int free = 0;
    return atomic_compare_exchange_strong(&here->busy, &free, 1);
}
static void unclaim(Endpoint *here) { atomic_store_explicit(&here->busy, 0, memory_order_release); }

/* Run a call, without the GIL where it takes long. The endpoint is claimed. */
static int run_task(Endpoint *here, Task *task, uint64_t call, uint64_t signature, double timeout, int stages, int in_interpreter) {
    here->call = call;
    int among_hosts = task->program->remote && !task->program->exposed; /* then no core of this host reads it */
    task->shared = !stages && !among_hosts && (task->program->shares_work || task->input == task->work);
    task->began_s = now_s();
    task->deadline_s = task->began_s + timeout;
    describe_arrays(here, task, stages);
    here->in_main_thread = PyThread_get_thread_ident() == here->main_thread;
    here->in_interpreter = in_interpreter;
    here->thread_state = NULL;
    /* A call beside the main thread must not hold that up. */
    if (task->program->bytes > LARGE_CALL || task->program->remote || !here->in_main_thread) release_gil(here);
    int outcome = run_call(here, task, signature, stages);
    if (here->thread_state) PyEval_RestoreThread(here->thread_state);
    return outcome;
}

/* The same for Python: None, or a tuple that says how it failed. */
static PyObject *execute(Endpoint *here, Task *task, uint64_t call, uint64_t signature, double timeout, int stages) {
    int outcome = run_task(here, task, call, signature, timeout, stages, 1);
    if (outcome == OK) return Py_NewRef(Py_None);
    return outcome == INTERRUPTED ? NULL : Py_BuildValue("iii", outcome, here->culprit, here->failed_op);
}

static const char *check_arguments(Endpoint *here, Program *program, Py_ssize_t work, Py_ssize_t input, uint64_t dtype, uint64_t operation, int stages) {
    if (dtype >= TYPES || operation >= OPERATIONS || !KERNELS[dtype][operation])
        return "this operation is not defined for this type";
    if (program->checked_for != here->serial) {
        const char *wrong = check_endpoint(here, program);
        if (wrong) return wrong;
    }
    if (stages ? program->exposed : program->staged) return "a program stages what this call exposes, or the other way round";
    if ((uint64_t)work < program->work || (uint64_t)input < program->input)
        return "a program goes beyond its arrays";
    if (program->grain % ITEM[dtype]) return "a program cuts elements in two";
    return NULL;
}

/* Make room for what a program needs beside the arrays. The endpoint is claimed. */
static const char *take_scratch(Endpoint *here, const Program *program) {
    if (program->scratch <= here->scratch_room) return NULL;
    char *larger = realloc(here->scratch, program->scratch);
    if (!larger) return "there is no memory for scratch";
    here->scratch = larger;
    here->scratch_room = program->scratch;
    return NULL;
}


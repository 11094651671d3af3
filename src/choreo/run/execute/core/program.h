/* A rank's program: checked once when it is made, so that running it needs no checks. */

#define FUSE_BYTES ((uint64_t)4 << 10) /* shorter ranges are reduced as they come */

/* Does [at, at + length) lie in [0, room)? */
static int within(uint64_t at, uint64_t length, uint64_t room) { return at <= room && length <= room - at; }

static void extend(uint64_t *room, uint64_t at, uint64_t length) {
    if (length && at + length > *room) *room = at + length;
}

/* Check every operation in order: its fields, its bounds, the order of its peer's messages, and its guards. The Python
 * executor checks in the same order. Returns what is wrong. */
static const char *check_program(Program *program) {
    uint32_t world = (uint32_t)program->world, *open = calloc(4 * (size_t)world, sizeof(*open));
    if (!open) return "there is no memory for this program";
    uint32_t *sends = open, *receives = open + world, *half_sent = open + 2 * world, *half_received = open + 3 * world;
    const char *wrong = NULL;
    const uint64_t most = INT64_MAX / 4;
    program->grain = program->bytes = 0;
    program->parts = 0;
    for (size_t i = 0; i < program->num_ops && !wrong; i++) {
        const Op *op = &program->ops[i];
        uint64_t *own = (op->flags & OWN_INPUT) ? &program->input : &program->work;
        int incoming = op->kind == RECEIVE || op->kind == TO_SCRATCH, last = (op->flags & LAST) != 0;
        if (op->kind >= KINDS || op->flags & ~ALL_FLAGS || op->peer >= world) { wrong = "an operation is not one"; break; }
        if (op->at > most || op->base > most || op->there > most || op->staged > most || op->length > most ||
            (op->kind == TO_SCRATCH && !within(op->at, op->length, program->scratch)) ||
            (op->kind == FROM_SCRATCH && !within(op->there, op->length, program->scratch)) ||
            !within(op->first_guard, op->guards, program->num_guards)) {
            wrong = "an operation goes beyond its arrays, scratch or guards";
            break;
        }
        if (op->kind == SEND || incoming) {
            uint32_t *count = op->kind == SEND ? sends : receives, *half = op->kind == SEND ? half_sent : half_received;
            if (op->number != count[op->peer] + 1 || op->number >> MESSAGE_BITS) wrong = "messages do not follow each other";
            half[op->peer] = !last;
            count[op->peer] += (uint32_t)last;
        }
        for (uint32_t j = 0; j < op->guards && !wrong; j++) {
            Guard guard = program->guards[op->first_guard + j];
            if (guard.peer >= world || guard.number > sends[guard.peer]) wrong = "a guard waits for what is not sent";
        }
        if (op->kind == SEND) extend(own, op->at, op->length);
        if (op->kind == RECEIVE || op->kind == FROM_SCRATCH || op->kind == COPY) extend(&program->work, op->at, op->length);
        if (op->kind == COPY) extend(&program->input, op->base, op->length);
        if ((op->kind == RECEIVE || op->kind == FROM_SCRATCH) && op->flags & REDUCE) {
            extend(own, op->base, op->length);
            program->grain |= op->length;
        }
        program->fused[i] = 1;
        program->bytes += op->length;
        program->parts |= op->kind == NEXT_PART;
    }
    for (uint32_t peer = 0; peer < world && !wrong; peer++)
        if (sends[peer] != program->sent[peer] || receives[peer] != program->received[peer] || half_sent[peer] || half_received[peer])
            wrong = "a program says that it sends or receives what it does not";
    free(open);
    program->num_partners = 0;
    for (uint32_t peer = 0; peer < world && !wrong; peer++)
        if (program->sent[peer] || program->received[peer]) program->partners[program->num_partners++] = (uint16_t)peer;
    return wrong;
}

static uint64_t capped(uint64_t length) { return length > INLINE_BYTES ? INLINE_BYTES + 1 : length; }

/* This range is staged once for several peers. Has it been, or was it inlined in mailboxes so far? */
static int is_staged(const Program *program, size_t held) {
    const Op *op = &program->ops[held];
    for (size_t i = held; i-- > 0 && program->ops[i].step == op->step;) {
        const Op *before = &program->ops[i];
        if (before->kind != SEND || before->flags & EXPOSED || before->staged != op->staged || before->length != op->length) continue;
        if (!program->inline_at[i]) return 1;
        if (!(before->flags & ALREADY_STAGED)) return 0;
    }
    return 1;
}

/* Which messages are inlined: the first to a peer, if it fits and is not exposed. A receiver notes where its first message
 * would be; the sender decides whether it is there. */
static int assign_inline(Program *program) {
    size_t world = (size_t)program->world;
    uint64_t *sums = calloc(3 * world, sizeof(*sums)), *whole = sums, *sent = sums + world, *received = sums + 2 * world;
    if (!sums) return 0;
    for (size_t i = 0; i < program->num_ops; i++) {
        const Op *op = &program->ops[i];
        if (op->kind == SEND && op->number == 1)
            whole[op->peer] = capped(whole[op->peer] + (op->flags & EXPOSED ? INLINE_BYTES + 1 : capped(op->length)));
    }
    for (size_t i = 0; i < program->num_ops; i++) {
        Op *op = &program->ops[i];
        int sends = op->kind == SEND;
        if (!(sends || op->kind == RECEIVE || op->kind == TO_SCRATCH)) continue;
        uint64_t *at = sends ? &sent[op->peer] : &received[op->peer];
        if (op->number == 1) {
            if (sends ? whole[op->peer] <= INLINE_BYTES : *at + capped(op->length) <= INLINE_BYTES) program->inline_at[i] = (uint8_t)(*at + 1);
            *at = capped(*at + capped(op->length));
        }
        if (op->flags & ALREADY_STAGED && op->length <= INLINE_BYTES && !program->inline_at[i] && !is_staged(program, i)) op->flags &= (uint8_t)~ALREADY_STAGED;
    }
    program->fills_slot = program->receives = program->staging.learns = 0;
    for (size_t i = 0; i < program->num_ops; i++) {
        const Op *op = &program->ops[i];
        int stages = op->kind == SEND && !(op->flags & EXPOSED) && !program->inline_at[i] && op->length;
        program->fills_slot |= stages;
        program->staging.learns |= stages && op->length >= LEARN_BYTES;
        program->receives |= op->kind == RECEIVE || op->kind == TO_SCRATCH;
    }
    free(sums);
    return 1;
}

/* Which receives in a row can be fused: each but the first reduces into the result of the one before. */
static void fuse_reductions(Program *program) {
    for (size_t i = 0; i < program->num_ops; i += program->fused[i]) {
        const Op *first = &program->ops[i];
        size_t end = i + 1;
        if (first->kind == RECEIVE && first->flags & REDUCE && first->length >= FUSE_BYTES)
            for (; end < program->num_ops && end - i < MAX_FUSED; end++) {
                const Op *op = &program->ops[end];
                if (op->kind != RECEIVE || !(op->flags & REDUCE) || op->flags & OWN_INPUT || op->at != first->at ||
                    op->base != op->at || op->length != first->length || op->step != first->step)
                    break;
            }
        program->fused[i] = (uint32_t)(end - i);
    }
}

static void *copy_of(const Py_buffer *view) {
    void *copy = malloc(view->len ? (size_t)view->len : 1);
    if (copy && view->len) memcpy(copy, view->buf, (size_t)view->len);
    return copy;
}

static int program_init(Program *program, PyObject *args, PyObject *Py_UNUSED(keywords)) {
    /* operations, guards, messages sent and received by peer, all as bytes; bytes of scratch; where work begins */
    Py_buffer ops, guards, sent, received;
    unsigned long long scratch, work_at;
    if (program->ops) { PyErr_SetString(PyExc_ValueError, "a program does not change"); return -1; }
    if (!PyArg_ParseTuple(args, "y*y*y*y*KK", &ops, &guards, &sent, &received, &scratch, &work_at)) return -1;
    const char *wrong = NULL;
    if (ops.len % (Py_ssize_t)sizeof(Op) || guards.len % (Py_ssize_t)sizeof(Guard) || sent.len % 4 || !sent.len || sent.len != received.len ||
        sent.len / 4 > UINT16_MAX || scratch > INT64_MAX / 4 || (size_t)ops.len / sizeof(Op) > INT32_MAX)
        wrong = "a program's columns do not fit each other";
    else {
        program->num_ops = (size_t)ops.len / sizeof(Op);
        program->num_guards = (size_t)guards.len / sizeof(Guard);
        program->world = (int)(sent.len / 4);
        program->scratch = scratch;
        program->work_at = work_at;
        program->ops = copy_of(&ops);
        program->guards = copy_of(&guards);
        program->sent = copy_of(&sent);
        program->received = copy_of(&received);
        program->fused = calloc(program->num_ops + 1, sizeof(uint32_t));
        program->inline_at = calloc(program->num_ops + 1, 1);
        program->partners = calloc((size_t)program->world, sizeof(*program->partners));
        if (!program->ops || !program->guards || !program->sent || !program->received || !program->fused || !program->inline_at ||
            !program->partners)
            wrong = "there is no memory for this program";
        else if (!(wrong = check_program(program))) {
            fuse_reductions(program);
            if (!assign_inline(program)) wrong = "there is no memory for this program";
        }
    }
    PyBuffer_Release(&ops);
    PyBuffer_Release(&guards);
    PyBuffer_Release(&sent);
    PyBuffer_Release(&received);
    if (wrong) { program->world = 0; PyErr_SetString(PyExc_ValueError, wrong); return -1; }
    return 0;
}

static void program_dealloc(Program *program) {
    free(program->ops);
    free(program->guards);
    free(program->sent);
    free(program->received);
    free(program->fused);
    free(program->inline_at);
    free(program->partners);
    free(program->frames);
    PyTypeObject *type = Py_TYPE(program);
    type->tp_free((PyObject *)program);
    Py_DECREF(type);
}

/* Can this endpoint reach all peers in the way that the program expects? */
static const char *check_endpoint(const Endpoint *here, Program *program) {
    if (program->world != here->world) return "a program is for another number of ranks";
    program->staged = program->exposed = program->remote = program->shares_work = 0;
    for (size_t i = 0; i < program->num_ops; i++) {
        const Op *op = &program->ops[i];
        const Peer *other = &here->peers[op->peer];
        if (op->kind == COPY || op->kind == FROM_SCRATCH || op->kind == NEXT_PART) continue;
        if (op->peer == here->rank || (!other->header && !other->num_streams)) return "a program talks to a rank that cannot be reached";
        program->remote |= !other->header;
        if (op->kind != SEND) continue;
        if (!other->header) {
            if (!(op->flags & EXPOSED)) return "what goes through a socket cannot be staged";
        } else if (op->flags & EXPOSED) {
            program->exposed = 1;
            program->shares_work |= !(op->flags & OWN_INPUT);
        } else {
            program->staged = 1;
            if (!within(op->staged, op->length, here->slot_bytes)) return "a program goes beyond the staging";
        }
    }
    if (program->remote && !program->frames) {
        program->frames = malloc(program->num_ops * MAX_STREAMS * sizeof(Frame));
        if (!program->frames) return "there is no memory for frames";
    }
    program->checked_for = here->serial;
    return NULL;
}

static PyTypeObject *program_type;
static PyMemberDef program_members[] = {
    {"runs", T_ULONGLONG, offsetof(Program, runs), READONLY, "How often it has run to its end."},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot program_slots[] = {
    {Py_tp_members, program_members}, {Py_tp_new, PyType_GenericNew}, {Py_tp_init, program_init}, {Py_tp_dealloc, program_dealloc},
    {Py_tp_doc, "What one rank does in a call, checked once."}, {0, NULL},
};
static PyType_Spec program_spec = {"choreo.run.execute._core.Program", sizeof(Program), 0, Py_TPFLAGS_DEFAULT, program_slots};

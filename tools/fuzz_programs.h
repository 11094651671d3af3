/* Random numbers, and programs changed at random. Included by fuzz_core.c, after the executor. */

typedef struct { uint64_t world, rank, ops, guards, scratch, work_at; const Op *op; const Guard *guard; const uint32_t *sent, *received; } Base;

static uint64_t random_state;
static uint64_t draw(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state * 0x2545F4914F6CDD1DULL >> 11;
}
static uint64_t below(uint64_t most) { return most ? draw() % most : 0; }
static int chance(int percent) { return (int)below(100) < percent; }

static uint64_t odd_number(void) {
    static const uint64_t odd[] = {0, 1, 2, 3, 31, 32, 40, 41, 63, 64, 255, 4095, 4096, 65535, 65536, 1 << 20, 1 << 24, INT32_MAX, UINT32_MAX,
                                   (uint64_t)1 << 32, INT64_MAX / 4, INT64_MAX / 4 + 1, INT64_MAX, (uint64_t)1 << 63, UINT64_MAX - 1, UINT64_MAX};
    return chance(70) ? odd[below(sizeof(odd) / sizeof(*odd))] : chance(50) ? below(200) : draw() << below(11);
}

static struct { uint64_t cases, accepted, run, completed, refused, sealed, mailboxes, frames; } count;
static int only_frames; /* programs are as they were compiled; what comes over sockets is changed */

static void fail(const char *what) {
    fprintf(stderr, "case %llu: %s\n", (unsigned long long)count.cases, what);
    abort();
}

/* Programs. */

static void *copied(const void *from, size_t length) {
    void *copy = malloc(length ? length : 1);
    if (length) memcpy(copy, from, length);
    return copy;
}

static void change_op(Op *op, const Program *program) {
    switch (below(13)) {
        case 0: op->kind = (uint8_t)below(KINDS + 2); break;
        case 1: op->flags ^= (uint8_t)(1 << below(7)); break;
        case 2: op->peer = (uint16_t)(chance(70) ? below((uint64_t)program->world + 1) : odd_number()); break;
        case 3: op->number = (uint32_t)(chance(60) ? below(4) : odd_number()); break;
        case 4: op->step = (uint32_t)below(4); break;
        case 5: op->guards = (uint32_t)(chance(60) ? below(3) : odd_number()); break;
        case 6: op->first_guard = chance(60) ? below(4) : odd_number(); break;
        case 7: op->at = odd_number(); break;
        case 8: op->base = odd_number(); break;
        case 9: op->there = odd_number(); break;
        case 10: op->staged = odd_number(); break;
        case 11: op->length = chance(50) ? 4 * below(20000) : odd_number(); break;
        default: op->at = op->base = 4 * below(1000); break;
    }
}

/* The messages of a program in order, as its columns must say: so that more of what was changed is accepted. */
static void renumber(Program *program) {
    uint32_t next[2][MOST_WORLD] = {{0}};
    for (size_t i = 0; i < program->num_ops; i++) {
        Op *op = &program->ops[i];
        if (op->kind > TO_SCRATCH || op->peer >= program->world) continue;
        uint32_t *numbers = next[op->kind != SEND];
        op->number = numbers[op->peer] + 1;
        int more = 0;
        for (size_t j = i + 1; j < program->num_ops; j++) more |= program->ops[j].peer == op->peer && program->ops[j].kind <= TO_SCRATCH && (program->ops[j].kind == SEND) == (op->kind == SEND);
        if (!more) op->flags |= LAST;
        numbers[op->peer] += (op->flags & LAST) != 0;
    }
    memcpy(program->sent, next[0], 4 * (size_t)program->world);
    memcpy(program->received, next[1], 4 * (size_t)program->world);
}

static Program *make_program(const Base *base) {
    Program *program = calloc(1, sizeof(*program));
    program->world = (int)base->world;
    program->num_ops = base->ops;
    program->num_guards = base->guards;
    program->scratch = only_frames || chance(90) ? base->scratch : odd_number() % (INT64_MAX / 4);
    program->work_at = base->work_at;
    program->ops = copied(base->op, base->ops * sizeof(Op));
    program->guards = copied(base->guard, base->guards * sizeof(Guard));
    program->sent = copied(base->sent, 4 * base->world);
    program->received = copied(base->received, 4 * base->world);
    if (!only_frames && chance(10) && program->num_ops > 1) program->num_ops = 1 + below(program->num_ops);
    for (uint64_t changes = only_frames || chance(20) ? 0 : 1 + below(4); changes && program->num_ops; changes--) {
        Op *op = &program->ops[below(program->num_ops)];
        if (chance(10)) for (size_t i = 0; i < sizeof(Op); i++) ((unsigned char *)op)[i] = (unsigned char)draw();
        else if (chance(10)) *op = program->ops[below(program->num_ops)];
        else change_op(op, program);
        if (chance(10) && program->num_guards) program->guards[below(program->num_guards)] = (Guard){(uint32_t)odd_number(), (uint32_t)odd_number()};
        if (chance(5)) program->sent[below(base->world)] = (uint32_t)odd_number();
    }
    if (!only_frames && chance(60)) renumber(program);
    program->fused = calloc(program->num_ops + 1, sizeof(uint32_t));
    program->inline_at = calloc(program->num_ops + 1, 1);
    program->partners = calloc((size_t)program->world, sizeof(*program->partners));
    return program;
}

static void free_program(Program *program) {
    free(program->ops); free(program->guards); free(program->sent); free(program->received);
    free(program->fused); free(program->inline_at); free(program->partners); free(program->frames); free(program);
}

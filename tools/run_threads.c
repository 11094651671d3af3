/* The compiled executor with ranks as threads of one process, for the thread sanitizer; see run_threads.py. */
#include "../src/choreo/run/execute/core/module.c"

#include <stdio.h>
#include <sys/mman.h>

typedef struct { Endpoint here; Program program[2]; float *x; int calls, wrong; } Member;

static void *load(FILE *file, size_t size) {
    void *data = malloc(size ? size : 1);
    if (size && fread(data, 1, size, file) != size) exit(3);
    return data;
}

static void *run_member(void *argument) {
    Member *member = argument;
    Endpoint *here = &member->here;
    size_t count = member->program[0].work / 4;
    for (int call = 1; call <= member->calls; call++) {
        int stages = call % 3 != 0;
        Program *program = &member->program[!stages];
        for (size_t i = 0; i < count; i++) member->x[i] = (float)(here->rank + call);
        double began = now_s();
        Task task = {.program = program, .input = (char *)member->x, .work = (char *)member->x, .began_s = began, .deadline_s = began + 60,
                     .uncached = call % 2, .kernel = KERNELS[F32][SUM], .item = 4};
        here->call = (uint64_t)call;
        describe_arrays(here, &task, stages);
        int outcome = run_call(here, &task, 7, stages);
        if (outcome) { fprintf(stderr, "rank %d call %d: outcome %d by %d\n", here->rank, call, outcome, here->culprit); member->wrong++; break; }
        float wanted = (float)(here->world * call + here->world * (here->world - 1) / 2);
        for (size_t i = 0; i < count; i++) member->wrong += member->x[i] != wanted;
    }
    return NULL;
}

int main(int argc, char **argv) {
    FILE *file = argc > 1 ? fopen(argv[1], "rb") : NULL;
    uint64_t head[4]; /* ranks, calls, bytes of staging, bytes of an array */
    if (!file || fread(head, 8, 4, file) != 4) return 2;
    int world = (int)head[0], wrong = 0;
    size_t at = staging_offset(world, 0, INT32_MAX), bytes = at + head[2] + head[3];
    Member *members = calloc((size_t)world, sizeof(Member));
    char **segments = calloc((size_t)world, sizeof(char *));
    for (int rank = 0; rank < world; rank++)
        segments[rank] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int rank = 0; rank < world; rank++) {
        Member *member = &members[rank];
        Endpoint *here = &member->here;
        here->rank = rank; here->world = world; here->spins = 20; here->serial = 1;
        here->own.buf = segments[rank]; here->own.len = (Py_ssize_t)bytes;
        here->header = (Header *)segments[rank];
        here->stage_at = at; here->stage_bytes = head[2]; here->slot_bytes = head[2] / STAGING_SLOTS;
        here->polled_peers = calloc((size_t)world, sizeof(*here->polled_peers));
        here->polled_ranks = calloc((size_t)world, sizeof(int));
        here->buffer = malloc(BUFFER_BYTES);
        here->peers = calloc((size_t)world, sizeof(Peer));
        for (int peer = 0; peer < world; peer++) {
            Peer *other = &here->peers[peer];
            other->pidfd = -1;
            if (peer == rank) continue;
            other->pid = (int)getpid();
            other->map.buf = segments[peer]; other->map.len = (Py_ssize_t)bytes;
            other->header = (const Header *)segments[peer];
            other->to_us = (const Channel *)(segments[peer] + sizeof(Header)) + rank;
            other->from_us = (Channel *)(segments[rank] + sizeof(Header)) + peer;
        }
        for (int which = 0; which < 2; which++) {
            Program *program = &member->program[which];
            uint64_t sizes[3]; /* operations, guards, bytes of scratch */
            if (fread(sizes, 8, 3, file) != 3) return 3;
            program->world = world;
            program->num_ops = sizes[0]; program->num_guards = sizes[1]; program->scratch = sizes[2];
            program->ops = load(file, sizes[0] * sizeof(Op));
            program->guards = load(file, sizes[1] * sizeof(Guard));
            program->sent = load(file, 4 * (size_t)world);
            program->received = load(file, 4 * (size_t)world);
            program->fused = calloc(program->num_ops + 1, 4);
            program->inline_at = calloc(program->num_ops + 1, 1);
            program->partners = calloc((size_t)world, sizeof(*program->partners));
            const char *bad = check_program(program);
            if (!bad) bad = check_endpoint(here, program);
            if (bad) { fprintf(stderr, "rank %d: %s\n", rank, bad); return 4; }
            fuse_reductions(program);
            if (!assign_inline(program)) return 4;
            if (program->scratch > here->scratch_room) { here->scratch = realloc(here->scratch, program->scratch); here->scratch_room = program->scratch; }
        }
        member->x = (float *)(segments[rank] + at + head[2]);
        member->calls = (int)head[1];
    }
    pthread_t *threads = calloc((size_t)world, sizeof(pthread_t));
    for (int rank = 0; rank < world; rank++) pthread_create(&threads[rank], NULL, run_member, &members[rank]);
    for (int rank = 0; rank < world; rank++) { pthread_join(threads[rank], NULL); wrong += members[rank].wrong; }
    printf("%d ranks, %d calls, %d wrong\n", world, (int)head[1], wrong);
    return wrong != 0;
}

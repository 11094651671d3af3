/* The current job: its ranks and nodes, and the cells that its rows cut the vector into. */

static int64_t cell_of(const Core *core, int64_t rank, int64_t chunk) {
    const Job *job = &core->job;
    const Word *word = &job->cuts[rank * job->words + (chunk >> 6)];
    if (chunk == job->num_chunks) return job->cuts[(rank + 1) * job->words].before;
    return word->before + __builtin_popcountll(word->bits & ((2ULL << (chunk & 63)) - 1)) - 1;
}

static Range range_of(const Core *core, int64_t rank, int64_t chunk, int64_t count) {
    if (core->job.cuts) {
        int64_t first = cell_of(core, rank, chunk);
        return (Range){first, (int32_t)(cell_of(core, rank, chunk + count) - first)};
    }
    /* Every chunk is a cell. What matters is that ranks which work on neighbouring chunks in one step, as neighbours often
     * do, find them side by side in memory: so rank r's chunks are numbered from chunk r on. */
    int64_t chunks = core->job.num_chunks, from = chunk - rank;
    if (from < 0 && (from += chunks) < 0) from = (from % chunks + chunks) % chunks;
    return (Range){from * core->job.ranks + rank, (int32_t)count};
}

/* Run through the cells of a range. */
#define EACH_CELL(job, range, cell)                                                                          \
    for (int64_t cell = (range).first, left_ = (range).count; left_ > 0;                                     \
         left_--, cell += (job)->stride, cell = cell >= (job)->num_cells ? cell - (job)->num_cells : cell)

static int find_layers(Core *core, int64_t ranks, int64_t nodes) {
    Job *job = &core->job;
    int32_t *members = calloc((size_t)nodes, 4);
    free(job->layer);
    job->layer = malloc((size_t)ranks * 4);
    if (!members || !job->layer) { free(members); PyErr_NoMemory(); return -1; }
    job->layers = 1;
    for (int64_t rank = 0; rank < ranks; rank++) {
        job->layer[rank] = members[job->place[rank]]++;
        if (job->layer[rank] >= job->layers) job->layers = job->layer[rank] + 1;
    }
    free(members);
    return 0;
}

/* A member's port: a link by which a message of his leaves him. */
static int64_t port_of(const Core *core, int64_t src, int32_t link) {
    return core->job.layer[src] * core->num_links + link;
}

static PyObject *core_begin_job(Core *core, PyObject *args) {
    Job *job = &core->job;
    /* ranks, chunks, nodes, place of each rank, gamma of each rank, bytes a unit of weight, start, whether to mark cells */
    PyObject *place, *gamma;
    int mark;
    long long ranks, chunks, nodes;
    if (!PyArg_ParseTuple(args, "LLLOOddp", &ranks, &chunks, &nodes, &place, &gamma, &job->unit, &job->start, &mark))
        return NULL;
    if (core->stage == RAN || !core->bandwidth) { refuse("a job must begin before the run"); return NULL; }
    int64_t places;
    if (ranks < 1 || chunks < 1 || nodes < 1 || ranks >= INT32_MAX || __builtin_mul_overflow(ranks, chunks, &places) ||
        places > INT64_MAX / 32) {
        refuse("a job has too few or too many ranks, chunks or nodes");
        return NULL;
    }
    core->stage = NEW;
    Column in = {0};
    Py_ssize_t count = (Py_ssize_t)ranks;
    int64_t *given = column(place, &in, INT64, &count);
    for (Py_ssize_t rank = 0; given && rank < count; rank++)
        if (given[rank] < 0 || given[rank] >= nodes) {
            refuse("a rank is on a node that is not there");
            given = NULL;
        }
    free(job->place);
    job->place = NULL;
    if (given) {
        job->place = malloc((size_t)ranks * 8);
        if (job->place) memcpy(job->place, given, (size_t)ranks * 8);
        else PyErr_NoMemory();
    }
    release(&in, 1);
    if (!job->place || find_layers(core, ranks, nodes)) return NULL;
    free(job->gamma);
    if (!(job->gamma = copied(gamma, &count))) return NULL;
    job->ranks = ranks;
    job->num_chunks = chunks;
    core->routes.num_nodes = nodes;
    free(job->cuts);
    job->cuts = NULL;
    job->words = chunks / 64 + 1;
    if (mark) {
        job->cuts = zeroed((size_t)(ranks * job->words + 1), sizeof(Word));
        if (!job->cuts) return PyErr_NoMemory();
        for (int64_t rank = 0; rank < ranks; rank++) job->cuts[rank * job->words].bits = 1;
    }
    job->num_cells = places;
    job->stride = mark ? 1 : ranks;
    job->first_engine = (int32_t)core->shared.engines_count;
    core->stage = BEGUN;
    Py_RETURN_NONE;
}

/* Whether both ends of all rows are ranks of the job. */
static int inside(const Core *core, const int64_t *src, const int64_t *dst, Py_ssize_t rows) {
    uint64_t ranks = core->stage == NEW ? 0 : (uint64_t)core->job.ranks;
    int bad = 0;
    for (Py_ssize_t row = 0; row < rows; row++) bad |= (uint64_t)src[row] >= ranks || (uint64_t)dst[row] >= ranks;
    return bad ? refuse("a row is from or to a rank that is not there") : 0;
}

/* Whether all rows carry chunks of the vector, and some. */
static int in_vector(const Core *core, const int64_t *chunk, const int64_t *count, Py_ssize_t rows) {
    uint64_t most = (uint64_t)core->job.num_chunks;
    int bad = 0;
    for (Py_ssize_t row = 0; row < rows; row++)
        bad |= (uint64_t)chunk[row] >= most || (uint64_t)count[row] - 1 >= most - (uint64_t)chunk[row];
    return bad ? refuse("a row carries chunks that are not there") : 0;
}

static PyObject *core_mark(Core *core, PyObject *args) {
    Job *job = &core->job;
    /* Note where the rows cut the vector: src, dst, chunk, count. */
    PyObject *objects[4];
    if (!PyArg_ParseTuple(args, "OOOO", &objects[0], &objects[1], &objects[2], &objects[3])) return NULL;
    Column in[4];
    memset(in, 0, sizeof(in));
    int64_t *values[4];
    Py_ssize_t rows = -1;
    int good = 1;
    for (int i = 0; i < 4 && good; i++) good = (values[i] = column(objects[i], &in[i], INT64, &rows)) != NULL;
    if (good) good = !inside(core, values[0], values[1], rows) && !in_vector(core, values[2], values[3], rows);
    if (good && (core->stage != BEGUN || !job->cuts)) good = !refuse("rows are marked between begin_job and ready");
    /* The words lie far apart: ask for them some rows ahead. */
    const Py_ssize_t ahead = 16;
    for (Py_ssize_t row = 0; good && row < rows; row++)
        for (int end = 0; end < 2; end++) {
            if (row + ahead < rows) {
                int64_t later = values[end][row + ahead] * job->words, chunk = values[2][row + ahead];
                __builtin_prefetch(&job->cuts[later + (chunk >> 6)], 1);
                __builtin_prefetch(&job->cuts[later + ((chunk + values[3][row + ahead]) >> 6)], 1);
            }
            int64_t base = values[end][row] * job->words, low = values[2][row], high = low + values[3][row];
            job->cuts[base + (low >> 6)].bits |= 1ULL << (low & 63);
            job->cuts[base + (high >> 6)].bits |= 1ULL << (high & 63);
        }
    release(in, 4);
    if (!good) return NULL;
    Py_RETURN_NONE;
}

/* Number the cells. */
static void number_cells(Core *core) {
    Job *job = &core->job;
    if (!job->cuts) return;
    int64_t total = 0;
    for (int64_t rank = 0; rank < job->ranks; rank++) {
        /* The end of the vector is no beginning of a cell. */
        job->cuts[rank * job->words + (job->num_chunks >> 6)].bits &= ~(1ULL << (job->num_chunks & 63));
        for (Word *word = &job->cuts[rank * job->words]; word < &job->cuts[(rank + 1) * job->words]; word++) {
            word->before = total;
            total += __builtin_popcountll(word->bits);
        }
    }
    job->cuts[job->ranks * job->words].before = total;
    job->num_cells = total;
}

static void free_job(Job *job) {
    FREE_ALL(job->place, job->layer, job->gamma, job->cuts);
}

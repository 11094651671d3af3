/* The call cache: the shortest way from a user's array to the executor.
 *
 * A repeated call is found by the objects that it is made with: the operation or root, the dtype of the array, and the number
 * of its elements. It was checked the first time; now only what may have changed is checked. Every other call goes through
 * Python.
 */
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/ndarraytypes.h>

#define CACHE_SIZE 512  /* a power of two */
#define PROBES 4

enum { ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, BARRIER, COLLECTIVES };

typedef struct {
    PyObject *key, *type; /* operation, root or None; the array's dtype. key NULL: this entry is empty */
    npy_intp count;
    int kind, registered; /* registered: 1 if the array is, plus 2 if the result is */
    PyObject *prepared;
    Program *program;
    uint64_t signature, dtype, operation;
    size_t room; /* bytes of the result */
    int stages;
} CachedCall;

typedef struct {
    PyObject_HEAD
    Endpoint *endpoint;
    PyTypeObject *array; /* numpy.ndarray */
    PyObject *failure;   /* makes the exception of a call that failed */
    ProgressQueue *queue; /* a call that is made while others are pending runs after them */
    int open;
    CachedCall cached[CACHE_SIZE];
} CallCache;

static CachedCall *look_up(CallCache *cache, int kind, PyObject *key, PyObject *type, npy_intp count, int registered, int free) {
    uintptr_t hash = ((uintptr_t)key >> 4) * 31 + ((uintptr_t)type >> 4) * 17 + (uintptr_t)count * 0x9E3779B97F4A7C15ULL;
    hash = (hash ^ hash >> 29) + (uintptr_t)(4 * kind + registered);
    for (uintptr_t i = 0; i < PROBES; i++) {
        CachedCall *cached = &cache->cached[(hash + i) % CACHE_SIZE];
        if (cached->key == key && cached->count == count && cached->type == type && cached->kind == kind && cached->registered == registered) return cached;
        if (free && !cached->key) return cached;
    }
    return free ? &cache->cached[hash % CACHE_SIZE] : NULL;
}

static void drop(CachedCall *cached) {
    CachedCall old = *cached;
    memset(cached, 0, sizeof(*cached));
    Py_XDECREF(old.key);
    Py_XDECREF(old.type);
    Py_XDECREF(old.prepared);
    Py_XDECREF((PyObject *)old.program);
}

static npy_intp count_of(const PyArrayObject *array) {
    npy_intp count = 1;
    for (int i = 0; i < PyArray_NDIM(array); i++) count *= PyArray_DIMS((PyArrayObject *)array)[i];
    return count;
}

/* Is this a plain array that can be used as it is? */
static int is_plain(const CallCache *cache, PyObject *object, int writable) {
    int wanted = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | (writable ? NPY_ARRAY_WRITEABLE : 0);
    return Py_TYPE(object) == cache->array && (PyArray_FLAGS((PyArrayObject *)object) & wanted) == wanted;
}

/* Does `out` have the shape of the result? */
static int has_result_shape(const CallCache *cache, PyArrayObject *x, PyArrayObject *out, int kind) {
    npy_intp world = cache->endpoint->world, *from = PyArray_DIMS(x), *to = PyArray_DIMS(out);
    int sides = PyArray_NDIM(x), gathers = kind == ALL_GATHER;
    if (PyArray_NDIM(out) != sides + gathers || (!gathers && !sides)) return 0;
    if (gathers ? to[0] != world : to[0] * world != from[0]) return 0;
    for (int i = !gathers; i < sides; i++)
        if (to[i + gathers] != from[i]) return 0;
    return 1;
}

/* What Python must deal with: None of a call that is started, False of one that is run. */
static PyObject *not_cached(int start) { return Py_NewRef(start ? Py_None : Py_False); }

/* Run a cached call: True; or start it: a QueuedCall. `x` and `result` are the user's arrays. */
static PyObject *run_cached(CallCache *cache, CachedCall *cached, PyObject *x, PyObject *result_array, PyObject *timeout, int start) {
    Endpoint *here = cache->endpoint;
    void *input = x == Py_None ? NULL : PyArray_DATA((PyArrayObject *)x);
    void *work = result_array == Py_None ? NULL : PyArray_DATA((PyArrayObject *)result_array);
    double seconds = PyFloat_CheckExact(timeout) ? PyFloat_AS_DOUBLE(timeout) : PyLong_CheckExact(timeout) ? PyLong_AsDouble(timeout) : -1;
    if (seconds == -1) PyErr_Clear(); /* the number was too large */
    if (!(seconds > 0 && seconds < HUGE_VAL) || !here->peers || here->fork_generation != fork_generation || atomic_load(&here->header->outcome))
        return not_cached(start);
    size_t item = ITEM[cached->dtype];
    Task task = {.program = cached->program, .input = input, .work = work, .uncached = is_uncached(cached->program, cached->room),
                 .kernel = KERNELS[cached->dtype][cached->operation], .item = item};
    if (start) {
        QueuedCall *call = new_call(cache->queue);
        if (!call) return NULL;
        call->value = Py_NewRef(result_array);
        call->input = Py_NewRef(x);
        call->prepared = Py_NewRef(cached->prepared);
        call->program = Py_NewRef((PyObject *)cached->program);
        call->task = task;
        call->signature = cached->signature;
        call->timeout = seconds;
        call->stages = cached->stages;
        return enqueue(call);
    }
    if (!claim(here)) Py_RETURN_FALSE;
    PyObject *prepared = Py_NewRef(cached->prepared); /* another thread may drop the entry while this runs */
    PyObject *program = Py_NewRef((PyObject *)cached->program), *failure = Py_NewRef(cache->failure);
    PyObject *failed = execute(here, &task, here->call + 1, cached->signature, seconds, cached->stages), *result = NULL;
    unclaim(here);
    if (failed == Py_None) result = Py_NewRef(Py_True);
    else if (failed) {
        PyObject *error = PyObject_CallFunctionObjArgs(failure, prepared, failed, NULL);
        if (error) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_XDECREF(error);
    }
    Py_XDECREF(failed);
    Py_DECREF(prepared);
    Py_DECREF(program);
    Py_DECREF(failure);
    return result;
}

/* May a cached call run now? What is started waits for its turn in the queue. */
static int may_run(const CallCache *cache, int start) {
    return cache->open && (start ? cache->queue != NULL : !cache->queue || !atomic_load(&cache->queue->pending));
}

static PyObject *in_place(CallCache *cache, int kind, PyObject *const *args, Py_ssize_t count, int start) {
    /* array, operation or root, timeout */
    if (count != 3) { PyErr_SetString(PyExc_TypeError, "a call in place takes 3 arguments"); return NULL; }
    if (!may_run(cache, start) || !is_plain(cache, args[0], 1)) return not_cached(start);
    PyArrayObject *x = (PyArrayObject *)args[0];
    int registered = is_registered(cache->endpoint, PyArray_DATA(x)) ? 3 : 0;
    CachedCall *cached = look_up(cache, kind, args[1], (PyObject *)PyArray_DESCR(x), count_of(x), registered, 0);
    if (!cached) return not_cached(start);
    return run_cached(cache, cached, args[0], args[0], args[2], start);
}

static PyObject *into(CallCache *cache, int kind, PyObject *const *args, Py_ssize_t count, int start) {
    /* array, result, operation or None, timeout */
    if (count != 4) { PyErr_SetString(PyExc_TypeError, "a call into another array takes 4 arguments"); return NULL; }
    if (!may_run(cache, start) || !is_plain(cache, args[0], 0) || !is_plain(cache, args[1], 1)) return not_cached(start);
    PyArrayObject *x = (PyArrayObject *)args[0], *out = (PyArrayObject *)args[1];
    if (PyArray_DESCR(x) != PyArray_DESCR(out) || !has_result_shape(cache, x, out, kind)) return not_cached(start);
    char *from = PyArray_DATA(x), *to = PyArray_DATA(out);
    int registered = is_registered(cache->endpoint, from) | is_registered(cache->endpoint, to) << 1;
    CachedCall *cached = look_up(cache, kind, args[2], (PyObject *)PyArray_DESCR(x), count_of(x), registered, 0);
    if (!cached) return not_cached(start);
    size_t length = (size_t)cached->count * ITEM[cached->dtype], room = (size_t)count_of(out) * ITEM[cached->dtype];
    int own_slot = kind == ALL_GATHER && from == to + (size_t)cache->endpoint->rank * length; /* which is written with what it holds */
    if (!own_slot && from < to + room && to < from + length) return not_cached(start); /* writing the result would change the input */
    return run_cached(cache, cached, args[0], args[1], args[3], start);
}

static PyObject *barrier(CallCache *cache, PyObject *timeout, int start) {
    CachedCall *cached = may_run(cache, start) ? look_up(cache, BARRIER, Py_None, Py_None, 0, 0, 0) : NULL;
    return cached ? run_cached(cache, cached, Py_None, Py_None, timeout, start) : not_cached(start);
}

#define CACHED_CALL(name, how, kind) \
    static PyObject *cache_##name(CallCache *cache, PyObject *const *args, Py_ssize_t count) { return how(cache, kind, args, count, 0); } \
    static PyObject *cache_start_##name(CallCache *cache, PyObject *const *args, Py_ssize_t count) { return how(cache, kind, args, count, 1); }
CACHED_CALL(all_reduce, in_place, ALL_REDUCE)
CACHED_CALL(broadcast, in_place, BROADCAST)
CACHED_CALL(all_gather, into, ALL_GATHER)
CACHED_CALL(reduce_scatter, into, REDUCE_SCATTER)
static PyObject *cache_barrier(CallCache *cache, PyObject *timeout) { return barrier(cache, timeout, 0); }
static PyObject *cache_start_barrier(CallCache *cache, PyObject *timeout) { return barrier(cache, timeout, 1); }

static PyObject *cache_add(CallCache *cache, PyObject *args) {
    /* collective, operation or root, array, result, prepared call, program, signature, dtype, operation, whether data is
     * staged. False: such a call cannot be cached. */
    static const char *const names[COLLECTIVES] = {"all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier"};
    CachedCall new = {0};
    PyObject *x, *out, *program;
    unsigned long long signature, dtype, operation;
    const char *collective;
    if (!PyArg_ParseTuple(args, "sOOOOO!KKKp", &collective, &new.key, &x, &out, &new.prepared, program_type, &program, &signature, &dtype,
                          &operation, &new.stages))
        return NULL;
    while (new.kind < COLLECTIVES && strcmp(collective, names[new.kind])) new.kind++;
    Endpoint *here = cache->endpoint;
    if (new.kind >= COLLECTIVES || dtype >= TYPES) { PyErr_SetString(PyExc_ValueError, "there is no such collective or dtype to cache"); return NULL; }
    if (!cache->failure || !here->peers || !is_plain(cache, x, 0) || !is_plain(cache, out, 0)) Py_RETURN_FALSE;
    PyArrayObject *array = (PyArrayObject *)x, *result = (PyArrayObject *)out;
    new.type = new.kind == BARRIER ? Py_None : (PyObject *)PyArray_DESCR(array);
    new.count = count_of(array);
    if (new.kind != BARRIER) new.registered = is_registered(here, PyArray_DATA(array)) | is_registered(here, PyArray_DATA(result)) << 1;
    if (check_arguments(here, (Program *)program, count_of(result) * ITEM[dtype], new.count * ITEM[dtype], dtype, operation, new.stages)) Py_RETURN_FALSE;
    if (((Program *)program)->scratch > here->scratch_room) {
        const char *wrong = "a call is under way";
        if (claim(here)) { wrong = take_scratch(here, (Program *)program); unclaim(here); }
        if (wrong) Py_RETURN_FALSE;
    }
    new.program = (Program *)program;
    new.room = (size_t)(count_of(result) * ITEM[dtype]);
    new.signature = signature;
    new.dtype = dtype;
    new.operation = operation;
    CachedCall *cached = look_up(cache, new.kind, new.key, new.type, new.count, new.registered, 1);
    drop(cached);
    *cached = new;
    Py_INCREF(new.key);
    Py_INCREF(new.type);
    Py_INCREF(new.prepared);
    Py_INCREF(program);
    Py_RETURN_TRUE;
}

static PyObject *cache_clear(CallCache *cache, PyObject *Py_UNUSED(ignored)) {
    for (int i = 0; i < CACHE_SIZE; i++)
        if (cache->cached[i].key) drop(&cache->cached[i]);
    Py_RETURN_NONE;
}

static int cache_traverse(CallCache *cache, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(cache));
    Py_VISIT((PyObject *)cache->endpoint);
    Py_VISIT(cache->failure);
    Py_VISIT((PyObject *)cache->queue);
    for (int i = 0; i < CACHE_SIZE; i++) Py_VISIT(cache->cached[i].prepared);
    return 0;
}

static int cache_drop_all(CallCache *cache) {
    Py_XDECREF(cache_clear(cache, NULL));
    Py_CLEAR(cache->failure);
    cache->open = 0;
    Py_CLEAR(cache->queue);
    return 0;
}

static PyObject *cache_close(CallCache *cache, PyObject *Py_UNUSED(ignored)) {
    cache_drop_all(cache);
    Py_RETURN_NONE;
}

static void cache_dealloc(CallCache *cache) {
    PyObject_GC_UnTrack(cache);
    cache_drop_all(cache);
    Py_CLEAR(cache->array);
    PyObject *endpoint = (PyObject *)cache->endpoint;
    cache->endpoint = NULL;
    Py_XDECREF(endpoint);
    PyTypeObject *type = Py_TYPE(cache);
    type->tp_free((PyObject *)cache);
    Py_DECREF(type);
}

static int cache_init(CallCache *cache, PyObject *args, PyObject *Py_UNUSED(keywords)) {
    /* endpoint, numpy.ndarray, what makes the exception of a call that failed, the queue of asynchronous calls */
    PyObject *endpoint, *array, *failure, *queue = NULL;
    if (cache->endpoint) { PyErr_SetString(PyExc_ValueError, "a call cache is made once"); return -1; }
    if (!PyArg_ParseTuple(args, "O!O!O|O!", endpoint_type, &endpoint, &PyType_Type, &array, &failure, progress_queue_type, &queue)) return -1;
    cache->endpoint = (Endpoint *)Py_NewRef(endpoint);
    cache->array = (PyTypeObject *)Py_NewRef(array);
    cache->failure = Py_NewRef(failure);
    cache->queue = (ProgressQueue *)Py_XNewRef(queue);
    cache->open = 1;
    return 0;
}

static PyMethodDef cache_methods[] = {
    {"all_reduce", (PyCFunction)(void (*)(void))cache_all_reduce, METH_FASTCALL, "Run a cached all_reduce in place."},
    {"broadcast", (PyCFunction)(void (*)(void))cache_broadcast, METH_FASTCALL, "Run a cached broadcast in place."},
    {"all_gather", (PyCFunction)(void (*)(void))cache_all_gather, METH_FASTCALL, "Run a cached all_gather."},
    {"reduce_scatter", (PyCFunction)(void (*)(void))cache_reduce_scatter, METH_FASTCALL, "Run a cached reduce_scatter."},
    {"barrier", (PyCFunction)cache_barrier, METH_O, "Run a cached barrier."},
    {"start_all_reduce", (PyCFunction)(void (*)(void))cache_start_all_reduce, METH_FASTCALL, "Start a cached all_reduce."},
    {"start_broadcast", (PyCFunction)(void (*)(void))cache_start_broadcast, METH_FASTCALL, "Start a cached broadcast."},
    {"start_all_gather", (PyCFunction)(void (*)(void))cache_start_all_gather, METH_FASTCALL, "Start a cached all_gather."},
    {"start_reduce_scatter", (PyCFunction)(void (*)(void))cache_start_reduce_scatter, METH_FASTCALL, "Start a cached reduce_scatter."},
    {"start_barrier", (PyCFunction)cache_start_barrier, METH_O, "Start a cached barrier."},
    {"add", (PyCFunction)cache_add, METH_VARARGS, "Keep a call."},
    {"clear", (PyCFunction)cache_clear, METH_NOARGS, "Drop all calls."},
    {"close", (PyCFunction)cache_close, METH_NOARGS, "Drop all calls, and keep no more."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef cache_members[] = {
    {"open", T_INT, offsetof(CallCache, open), 0, "Whether cached calls may run now."},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot cache_slots[] = {
    {Py_tp_new, PyType_GenericNew}, {Py_tp_init, cache_init}, {Py_tp_dealloc, cache_dealloc}, {Py_tp_methods, cache_methods},
    {Py_tp_members, cache_members}, {Py_tp_traverse, cache_traverse}, {Py_tp_clear, cache_drop_all},
    {Py_tp_doc, "Calls that were made before."}, {0, NULL},
};
static PyType_Spec cache_spec = {"choreo.run.execute._core.CallCache", sizeof(CallCache), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, cache_slots};

/* Calls that are kept: the shortest way from a user's array to the executor; a part of `_core.c`.
 *
 * What a call of one kind needs is looked up by the very objects it is made with: the operation or root, the type of the
 * array, and how many elements it has. An array that is of any other kind than those that were kept, or cannot be used as it
 * is, is for Python to deal with. A call that is kept was checked; what can have changed since is looked at here.
 */
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/ndarraytypes.h>

#define KEPT 512  /* a power of two */
#define PROBES 4

enum { REDUCED, SENT, GATHERED, SCATTERED, EMPTY }; /* everybody's sum, the root's array; together, in parts; nothing */

typedef struct {
    PyObject *key, *type; /* the operation or root, or None; the type of the elements. NULL: nothing is kept here */
    npy_intp count;
    int kind, registered; /* registered: whether the array is, and the result (2) */
    PyObject *plan;
    Program *program;
    uint64_t signature, dtype, operation;
    size_t room; /* bytes of the result */
    int stages;
} Kept;

typedef struct {
    PyObject_HEAD
    Endpoint *endpoint;
    PyTypeObject *array; /* NumPy's */
    PyObject *failure;   /* makes the error of a call that failed */
    int open;
    Kept kept[KEPT];
} Quick;

static Kept *find(Quick *quick, int kind, PyObject *key, PyObject *type, npy_intp count, int registered, int free) {
    uintptr_t hash = ((uintptr_t)key >> 4) * 31 + ((uintptr_t)type >> 4) * 17 + (uintptr_t)count * 0x9E3779B97F4A7C15ULL;
    hash = (hash ^ hash >> 29) + (uintptr_t)(4 * kind + registered);
    for (uintptr_t i = 0; i < PROBES; i++) {
        Kept *kept = &quick->kept[(hash + i) % KEPT];
        if (kept->key == key && kept->count == count && kept->type == type && kept->kind == kind && kept->registered == registered) return kept;
        if (free && !kept->key) return kept;
    }
    return free ? &quick->kept[hash % KEPT] : NULL;
}

static void forget(Kept *kept) {
    Kept old = *kept;
    memset(kept, 0, sizeof(*kept));
    Py_XDECREF(old.key);
    Py_XDECREF(old.type);
    Py_XDECREF(old.plan);
    Py_XDECREF((PyObject *)old.program);
}

static npy_intp count_of(const PyArrayObject *array) {
    npy_intp count = 1;
    for (int i = 0; i < PyArray_NDIM(array); i++) count *= PyArray_DIMS((PyArrayObject *)array)[i];
    return count;
}

/* A plain array that lies in memory as we need it. */
static int is_plain(const Quick *quick, PyObject *object, int writable) {
    int wanted = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | (writable ? NPY_ARRAY_WRITEABLE : 0);
    return Py_TYPE(object) == quick->array && (PyArray_FLAGS((PyArrayObject *)object) & wanted) == wanted;
}

/* Does `out` have the shape of the result? */
static int has_shape(const Quick *quick, PyArrayObject *x, PyArrayObject *out, int kind) {
    npy_intp world = quick->endpoint->world, *from = PyArray_DIMS(x), *to = PyArray_DIMS(out);
    int sides = PyArray_NDIM(x), gathers = kind == GATHERED;
    if (PyArray_NDIM(out) != sides + gathers || (!gathers && !sides)) return 0;
    if (gathers ? to[0] != world : to[0] * world != from[0]) return 0;
    for (int i = !gathers; i < sides; i++)
        if (to[i + gathers] != from[i]) return 0;
    return 1;
}

/* Run what was kept; True, False if nothing was, or an error. */
static PyObject *run_kept(Quick *quick, Kept *kept, void *input, void *work, PyObject *timeout) {
    Endpoint *here = quick->endpoint;
    double seconds = PyFloat_CheckExact(timeout) ? PyFloat_AS_DOUBLE(timeout) : PyLong_CheckExact(timeout) ? PyLong_AsDouble(timeout) : -1;
    if (seconds == -1) PyErr_Clear(); /* of a number too large */
    if (!(seconds > 0 && seconds < HUGE_VAL) || !here->peers || here->generation != generation || here->busy || atomic_load(&here->header->gave_up))
        Py_RETURN_FALSE;
    size_t item = ITEM[kept->dtype];
    Task task = {.program = kept->program, .input = input, .work = work, .far = is_far(kept->program, kept->room),
                 .kernel = KERNELS[kept->dtype][kept->operation], .item = item};
    PyObject *plan = Py_NewRef(kept->plan); /* while this runs another thread may let go of what was kept */
    PyObject *program = Py_NewRef((PyObject *)kept->program), *failure = Py_NewRef(quick->failure);
    PyObject *failed = launch(here, &task, here->call + 1, kept->signature, seconds, kept->stages), *result = NULL;
    if (failed == Py_None) result = Py_NewRef(Py_True);
    else if (failed) {
        PyObject *error = PyObject_CallFunctionObjArgs(failure, plan, failed, NULL);
        if (error) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_XDECREF(error);
    }
    Py_XDECREF(failed);
    Py_DECREF(plan);
    Py_DECREF(program);
    Py_DECREF(failure);
    return result;
}

static PyObject *in_place(Quick *quick, int kind, PyObject *const *args, Py_ssize_t count) {
    /* array, operation or root, timeout */
    if (count != 3) { PyErr_SetString(PyExc_TypeError, "a call in place takes 3 arguments"); return NULL; }
    if (!quick->open || !is_plain(quick, args[0], 1)) Py_RETURN_FALSE;
    PyArrayObject *x = (PyArrayObject *)args[0];
    char *data = PyArray_DATA(x);
    int registered = is_registered(quick->endpoint, data) ? 3 : 0;
    Kept *kept = find(quick, kind, args[1], (PyObject *)PyArray_DESCR(x), count_of(x), registered, 0);
    if (!kept) Py_RETURN_FALSE;
    return run_kept(quick, kept, data, data, args[2]);
}

static PyObject *quick_reduced(Quick *quick, PyObject *const *args, Py_ssize_t count) { return in_place(quick, REDUCED, args, count); }
static PyObject *quick_sent(Quick *quick, PyObject *const *args, Py_ssize_t count) { return in_place(quick, SENT, args, count); }

static PyObject *into(Quick *quick, int kind, PyObject *const *args, Py_ssize_t count) {
    /* array, result, operation or None, timeout */
    if (count != 4) { PyErr_SetString(PyExc_TypeError, "a call into another array takes 4 arguments"); return NULL; }
    if (!quick->open || !is_plain(quick, args[0], 0) || !is_plain(quick, args[1], 1)) Py_RETURN_FALSE;
    PyArrayObject *x = (PyArrayObject *)args[0], *out = (PyArrayObject *)args[1];
    if (PyArray_DESCR(x) != PyArray_DESCR(out) || !has_shape(quick, x, out, kind)) Py_RETURN_FALSE;
    char *from = PyArray_DATA(x), *to = PyArray_DATA(out);
    int registered = is_registered(quick->endpoint, from) | is_registered(quick->endpoint, to) << 1;
    Kept *kept = find(quick, kind, args[2], (PyObject *)PyArray_DESCR(x), count_of(x), registered, 0);
    if (!kept) Py_RETURN_FALSE;
    size_t length = (size_t)kept->count * ITEM[kept->dtype], room = (size_t)count_of(out) * ITEM[kept->dtype];
    if (from < to + room && to < from + length) Py_RETURN_FALSE; /* what is written would change what is given */
    return run_kept(quick, kept, from, to, args[3]);
}

static PyObject *quick_gathered(Quick *quick, PyObject *const *args, Py_ssize_t count) { return into(quick, GATHERED, args, count); }
static PyObject *quick_scattered(Quick *quick, PyObject *const *args, Py_ssize_t count) { return into(quick, SCATTERED, args, count); }

static PyObject *quick_barrier(Quick *quick, PyObject *timeout) {
    Kept *kept = quick->open ? find(quick, EMPTY, Py_None, Py_None, 0, 0, 0) : NULL;
    if (!kept) Py_RETURN_FALSE;
    return run_kept(quick, kept, NULL, NULL, timeout);
}

static PyObject *quick_keep(Quick *quick, PyObject *args) {
    /* the way it is called, operation or root, array, result; plan, program, signature, and how it runs: type, operation,
     * whether data is staged. False: such a call cannot be kept. */
    static const char *const kinds[] = {"reduced", "sent", "gathered", "scattered", "empty"};
    Kept new = {0};
    PyObject *x, *out, *program;
    unsigned long long signature, dtype, operation;
    const char *how;
    if (!PyArg_ParseTuple(args, "sOOOOO!KKKp", &how, &new.key, &x, &out, &new.plan, program_type, &program, &signature, &dtype,
                          &operation, &new.stages))
        return NULL;
    while (new.kind <= EMPTY && strcmp(how, kinds[new.kind])) new.kind++;
    Endpoint *here = quick->endpoint;
    if (new.kind > EMPTY || dtype >= TYPES) { PyErr_SetString(PyExc_ValueError, "there is no such way, or type"); return NULL; }
    if (!quick->failure || here->busy || !here->peers || !is_plain(quick, x, 0) || !is_plain(quick, out, 0)) Py_RETURN_FALSE;
    PyArrayObject *array = (PyArrayObject *)x, *result = (PyArrayObject *)out;
    new.type = new.kind == EMPTY ? Py_None : (PyObject *)PyArray_DESCR(array);
    new.count = count_of(array);
    if (new.kind != EMPTY) new.registered = is_registered(here, PyArray_DATA(array)) | is_registered(here, PyArray_DATA(result)) << 1;
    if (unfit(here, (Program *)program, count_of(result) * ITEM[dtype], new.count * ITEM[dtype], dtype, operation, new.stages)) Py_RETURN_FALSE;
    new.program = (Program *)program;
    new.room = (size_t)(count_of(result) * ITEM[dtype]);
    new.signature = signature;
    new.dtype = dtype;
    new.operation = operation;
    Kept *kept = find(quick, new.kind, new.key, new.type, new.count, new.registered, 1);
    forget(kept);
    *kept = new;
    Py_INCREF(new.key);
    Py_INCREF(new.type);
    Py_INCREF(new.plan);
    Py_INCREF(program);
    Py_RETURN_TRUE;
}

static PyObject *quick_clear(Quick *quick, PyObject *Py_UNUSED(ignored)) {
    for (int i = 0; i < KEPT; i++)
        if (quick->kept[i].key) forget(&quick->kept[i]);
    Py_RETURN_NONE;
}

static int quick_traverse(Quick *quick, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(quick));
    Py_VISIT((PyObject *)quick->endpoint);
    Py_VISIT(quick->failure);
    for (int i = 0; i < KEPT; i++) Py_VISIT(quick->kept[i].plan);
    return 0;
}

static int quick_tp_clear(Quick *quick) {
    Py_XDECREF(quick_clear(quick, NULL));
    Py_CLEAR(quick->failure);
    return 0;
}

static PyObject *quick_close(Quick *quick, PyObject *Py_UNUSED(ignored)) {
    quick_tp_clear(quick);
    Py_RETURN_NONE;
}

static void quick_dealloc(Quick *quick) {
    PyObject_GC_UnTrack(quick);
    quick_tp_clear(quick);
    Py_CLEAR(quick->array);
    PyObject *endpoint = (PyObject *)quick->endpoint;
    quick->endpoint = NULL;
    Py_XDECREF(endpoint);
    PyTypeObject *type = Py_TYPE(quick);
    type->tp_free((PyObject *)quick);
    Py_DECREF(type);
}

static PyTypeObject *endpoint_type;

static int quick_init(Quick *quick, PyObject *args, PyObject *Py_UNUSED(keywords)) {
    /* endpoint, the type of arrays, what makes the error of a call that failed */
    PyObject *endpoint, *array, *failure;
    if (quick->endpoint) { PyErr_SetString(PyExc_ValueError, "this is made once"); return -1; }
    if (!PyArg_ParseTuple(args, "O!O!O", endpoint_type, &endpoint, &PyType_Type, &array, &failure)) return -1;
    quick->endpoint = (Endpoint *)Py_NewRef(endpoint);
    quick->array = (PyTypeObject *)Py_NewRef(array);
    quick->failure = Py_NewRef(failure);
    quick->open = 1;
    return 0;
}

static PyMethodDef quick_methods[] = {
    {"reduced", (PyCFunction)(void (*)(void))quick_reduced, METH_FASTCALL, "Reduce an array in place."},
    {"sent", (PyCFunction)(void (*)(void))quick_sent, METH_FASTCALL, "Send the root's array, or receive it."},
    {"gathered", (PyCFunction)(void (*)(void))quick_gathered, METH_FASTCALL, "Gather everybody's array."},
    {"scattered", (PyCFunction)(void (*)(void))quick_scattered, METH_FASTCALL, "Reduce to everybody's part."},
    {"barrier", (PyCFunction)quick_barrier, METH_O, "Run a call without arrays."},
    {"keep", (PyCFunction)quick_keep, METH_VARARGS, "Keep a call."},
    {"clear", (PyCFunction)quick_clear, METH_NOARGS, "Forget all calls."},
    {"close", (PyCFunction)quick_close, METH_NOARGS, "Forget all calls, and keep no more."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef quick_members[] = {
    {"open", T_INT, offsetof(Quick, open), 0, "Whether calls may go this way now."},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot quick_slots[] = {
    {Py_tp_new, PyType_GenericNew}, {Py_tp_init, quick_init}, {Py_tp_dealloc, quick_dealloc}, {Py_tp_methods, quick_methods},
    {Py_tp_members, quick_members}, {Py_tp_traverse, quick_traverse}, {Py_tp_clear, quick_tp_clear},
    {Py_tp_doc, "Calls that are kept."}, {0, NULL},
};
static PyType_Spec quick_spec = {"choreo.run.execute._core.Quick", sizeof(Quick), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, quick_slots};

/* A method of a communicator that looks into the call cache before it calls the Python function that it wraps.
 *
 * A Python function costs more than a small call between two cores. Calls are looked up if they have only positional
 * arguments, apart from `timeout`. All others, and those that are not cached, go to the function.
 */
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *function;
    PyObject *key; /* the operation or root of a call that names none */
    int kind;
} CachedMethod;

static PyTypeObject *call_cache_type;
static PyObject *NAME_CACHED_CALLS, *NAME_TIMEOUT_S, *NAME_TIMEOUT;

/* The outcome of a cached call: a new reference to False if there is none. `self` is a communicator. */
static PyObject *call_cached(const CachedMethod *method, PyObject *const *args, Py_ssize_t count, PyObject *timeout) {
    PyObject *cache = PyObject_GetAttr(args[0], NAME_CACHED_CALLS), *done = NULL;
    if (!cache) return NULL;
    if (Py_TYPE(cache) != call_cache_type) {
        Py_DECREF(cache);
        Py_RETURN_FALSE; /* the executor in Python has none */
    }
    PyObject *seconds = timeout && timeout != Py_None ? Py_NewRef(timeout) : PyObject_GetAttr(args[0], NAME_TIMEOUT_S);
    if (seconds) {
        PyObject *given[3] = {count > 1 ? args[1] : NULL, count > 2 ? args[2] : method->key, seconds};
        done = method->kind == BARRIER ? barrier((CallCache *)cache, seconds, 0) : in_place((CallCache *)cache, method->kind, given, 3, 0);
        Py_DECREF(seconds);
    }
    Py_DECREF(cache);
    return done;
}

static PyObject *method_vectorcall(CachedMethod *method, PyObject *const *args, size_t flags, PyObject *names) {
    Py_ssize_t count = PyVectorcall_NARGS(flags), named = names ? PyTuple_GET_SIZE(names) : 0;
    int fits = method->kind == BARRIER ? count == 1 : count == 2 || count == 3;
    if (fits && (!named || (named == 1 && PyTuple_GET_ITEM(names, 0) == NAME_TIMEOUT))) {
        PyObject *done = call_cached(method, args, count, named ? args[count] : NULL);
        if (!done) return NULL;
        Py_DECREF(done); /* True and False live for ever */
        if (done == Py_True) return Py_NewRef(count > 1 ? args[1] : Py_None);
    }
    return PyObject_Vectorcall(method->function, args, flags, names);
}

static PyObject *method_get(PyObject *method, PyObject *object, PyObject *Py_UNUSED(type)) {
    return object && object != Py_None ? PyMethod_New(method, object) : Py_NewRef(method);
}

/* All that is known of the function, such as its documentation, is known of the method. */
static PyObject *method_getattro(CachedMethod *method, PyObject *name) {
    static const char *const of_function[] = {"__doc__", "__module__", "__name__", "__qualname__", "__annotations__"};
    if (!PyUnicode_CompareWithASCIIString(name, "__wrapped__")) return Py_NewRef(method->function);
    for (size_t i = 0; i < sizeof(of_function) / sizeof(*of_function); i++)
        if (!PyUnicode_CompareWithASCIIString(name, of_function[i])) return PyObject_GetAttr(method->function, name);
    return PyObject_GenericGetAttr((PyObject *)method, name);
}

static int method_traverse(CachedMethod *method, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(method));
    Py_VISIT(method->function);
    Py_VISIT(method->key);
    return 0;
}

static int method_clear(CachedMethod *method) {
    Py_CLEAR(method->function);
    Py_CLEAR(method->key);
    return 0;
}

static void method_dealloc(CachedMethod *method) {
    PyObject_GC_UnTrack(method);
    method_clear(method);
    PyTypeObject *type = Py_TYPE(method);
    type->tp_free((PyObject *)method);
    Py_DECREF(type);
}

static PyObject *method_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(keywords)) {
    /* the function, its collective, and the operation or root of a call that names none */
    PyObject *function, *key;
    const char *collective;
    if (!PyArg_ParseTuple(args, "OsO", &function, &collective, &key)) return NULL;
    int kind = !strcmp(collective, "all_reduce") ? ALL_REDUCE : !strcmp(collective, "broadcast") ? BROADCAST : !strcmp(collective, "barrier") ? BARRIER : -1;
    if (kind < 0) { PyErr_SetString(PyExc_ValueError, "this collective is not called in place"); return NULL; }
    CachedMethod *method = (CachedMethod *)type->tp_alloc(type, 0);
    if (!method) return NULL;
    method->call = (vectorcallfunc)method_vectorcall;
    method->function = Py_NewRef(function);
    method->key = Py_NewRef(key);
    method->kind = kind;
    return (PyObject *)method;
}

static PyMemberDef method_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(CachedMethod, call), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot method_slots[] = {
    {Py_tp_new, method_new}, {Py_tp_dealloc, method_dealloc}, {Py_tp_traverse, method_traverse}, {Py_tp_clear, method_clear},
    {Py_tp_members, method_members}, {Py_tp_call, PyVectorcall_Call}, {Py_tp_descr_get, method_get}, {Py_tp_getattro, method_getattro}, {0, NULL},
};
static PyType_Spec method_spec = {"choreo.run.execute._core.CachedMethod", sizeof(CachedMethod), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, method_slots};

static int intern_names(void) {
    NAME_CACHED_CALLS = PyUnicode_InternFromString("_cached_calls");
    NAME_TIMEOUT_S = PyUnicode_InternFromString("timeout_s");
    NAME_TIMEOUT = PyUnicode_InternFromString("timeout");
    return NAME_CACHED_CALLS && NAME_TIMEOUT_S && NAME_TIMEOUT ? 0 : -1;
}

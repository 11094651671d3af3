/* The progress queue and its calls, as Python sees them. */

static PyObject *queued_done(QueuedCall *call, PyObject *Py_UNUSED(ignored)) {
    int over = atomic_load(&call->over);
    if (!over && call->queue->fork_generation == fork_generation) wake_thread(call->queue, 1);
    return PyBool_FromLong(over);
}

static PyObject *queued_wait(QueuedCall *call, PyObject *timeout) {
    int over = wait_until_over(call->queue, call, timeout);
    if (over < 0) return NULL;
    if (over) { Py_CLEAR(call->prepared); Py_CLEAR(call->program); Py_CLEAR(call->input); }
    return PyBool_FromLong(over);
}

static PyObject *queued_add_done_callback(QueuedCall *call, PyObject *callback) {
    if (!call->callbacks && !(call->callbacks = PyList_New(0))) return NULL;
    if (PyList_Append(call->callbacks, callback)) return NULL;
    atomic_store(&call->has_callbacks, 1);
    if (atomic_load(&call->over)) run_callbacks(call); /* whoever takes the list first runs it */
    Py_RETURN_NONE;
}

static int queued_traverse(QueuedCall *call, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(call));
    Py_VISIT((PyObject *)call->queue);
    Py_VISIT(call->call);
    Py_VISIT(call->value);
    Py_VISIT(call->error);
    Py_VISIT(call->callbacks);
    Py_VISIT(call->prepared);
    Py_VISIT(call->input);
    return 0;
}

static int queued_clear(QueuedCall *call) {
    Py_CLEAR(call->call);
    Py_CLEAR(call->value);
    Py_CLEAR(call->error);
    Py_CLEAR(call->callbacks);
    Py_CLEAR(call->prepared);
    Py_CLEAR(call->program);
    Py_CLEAR(call->input);
    return 0;
}

static void queued_dealloc(QueuedCall *call) {
    PyObject_GC_UnTrack((PyObject *)call);
    queued_clear(call);
    Py_XDECREF((PyObject *)call->queue);
    PyTypeObject *type = Py_TYPE(call);
    type->tp_free((PyObject *)call);
    Py_DECREF(type);
}

static PyObject *queue_submit(ProgressQueue *queue, PyObject *callable) {
    QueuedCall *call = new_call(queue);
    if (!call) return NULL;
    call->call = Py_NewRef(callable);
    return enqueue(call);
}

static PyObject *queue_drain(ProgressQueue *queue, PyObject *timeout) {
    int over = wait_until_over(queue, NULL, timeout);
    return over < 0 ? NULL : PyBool_FromLong(over);
}

static PyObject *queue_hold(ProgressQueue *queue, PyObject *holds) {
    int wanted = PyObject_IsTrue(holds);
    if (wanted < 0) return NULL;
    held = wanted ? queue : NULL;
    Py_RETURN_NONE;
}

static PyObject *queue_stop(ProgressQueue *queue, PyObject *Py_UNUSED(ignored)) {
    if (queue->fork_generation != fork_generation) { /* the thread stayed with the parent */
        queue_clear(queue);
        Py_RETURN_NONE;
    }
    pthread_mutex_lock(&queue->lock);
    int joins = queue->started && !queue->stopped;
    queue->stopped = 1;
    pthread_cond_broadcast(&queue->changed);
    pthread_cond_signal(&queue->wakes);
    pthread_mutex_unlock(&queue->lock);
    if (joins) {
        int failed = 1;
        if (!pthread_equal(pthread_self(), queue->thread)) {
            Py_BEGIN_ALLOW_THREADS
            /* Not pthread_timedjoin_np: it goes by the clock that an administrator may set back. */
            double end_s = now_s() + 1.0;
            while ((failed = pthread_tryjoin_np(queue->thread, NULL)) && now_s() < end_s)
                nanosleep(&(struct timespec){0, NAP_NS}, NULL);
            Py_END_ALLOW_THREADS
        }
        if (failed) pthread_detach(queue->thread);
    }
    if (!queue->started) queue_clear(queue);
    drop_finished(NULL);
    Py_RETURN_NONE;
}

static PyObject *queue_pending(ProgressQueue *queue, void *Py_UNUSED(ignored)) { return PyBool_FromLong(atomic_load(&queue->pending)); }

static int queue_init(ProgressQueue *queue, PyObject *args, PyObject *Py_UNUSED(keywords)) {
    PyObject *endpoint, *failure, *check;
    if (queue->endpoint) { PyErr_SetString(PyExc_ValueError, "a queue is made once"); return -1; }
    if (!PyArg_ParseTuple(args, "O!OO", endpoint_type, &endpoint, &failure, &check)) return -1;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->changed, &attributes);
    pthread_cond_init(&queue->wakes, NULL);
    pthread_condattr_destroy(&attributes);
    queue->endpoint = (Endpoint *)Py_NewRef(endpoint);
    queue->failure = Py_NewRef(failure);
    queue->check = Py_NewRef(check);
    queue->fork_generation = fork_generation;
    return 0;
}

static int queue_traverse(ProgressQueue *queue, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(queue));
    Py_VISIT((PyObject *)queue->endpoint);
    Py_VISIT(queue->failure);
    Py_VISIT(queue->check);
    return 0;
}

static void queue_dealloc(ProgressQueue *queue) {
    PyObject_GC_UnTrack((PyObject *)queue);
    queue_clear(queue);
    if (queue->endpoint && queue->fork_generation == fork_generation) {
        pthread_mutex_destroy(&queue->lock);
        pthread_cond_destroy(&queue->changed);
        pthread_cond_destroy(&queue->wakes);
    }
    Py_CLEAR(queue->endpoint);
    PyTypeObject *type = Py_TYPE(queue);
    type->tp_free((PyObject *)queue);
    Py_DECREF(type);
}

static PyMethodDef queued_methods[] = {
    {"done", (PyCFunction)queued_done, METH_NOARGS, "Whether the call is over."},
    {"wait", (PyCFunction)queued_wait, METH_O, "Wait until the call is over; False if some seconds were not enough."},
    {"add_done_callback", (PyCFunction)queued_add_done_callback, METH_O, "Call this once the call is over."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef queued_members[] = {
    {"value", T_OBJECT, offsetof(QueuedCall, value), READONLY, "The result."},
    {"error", T_OBJECT, offsetof(QueuedCall, error), READONLY, "The exception that the call ended with."},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot queued_slots[] = {
    {Py_tp_dealloc, queued_dealloc}, {Py_tp_methods, queued_methods}, {Py_tp_members, queued_members},
    {Py_tp_traverse, queued_traverse}, {Py_tp_clear, queued_clear}, {Py_tp_doc, "A call in the progress queue."}, {0, NULL},
};
static PyType_Spec queued_spec = {"choreo.run.execute._core.QueuedCall", sizeof(QueuedCall), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, queued_slots};

static PyMethodDef queue_methods[] = {
    {"submit", (PyCFunction)queue_submit, METH_O, "Run a Python callable after all calls before it."},
    {"drain", (PyCFunction)queue_drain, METH_O, "Wait until no call is pending; False if some seconds were not enough."},
    {"hold", (PyCFunction)queue_hold, METH_O, "Whether calls of this thread wait until somebody waits for them."},
    {"stop", (PyCFunction)queue_stop, METH_NOARGS, "Take no more calls, and end the thread."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef queue_getters[] = {
    {"pending", (getter)queue_pending, NULL, "Whether calls wait or run.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot queue_slots[] = {
    {Py_tp_new, PyType_GenericNew}, {Py_tp_init, queue_init}, {Py_tp_dealloc, queue_dealloc}, {Py_tp_methods, queue_methods},
    {Py_tp_getset, queue_getters}, {Py_tp_traverse, queue_traverse}, {Py_tp_clear, queue_clear},
    {Py_tp_doc, "Asynchronous calls, run in order."}, {0, NULL},
};
static PyType_Spec queue_spec = {"choreo.run.execute._core.ProgressQueue", sizeof(ProgressQueue), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, queue_slots};

/* The progress queue: asynchronous calls, run in the order in which they were made.
 *
 * A separate thread runs them. A cached call needs no interpreter, so it runs while Python computes. Every other call is a
 * Python callable, for which the thread takes the GIL. Whoever waits for a call runs those before it and then the call itself,
 * unless somebody is already running one. Only one call runs at a time, which keeps them in order. A call made while the queue
 * is held does not wake the thread. That saves a thread switch if the caller is about to wait anyway.
 *
 * Lock order: a thread that holds `lock` never waits for the GIL.
 */
#include <signal.h>
#include <sys/mman.h>

#define WAKE_NS 50000000 /* how long somebody waits for a call before looking for signals */
#define SPARE_BYTES (4 << 20)
#define NAP_NS 50000     /* before trying again, while a call of another thread is under way */

typedef struct ProgressQueue ProgressQueue;

typedef struct QueuedCall {
    PyObject_HEAD
    ProgressQueue *queue;
    struct QueuedCall *next;
    _Atomic int over, has_callbacks;
    PyObject *call; /* a Python callable; NULL: a cached call */
    PyObject *value, *error, *callbacks;
    PyObject *prepared, *program, *input; /* of a cached call */
    Task task;
    uint64_t signature;
    double timeout;
    int stages;
} QueuedCall;

struct ProgressQueue {
    PyObject_HEAD
    Endpoint *endpoint;
    PyObject *failure, *check; /* makes the exception of a call that failed; raises why no call is possible any more */
    pthread_mutex_t lock;
    pthread_cond_t changed, wakes; /* for whoever waits for a call; for the thread */
    QueuedCall *first, *last; /* that have not begun */
    _Atomic int pending;      /* calls that have not begun or that run */
    int running, stopped, started, fork_generation;
    int due; /* whether the thread is to run what is there */
    pthread_t thread;
};

static PyTypeObject *queued_call_type, *progress_queue_type;
static _Thread_local ProgressQueue *held; /* what this thread puts there waits until somebody waits for it */

/* Calls that are over, of which the queue still has a reference. Only who holds the GIL can give it back. */
static QueuedCall *_Atomic finished;

static int drop_finished(void *Py_UNUSED(ignored)) {
    QueuedCall *one = atomic_exchange(&finished, NULL);
    while (one) {
        QueuedCall *next = one->next;
        Py_DECREF((PyObject *)one);
        one = next;
    }
    return 0;
}

static void drop_soon(QueuedCall *call) {
    QueuedCall *before = atomic_load(&finished);
    do call->next = before;
    while (!atomic_compare_exchange_weak(&finished, &before, call));
    if (!before) Py_AddPendingCall(drop_finished, NULL);
}

static void run_callbacks(QueuedCall *call) {
    PyObject *callbacks = call->callbacks;
    call->callbacks = NULL;
    for (Py_ssize_t i = 0; callbacks && i < PyList_GET_SIZE(callbacks); i++) {
        PyObject *result = PyObject_CallNoArgs(PyList_GET_ITEM(callbacks, i));
        if (!result) PyErr_WriteUnraisable(PyList_GET_ITEM(callbacks, i));
        Py_XDECREF(result);
    }
    Py_XDECREF(callbacks);
}

/* The exception that is being raised, as the error of a call. */
static void keep_error(QueuedCall *call) {
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace && error) PyException_SetTraceback(error, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    Py_XSETREF(call->error, error);
}

/* Run a cached call. If it is interrupted by a signal, this returns 1 and the exception is set. */
static int run_queued_task(QueuedCall *call, int in_interpreter) {
    ProgressQueue *queue = call->queue;
    Endpoint *here = queue->endpoint;
    while (!claim(here)) { /* the program makes calls from several threads */
        PyThreadState *state = in_interpreter ? PyEval_SaveThread() : NULL;
        nanosleep(&(struct timespec){0, NAP_NS}, NULL);
        if (state) PyEval_RestoreThread(state);
    }
    int usable = here->peers && here->header && !atomic_load(&here->header->outcome), outcome = OK;
    if (usable) outcome = run_task(here, &call->task, here->call + 1, call->signature, call->timeout, call->stages, in_interpreter);
    int culprit = here->culprit, failed_op = here->failed_op;
    unclaim(here);
    if (usable && outcome == OK) return 0;
    PyGILState_STATE gil = PyGILState_Ensure();
    if (outcome == INTERRUPTED) {
        keep_error(call);
        if (call->error) PyErr_SetObject((PyObject *)Py_TYPE(call->error), call->error);
    } else {
        PyObject *error = usable ? PyObject_CallFunction(queue->failure, "O(iii)", call->prepared, outcome, culprit, failed_op)
                                 : PyObject_CallNoArgs(queue->check);
        if (error && !PyExceptionInstance_Check(error)) {
            Py_CLEAR(error);
            PyErr_SetString(PyExc_RuntimeError, "this communicator is closed");
        }
        if (error) Py_XSETREF(call->error, error);
        else keep_error(call);
    }
    PyGILState_Release(gil);
    return outcome == INTERRUPTED;
}

/* Run the next call, if there is one and nobody runs another. Returns -1 if a signal's handler has raised. */
static int run_next(ProgressQueue *queue, int in_interpreter) {
    pthread_mutex_lock(&queue->lock);
    QueuedCall *call = queue->running ? NULL : queue->first;
    if (call) {
        queue->first = call->next;
        if (!queue->first) { queue->last = NULL; queue->due = 0; }
        queue->running = 1;
    }
    pthread_mutex_unlock(&queue->lock);
    if (!call) return 0;
    int interrupted = 0;
    if (!call->call) interrupted = run_queued_task(call, in_interpreter);
    else {
        PyGILState_STATE gil = PyGILState_Ensure();
        call->value = PyObject_CallNoArgs(call->call);
        if (!call->value) keep_error(call);
        if (call->error && in_interpreter && !PyErr_GivenExceptionMatches(call->error, PyExc_Exception)) { /* such as Ctrl-C */
            interrupted = 1;
            PyErr_SetObject((PyObject *)Py_TYPE(call->error), call->error);
        }
        Py_CLEAR(call->call);
        PyGILState_Release(gil);
    }
    pthread_mutex_lock(&queue->lock);
    queue->running = 0;
    atomic_fetch_sub(&queue->pending, 1);
    atomic_store(&call->over, 1);
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
    if (in_interpreter || atomic_load(&call->has_callbacks)) {
        PyGILState_STATE gil = PyGILState_Ensure();
        PyObject *type, *error, *trace;
        PyErr_Fetch(&type, &error, &trace);
        run_callbacks(call);
        Py_DECREF((PyObject *)call);
        PyErr_Restore(type, error, trace);
        PyGILState_Release(gil);
    } else {
        drop_soon(call);
    }
    return interrupted ? -1 : 1;
}

/* They refer to the engine, which refers to the queue. */
static int queue_clear(ProgressQueue *queue) {
    Py_CLEAR(queue->failure);
    Py_CLEAR(queue->check);
    return 0;
}

static void *run_queue(void *argument) {
    ProgressQueue *queue = argument;
    pthread_mutex_lock(&queue->lock);
    while (queue->first || queue->running || !queue->stopped) {
        if (!queue->first || queue->running || !(queue->due || queue->stopped)) { pthread_cond_wait(&queue->wakes, &queue->lock); continue; }
        pthread_mutex_unlock(&queue->lock);
        run_next(queue, 0);
        pthread_mutex_lock(&queue->lock);
    }
    pthread_mutex_unlock(&queue->lock);
    PyGILState_STATE gil = PyGILState_Ensure();
    queue_clear(queue);
    Py_DECREF((PyObject *)queue);
    PyGILState_Release(gil);
    return NULL;
}

/* A thread that begins and finds no memory ends the process, so there must be more than its stack. */
static int has_room_for_thread(void) {
    pthread_attr_t attributes;
    size_t stack = 0;
    pthread_attr_init(&attributes);
    pthread_attr_getstacksize(&attributes, &stack);
    pthread_attr_destroy(&attributes);
    void *room = mmap(NULL, stack + SPARE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return room != MAP_FAILED && !munmap(room, stack + SPARE_BYTES);
}

static int start_thread(ProgressQueue *queue) {
    sigset_t all, before;
    if (queue->started) return 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the main thread */
    Py_INCREF((PyObject *)queue);
    int failed = has_room_for_thread() ? pthread_create(&queue->thread, NULL, run_queue, queue) : ENOMEM;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        Py_DECREF((PyObject *)queue);
        PyObject *errors = PyImport_ImportModule("choreo.errors"), *kind = errors ? PyObject_GetAttrString(errors, "ChoreoError") : NULL;
        if (kind)
            PyErr_Format(kind, "the thread for asynchronous calls cannot be started: %s; allow more (ulimit -u, ulimit -v, a container's limits)",
                         strerror(failed));
        Py_XDECREF(kind);
        Py_XDECREF(errors);
        return -1;
    }
    pthread_setname_np(queue->thread, "choreo-progress");
    queue->started = 1;
    return 0;
}

static QueuedCall *new_call(ProgressQueue *queue) {
    drop_finished(NULL);
    if (queue->fork_generation != fork_generation || queue->stopped) {
        PyErr_SetString(PyExc_RuntimeError, "this communicator is closed, or was made before a fork");
        return NULL;
    }
    if (start_thread(queue)) return NULL;
    QueuedCall *call = PyObject_GC_New(QueuedCall, queued_call_type);
    if (!call) return NULL;
    memset((char *)call + sizeof(PyObject), 0, sizeof(*call) - sizeof(PyObject));
    call->queue = (ProgressQueue *)Py_NewRef((PyObject *)queue);
    PyObject_GC_Track((PyObject *)call);
    return call;
}

static PyObject *enqueue(QueuedCall *call) {
    ProgressQueue *queue = call->queue;
    Py_INCREF((PyObject *)call);
    pthread_mutex_lock(&queue->lock);
    if (queue->last) queue->last->next = call;
    else queue->first = call;
    queue->last = call;
    atomic_fetch_add(&queue->pending, 1);
    if (held != queue) queue->due = 1;
    if (queue->due && !queue->running) pthread_cond_signal(&queue->wakes);
    pthread_mutex_unlock(&queue->lock);
    return (PyObject *)call;
}

/* Let the thread run what is left; with `all`, also what was held. */
static void wake_thread(ProgressQueue *queue, int all) {
    if (!atomic_load(&queue->pending)) return;
    pthread_mutex_lock(&queue->lock);
    queue->due |= all && queue->first;
    if (queue->first && queue->due && !queue->running) pthread_cond_signal(&queue->wakes);
    pthread_mutex_unlock(&queue->lock);
}

static int wait_for_call(ProgressQueue *queue, QueuedCall *call, PyObject *timeout) {
    double seconds = timeout == Py_None ? HUGE_VAL : PyFloat_AsDouble(timeout);
    if (seconds == -1.0 && PyErr_Occurred()) return -1;
    double end = now_s() + seconds;
    for (;;) {
        if (call ? atomic_load(&call->over) : !atomic_load(&queue->pending)) return 1;
        if (queue->fork_generation != fork_generation) {
            PyErr_SetString(PyExc_RuntimeError, "this call was made before a fork, and belongs to the parent");
            return -1;
        }
        int runs = seconds == HUGE_VAL || pthread_equal(pthread_self(), queue->thread);
        int ran = runs ? run_next(queue, 1) : 0;
        if (ran < 0) return -1;
        if (ran) continue;
        if (!runs) wake_thread(queue, 1);
        double left = end - now_s();
        if (left <= 0) return 0;
        Py_BEGIN_ALLOW_THREADS
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += left < 1e-9 * WAKE_NS ? (long)(left * 1e9) : WAKE_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_mutex_lock(&queue->lock);
        if (!(call ? atomic_load(&call->over) : !atomic_load(&queue->pending)) && !(runs && queue->first && !queue->running))
            pthread_cond_timedwait(&queue->changed, &queue->lock, &until);
        pthread_mutex_unlock(&queue->lock);
        Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals()) return -1;
    }
}

/* Wait until a call is over, or until none is pending (call NULL). 1, 0 after `timeout` seconds, -1 with an exception. */
static int wait_until_over(ProgressQueue *queue, QueuedCall *call, PyObject *timeout) {
    int over = wait_for_call(queue, call, timeout);
    if (queue->fork_generation == fork_generation) wake_thread(queue, 0);
    return over;
}

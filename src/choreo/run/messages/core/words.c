/* Words of shared memory by which the ranks of one host notify each other of messages, and copies of what they send. `words.py`
 * explains the words, and does the same in Python.
 *
 * A rank writes only its own segment; the others map it read-only. A rank that notifies a peer rings the peer's doorbell: it
 * increments a word, and wakes the peer if it sleeps. A rank that waits watches the doorbells of all peers at once.
 */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>
#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "../../execute/core/copy.h"
#include "../../execute/core/scheduling.h"

#define BELL 0
#define ASLEEP 1
#define CORE 6                 /* where the rank was when it rang last, plus 1 */
#define MOST_FUTEXES 128       /* that one system call waits for */
#define LOOKS 20               /* at the bells, before the GIL is released or the clock is read */
#define RELEASE_BYTES (64 << 10) /* a longer copy lets other threads run */
#define READ_BYTES ((size_t)8 << 20) /* at once: signals are seen in between */

#define METHOD(name, function, flags, text) {name, (PyCFunction)(void (*)(void))function, flags, text}

typedef _Atomic uint64_t Word;

/* As in linux/futex.h since 5.16. */
struct waited { uint64_t value, address; uint32_t flags, reserved; };
#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
#define FUTEX_32_SHARED 2

typedef struct { Py_buffer map; Word *ours; const Word *theirs; } Channel; /* ours is NULL: not on this host */

typedef struct {
    PyObject_HEAD
    int rank, world, mapped, alone; /* alone: every rank of the host has a core of its own */
    Patience patience;
    _Atomic int no_waitv;
    Py_buffer own;
    Word *local; /* the bell of this process's own threads */
    size_t words;
    Channel *channels;
} Words;

static void wake(Word *bell) { syscall(SYS_futex, (uint32_t *)bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

static void words_release(Words *self) {
    for (int peer = 0; self->channels && peer < self->world; peer++)
        if (self->channels[peer].theirs && peer != self->rank) PyBuffer_Release(&self->channels[peer].map);
    free(self->channels);
    self->channels = NULL;
    if (self->mapped) PyBuffer_Release(&self->own);
    self->mapped = 0;
}

static int fits(const Py_buffer *map, unsigned long long at, size_t bytes) {
    return at % 64 == 0 && at <= (size_t)map->len && bytes <= (size_t)map->len - at && (uintptr_t)map->buf % 64 == 0;
}

static int words_init(Words *self, PyObject *args, PyObject *Py_UNUSED(keywords)) {
    /* rank, own segment, where its channels begin, peers, bytes from channel to channel, words of a channel, whether every rank has a core of its
     * own. A peer is
     * (segment, where its channels begin), or None if it is on another host. */
    PyObject *own, *peers;
    unsigned long long at, stride, words;
    int rank, alone;
    if (self->channels) { PyErr_SetString(PyExc_ValueError, "this is made once"); return -1; }
    if (!PyArg_ParseTuple(args, "iOKO!KKp", &rank, &own, &at, &PyList_Type, &peers, &stride, &words, &alone)) return -1;
    int world = (int)PyList_GET_SIZE(peers);
    if (rank < 0 || rank >= world || stride % 64 || words <= ASLEEP || words > stride / 8 || stride > SIZE_MAX / (size_t)world) {
        PyErr_SetString(PyExc_ValueError, "the rank is none of the world's, or channels overlap");
        return -1;
    }
    if (PyObject_GetBuffer(own, &self->own, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)) return -1;
    self->mapped = 1;
    self->rank = rank;
    self->world = world;
    self->alone = alone;
    atomic_init(&self->patience.ns, SPIN_NS);
    self->words = words;
    size_t bytes = stride * (size_t)world;
    if (!fits(&self->own, at, bytes)) { PyErr_SetString(PyExc_ValueError, "the own segment is too small"); return -1; }
    self->channels = calloc((size_t)world, sizeof(Channel));
    if (!self->channels) { PyErr_NoMemory(); return -1; }
    self->local = (Word *)((char *)self->own.buf + at + (size_t)rank * stride);
    for (int peer = 0; peer < world; peer++) {
        Channel *channel = &self->channels[peer];
        PyObject *map, *item = PyList_GET_ITEM(peers, peer);
        unsigned long long there;
        if (item == Py_None || peer == rank) continue;
        if (!PyTuple_Check(item)) { PyErr_SetString(PyExc_TypeError, "a peer is a tuple"); return -1; }
        if (!PyArg_ParseTuple(item, "OK", &map, &there)) return -1;
        if (PyObject_GetBuffer(map, &channel->map, PyBUF_C_CONTIGUOUS)) return -1;
        if (!fits(&channel->map, there, bytes)) {
            PyBuffer_Release(&channel->map);
            PyErr_Format(PyExc_ValueError, "the segment of rank %d is too small", peer);
            return -1;
        }
        channel->theirs = (const Word *)((const char *)channel->map.buf + there + (size_t)rank * stride);
        channel->ours = (Word *)((char *)self->own.buf + at + (size_t)peer * stride);
    }
    return 0;
}

/* The channel and word that the first two arguments name. */
static Channel *find(Words *self, PyObject *const *args, Py_ssize_t given, Py_ssize_t wanted, size_t *word) {
    if (given != wanted) { PyErr_SetString(PyExc_TypeError, "wrong number of arguments"); return NULL; }
    long peer = PyLong_AsLong(args[0]), number = PyLong_AsLong(args[1]);
    if (PyErr_Occurred()) return NULL;
    if (!self->channels || peer < 0 || peer >= self->world || !self->channels[peer].ours || number < 0 || (size_t)number >= self->words) {
        PyErr_SetString(PyExc_IndexError, "there is no such word");
        return NULL;
    }
    *word = (size_t)number;
    return &self->channels[peer];
}

static PyObject *words_read(Words *self, PyObject *const *args, Py_ssize_t count) {
    size_t word;
    Channel *channel = find(self, args, count, 2, &word);
    return channel ? PyLong_FromUnsignedLongLong(atomic_load_explicit(&channel->theirs[word], memory_order_seq_cst)) : NULL;
}

static PyObject *words_write(Words *self, PyObject *const *args, Py_ssize_t count) {
    size_t word;
    Channel *channel = find(self, args, count, 3, &word);
    if (!channel) return NULL;
    uint64_t value = PyLong_AsUnsignedLongLong(args[2]);
    if (value == (uint64_t)-1 && PyErr_Occurred()) return NULL;
    atomic_store_explicit(&channel->ours[word], value, memory_order_seq_cst);
    Py_RETURN_NONE;
}

static void ring(Channel *channel) {
    atomic_store_explicit(&channel->ours[CORE], (uint64_t)sched_getcpu() + 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&channel->ours[BELL], 1, memory_order_seq_cst);
    if (atomic_load_explicit(&channel->theirs[ASLEEP], memory_order_seq_cst)) wake(&channel->ours[BELL]);
}

static PyObject *words_tell(Words *self, PyObject *const *args, Py_ssize_t count) {
    PyObject *written = words_write(self, args, count);
    if (written) ring(&self->channels[PyLong_AsLong(args[0])]);
    return written;
}

static PyObject *words_wake_threads(Words *self, PyObject *Py_UNUSED(ignored)) {
    if (!self->channels) Py_RETURN_NONE;
    atomic_fetch_add_explicit(self->local, 1, memory_order_seq_cst);
    if (self->local[ASLEEP]) wake(self->local);
    Py_RETURN_NONE;
}

/* Bells only count up, so their sum changes with every ring. */
static uint64_t sum_of_bells(const Words *self) {
    uint64_t sum = atomic_load_explicit(self->local, memory_order_seq_cst);
    for (int peer = 0; peer < self->world; peer++)
        if (self->channels[peer].theirs) sum += atomic_load_explicit(&self->channels[peer].theirs[BELL], memory_order_acquire);
    return sum;
}

static PyObject *words_bells(Words *self, PyObject *Py_UNUSED(ignored)) {
    return PyLong_FromUnsignedLongLong(self->channels ? sum_of_bells(self) : 0);
}

static void set_asleep(Words *self, int64_t change) {
    atomic_fetch_add_explicit(&self->local[ASLEEP], (uint64_t)change, memory_order_seq_cst); /* several threads may sleep */
    for (int peer = 0; peer < self->world; peer++)
        if (self->channels[peer].ours) atomic_fetch_add_explicit(&self->channels[peer].ours[ASLEEP], (uint64_t)change, memory_order_seq_cst);
}

/* Sleep until a bell rings. */
static void sleep_for(Words *self, uint64_t sum, double seconds) {
    struct waited waits[MOST_FUTEXES];
    int count = 0;
    ask_for_short_slice();
    set_asleep(self, 1);
    uint64_t seen = atomic_load_explicit(self->local, memory_order_seq_cst), all = seen;
    waits[count++] = (struct waited){(uint32_t)seen, (uint64_t)(uintptr_t)self->local, FUTEX_32_SHARED, 0};
    for (int peer = 0; peer < self->world; peer++) {
        const Word *bell = self->channels[peer].theirs;
        if (!bell) continue;
        all += seen = atomic_load_explicit(&bell[BELL], memory_order_seq_cst);
        if (count < MOST_FUTEXES) waits[count++] = (struct waited){(uint32_t)seen, (uint64_t)(uintptr_t)bell, FUTEX_32_SHARED, 0};
    }
    if (all == sum) {
        struct timespec end;
        clock_gettime(CLOCK_MONOTONIC, &end);
        uint64_t nanoseconds = (uint64_t)end.tv_nsec + (uint64_t)(seconds * 1e9);
        end.tv_sec += (time_t)(nanoseconds / 1000000000);
        end.tv_nsec = (long)(nanoseconds % 1000000000);
        if (!self->no_waitv && syscall(SYS_futex_waitv, waits, count, 0, &end, CLOCK_MONOTONIC) < 0 && errno == ENOSYS)
            self->no_waitv = 1;
        if (self->no_waitv) { /* before Linux 5.16: one bell at a time, so look again soon */
            struct timespec most = {0, count > 2 ? 100000 : (long)(seconds < 1 ? seconds * 1e9 : 999999999)};
            struct waited *last = &waits[count - 1];
            syscall(SYS_futex, (uint32_t *)(uintptr_t)last->address, FUTEX_WAIT, (uint32_t)last->value, &most, NULL, 0);
        }
    }
    set_asleep(self, -1);
}

/* Is no peer on the core of this thread? If one is, it needs the core. */
static int has_own_core(const Words *self) {
    uint64_t core = (uint64_t)sched_getcpu() + 1;
    for (int peer = 0; peer < self->world; peer++)
        if (self->channels[peer].theirs && atomic_load_explicit(&self->channels[peer].theirs[CORE], memory_order_relaxed) == core) return 0;
    return 1;
}

/* Spin for as long as that has paid off lately, then sleep. A rank never yields: on a busy machine that costs it its turn. */
static PyObject *words_wait(Words *self, PyObject *args) {
    unsigned long long sum;
    double seconds;
    if (!PyArg_ParseTuple(args, "Kd", &sum, &seconds)) return NULL;
    if (!self->channels) Py_RETURN_NONE;
    for (int look = 0; look < LOOKS && self->alone; look++, relax())
        if (sum_of_bells(self) != sum) Py_RETURN_NONE;
    Py_BEGIN_ALLOW_THREADS
    int64_t began = now_ns(), now = began, until = began;
    if (self->alone && has_own_core(self)) until += atomic_load_explicit(&self->patience.ns, memory_order_relaxed);
    int rung = 0;
    while (now < until && !rung) {
        for (int look = 0; look < LOOKS && !(rung = sum_of_bells(self) != sum); look++) relax();
        now = now_ns();
    }
    if (!rung) sleep_for(self, sum, seconds);
    learn_patience(&self->patience, (rung ? now : now_ns()) - began, rung);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static void words_dealloc(Words *self) {
    words_release(self);
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

/* Copies. */

static PyObject *copy(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer into, from;
    int shared = 0; /* a peer has read what is overwritten */
    if (!PyArg_ParseTuple(args, "w*y*|p", &into, &from, &shared)) return NULL;
    void (*copies)(char *, const char *, size_t) = shared ? share_bytes : copy_bytes;
    int fine = into.len == from.len;
    if (fine && into.len < RELEASE_BYTES) copies(into.buf, from.buf, (size_t)into.len);
    else if (fine) {
        Py_BEGIN_ALLOW_THREADS
        copies(into.buf, from.buf, (size_t)into.len);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&into);
    PyBuffer_Release(&from);
    if (!fine) { PyErr_SetString(PyExc_ValueError, "the lengths differ"); return NULL; }
    Py_RETURN_NONE;
}

static PyObject *address_of(PyObject *Py_UNUSED(self), PyObject *given) {
    Py_buffer view;
    if (PyObject_GetBuffer(given, &view, PyBUF_SIMPLE)) return NULL;
    PyObject *found = PyLong_FromVoidPtr(view.buf);
    PyBuffer_Release(&view);
    return found;
}

static PyObject *memory_at(PyObject *Py_UNUSED(self), PyObject *args) {
    unsigned long long address;
    Py_ssize_t length;
    if (!PyArg_ParseTuple(args, "Kn", &address, &length)) return NULL;
    if (length < 0) { PyErr_SetString(PyExc_ValueError, "a length is not negative"); return NULL; }
    return PyMemoryView_FromMemory(length ? (char *)(uintptr_t)address : "", length, PyBUF_WRITE);
}

static PyObject *read_process(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer into;
    int pid, failed = 0;
    unsigned long long address;
    if (!PyArg_ParseTuple(args, "w*iK", &into, &pid, &address)) return NULL;
    char *at = into.buf;
    for (size_t left = (size_t)into.len; left && !failed;) {
        size_t part = left < READ_BYTES ? left : READ_BYTES;
        struct iovec mine = {at, part}, theirs = {(void *)(uintptr_t)address, part};
        ssize_t got;
        Py_BEGIN_ALLOW_THREADS
        got = process_vm_readv(pid, &mine, 1, &theirs, 1, 0);
        failed = got <= 0 ? (got < 0 ? errno : EIO) : 0;
        Py_END_ALLOW_THREADS
        if (failed == EINTR) failed = 0;
        else if (!failed) { at += got; address += (uint64_t)got; left -= (size_t)got; }
    }
    PyBuffer_Release(&into);
    if (!failed) Py_RETURN_NONE;
    errno = failed;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyMethodDef words_methods[] = {
    METHOD("read", words_read, METH_FASTCALL, "A word that a peer tells us."),
    METHOD("write", words_write, METH_FASTCALL, "Write a word for a peer."),
    METHOD("tell", words_tell, METH_FASTCALL, "Write a word for a peer, and ring its bell."),
    METHOD("bells", words_bells, METH_NOARGS, "How often all bells have rung."),
    METHOD("wait", words_wait, METH_VARARGS, "Wait until a bell rings."),
    METHOD("wake_threads", words_wake_threads, METH_NOARGS, "Wake this process's own threads."),
    {NULL, NULL, 0, NULL},
};
static PyType_Slot words_slots[] = {
    {Py_tp_new, PyType_GenericNew}, {Py_tp_init, words_init}, {Py_tp_dealloc, words_dealloc}, {Py_tp_methods, words_methods},
    {Py_tp_doc, "The words by which ranks of one host tell each other of messages."}, {0, NULL},
};
static PyType_Spec words_spec = {"choreo.run.messages._core.Words", sizeof(Words), 0, Py_TPFLAGS_DEFAULT, words_slots};

#include "ring.h"

static PyMethodDef functions[] = {
    METHOD("copy", copy, METH_VARARGS, "Copy bytes."),
    METHOD("address_of", address_of, METH_O, "Where a buffer is."),
    METHOD("memory_at", memory_at, METH_VARARGS, "The bytes at an address of this process."),
    METHOD("read_process", read_process, METH_VARARGS, "Read memory of another process."),
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_core", "Words and copies for messages.", -1, functions, NULL, NULL, NULL, NULL};

/* Add a type to the module; NULL if that fails. */
static PyTypeObject *add_type(PyObject *made, const char *name, PyType_Spec *spec) {
    PyObject *type = PyType_FromSpec(spec);
    if (type && PyModule_AddObjectRef(made, name, type)) Py_CLEAR(type);
    return (PyTypeObject *)type; /* which lives as long as the process */
}

PyMODINIT_FUNC PyInit__core(void) {
    PyObject *made = PyModule_Create(&module);
    if (!made) return NULL;
    words_type = add_type(made, "Words", &words_spec);
    if (!words_type || !add_type(made, "RingReader", &reader_spec) || !add_type(made, "RingWriter", &writer_spec)) Py_CLEAR(made);
    return made;
}

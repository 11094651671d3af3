/* The Python type Endpoint: one rank's end of a communicator. */
static PyTypeObject *endpoint_type;

static PyObject *run_claimed(Endpoint *here, PyObject *const *args) {
    /* call, signature, program, input, work, dtype, operation, timeout, whether data is staged */
    if (!PyObject_TypeCheck(args[2], program_type)) { PyErr_SetString(PyExc_TypeError, "run takes a Program"); return NULL; }
    Program *program = (Program *)args[2];
    uint64_t number[9] = {0};
    for (int i = 0; i < 9; i++)
        if (i < 2 || i == 5 || i == 6) {
            number[i] = PyLong_AsUnsignedLongLong(args[i]);
            if (number[i] == (uint64_t)-1 && PyErr_Occurred()) {
                if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return NULL;
                PyErr_SetString(PyExc_ValueError, "a number is negative or too large");
                return NULL;
            }
        }
    double timeout = PyFloat_AsDouble(args[7]);
    if (timeout == -1.0 && PyErr_Occurred()) return NULL;
    int stages = PyObject_IsTrue(args[8]), one = args[3] == args[4];
    if (stages < 0) return NULL;
    if (number[0] <= here->call || number[0] >> (64 - MESSAGE_BITS) || timeout != timeout) {
        PyErr_SetString(PyExc_ValueError, "calls are numbered upwards from 1, and their timeout is a number");
        return NULL;
    }
    if (atomic_load(&here->header->outcome)) /* a call failed; nothing can be relied on after it */
        return Py_BuildValue("iii", (int)atomic_load(&here->header->outcome), (int)atomic_load(&here->header->culprit), -1);
    Py_buffer views[2] = {{0}, {0}}; /* work, input */
    if (args[4] != Py_None && PyObject_GetBuffer(args[4], &views[0], PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)) return NULL;
    if (!one && args[3] != Py_None && PyObject_GetBuffer(args[3], &views[1], PyBUF_C_CONTIGUOUS)) {
        PyBuffer_Release(&views[0]);
        return NULL;
    }
    if (one) { views[1].buf = views[0].buf; views[1].len = views[0].len; }
    PyObject *result = NULL;
    const char *wrong = check_arguments(here, program, views[0].buf ? views[0].len : 0, views[1].buf ? views[1].len : 0, number[5], number[6], stages);
    if (!wrong) wrong = take_scratch(here, program);
    if (wrong) PyErr_SetString(PyExc_ValueError, wrong);
    else {
        Task task = {.program = program, .input = views[1].buf, .work = views[0].buf, .uncached = is_uncached(program, (size_t)views[0].len),
                     .kernel = KERNELS[number[5]][number[6]], .item = ITEM[number[5]]};
        result = execute(here, &task, number[0], number[1], timeout, stages);
    }
    PyBuffer_Release(&views[0]);
    PyBuffer_Release(&views[1]);
    return result;
}

static PyObject *endpoint_run(Endpoint *here, PyObject *const *args, Py_ssize_t count) {
    if (count != 9) { PyErr_SetString(PyExc_TypeError, "run takes 9 arguments"); return NULL; }
    if (!here->peers || !here->header) { PyErr_SetString(PyExc_ValueError, "this communicator is closed"); return NULL; }
    if (here->fork_generation != fork_generation) {
        PyErr_SetString(PyExc_RuntimeError, "this communicator was made before a fork, and belongs to the parent");
        return NULL;
    }
    if (!claim(here)) { PyErr_SetString(PyExc_RuntimeError, "another thread is in a call of this communicator"); return NULL; }
    PyObject *result = run_claimed(here, args);
    unclaim(here);
    return result;
}

static void free_streams(Peer *other) {
    for (int i = 0; i < other->num_streams; i++) {
        free_seal(other->streams[i].seal);
        free(other->streams[i].queue);
        free(other->streams[i].numbers);
    }
    free(other->streams);
    other->num_streams = 0;
    other->streams = NULL;
}

static void release(Endpoint *here) {
    int ours = here->fork_generation == fork_generation; /* not a copy that a fork has made */
    if (here->peers && here->header && ours) {
        if (!atomic_load(&here->header->outcome)) {
            here->call = here->done;
            give_up(here, LEFT, here->rank);
            here->in_interpreter = 1;
            here->thread_state = NULL;
            say_goodbye(here, LEFT, (uint64_t)here->rank, here->done);
        }
    }
    if (here->peers)
        for (int peer = 0; peer < here->world; peer++) {
            Peer *other = &here->peers[peer];
            if (other->header) PyBuffer_Release(&other->map);
            if (other->pidfd >= 0) close(other->pidfd);
            Py_CLEAR(other->control);
            free_streams(other);
        }
    free(here->peers);
    free(here->polled_peers);
    free(here->polled_ranks);
    free(here->scratch);
    free(here->buffer);
    free(here->stream_buffers);
    free(here->polled_streams);
    free(here->watched);
    here->watched = NULL;
    here->stream_buffers = NULL;
    here->polled_streams = NULL;
    here->peers = NULL;
    here->polled_peers = NULL;
    here->polled_ranks = NULL;
    here->scratch = here->buffer = NULL;
    here->scratch_room = 0;
    here->world = 0;
    here->header = NULL;
    if (here->mapped) PyBuffer_Release(&here->own);
    here->mapped = 0;
}

static PyObject *endpoint_close(Endpoint *here, PyObject *Py_UNUSED(ignored)) {
    int ours = here->fork_generation == fork_generation;
    if (ours && !claim(here)) {
        PyErr_SetString(PyExc_RuntimeError, "another thread is in a call of this communicator");
        return NULL;
    }
    release(here);
    if (ours) unclaim(here);
    Py_RETURN_NONE;
}

static void endpoint_dealloc(Endpoint *here) {
    release(here);
    PyTypeObject *type = Py_TYPE(here);
    type->tp_free((PyObject *)here);
    Py_DECREF(type);
}

/* Where the staging begins; 0 if a segment of this length is too small. */
static size_t staging_offset(int world, unsigned long long stage_bytes, Py_ssize_t length) {
    if (world <= 0 || world > UINT16_MAX) return 0;
    size_t at = sizeof(Header) + (sizeof(Channel) * (size_t)world + PAGE - 1) / PAGE * PAGE;
    return stage_bytes <= INT64_MAX / 4 && (size_t)length >= at && stage_bytes <= (size_t)length - at ? at : 0;
}

static int belongs_to(const Py_buffer *map, const Endpoint *here, int rank) {
    const Header *header = map->buf;
    return (uintptr_t)map->buf % 64 == 0 && header->magic == MAGIC && header->rank == (uint32_t)rank &&
           header->world == (uint32_t)here->world && header->stage_bytes == here->stage_bytes && header->bytes == (uint64_t)map->len;
}

/* A stream is a descriptor; or, where it is sealed, a descriptor, the cipher, the key of what is sent and that of what comes. */
static int open_stream(Stream *stream, PyObject *given) {
    const char *cipher, *seals, *opens;
    Py_ssize_t seals_length, opens_length;
    unsigned long long rekey_records = REKEY_RECORDS;
    if (PyTuple_Check(given)) {
        if (!PyArg_ParseTuple(given, "isy#y#|K", &stream->fd, &cipher, &seals, &seals_length, &opens, &opens_length, &rekey_records)) return -1;
        int which = strcmp(cipher, "aes-128-ocb") != 0;
        if ((which && strcmp(cipher, "aes-128-gcm")) || !libcrypto.ciphers[which] || seals_length != KEY_BYTES || opens_length != KEY_BYTES || !rekey_records || !libcrypto.library) {
            PyErr_Format(PyExc_ValueError, "a sealed stream needs a cipher of libcrypto, and two keys of %d bytes", KEY_BYTES);
            return -1;
        }
        stream->seal = new_seal(which, seals, opens, rekey_records);
        if (!stream->seal) { PyErr_NoMemory(); return -1; }
    } else {
        long descriptor = PyLong_AsLong(given);
        if (descriptor == -1 && PyErr_Occurred()) return -1;
        stream->fd = descriptor > INT32_MAX ? -1 : (int)descriptor;
    }
    if (stream->fd < 0) PyErr_SetString(PyExc_ValueError, "a stream is a descriptor");
    return stream->fd < 0 ? -1 : 0;
}

static int open_streams(Peer *other, PyObject *descriptors) {
    Py_ssize_t count = PyTuple_GET_SIZE(descriptors);
    if (count > MAX_STREAMS) { PyErr_Format(PyExc_ValueError, "a peer has at most %d streams", MAX_STREAMS); return -1; }
    if (!count) return 0;
    other->streams = calloc((size_t)count, sizeof(Stream));
    if (!other->streams) { PyErr_NoMemory(); return -1; }
    other->num_streams = (int)count;
    for (Py_ssize_t i = 0; i < count; i++)
        if (open_stream(&other->streams[i], PyTuple_GET_ITEM(descriptors, i))) return -1;
    return 0;
}

static int endpoint_init(Endpoint *here, PyObject *args, PyObject *Py_UNUSED(keywords)) {
    /* rank, world, own segment, bytes of its staging, peers, spins, whether ranks of this host are in several scheduling groups.
     * A peer on this host is (segment, pid, pidfd, ()). On another one it is (None, pid, the descriptor of its control
     * connection, streams, the connection itself). */
    static uint64_t serial;
    PyObject *own, *peers;
    int rank, world, spins, apart = 0;
    unsigned long long stage_bytes;
    if (here->mapped || here->peers) { PyErr_SetString(PyExc_ValueError, "an endpoint is made once"); return -1; }
    if (!PyArg_ParseTuple(args, "iiOKO!i|p", &rank, &world, &own, &stage_bytes, &PyList_Type, &peers, &spins, &apart)) return -1;
    if (rank < 0 || rank >= world || PyList_GET_SIZE(peers) != world) {
        PyErr_SetString(PyExc_ValueError, "there must be one peer a rank");
        return -1;
    }
    if (PyObject_GetBuffer(own, &here->own, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)) return -1;
    here->mapped = 1;
    here->fork_generation = fork_generation;
    here->rank = rank;
    here->world = world;
    here->spins = spins;
    here->patience.ns = SPIN_NS;
    here->apart = apart;
    here->yields = apart ? YIELDS : MAX_YIELDS;
    here->trial = FIRST_TRIAL;
    here->stage_bytes = stage_bytes;
    here->slot_bytes = stage_bytes / STAGING_SLOTS / 64 * 64;
    here->stage_at = staging_offset(world, stage_bytes, here->own.len);
    if (!here->stage_at || !belongs_to(&here->own, here, rank)) {
        PyErr_SetString(PyExc_ValueError, "the own segment has not been prepared for this communicator");
        return -1;
    }
    PyObject *threading = PyImport_ImportModule("threading");
    PyObject *thread = threading ? PyObject_CallMethod(threading, "main_thread", NULL) : NULL;
    PyObject *ident = thread ? PyObject_GetAttrString(thread, "ident") : NULL;
    Py_XDECREF(threading);
    Py_XDECREF(thread);
    if (!ident) return -1;
    here->main_thread = PyLong_AsUnsignedLong(ident);
    Py_DECREF(ident);
    if (PyErr_Occurred()) return -1;
    here->polled_peers = calloc((size_t)world, sizeof(*here->polled_peers));
    here->polled_ranks = calloc((size_t)world, sizeof(*here->polled_ranks));
    here->buffer = malloc(BUFFER_BYTES);
    here->peers = calloc((size_t)world, sizeof(Peer));
    if (!here->polled_peers || !here->polled_ranks || !here->buffer || !here->peers) { PyErr_NoMemory(); return -1; }
    for (int peer = 0; peer < world; peer++) here->peers[peer].pidfd = -1;
    size_t num_streams = 0;
    for (int peer = 0; peer < world; peer++) {
        Peer *other = &here->peers[peer];
        PyObject *map, *streams, *control = NULL, *item = PyList_GET_ITEM(peers, peer);
        int pid, pidfd;
        if (!PyTuple_Check(item)) { PyErr_SetString(PyExc_TypeError, "a peer is a tuple"); return -1; }
        if (!PyArg_ParseTuple(item, "OiiO!|O", &map, &pid, &pidfd, &PyTuple_Type, &streams, &control)) return -1;
        if (peer == rank) continue;
        if (map != Py_None) {
            if (PyObject_GetBuffer(map, &other->map, PyBUF_C_CONTIGUOUS)) return -1;
            if (staging_offset(world, stage_bytes, other->map.len) != here->stage_at || !belongs_to(&other->map, here, peer)) {
                PyErr_Format(PyExc_ValueError, "the segment of rank %d is not one of this communicator", peer);
                PyBuffer_Release(&other->map);
                return -1;
            }
            other->header = other->map.buf;
            other->to_us = (const Channel *)((const char *)other->map.buf + sizeof(Header)) + rank;
            other->from_us = (Channel *)((char *)here->own.buf + sizeof(Header)) + peer;
        }
        other->pid = pid;
        other->sleeps_often = spins < LOOKS;
        if (!other->header && open_streams(other, streams)) return -1;
        if (!other->header && control && control != Py_None) other->control = Py_NewRef(control);
        num_streams += (size_t)other->num_streams;
    }
    if (num_streams) {
        here->polled_streams = calloc(num_streams, sizeof(*here->polled_streams));
        here->stream_buffers = malloc(MAX_STREAMS * BUFFER_BYTES);
        if (!here->polled_streams || !here->stream_buffers) { PyErr_NoMemory(); return -1; }
    }
    /* Nothing can fail any more: from here on the descriptors are ours to close. */
    for (int peer = 0; peer < world; peer++) {
        PyObject *pidfd = PyTuple_GET_ITEM(PyList_GET_ITEM(peers, peer), 2);
        if (peer != rank) here->peers[peer].pidfd = (int)PyLong_AsLong(pidfd);
    }
    here->serial = ++serial;
    here->header = here->own.buf;
    return 0;
}

static PyObject *endpoint_outcome_of(Endpoint *here, PyObject *args) {
    /* Why a rank stopped, whom it blames, and in which call; None if it has not. */
    int peer;
    if (!PyArg_ParseTuple(args, "i", &peer)) return NULL;
    if (peer < 0 || peer >= here->world) { PyErr_SetString(PyExc_IndexError, "there is no such rank"); return NULL; }
    const Peer *other = &here->peers[peer];
    const Header *header = peer == here->rank ? here->header : other->header;
    uint32_t outcome = header ? atomic_load(&header->outcome) : other->outcome;
    if (!outcome) Py_RETURN_NONE;
    uint32_t culprit = header ? atomic_load(&header->culprit) : other->culprit;
    return Py_BuildValue("iiK", (int)outcome, (int)culprit, (unsigned long long)(header ? atomic_load(&header->outcome_call) : other->outcome_call));
}

static PyObject *endpoint_watch(Endpoint *here, PyObject *args) {
    /* Note from now on when the first so many operations of each call are done; 0: no longer. */
    Py_ssize_t count;
    if (!PyArg_ParseTuple(args, "n", &count)) return NULL;
    double *made = NULL;
    if (count < 0 || count > 1 << 26) { PyErr_SetString(PyExc_ValueError, "so many operations cannot be watched"); return NULL; }
    if (count && !(made = calloc((size_t)count + 1, sizeof(*made)))) return PyErr_NoMemory();
    if (!claim(here)) {
        free(made);
        PyErr_SetString(PyExc_RuntimeError, "another thread is in a call of this communicator");
        return NULL;
    }
    free(here->watched);
    here->watched = made;
    here->watched_room = count ? (size_t)count + 1 : 0;
    unclaim(here);
    Py_RETURN_NONE;
}

static PyObject *endpoint_watched(Endpoint *here, PyObject *Py_UNUSED(ignored)) {
    /* When the last call began, and when its operations were done: seconds of the monotonic clock, as doubles. */
    return PyBytes_FromStringAndSize((const char *)here->watched, here->watched ? (Py_ssize_t)(here->watched_room * sizeof(double)) : 0);
}

static PyObject *prepare_segment(PyObject *Py_UNUSED(self), PyObject *args) {
    /* Write the header of a rank's own segment, so that peers can open it. */
    PyObject *own;
    int rank, world;
    unsigned long long stage_bytes;
    if (!PyArg_ParseTuple(args, "OiiK", &own, &rank, &world, &stage_bytes)) return NULL;
    Py_buffer view;
    if (PyObject_GetBuffer(own, &view, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)) return NULL;
    size_t at = staging_offset(world, stage_bytes, view.len);
    int fine = at && rank >= 0 && rank < world && (uintptr_t)view.buf % 64 == 0;
    if (fine) {
        Header *header = view.buf;
        header->rank = (uint32_t)rank;
        header->world = (uint32_t)world;
        header->bytes = (uint64_t)view.len;
        header->stage_at = at;
        header->stage_bytes = stage_bytes;
        header->heap_at = at + stage_bytes;
        atomic_thread_fence(memory_order_release);
        header->magic = MAGIC;
    }
    PyBuffer_Release(&view);
    if (!fine) { PyErr_SetString(PyExc_ValueError, "the segment is too small, or the rank is none of the world's"); return NULL; }
    Py_RETURN_NONE;
}

static PyObject *endpoint_abort(Endpoint *here, PyObject *Py_UNUSED(ignored)) {
    atomic_store(&here->aborted, 1);
    Py_RETURN_NONE;
}

static PyMethodDef endpoint_methods[] = {
    {"run", (PyCFunction)(void (*)(void))endpoint_run, METH_FASTCALL, "Run a program; None, or (outcome, culprit, operation)."},
    {"outcome_of", (PyCFunction)endpoint_outcome_of, METH_VARARGS, "Why a rank stopped."},
    {"abort", (PyCFunction)endpoint_abort, METH_NOARGS, "End the call under way, and let none follow that waits."},
    {"watch", (PyCFunction)endpoint_watch, METH_VARARGS, "Note when operations are done."},
    {"watched", (PyCFunction)endpoint_watched, METH_NOARGS, "When they were done in the last call."},
    {"close", (PyCFunction)endpoint_close, METH_NOARGS, "Leave, and release the segments."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef endpoint_members[] = {
    {"calls", T_ULONGLONG, offsetof(Endpoint, call), READONLY, "The number of the last call."},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot endpoint_slots[] = {
    {Py_tp_new, PyType_GenericNew}, {Py_tp_init, endpoint_init}, {Py_tp_dealloc, endpoint_dealloc},
    {Py_tp_methods, endpoint_methods}, {Py_tp_members, endpoint_members},
    {Py_tp_doc, "One rank's end of a communicator."}, {0, NULL},
};
static PyType_Spec endpoint_spec = {"choreo.run.execute._core.Endpoint", sizeof(Endpoint), 0, Py_TPFLAGS_DEFAULT, endpoint_slots};

/* The ring of a channel. `ring.py` describes its contents, and does the same in Python. */
#define TAIL 2
#define HEAD 3
#define WANTS_ROOM 5
#define RESERVE_BYTES (16 << 10)
enum { UNUSED, IN_RING, BESIDE };

typedef struct { uint8_t kind, dtype; uint16_t zero; uint32_t size; int64_t tag; uint64_t length, number; } RingHeader;
_Static_assert(sizeof(RingHeader) == 32 && offsetof(RingHeader, tag) == 8, "layout");
#define START_BYTES 8 /* of the header: what an unused end has */

/* One end of a ring: of what this rank writes, or of what a peer has written. */
typedef struct {
    PyObject_HEAD
    Words *words;
    Channel *channel;
    Py_buffer ring;
    uint64_t at;    /* how far it is written, or read */
    uint64_t other; /* how far the peer has read, as far as the writer knows; the size of the reader's next message */
} RingEnd;

static PyTypeObject *words_type;

static int open_ring(RingEnd *end, PyObject *args, int writable) {
    /* the ring, the words, the peer's index */
    PyObject *ring, *words;
    int peer;
    if (end->words) { PyErr_SetString(PyExc_ValueError, "this is made once"); return -1; }
    if (!PyArg_ParseTuple(args, "OO!i", &ring, words_type, &words, &peer)) return -1;
    Words *all = (Words *)words;
    if (!all->channels || peer < 0 || peer >= all->world || !all->channels[peer].ours || all->words <= WANTS_ROOM) {
        PyErr_SetString(PyExc_IndexError, "there is no such channel");
        return -1;
    }
    if (PyObject_GetBuffer(ring, &end->ring, PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0))) return -1;
    if ((uintptr_t)end->ring.buf % 8 || end->ring.len % 8 || end->ring.len < 2 * RESERVE_BYTES) {
        PyBuffer_Release(&end->ring);
        PyErr_SetString(PyExc_ValueError, "a ring is too small, or not aligned");
        return -1;
    }
    end->words = (Words *)Py_NewRef(words);
    end->channel = &all->channels[peer];
    return 0;
}

static void ring_dealloc(RingEnd *end) {
    if (end->words) PyBuffer_Release(&end->ring);
    Py_CLEAR(end->words);
    PyTypeObject *type = Py_TYPE(end);
    type->tp_free((PyObject *)end);
    Py_DECREF(type);
}

/* Writing */

static int writer_init(RingEnd *end, PyObject *args, PyObject *Py_UNUSED(keywords)) { return open_ring(end, args, 1); }

/* Write a message, which the peer does not see yet; 0 if there is no room. `data` is NULL if it is beside the ring. */
static int put_message(RingEnd *end, RingHeader header, const void *data) {
    uint64_t room = (uint64_t)end->ring.len, reserve = data ? RESERVE_BYTES : 0, at = end->at % room;
    if (data && header.length > room) return 0;
    header.size = (uint32_t)((sizeof(header) + (data ? header.length : 0) + 7) / 8 * 8);
    uint64_t skipped = at + header.size > room ? room - at : 0, next = end->at + skipped + header.size;
    if (next - end->other > room - reserve) {
        end->other = atomic_load_explicit(&end->channel->theirs[HEAD], memory_order_seq_cst);
        if (next - end->other > room - reserve) return 0;
    }
    char *ring = end->ring.buf;
    if (skipped) {
        RingHeader unused = {.kind = UNUSED, .size = (uint32_t)skipped};
        memcpy(ring + at, &unused, START_BYTES);
        at = 0;
    }
    memcpy(ring + at, &header, sizeof(header));
    if (data && header.length) memcpy(ring + at + sizeof(header), data, header.length);
    end->at = next;
    return 1;
}

static void tell_tail(RingEnd *end) {
    atomic_store_explicit(&end->channel->ours[TAIL], end->at, memory_order_seq_cst);
    ring(end->channel);
}

static PyObject *writer_put(RingEnd *end, PyObject *args) {
    /* kind, dtype, tag, length, number, data or None */
    RingHeader header = {0};
    PyObject *data;
    long long tag;
    unsigned long long length, number;
    if (!PyArg_ParseTuple(args, "bbLKKO", &header.kind, &header.dtype, &tag, &length, &number, &data)) return NULL;
    header.tag = tag;
    header.length = length;
    header.number = number;
    if (data == Py_None) return PyBool_FromLong(put_message(end, header, NULL));
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)) return NULL;
    int fits = (uint64_t)view.len == length ? put_message(end, header, view.buf) : -1;
    PyBuffer_Release(&view);
    if (fits < 0) { PyErr_SetString(PyExc_ValueError, "the length is another"); return NULL; }
    return PyBool_FromLong(fits);
}

static PyObject *writer_send(RingEnd *end, PyObject *const *args, Py_ssize_t count) {
    /* dtype, tag, data */
    if (count != 3) { PyErr_SetString(PyExc_TypeError, "send takes 3 arguments"); return NULL; }
    long dtype = PyLong_AsLong(args[0]);
    long long tag = PyLong_AsLongLong(args[1]);
    if (PyErr_Occurred()) return NULL;
    Py_buffer view;
    if (PyObject_GetBuffer(args[2], &view, PyBUF_SIMPLE)) return NULL;
    RingHeader header = {.kind = IN_RING, .dtype = (uint8_t)dtype, .tag = tag, .length = (uint64_t)view.len};
    int fits = put_message(end, header, view.buf ? view.buf : "");
    PyBuffer_Release(&view);
    if (fits) tell_tail(end);
    return PyBool_FromLong(fits);
}

static PyObject *writer_tell(RingEnd *end, PyObject *Py_UNUSED(ignored)) {
    tell_tail(end);
    Py_RETURN_NONE;
}

static PyObject *writer_has_been_read(RingEnd *end, PyObject *to) {
    uint64_t until = PyLong_AsUnsignedLongLong(to);
    if (until == (uint64_t)-1 && PyErr_Occurred()) return NULL;
    return PyBool_FromLong(atomic_load_explicit(&end->channel->theirs[HEAD], memory_order_seq_cst) >= until);
}

static PyObject *writer_written(RingEnd *end, void *Py_UNUSED(ignored)) { return PyLong_FromUnsignedLongLong(end->at); }

/* Reading */

static int reader_init(RingEnd *end, PyObject *args, PyObject *Py_UNUSED(keywords)) { return open_ring(end, args, 0); }

static void advance(RingEnd *end) {
    end->at += end->other;
    end->other = 0;
    atomic_store_explicit(&end->channel->ours[HEAD], end->at, memory_order_seq_cst);
    if (atomic_load_explicit(&end->channel->theirs[WANTS_ROOM], memory_order_seq_cst)) ring(end->channel);
}

/* The next message: 1, 0 if there is none, -1 with an exception if it is none that a rank writes. It is copied before it is
 * checked, so that the peer cannot change it afterwards. */
static int next_message(RingEnd *end, RingHeader *header, const char **data) {
    uint64_t room = (uint64_t)end->ring.len, tail;
    while ((tail = atomic_load_explicit(&end->channel->theirs[TAIL], memory_order_seq_cst)) != end->at) {
        uint64_t at = end->at % room;
        const char *from = (const char *)end->ring.buf + at;
        memcpy(header, from, START_BYTES);
        uint64_t size = header->size;
        if (size < START_BYTES || size % 8 || size > room - at || size > tail - end->at) break;
        if (header->kind == UNUSED) {
            end->other = size;
            advance(end);
            continue;
        }
        if (size < sizeof(*header) || (header->kind != IN_RING && header->kind != BESIDE)) break;
        memcpy((char *)header + START_BYTES, from + START_BYTES, sizeof(*header) - START_BYTES);
        if (header->kind == IN_RING && header->length > size - sizeof(*header)) break;
        end->other = size;
        *data = from + sizeof(*header);
        return 1;
    }
    if (tail == end->at) return 0;
    PyErr_SetString(PyExc_ValueError, "wrote nonsense into its ring");
    return -1;
}

static PyObject *reader_look(RingEnd *end, PyObject *Py_UNUSED(ignored)) {
    RingHeader header;
    const char *data;
    int found = next_message(end, &header, &data);
    if (found < 0) return NULL;
    if (!found) Py_RETURN_NONE;
    PyObject *view = PyMemoryView_FromMemory((char *)(uintptr_t)data, header.kind == IN_RING ? (Py_ssize_t)header.length : 0, PyBUF_READ);
    if (!view) return NULL;
    return Py_BuildValue("iiLKKN", header.kind, header.dtype, (long long)header.tag, (unsigned long long)header.length,
                         (unsigned long long)header.number, view);
}

static PyObject *reader_advance(RingEnd *end, PyObject *Py_UNUSED(ignored)) {
    advance(end);
    Py_RETURN_NONE;
}

static PyObject *reader_take(RingEnd *end, PyObject *const *args, Py_ssize_t count) {
    /* dtype, tag, what to write it into */
    if (count != 3) { PyErr_SetString(PyExc_TypeError, "take takes 3 arguments"); return NULL; }
    long dtype = PyLong_AsLong(args[0]);
    long long tag = PyLong_AsLongLong(args[1]);
    if (PyErr_Occurred()) return NULL;
    RingHeader header;
    const char *data;
    int found = next_message(end, &header, &data);
    if (found < 0) return NULL;
    if (!found) Py_RETURN_NONE;
    if (header.kind != IN_RING || header.dtype != dtype || header.tag != tag) Py_RETURN_FALSE;
    Py_buffer into;
    if (PyObject_GetBuffer(args[2], &into, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)) return NULL;
    int same = (uint64_t)into.len == header.length;
    if (same && into.len) memcpy(into.buf, data, (size_t)into.len);
    PyBuffer_Release(&into);
    if (same) advance(end);
    return PyBool_FromLong(same);
}

static PyMethodDef writer_methods[] = {
    METHOD("put", writer_put, METH_VARARGS, "Write a message, which the peer does not see yet; False if there is no room."),
    METHOD("send", writer_send, METH_FASTCALL, "Write a message, and let the peer see it; False if there is no room."),
    METHOD("tell", writer_tell, METH_NOARGS, "Let the peer see what was written."),
    METHOD("has_been_read", writer_has_been_read, METH_O, "Whether the peer has read up to here."),
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef writer_getters[] = {{"written", (getter)writer_written, NULL, "How far the ring is written.", NULL}, {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot writer_slots[] = {
    {Py_tp_new, PyType_GenericNew}, {Py_tp_init, writer_init}, {Py_tp_dealloc, ring_dealloc}, {Py_tp_methods, writer_methods},
    {Py_tp_getset, writer_getters}, {Py_tp_doc, "What this rank writes for a peer."}, {0, NULL},
};
static PyType_Spec writer_spec = {"choreo.run.messages._core.RingWriter", sizeof(RingEnd), 0, Py_TPFLAGS_DEFAULT, writer_slots};

static PyMethodDef reader_methods[] = {
    METHOD("look", reader_look, METH_NOARGS, "The next message, which stays there until `advance`."),
    METHOD("advance", reader_advance, METH_NOARGS, "The message was taken: its room can be used again."),
    METHOD("take", reader_take, METH_FASTCALL, "Take the next message if it is this one; None if there is none."),
    {NULL, NULL, 0, NULL},
};
static PyType_Slot reader_slots[] = {
    {Py_tp_new, PyType_GenericNew}, {Py_tp_init, reader_init}, {Py_tp_dealloc, ring_dealloc}, {Py_tp_methods, reader_methods},
    {Py_tp_doc, "What a peer has written for this rank."}, {0, NULL},
};
static PyType_Spec reader_spec = {"choreo.run.messages._core.RingReader", sizeof(RingEnd), 0, Py_TPFLAGS_DEFAULT, reader_slots};

/* The compiled executor: runs a rank's program over shared memory and sockets, without the GIL. `twin` does the same in Python,
 * and docs/explanation/running.md explains how it works. In short:
 *
 * Every rank writes only its own segment; the others map it read-only. So a rank that wakes up after it was given up cannot
 * do any harm. In the segment of rank i, channel j holds what i tells j: a mailbox for each of the last 64 calls, and which of
 * j's messages i has consumed. A receiver waits until the mailbox's counter reaches its message, and then reads the data where
 * the sender has it. Peers on other hosts are reached through sockets.
 *
 * All calls that a rank has made are hashed into one number, the chain. Once ranks have made different calls, their chains
 * differ, and the next message between them shows it.
 *
 * A call begins only when all peers have returned from the call 64 before it, whose mailboxes it reuses. Staging has eight
 * slots, and a call that stages waits until all peers have returned from the call that last used its slot. A large call is cut
 * into parts, which alternate between two slots. There, and where arrays are read in place, the counters of consumed messages
 * say what may be overwritten.
 *
 * Every wait ends: with what is waited for, at the deadline, by a failure of a peer, or by a signal. What a peer's segment or
 * socket says is never used as a length or an address without a check.
 *
 * The headers below are parts of this one translation unit, so that the compiler can inline across them. `sockets` has those for
 * peers on other hosts, and `python` the types that Python sees.
 */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>
#include <structmember.h>
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "copy.h"
#include "scheduling.h"
#include "reductions.h"
#include "layout.h"
#include "sockets/record.h"
#include "state.h"
#include "failure_detector.h"
#include "sockets/send.h"
#include "wait.h"
#include "shared_memory.h"
#include "sockets/receive.h"
#include "program.h"
#include "staging.h"
#include "call.h"
#include "python/endpoint.h"
#include "python/progress.h"
#include "python/progress_types.h"
#include "python/call_cache.h"
#include "python/cached_method.h"

/* The layout, for the test that compares it with Python's: {"Header.magic": (offset, bytes), ...}, and {"WINDOW": 64, ...}. */

#define FIELD(type, field) {#type "." #field, offsetof(type, field), sizeof(((type *)NULL)->field)}
static const struct { const char *name; size_t offset, bytes; } FIELDS[] = {
    {"Header", 0, sizeof(Header)}, FIELD(Header, magic), FIELD(Header, rank), FIELD(Header, world), FIELD(Header, bytes),
    FIELD(Header, stage_at), FIELD(Header, stage_bytes), FIELD(Header, heap_at), FIELD(Header, outcome), FIELD(Header, culprit),
    FIELD(Header, outcome_call), FIELD(Header, returned), FIELD(Header, core), FIELD(Header, reports), FIELD(Header, calls),
    {"CallRecord", 0, sizeof(CallRecord)}, FIELD(CallRecord, number), FIELD(CallRecord, signature), FIELD(CallRecord, chain),
    {"Mailbox", 0, sizeof(Mailbox)}, FIELD(Mailbox, ready), FIELD(Mailbox, chain), FIELD(Mailbox, modes),
    FIELD(Mailbox, addresses), FIELD(Mailbox, data),
    {"Channel", 0, sizeof(Channel)}, FIELD(Channel, mailboxes), FIELD(Channel, consumed), FIELD(Channel, outcome_call),
    FIELD(Channel, outcome), FIELD(Channel, asleep),
    {"Op", 0, sizeof(Op)}, FIELD(Op, kind), FIELD(Op, flags), FIELD(Op, peer), FIELD(Op, number), FIELD(Op, step),
    FIELD(Op, guards), FIELD(Op, first_guard), FIELD(Op, at), FIELD(Op, base), FIELD(Op, there), FIELD(Op, staged), FIELD(Op, length),
    {"Guard", 0, sizeof(Guard)}, FIELD(Guard, peer), FIELD(Guard, number),
    {"Frame", 0, sizeof(Frame)}, FIELD(Frame, magic), FIELD(Frame, number), FIELD(Frame, call), FIELD(Frame, signature),
    FIELD(Frame, length),
};

#define CONSTANT(name) {#name, (unsigned long long)(name)}
static const struct { const char *name; unsigned long long value; } CONSTANTS[] = {
    CONSTANT(PAGE), CONSTANT(MAGIC), CONSTANT(FRAME), CONSTANT(MAX_STREAMS),
    CONSTANT(STRIPE_BYTES), CONSTANT(WINDOW), CONSTANT(STAGING_SLOTS), CONSTANT(INLINE_BYTES), CONSTANT(MESSAGE_BITS),
    CONSTANT(CHAIN_FACTOR), CONSTANT(INLINED), CONSTANT(ACKNOWLEDGED), CONSTANT(SLOT_BIT), CONSTANT(STAGED), CONSTANT(REGISTERED), CONSTANT(PRIVATE),
    CONSTANT(SEND), CONSTANT(RECEIVE), CONSTANT(TO_SCRATCH), CONSTANT(FROM_SCRATCH), CONSTANT(COPY), CONSTANT(NEXT_PART),
    CONSTANT(REDUCE), CONSTANT(LAST), CONSTANT(THEIR_INPUT), CONSTANT(OWN_INPUT), CONSTANT(EXPOSED), CONSTANT(ALREADY_STAGED),
    CONSTANT(TIMED_OUT), CONSTANT(PEER_DIED), CONSTANT(PEER_GAVE_UP), CONSTANT(MISMATCHED), CONSTANT(BROKEN),
    CONSTANT(INTERRUPTED), CONSTANT(LEFT), CONSTANT(ALTERED),
};

/* Add a new item to a dictionary of the module, and let go of it. */
static int set_item(PyObject *table, const char *name, PyObject *value) {
    int failed = !value || PyDict_SetItemString(table, name, value);
    Py_XDECREF(value);
    return failed;
}

static int add_layout(PyObject *made) {
    PyObject *layout = PyDict_New(), *constants = PyDict_New();
    int failed = !layout || !constants;
    for (size_t i = 0; i < sizeof(FIELDS) / sizeof(*FIELDS) && !failed; i++)
        failed = set_item(layout, FIELDS[i].name, Py_BuildValue("nn", (Py_ssize_t)FIELDS[i].offset, (Py_ssize_t)FIELDS[i].bytes));
    for (size_t i = 0; i < sizeof(CONSTANTS) / sizeof(*CONSTANTS) && !failed; i++)
        failed = set_item(constants, CONSTANTS[i].name, PyLong_FromUnsignedLongLong(CONSTANTS[i].value));
    failed = failed || PyModule_AddObjectRef(made, "LAYOUT", layout) || PyModule_AddObjectRef(made, "CONSTANTS", constants);
    Py_XDECREF(layout);
    Py_XDECREF(constants);
    return failed;
}

static PyMethodDef functions[] = {
    {"load_libcrypto", load_libcrypto, METH_VARARGS, "Find what seals streams in the library at this path."},
    {"prepare_segment", prepare_segment, METH_VARARGS, "Write the header of a rank's own segment."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_core", "Runs programs.", -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__core(void) {
    PyObject *made = PyModule_Create(&module);
    if (!made) return NULL;
    struct { const char *name; PyType_Spec *spec; PyTypeObject **kept; } types[] = {
        {"Endpoint", &endpoint_spec, &endpoint_type}, {"Program", &program_spec, &program_type}, {"QueuedCall", &queued_spec, &queued_call_type},
        {"ProgressQueue", &queue_spec, &progress_queue_type}, {"CallCache", &cache_spec, &call_cache_type},
        {"CachedMethod", &method_spec, NULL}};
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        PyObject *type = PyType_FromSpec(types[i].spec);
        if (!type || PyModule_AddObjectRef(made, types[i].name, type)) { Py_XDECREF(type); Py_DECREF(made); return NULL; }
        if (types[i].kept) *types[i].kept = (PyTypeObject *)type; /* for as long as the process lives */
        else Py_DECREF(type);
    }
    if (intern_names() || add_layout(made) || pthread_atfork(NULL, NULL, count_fork)) Py_CLEAR(made);
    return made;
}

/* The failure detector: which ranks died, gave up, left, or made another call. Also how a rank says that it has given up itself.
 *
 * Peers on this host are watched through a pidfd and their segment, peers elsewhere through their control connection. Control
 * frames are sealed, and Python reads them: it is only called when a connection has something to read.
 */
#define HEALTH_CHECK_S 0.02 /* how often a waiting rank checks on its peers */
#define SIGNAL_CHECK_S 0.05 /* and whether Python has a signal to handle */

#define ABORTED 100 /* by another thread of this rank; its peers are told that it was interrupted */

static double now_s(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Stop for good, and say so in the segment: peers on this host stop too. The first outcome stays. */
static int give_up(Endpoint *here, int outcome, int culprit) {
    here->culprit = culprit;
    if (atomic_load(&here->header->outcome)) return outcome;
    atomic_store(&here->header->culprit, (uint32_t)culprit);
    atomic_store(&here->header->outcome_call, here->call);
    atomic_store(&here->header->outcome, (uint32_t)outcome);
    for (int peer = 0; peer < here->world; peer++) {
        Channel *channel = here->peers[peer].from_us;
        if (!channel) continue;
        atomic_store(&channel->outcome_call, here->call);
        atomic_store(&channel->outcome, (uint32_t)outcome);
    }
    return outcome;
}

/* Does a peer's outcome end this call? A peer that gave up in a later call, or left after this one, has done its part. */
static int has_ended(uint32_t outcome, uint64_t in, uint64_t call) { return outcome == LEFT ? in < call : outcome && in <= call; }

static inline int has_stopped(const Channel *to_us, uint64_t call) {
    uint32_t outcome = atomic_load_explicit(&to_us->outcome, memory_order_acquire);
    return outcome && has_ended(outcome, atomic_load_explicit(&to_us->outcome_call, memory_order_relaxed), call);
}

/* Has a peer made the same calls as we, as far as it has come? */
static int made_same_calls(Endpoint *here, Peer *other) {
    uint64_t first = here->call >= WINDOW ? here->call - WINDOW + 1 : 1;
    for (uint64_t call = other->verified < first ? first : other->verified + 1; call <= here->call; call++) {
        const CallRecord *theirs = &other->header->calls[call % WINDOW];
        uint64_t number = atomic_load_explicit(&theirs->number, memory_order_acquire);
        if (number < call) return 1;
        if (number == call && here->calls[call % WINDOW] == call) {
            uint64_t chain = atomic_load_explicit(&theirs->chain, memory_order_relaxed);
            atomic_thread_fence(memory_order_acquire);
            if (atomic_load_explicit(&theirs->number, memory_order_relaxed) == call && chain != here->chains[call % WINDOW]) return 0;
        }
        other->verified = call;
    }
    return 1;
}

/* Hold the GIL for a while, in whatever way this thread can. */
static PyGILState_STATE enter_python(Endpoint *here) {
    if (here->thread_state) PyEval_RestoreThread(here->thread_state);
    return here->in_interpreter ? PyGILState_LOCKED : PyGILState_Ensure();
}
static void leave_python(Endpoint *here, PyGILState_STATE state) {
    if (!here->in_interpreter) PyGILState_Release(state);
    else if (here->thread_state) here->thread_state = PyEval_SaveThread();
}

/* Read what a peer on another host says on its control connection: why nothing more comes from it, if that is so, and why,
 * by whose fault and in which call it has given up. */
static int ask_control(Endpoint *here, Peer *other) {
    int outcome = OK;
    unsigned long long call;
    PyGILState_STATE state = enter_python(here);
    PyObject *said = PyObject_CallMethod(other->control, "look", NULL);
    if (said && PyArg_ParseTuple(said, "iIIK", &other->ended, &other->outcome, &other->culprit, &call)) {
        other->outcome_call = call;
        other->asked = 1;
    } else if (here->in_interpreter && !PyErr_ExceptionMatches(PyExc_Exception)) {
        outcome = INTERRUPTED; /* by a signal; the exception is kept for the caller */
    } else {
        PyErr_WriteUnraisable(other->control);
        other->ended = PEER_DIED;
    }
    Py_XDECREF(said);
    leave_python(here, state);
    return outcome;
}

/* What a peer on another host has said, and whether that ends this call. */
static int check_control(Endpoint *here, int peer, int readable) {
    Peer *other = &here->peers[peer];
    if (!other->control) return OK;
    if ((readable || !other->asked) && !other->ended && !other->outcome) {
        int outcome = ask_control(here, other);
        if (outcome) return outcome;
    }
    if (other->ended) return other->ended;
    return has_ended(other->outcome, other->outcome_call, here->call) ? PEER_GAVE_UP : OK;
}

/* Tell peers on other hosts that this rank has given up, or left. */
static void say_goodbye(Endpoint *here, uint32_t outcome, uint64_t culprit, uint64_t call) {
    PyGILState_STATE state = PyGILState_LOCKED;
    PyObject *type, *error, *trace;
    int entered = 0;
    for (int peer = 0; peer < here->world; peer++) {
        Peer *other = &here->peers[peer];
        if (!other->control) continue;
        if (!entered++) {
            state = enter_python(here);
            PyErr_Fetch(&type, &error, &trace);
        }
        /* If it fails, the end of the connection says the same. */
        PyObject *said = PyObject_CallMethod(other->control, "say_goodbye", "IIK", outcome, (uint32_t)culprit, (unsigned long long)call);
        if (!said && !PyErr_ExceptionMatches(PyExc_Exception)) PyErr_SetInterrupt(); /* Ctrl-C: it is raised after this */
        PyErr_Clear();
        Py_XDECREF(said);
    }
    if (!entered) return;
    PyErr_Restore(type, error, trace);
    leave_python(here, state);
}

/* Has any peer died, given up, left, or made another call? All are checked, not only the one that is waited for. Of several
 * outcomes a death is reported first. */
static int check_peers(Endpoint *here, int *culprit) {
    static const int weight[] = {[OK] = 0, [PEER_GAVE_UP] = 1, [MISMATCHED] = 2, [PEER_DIED] = 3, [ALTERED] = 4, [INTERRUPTED] = 5};
    int found = OK, count = 0;
    for (int peer = 0; peer < here->world; peer++)
        if (here->peers[peer].pidfd >= 0) {
            here->polled_peers[count] = (struct pollfd){here->peers[peer].pidfd, POLLIN, 0};
            here->polled_ranks[count++] = peer;
        }
    if (count && poll(here->polled_peers, (nfds_t)count, 0) <= 0) count = 0;
    for (int peer = 0, next = 0; peer < here->world; peer++) {
        Peer *other = &here->peers[peer];
        int outcome = OK, dead = 0;
        while (next < count && here->polled_ranks[next] < peer) next++;
        if (next < count && here->polled_ranks[next] == peer) dead = here->polled_peers[next].revents != 0;
        if (peer == here->rank) continue;
        if (!other->header) outcome = check_control(here, peer, dead);
        else {
            if (!made_same_calls(here, other)) outcome = MISMATCHED;
            else if (has_stopped(other->to_us, here->call)) outcome = PEER_GAVE_UP;
            else if (dead && !atomic_load(&other->to_us->outcome)) outcome = PEER_DIED;
        }
        if (weight[outcome] > weight[found]) { found = outcome; *culprit = outcome == INTERRUPTED ? here->rank : peer; }
    }
    return found;
}

/* Every slow loop calls this: it checks the peers, the deadline and signals. */
static int check_health(Endpoint *here, int peer, double deadline, int *culprit) {
    double time = now_s();
    if (atomic_load_explicit(&here->aborted, memory_order_relaxed)) {
        give_up(here, INTERRUPTED, *culprit = here->rank);
        return ABORTED;
    }
    *culprit = peer;
    if (time - here->checked_s > HEALTH_CHECK_S) {
        here->checked_s = time;
        int outcome = check_peers(here, culprit);
        if (outcome) return outcome;
    }
    if (time > deadline) return TIMED_OUT;
    if (here->in_main_thread && time - here->signals_s > SIGNAL_CHECK_S) {
        here->signals_s = time;
        PyEval_RestoreThread(here->thread_state);
        int raised = PyErr_CheckSignals();
        here->thread_state = PyEval_SaveThread();
        *culprit = here->rank;
        if (raised) return INTERRUPTED;
    }
    return OK;
}

/* Let other Python threads run. */
static void release_gil(Endpoint *here) {
    if (!here->thread_state && here->in_interpreter) here->thread_state = PyEval_SaveThread();
}


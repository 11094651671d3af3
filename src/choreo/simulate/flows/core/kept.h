/* What is told of every message, as columns. An alone pass fills them step by step, and needs no list of messages besides. */

/* The columns of the messages: where each field lies in a message, and how large it is. */
typedef struct { const char *name; size_t offset, size; } Field;
#define MOST_RESERVED (1 << 23)
static const Field COLUMNS[NUM_COLUMNS] = {
    {"bytes", offsetof(Message, bytes), 8},
    {"start", offsetof(Message, start), 8},
    {"out", offsetof(Message, out), 8},
    {"arrived", offsetof(Message, arrived), 8},
    {"written", offsetof(Message, written), 8},
    {"ready_cause", offsetof(Message, ready_cause), 8},
    {"start_cause", offsetof(Message, start_cause), 8},
    {"write_cause", offsetof(Message, write_cause), 8},
    {"step", offsetof(Message, step), 4},
    {"src", offsetof(Message, src), 4},
    {"dst", offsetof(Message, dst), 4},
    {"engine", offsetof(Message, engine), 4},
    {"route", offsetof(Message, route), 4},
    {"bottleneck", offsetof(Message, bottleneck), 4},
    {"reduces", offsetof(Message, reduces), 4},
};

/* Make room; at first for all steps, as if all had as many messages as this one. */
static int keep_room(Kept *kept, int64_t need) {
    if (need <= kept->room) return 0;
    int64_t room = kept->room < 1024 ? 1024 : kept->room;
    if (!kept->room && kept->steps > 0 && kept->steps < MOST_RESERVED / need) room = kept->steps * need;
    while (room < need) room *= 2;
    for (int c = 0; c < NUM_COLUMNS; c++) {
        Py_ssize_t bytes = (Py_ssize_t)(room * (int64_t)COLUMNS[c].size);
        if (!kept->columns[c] && !(kept->columns[c] = PyByteArray_FromStringAndSize(NULL, 0))) return -1;
        if (PyByteArray_Resize(kept->columns[c], bytes)) return -1;
        in_large_pages(PyByteArray_AS_STRING(kept->columns[c]), (size_t)bytes);
    }
    kept->room = room;
    return 0;
}

/* Append the messages of a step. */
static int keep_messages(Kept *kept, const Message *messages, int64_t count) {
    if (keep_room(kept, kept->count + count)) return -1;
    for (int c = 0; c < NUM_COLUMNS; c++) {
        const char *from = (const char *)messages + COLUMNS[c].offset;
        char *to = PyByteArray_AS_STRING(kept->columns[c]) + kept->count * (int64_t)COLUMNS[c].size;
        if (COLUMNS[c].size == 8)
            for (int64_t m = 0; m < count; m++, from += sizeof(Message), to += 8) memcpy(to, from, 8);
        else
            for (int64_t m = 0; m < count; m++, from += sizeof(Message), to += 4) memcpy(to, from, 4);
    }
    kept->count += count;
    return 0;
}

/* Hand the columns over. */
static PyObject *kept_columns(Kept *kept) {
    PyObject *all = keep_room(kept, 1) ? NULL : PyDict_New();
    for (int c = 0; all && c < NUM_COLUMNS; c++)
        if (PyByteArray_Resize(kept->columns[c], (Py_ssize_t)(kept->count * (int64_t)COLUMNS[c].size)) ||
            PyDict_SetItemString(all, COLUMNS[c].name, kept->columns[c]))
            Py_CLEAR(all);
    for (int c = 0; c < NUM_COLUMNS; c++) Py_CLEAR(kept->columns[c]);
    kept->room = kept->count = 0;
    return all;
}

static void free_kept(Kept *kept) {
    for (int c = 0; c < NUM_COLUMNS; c++) Py_CLEAR(kept->columns[c]);
    free(kept->step);
}

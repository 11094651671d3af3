/* The history of every message, as columns. An alone pass fills them step by step, and needs no list of messages besides. */

/* The columns of the messages: where each field lies in a message, and how large it is. */
typedef struct { const char *name; size_t offset, size; } Field;
#define MOST_RESERVED (1 << 23)
static const Field COLUMNS[NUM_COLUMNS] = {
    {"bytes", offsetof(Message, bytes), 8},
    {"start", offsetof(Message, start), 8},
    {"out", offsetof(Message, out), 8},
    {"arrived", offsetof(Message, arrived), 8},
    {"written", offsetof(Message, written), 8},
    {"ready_cause", offsetof(Message, ready_cause), 4},
    {"start_cause", offsetof(Message, start_cause), 4},
    {"write_cause", offsetof(Message, write_cause), 4},
    {"step", offsetof(Message, step), 4},
    {"src", offsetof(Message, src), 4},
    {"dst", offsetof(Message, dst), 4},
    {"route", offsetof(Message, route), 4},
    {"bottleneck", offsetof(Message, bottleneck), 4},
    {"reduces", offsetof(Message, reduces), 4},
    {"engine", offsetof(Message, engine), 4}, /* last, as an alone pass does not keep it: there is one job */
};

/* Make room; at first for all steps, as if all had as many messages as this one. */
static int keep_room(Kept *kept, int64_t need) {
    if (need <= kept->room) return 0;
    int64_t room = kept->room < 1024 ? 1024 : kept->room;
    if (!kept->room && kept->steps > 0 && kept->steps < MOST_RESERVED / need) room = kept->steps * need;
    while (room < need) room *= 2;
    for (int c = 0; c < NUM_KEPT; c++) {
        Py_ssize_t bytes = (Py_ssize_t)(room * (int64_t)COLUMNS[c].size);
        if (!kept->columns[c] && !(kept->columns[c] = PyByteArray_FromStringAndSize(NULL, 0))) return -1;
        if (PyByteArray_Resize(kept->columns[c], bytes)) return -1;
        in_large_pages(PyByteArray_AS_STRING(kept->columns[c]), (size_t)bytes);
    }
    kept->room = room;
    return 0;
}

/* The columns from the message on that comes next; there is room for the messages of a step. */
static KeptStep next_step(const Kept *kept) {
    const int64_t at = kept->count;
#define AT(type, c) ((type *)PyByteArray_AS_STRING(kept->columns[c]) + at)
    return (KeptStep){AT(double, 0),   AT(double, 1),   AT(double, 2),   AT(double, 3),   AT(double, 4),
                      AT(int32_t, 5),  AT(int32_t, 6),  AT(int32_t, 7),  AT(int32_t, 8),  AT(int32_t, 9),
                      AT(int32_t, 10), AT(int32_t, 11), AT(int32_t, 12), AT(int32_t, 13)};
#undef AT
}

/* Hand the columns over. */
static PyObject *kept_columns(Kept *kept) {
    PyObject *all = keep_room(kept, 1) ? NULL : PyDict_New();
    for (int c = 0; all && c < NUM_KEPT; c++)
        if (PyByteArray_Resize(kept->columns[c], (Py_ssize_t)(kept->count * (int64_t)COLUMNS[c].size)) ||
            PyDict_SetItemString(all, COLUMNS[c].name, kept->columns[c]))
            Py_CLEAR(all);
    for (int c = 0; c < NUM_KEPT; c++) Py_CLEAR(kept->columns[c]);
    kept->room = kept->count = 0;
    return all;
}

static void free_kept(Kept *kept) {
    for (int c = 0; c < NUM_KEPT; c++) Py_CLEAR(kept->columns[c]);
}

/* Reading NumPy columns. */

typedef struct { Py_buffer view; int held; } Column;
typedef enum { INT64, INT32, FLOAT64, FLAG } Kind;

/* The values of a one-dimensional column of `count` items, or of any number of them if that is negative. */
static void *column(PyObject *object, Column *into, Kind kind, Py_ssize_t *count) {
    static const char *const formats[] = {"lq", "il", "d", "?"};
    static const Py_ssize_t sizes[] = {8, 4, 8, 1};
    into->held = !PyObject_GetBuffer(object, &into->view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT);
    if (into->held) {
        const char *format = into->view.format ? into->view.format : "B";
        int right = into->view.itemsize == sizes[kind] && *format && !format[1] && strchr(formats[kind], *format);
        if (right && (*count < 0 || into->view.len / sizes[kind] == *count)) {
            *count = into->view.len / sizes[kind];
            return into->view.buf;
        }
    } else if (PyErr_ExceptionMatches(PyExc_MemoryError)) return NULL;
    PyErr_SetString(PyExc_ValueError, "a column has the wrong type or length");
    return NULL;
}

static void release(Column *columns, int count) {
    for (int i = 0; i < count; i++)
        if (columns[i].held) PyBuffer_Release(&columns[i].view);
}

static double *copied(PyObject *object, Py_ssize_t *count) {
    Column in = {0};
    double *values = column(object, &in, FLOAT64, count), *own = NULL;
    if (values) {
        own = malloc((size_t)(*count + 1) * sizeof(double));
        if (own) memcpy(own, values, (size_t)*count * sizeof(double));
        else PyErr_NoMemory();
    }
    release(&in, 1);
    return own;
}

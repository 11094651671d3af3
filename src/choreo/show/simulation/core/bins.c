/* How many bytes of messages fall into each of some equal parts of the time, by row. `links.py` has the same in NumPy: the
 * oracle of this code in the tests, and what runs where there is no compiler.
 *
 * A message's bytes are spread evenly over its time. It adds to the bins it begins and ends in, and to a level between them
 * that rises where it has filled its first bin and falls where its last one begins. The table is kept bin by bin: messages
 * come in order of time, and those of one moment are of neighbouring rows. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct { double here, rises; } Bin;
#define SIDE_BY_SIDE 8 /* rows that are summed up together, as their bins lie in the same lines of the cache */

typedef struct { Py_buffer view[7]; int held; } Columns;

static void release(Columns *columns) {
    for (int c = 0; c < columns->held; c++) PyBuffer_Release(&columns->view[c]);
}

/* The columns start, out, bytes, way (by message), offsets (by way), rows and shares (of all ways). */
static int read_columns(PyObject **given, Columns *columns) {
    static const Py_ssize_t sizes[] = {8, 8, 8, 4, 8, 4, 8};
    columns->held = 0;
    for (int c = 0; c < 7; c++) {
        if (PyObject_GetBuffer(given[c], &columns->view[c], PyBUF_C_CONTIGUOUS)) return -1;
        columns->held++;
        if (columns->view[c].itemsize != sizes[c]) {
            PyErr_SetString(PyExc_ValueError, "a column has the wrong type");
            return -1;
        }
    }
    return 0;
}

static inline int64_t clipped(double value, int64_t most) {
    return value < 0 ? 0 : value >= (double)most ? most : (int64_t)value;
}

static int fill(const Columns *columns, Bin *restrict table, Py_ssize_t num_rows, Py_ssize_t bins, double width, double *highest) {
    const double *start = columns->view[0].buf, *out = columns->view[1].buf, *bytes = columns->view[2].buf;
    const int32_t *way = columns->view[3].buf, *rows = columns->view[5].buf;
    const int64_t *offsets = columns->view[4].buf;
    const double *share = columns->view[6].buf;
    Py_ssize_t messages = columns->view[3].len / 4, ways = columns->view[4].len / 8 - 1, crossings = columns->view[5].len / 4;
    for (int c = 0; c < 3; c++)
        if (columns->view[c].len / 8 != messages) return -1;
    if (columns->view[6].len / 8 != crossings || ways < 0 || offsets[0] < 0 || offsets[ways] > crossings) return -1;
    for (Py_ssize_t w = 0; w < ways; w++)
        if (offsets[w] > offsets[w + 1]) return -1;
    const double a_second = 1 / width; /* bins */
    double most = 0;
    for (Py_ssize_t at = 0; at < messages; at++) {
        if (way[at] < 0 || way[at] >= ways) return -1;
        if (!(out[at] > start[at])) continue;
        const double begin = start[at] * a_second, end = out[at] * a_second;
        const int64_t first = clipped(begin, bins - 1), last = clipped(end, bins - 1), past = offsets[way[at] + 1];
        if (first == last) { /* as most are, where there are many */
            Bin *bin = table + first * num_rows;
            for (int64_t c = offsets[way[at]]; c < past; c++) {
                if (rows[c] >= num_rows) return -1;
                if (rows[c] >= 0) bin[rows[c]].here += bytes[at] * share[c];
            }
            continue;
        }
        const double rate = bytes[at] / (end - begin);
        for (int64_t c = offsets[way[at]]; c < past; c++) {
            if (rows[c] < 0) continue; /* not asked for */
            if (rows[c] >= num_rows) return -1;
            Bin *row = table + rows[c];
            double part = rate * share[c];
            if (part > most) most = part;
            row[first * num_rows].here += part * ((double)(first + 1) - begin);
            row[last * num_rows].here += part * (end - (double)last);
            row[(first + 1) * num_rows].rises += part;
            row[last * num_rows].rises -= part;
        }
    }
    *highest = most;
    return 0;
}

static PyObject *spread(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *given[7], *made = NULL;
    Py_ssize_t num_rows, bins;
    double width, highest = 0;
    Columns columns;
    if (!PyArg_ParseTuple(args, "OOOOOOOnnd", &given[0], &given[1], &given[2], &given[3], &given[4], &given[5], &given[6],
                          &num_rows, &bins, &width))
        return NULL;
    if (read_columns(given, &columns)) { release(&columns); return NULL; }
    Bin *table = NULL;
    if (num_rows < 0 || bins < 1 || num_rows > PY_SSIZE_T_MAX / 32 / (bins + 1) || !(width > 0))
        PyErr_SetString(PyExc_ValueError, "rows, bins or their width are out of range");
    else if (!(table = calloc((size_t)num_rows * (size_t)(bins + 1) + 1, sizeof(Bin))))
        PyErr_NoMemory();
    else if (fill(&columns, table, num_rows, bins, width, &highest))
        PyErr_SetString(PyExc_ValueError, "the columns do not fit together");
    else if ((made = PyBytes_FromStringAndSize(NULL, num_rows * bins * 8))) {
        double *into = (double *)PyBytes_AS_STRING(made);
        for (Py_ssize_t first = 0; first < num_rows; first += SIDE_BY_SIDE) {
            double level[SIDE_BY_SIDE] = {0};
            const Py_ssize_t some = num_rows - first < SIDE_BY_SIDE ? num_rows - first : SIDE_BY_SIDE;
            for (Py_ssize_t bin = 0; bin < bins; bin++)
                for (Py_ssize_t row = 0; row < some; row++) {
                    const Bin *one = &table[bin * num_rows + first + row];
                    level[row] += one->rises;
                    /* Adding and subtracting the same numbers leaves rounding errors. */
                    into[(first + row) * bins + bin] = one->here + (fabs(level[row]) < 1e-9 * highest ? 0 : level[row]);
                }
        }
    }
    free(table);
    release(&columns);
    return made;
}

static PyMethodDef functions[] = {
    {"spread", spread, METH_VARARGS, "The bytes in each bin of each row, as doubles."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_bins", "Bytes of messages over time.", -1, functions, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__bins(void) { return PyModule_Create(&module); }

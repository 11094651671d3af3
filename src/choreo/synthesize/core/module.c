/* What of synthesis is compiled: list scheduling, the annealing of trees and of forests, and rerouting. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "calls/anneal_forests.h"
#include "calls/anneal_trees.h"
#include "calls/reroute_trees.h"
#include "calls/start_times.h"

static PyMethodDef methods[] = {
    {"start_times", start_times, METH_VARARGS, "When each task starts, and when the last is written."},
    {"anneal_trees", anneal_trees, METH_VARARGS, "The best trees of so many, and the order of their messages."},
    {"anneal_forests", anneal_forests, METH_VARARGS, "The best forests of so many, with the order of their messages and their sizes."},
    {"reroute_trees", reroute_trees, METH_VARARGS, "The best trees of so many plans, their starts, sizes, prices and end."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_core", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__core(void) { return PyModule_Create(&module); }

/* A Python module with one type in it. */
static PyObject *module_of_type(struct PyModuleDef *module, const char *name, PyType_Spec *spec) {
    PyObject *made = PyModule_Create(module);
    if (!made) return NULL;
    PyObject *type = PyType_FromSpec(spec);
    if (!type || PyModule_AddObject(made, name, type)) {
        Py_XDECREF(type);
        Py_DECREF(made);
        return NULL;
    }
    return made;
}

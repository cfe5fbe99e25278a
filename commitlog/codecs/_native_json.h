/* Canonical JSON: `core/log/canonical.py` is the reference.
 *
 * Texts, numbers of 64 bits, booleans and null, in lists, tuples and objects whose keys are texts,
 * are written here. All else is left to it.
 */

static const char *const json_escapes = "\bb\tt\nn\ff\rr\"\"\\\\";

static int put_text(Out *out, PyObject *text)
{
    Py_ssize_t size;
    const char *at = PyUnicode_AsUTF8AndSize(text, &size);
    if (at == NULL || put(out, "\"", 1) < 0) {
        return -1;
    }
    const char *end = at + size, *plain = at;
    for (; at < end; at++) {
        unsigned char byte = (unsigned char)*at;
        if (byte >= 0x20 && byte != '"' && byte != '\\') {
            continue;
        }
        char escaped[7] = {'\\', 'u', '0', '0', (char)('0' + (byte >> 4)),
                           "0123456789abcdef"[byte & 15], 0};
        Py_ssize_t length = 6;
        for (const char *known = json_escapes; *known; known += 2) {
            if (*known == *at) {
                escaped[1] = known[1];
                length = 2;
            }
        }
        if (put(out, plain, at - plain) < 0 || put(out, escaped, length) < 0) {
            return -1;
        }
        plain = at + 1;
    }
    return put(out, plain, end - plain) < 0 ? -1 : put(out, "\"", 1);
}

static int put_json(Out *out, PyObject *value);

static int put_items(Out *out, PyObject *const *items, Py_ssize_t count)
{
    int failed = put(out, "[", 1);
    for (Py_ssize_t i = 0; !failed && i < count; i++) {
        failed = (i && put(out, ",", 1) < 0) || put_json(out, items[i]) < 0;
    }
    return failed ? -1 : put(out, "]", 1);
}

static int put_members(Out *out, PyObject *object)
{
    PyObject *items = PyDict_Items(object);
    int failed = items == NULL;
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(items); i++) {
        failed = !PyUnicode_CheckExact(PyTuple_GET_ITEM(PyList_GET_ITEM(items, i), 0));
    }
    failed = failed || PyList_Sort(items) < 0 || put(out, "{", 1) < 0;
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i);
        failed = (i && put(out, ",", 1) < 0) || put_text(out, PyTuple_GET_ITEM(item, 0)) < 0 ||
                 put(out, ":", 1) < 0 || put_json(out, PyTuple_GET_ITEM(item, 1)) < 0;
    }
    Py_XDECREF(items);
    return failed ? -1 : put(out, "}", 1);
}

static int put_integer(Out *out, PyObject *value)
{
    char digits[24], *at = digits + sizeof digits;
    int is_over = 0;
    int64_t number = PyLong_AsLongLongAndOverflow(value, &is_over);
    uint64_t rest = number < 0 ? -(uint64_t)number : (uint64_t)number;
    if (is_over) {
        return -1;
    }
    do {
        *--at = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest);
    if (number < 0) {
        *--at = '-';
    }
    return put(out, at, digits + sizeof digits - at);
}

static int put_json(Out *out, PyObject *value)
{
    if (PyUnicode_Check(value)) {
        return put_text(out, value);
    }
    if (PyLong_CheckExact(value)) {
        return put_integer(out, value);
    }
    if (value == Py_None) {
        return put(out, "null", 4);
    }
    if (PyBool_Check(value)) {
        return value == Py_True ? put(out, "true", 4) : put(out, "false", 5);
    }
    int failed = -1;
    if (Py_EnterRecursiveCall(" while encoding JSON") == 0) {
        if (PyTuple_CheckExact(value)) {
            failed = put_items(out, &PyTuple_GET_ITEM(value, 0), PyTuple_GET_SIZE(value));
        } else if (PyList_CheckExact(value)) {
            failed = put_items(out, ((PyListObject *)value)->ob_item, PyList_GET_SIZE(value));
        } else if (PyDict_CheckExact(value)) {
            failed = put_members(out, value);
        }
        Py_LeaveRecursiveCall();
    }
    return failed;
}

static PyObject *to_json(PyObject *module, PyObject *value)
{
    (void)module;
    Out out;
    begin(&out);
    PyObject *made = put_json(&out, value) < 0
                         ? NULL
                         : PyBytes_FromStringAndSize(out.start, out.at - out.start);
    end(&out);
    return made ? made : refused();
}

static PyMethodDef json_methods[] = {
    {"to_json", to_json, METH_O,
     "to_json(value, /): return canonical JSON, or None to leave it to the reference."},
    {NULL, NULL, 0, NULL},
};

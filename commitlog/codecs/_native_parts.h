/* Parts of a checkpoint that a table has many of, straight to what its state is made of.
 *
 * A committer that starts reads a million of each before it leads. `core/partition/table_parts.py`
 * is the reference, which reads protobuf and JSON of any shape.
 */

static PyObject *read_fragment_change(In *in)
{
    uint64_t number = 0, size;
    In one;
    if (take_piece(in, 9, &one) < 0) {
        return NULL;
    }
    if (is_next(&one, 1, 0)) {
        one.at++;
        if (take_varint(&one, &number) < 0) {
            return NULL;
        }
    }
    if (!is_next(&one, 2, 2)) {
        return NULL;
    }
    one.at++;
    if (take_varint(&one, &size) < 0 || size == 0 || size != (uint64_t)(one.end - one.at)) {
        return NULL;
    }
    return Py_BuildValue("(Ky#)", (unsigned long long)number, (const char *)one.at,
                         (Py_ssize_t)size);
}

static PyObject *read_fragments(PyObject *module, PyObject *data)
{
    (void)module;
    if (!PyBytes_CheckExact(data)) {
        Py_RETURN_NONE;
    }
    const unsigned char *start = (const unsigned char *)PyBytes_AS_STRING(data);
    In in = {start, start, start + PyBytes_GET_SIZE(data), 0};
    PyObject *found = PyList_New(0);
    while (found != NULL && in.at < in.end) {
        PyObject *change = read_fragment_change(&in);
        if (change == NULL || PyList_Append(found, change) < 0) {
            Py_CLEAR(found);
        }
        Py_XDECREF(change);
    }
    return found ? found : refused();
}

/* Take a text between quotation marks in which nothing is escaped. */
static const char *take_quoted(In *in, Py_ssize_t *size)
{
    if (in->at == in->end || *in->at != '"') {
        return NULL;
    }
    const unsigned char *start = ++in->at;
    while (in->at < in->end && *in->at != '"') {
        if (*in->at < 0x20 || *in->at > 0x7E || *in->at == '\\') {
            return NULL;
        }
        in->at++;
    }
    if (in->at == in->end) {
        return NULL;
    }
    *size = in->at++ - start;
    return (const char *)start;
}

static int take_mark(In *in, char mark)
{
    return in->at < in->end && *in->at == (unsigned char)mark ? (in->at++, 0) : -1;
}

/* Take [text, text]; the second text is the one before if it is equal to that. */
static PyObject *take_pair(In *in, PyObject **kind)
{
    Py_ssize_t size, kind_size;
    const char *text, *named;
    if (take_mark(in, '[') < 0 || (text = take_quoted(in, &size)) == NULL ||
        take_mark(in, ',') < 0 || (named = take_quoted(in, &kind_size)) == NULL ||
        take_mark(in, ']') < 0) {
        return NULL;
    }
    if (*kind == NULL || PyUnicode_GET_LENGTH(*kind) != kind_size ||
        memcmp(PyUnicode_DATA(*kind), named, (size_t)kind_size) != 0) {
        Py_XSETREF(*kind, PyUnicode_FromStringAndSize(named, kind_size));
    }
    return *kind ? Py_BuildValue("(s#O)", text, size, *kind) : NULL;
}

static PyObject *read_pairs(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *data, *kind = NULL, *found;
    Py_ssize_t at;
    if (!PyArg_ParseTuple(arguments, "O!n", &PyBytes_Type, &data, &at)) {
        return NULL;
    }
    const unsigned char *start = (const unsigned char *)PyBytes_AS_STRING(data);
    In in = {start, start, start + PyBytes_GET_SIZE(data), 0};
    if (at < 0 || at > in.end - in.start || (found = PyList_New(0)) == NULL) {
        return refused();
    }
    in.at += at;
    int failed = take_mark(&in, '[') < 0;
    while (!failed && (in.at == in.end || *in.at != ']')) {
        PyObject *pair = PyList_GET_SIZE(found) > 0 && take_mark(&in, ',') < 0
                             ? NULL
                             : take_pair(&in, &kind);
        failed = pair == NULL || PyList_Append(found, pair) < 0;
        Py_XDECREF(pair);
    }
    Py_XDECREF(kind);
    if (failed || take_mark(&in, ']') < 0 || take_mark(&in, '}') < 0 || in.at != in.end) {
        Py_DECREF(found);
        return refused();
    }
    return found;
}

static PyMethodDef parts_methods[] = {
    {"read_fragments", read_fragments, METH_O,
     "read_fragments(data, /): return the fragments of a delta that has nothing else, by id, or "
     "None."},
    {"read_pairs", read_pairs, METH_VARARGS,
     "read_pairs(data, at, /): return the pairs of texts in the JSON that begins at a place and is "
     "the last member of an object, or None."},
    {NULL, NULL, 0, NULL},
};

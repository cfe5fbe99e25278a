/* Plain appends, from protobuf's bytes to a value: `core/manifest/plain_appends.py` is the reference.
 *
 * Only what protobuf itself would write is taken: fields in ascending order, numbers as short as
 * can be, and no field that holds what it holds when it is missing.
 */

static int take_short(In *in, uint64_t *number)
{
    const unsigned char *start = in->at;
    return take_varint(in, number) < 0 || (in->at - start > 1 && in->at[-1] == 0) ? -1 : 0;
}

static int is_next(const In *in, unsigned field, unsigned wire)
{
    unsigned tag = field << 3 | wire;
    return tag < 128 ? in->at < in->end && *in->at == tag
                     : in->end - in->at > 1 && in->at[0] == ((tag & 0x7F) | 0x80) &&
                           in->at[1] == tag >> 7;
}

/* Take what follows the length of a field that is there and isn't empty. */
static int take_piece(In *in, unsigned field, In *piece)
{
    uint64_t size;
    if (!is_next(in, field, 2)) {
        return -1;
    }
    in->at += field < 16 ? 1 : 2;
    if (take_short(in, &size) < 0 || size == 0 || size > (uint64_t)(in->end - in->at)) {
        return -1;
    }
    *piece = (In){in->at, in->at, in->at + size, 0};
    in->at += size;
    return 0;
}

/* Take a number, 0 if its field is missing. */
static int take_plain_number(In *in, unsigned field, uint64_t most, uint64_t *number)
{
    *number = 0;
    if (!is_next(in, field, 0)) {
        return 0;
    }
    in->at++;
    return take_short(in, number) < 0 || *number == 0 || *number > most ? -1 : 0;
}

static PyObject *take_ids(In *in, unsigned field)
{
    In ids;
    uint64_t number;
    Py_ssize_t count = 0;
    if (!is_next(in, field, 2)) {
        return PyTuple_New(0);
    }
    if (take_piece(in, field, &ids) < 0) {
        return NULL;
    }
    for (const unsigned char *at = ids.at; at < ids.end; at++) {
        count += *at < 0x80;
    }
    PyObject *found = PyTuple_New(count);
    for (Py_ssize_t i = 0; found != NULL && ids.at < ids.end; i++) {
        PyObject *id = NULL;
        if (i < count && take_short(&ids, &number) == 0 &&
            (int64_t)number >= INT32_MIN && (int64_t)number <= INT32_MAX) {
            id = PyLong_FromLongLong((int64_t)number);
        }
        if (id == NULL) {
            Py_CLEAR(found);
        } else {
            PyTuple_SET_ITEM(found, i, id);
        }
    }
    return found;
}

/* Take a text of ASCII; with `is_name` of letters, digits and hyphens, else of what a file's name
 * may have anywhere. */
static PyObject *take_ascii(In *in, unsigned field, int is_name)
{
    In text;
    int letters = 0;
    if (take_piece(in, field, &text) < 0) {
        return NULL;
    }
    for (const unsigned char *at = text.at; at < text.end; at++) {
        int is_letter = (*at >= '0' && *at <= '9') || ((*at | 32) >= 'a' && (*at | 32) <= 'z');
        letters += is_letter;
        if (is_name ? !is_letter && *at != '-'
                    : *at == 0 || *at > 127 || *at == '/' || *at == '\\') {
            return NULL;
        }
    }
    Py_ssize_t size = text.end - text.start;
    int is_dots = !is_name && text.start[0] == '.' && (size == 1 || (size == 2 && text.start[1] == '.'));
    return (is_name && !letters) || is_dots
               ? NULL
               : PyUnicode_FromStringAndSize((const char *)text.start, size);
}

/* Take a file: add its part of the layout and its path and size to two lists. */
static int take_plain_file(In in, PyObject *layout, PyObject *files)
{
    uint64_t major, minor, size;
    PyObject *path = take_ascii(&in, 1, 0), *fields = NULL, *columns = NULL;
    int failed = path == NULL || (fields = take_ids(&in, 2)) == NULL ||
                 (columns = take_ids(&in, 3)) == NULL ||
                 take_plain_number(&in, 4, UINT32_MAX, &major) < 0 ||
                 take_plain_number(&in, 5, UINT32_MAX, &minor) < 0 ||
                 take_plain_number(&in, 6, INT64_MAX, &size) < 0 || size == 0 || in.at != in.end;
    PyObject *parts[4] = {NULL, NULL, NULL, NULL};
    if (!failed) {
        parts[0] = PyLong_FromUnsignedLongLong(major);
        parts[1] = PyLong_FromUnsignedLongLong(minor);
        parts[2] = Py_NewRef(fields);
        parts[3] = Py_NewRef(columns);
    }
    for (int i = 0; i < 4; i++) {
        failed = failed || parts[i] == NULL || PyList_Append(layout, parts[i]) < 0;
        Py_XDECREF(parts[i]);
    }
    PyObject *file = failed ? NULL : Py_BuildValue("(OK)", path, (unsigned long long)size);
    failed = file == NULL || PyList_Append(files, file) < 0;
    Py_XDECREF(file);
    Py_XDECREF(path);
    Py_XDECREF(fields);
    Py_XDECREF(columns);
    return failed ? -1 : 0;
}

static PyObject *take_plain_fragment(In in)
{
    uint64_t rows = 0;
    In file;
    PyObject *layout = PyList_New(0), *files = PyList_New(0), *made = NULL;
    int failed = layout == NULL || files == NULL || in.at == in.end;
    while (!failed && is_next(&in, 2, 2)) {
        failed = take_piece(&in, 2, &file) < 0 || take_plain_file(file, layout, files) < 0;
    }
    if (!failed && PyList_GET_SIZE(files) > 0 &&
        take_plain_number(&in, 4, INT64_MAX, &rows) == 0 && rows > 0 && in.at == in.end) {
        PyObject *first = PyList_AsTuple(layout), *second = PyList_AsTuple(files);
        if (first != NULL && second != NULL) {
            made = Py_BuildValue("(KOy#O)", (unsigned long long)rows, first,
                                 (const char *)in.start, (Py_ssize_t)(in.end - in.start), second);
        }
        Py_XDECREF(first);
        Py_XDECREF(second);
    }
    Py_XDECREF(layout);
    Py_XDECREF(files);
    return made;
}

static PyObject *take_plain_append(In in)
{
    In body, one;
    uint64_t read_version;
    PyObject *uuid = NULL, *made = NULL, *fragments = PyList_New(0);
    int failed = fragments == NULL || take_plain_number(&in, 1, INT64_MAX, &read_version) < 0 ||
                 (uuid = take_ascii(&in, 2, 1)) == NULL || take_piece(&in, 100, &body) < 0 ||
                 in.at != in.end;
    while (!failed && body.at < body.end) {
        PyObject *fragment = take_piece(&body, 1, &one) < 0 ? NULL : take_plain_fragment(one);
        failed = fragment == NULL || PyList_Append(fragments, fragment) < 0;
        Py_XDECREF(fragment);
    }
    PyObject *all = failed ? NULL : PyList_AsTuple(fragments);
    if (all != NULL) {
        made = Py_BuildValue("(KOO)", (unsigned long long)read_version, uuid, all);
    }
    Py_XDECREF(all);
    Py_XDECREF(uuid);
    Py_XDECREF(fragments);
    return made;
}

static PyObject *read_plain_append(PyObject *module, PyObject *message)
{
    (void)module;
    if (!PyBytes_CheckExact(message)) {
        Py_RETURN_NONE;
    }
    const unsigned char *start = (const unsigned char *)PyBytes_AS_STRING(message);
    PyObject *made = take_plain_append((In){start, start, start + PyBytes_GET_SIZE(message), 0});
    return made ? made : refused();
}

static int is_file(In in)
{
    uint64_t field, number;
    In inner;
    while (in.at < in.end) {
        if (take_field(&in, &field, &number, &inner) < 0 || field < 1 || field > 7 ||
            (field < 4) != (inner.at != NULL) ||
            (field == 1 && !is_utf8((const char *)inner.at, inner.end - inner.at))) {
            return 0;
        }
        while (field > 1 && inner.at < inner.end) {
            if (take_varint(&inner, &number) < 0) {
                return 0;
            }
        }
    }
    return 1;
}

/* Files, rows and what is inline of the rows' lineage ask for no feature. */
static PyObject *is_plain_fragment(PyObject *module, PyObject *encoded)
{
    (void)module;
    uint64_t field, number;
    if (!PyBytes_CheckExact(encoded)) {
        Py_RETURN_FALSE;
    }
    const unsigned char *start = (const unsigned char *)PyBytes_AS_STRING(encoded);
    In in = {start, start, start + PyBytes_GET_SIZE(encoded), 0}, inner;
    while (in.at < in.end) {
        int is_known = take_field(&in, &field, &number, &inner) == 0 &&
                       (inner.at == NULL ? field == 1 || field == 4
                        : field == 2     ? is_file(inner)
                                         : field == 5 || field == 7 || field == 9);
        if (!is_known) {
            Py_RETURN_FALSE;
        }
    }
    Py_RETURN_TRUE;
}

static PyMethodDef plain_methods[] = {
    {"is_plain_fragment", is_plain_fragment, METH_O,
     "is_plain_fragment(encoded, /): return True if a fragment surely asks for no feature."},
    {"read_plain_append", read_plain_append, METH_O,
     "read_plain_append(message, /): return its read version, uuid and fragments, or None if it "
     "isn't a plain append."},
    {NULL, NULL, 0, NULL},
};

/* The message of an append, straight from pylance's objects: `lance_objects.py` is the reference.
 *
 * What has more than the files, sizes and rows of new fragments is left to it, and so is each value
 * that isn't of the exact type: attributes are asked for by name, as the reference does.
 */

enum { FRAGMENT_ID, FILES, PHYSICAL_ROWS, OVERLAYS, DELETION_FILE, ROW_IDS, CREATED, UPDATED,
       PATH, FILE_FIELDS, COLUMNS, MAJOR, MINOR, FILE_SIZE, BASE_ID, APPEND_NAMES };
static const char *const append_names[APPEND_NAMES] = {
    "id", "files", "physical_rows", "overlays", "deletion_file", "row_id_meta",
    "created_at_version_meta", "last_updated_at_version_meta",
    "_path", "fields", "column_indices", "file_major_version", "file_minor_version",
    "file_size_bytes", "base_id"};
static PyObject *append_name[APPEND_NAMES];

static int intern(PyObject **made, const char *const *names, int count)
{
    for (int i = 0; i < count; i++) {
        if (made[i] == NULL && (made[i] = PyUnicode_InternFromString(names[i])) == NULL) {
            return -1;
        }
    }
    return 0;
}

static void begin(Out *out)
{
    out->start = out->at = out->inside;
    out->end = out->inside + sizeof out->inside;
}

static void end(Out *out)
{
    if (out->start != out->inside) {
        PyMem_Free(out->start);
    }
}

static int put_varint(Out *out, uint64_t number)
{
    if (out->end - out->at < 10 && grow(out, 10) < 0) {
        return -1;
    }
    while (number > 0x7F) {
        *out->at++ = (char)(number | 0x80);
        number >>= 7;
    }
    *out->at++ = (char)number;
    return 0;
}

/* A field that is a number: none for 0. */
static int put_number(Out *out, unsigned field, uint64_t number)
{
    return number == 0 ? 0 : put_varint(out, field << 3) < 0 || put_varint(out, number) < 0 ? -1 : 0;
}

/* A field that is bytes, a text or a message. */
static int put_field(Out *out, unsigned field, const char *data, Py_ssize_t size)
{
    return put_varint(out, field << 3 | 2) < 0 || put_varint(out, (uint64_t)size) < 0 ||
                   put(out, data, size) < 0
               ? -1
               : 0;
}

static int number_in(PyObject *value, uint64_t most, uint64_t *number)
{
    if (!PyLong_CheckExact(value)) {
        return -1;
    }
    *number = PyLong_AsUnsignedLongLong(value);
    return PyErr_Occurred() || *number > most ? -1 : 0;
}

/* An attribute that is a number; nothing is 0 if it may be missing. */
static int take_number(PyObject *object, int name, uint64_t most, int is_optional,
                       uint64_t *number)
{
    PyObject *value = PyObject_GetAttr(object, append_name[name]);
    int failed = -1;
    if (value == Py_None && is_optional) {
        *number = 0;
        failed = 0;
    } else if (value != NULL) {
        failed = number_in(value, most, number);
    }
    Py_XDECREF(value);
    return failed;
}

/* 0 if an attribute is None; overlays are an empty list as well. */
static int take_nothing(PyObject *object, int name)
{
    PyObject *value = PyObject_GetAttr(object, append_name[name]);
    int is_nothing = value == Py_None || (name == OVERLAYS && value != NULL &&
                                          PyList_CheckExact(value) && PyList_GET_SIZE(value) == 0);
    Py_XDECREF(value);
    return is_nothing - 1;
}

static int put_numbers(Out *out, unsigned field, PyObject *list)
{
    Out packed;
    begin(&packed);
    int failed = !PyList_CheckExact(list);
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(list); i++) {
        PyObject *item = PyList_GET_ITEM(list, i);
        int overflow = 0;
        long long number = PyLong_CheckExact(item) ? PyLong_AsLongLongAndOverflow(item, &overflow)
                                                   : INT64_MAX;
        failed = overflow || number < INT32_MIN || number > INT32_MAX ||
                 put_varint(&packed, (uint64_t)number) < 0;
    }
    if (!failed && packed.at != packed.start) {
        failed = put_field(out, field, packed.start, packed.at - packed.start) < 0;
    }
    end(&packed);
    return failed ? -1 : 0;
}

/* Write a data file, and add (path, size, fields) to a list. */
static int put_file(Out *out, PyObject *file, PyObject *told, uint64_t *size)
{
    uint64_t major, minor;
    Py_ssize_t length;
    PyObject *path = PyObject_GetAttr(file, append_name[PATH]), *fields = NULL, *columns = NULL;
    const char *text = path != NULL && PyUnicode_CheckExact(path)
                           ? PyUnicode_AsUTF8AndSize(path, &length)
                           : NULL;
    int failed =
        text == NULL || length == 0 || put_field(out, 1, text, length) < 0 ||
        (fields = PyObject_GetAttr(file, append_name[FILE_FIELDS])) == NULL ||
        put_numbers(out, 2, fields) < 0 ||
        (columns = PyObject_GetAttr(file, append_name[COLUMNS])) == NULL ||
        put_numbers(out, 3, columns) < 0 ||
        take_number(file, MAJOR, UINT32_MAX, 0, &major) < 0 || put_number(out, 4, major) < 0 ||
        take_number(file, MINOR, UINT32_MAX, 0, &minor) < 0 || put_number(out, 5, minor) < 0 ||
        take_number(file, FILE_SIZE, INT64_MAX, 1, size) < 0 || put_number(out, 6, *size) < 0 ||
        take_nothing(file, BASE_ID) < 0;
    if (!failed) {
        PyObject *one = Py_BuildValue("(OKO)", path, (unsigned long long)*size, fields);
        failed = one == NULL || PyList_Append(told, one) < 0;
        Py_XDECREF(one);
    }
    Py_XDECREF(path);
    Py_XDECREF(fields);
    Py_XDECREF(columns);
    return failed ? -1 : 0;
}

static int put_fragment(Out *out, PyObject *fragment, PyObject *told, uint64_t *rows, uint64_t *bytes)
{
    uint64_t id, count, size;
    static const int absent[] = {OVERLAYS, DELETION_FILE, ROW_IDS, CREATED, UPDATED};
    if (take_number(fragment, FRAGMENT_ID, 0, 0, &id) < 0 ||
        take_number(fragment, PHYSICAL_ROWS, INT64_MAX, 1, &count) < 0) {
        return -1;
    }
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
        if (take_nothing(fragment, absent[i]) < 0) {
            return -1;
        }
    }
    PyObject *files = PyObject_GetAttr(fragment, append_name[FILES]);
    int failed = files == NULL || !PyList_CheckExact(files);
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(files); i++) {
        PyObject *file = Py_NewRef(PyList_GET_ITEM(files, i));
        Out inner;
        begin(&inner);
        failed = put_file(&inner, file, told, &size) < 0 ||
                 put_field(out, 2, inner.start, inner.at - inner.start) < 0 ||
                 (*bytes += size) > INT64_MAX;
        end(&inner);
        Py_DECREF(file);
    }
    Py_XDECREF(files);
    return failed || put_number(out, 4, count) < 0 || (*rows += count) > INT64_MAX ? -1 : 0;
}

static PyObject *encode_append(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    uint64_t read_version, rows = 0, bytes = 0;
    Py_ssize_t length;
    if (count != 3 || !PyList_CheckExact(given[0]) ||
        number_in(given[1], INT64_MAX, &read_version) < 0 || !PyUnicode_CheckExact(given[2])) {
        return refused();
    }
    const char *uuid = PyUnicode_AsUTF8AndSize(given[2], &length);
    PyObject *told = uuid == NULL || length == 0 ? NULL : PyList_New(0), *made = NULL;
    if (told == NULL) {
        return refused();
    }
    Out message, body;
    begin(&message);
    begin(&body);
    int failed = 0;
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(given[0]); i++) {
        PyObject *fragment = Py_NewRef(PyList_GET_ITEM(given[0], i));
        Out inner;
        begin(&inner);
        failed = put_fragment(&inner, fragment, told, &rows, &bytes) < 0 ||
                 put_field(&body, 1, inner.start, inner.at - inner.start) < 0;
        end(&inner);
        Py_DECREF(fragment);
    }
    if (!failed && put_number(&message, 1, read_version) == 0 &&
        put_field(&message, 2, uuid, length) == 0 &&
        put_field(&message, 100, body.start, body.at - body.start) == 0) {
        made = Py_BuildValue("(y#KKO)", message.start, message.at - message.start,
                             (unsigned long long)rows, (unsigned long long)bytes, told);
    }
    end(&body);
    end(&message);
    Py_DECREF(told);
    return made ? made : refused();
}

static PyMethodDef append_methods[] = {
    {"encode_append", (PyCFunction)(void (*)(void))encode_append, METH_FASTCALL,
     "encode_append(fragments, read_version, uuid, /): return the message, its rows, its bytes and "
     "its files (path, size, fields), or None to leave it to the reference."},
    {NULL, NULL, 0, NULL},
};

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

/* What an append comes to: its message, and what a summary says of it. */
typedef struct {
    Out message;
    uint64_t rows, bytes;
    PyObject *told; /* (path, size, fields) of each file */
} Appending;

/* Begin it and fill it from fragments, a read version and a uuid; end_append has to follow. */
static int fill_append(Appending *append, PyObject *const *given)
{
    uint64_t read_version;
    Py_ssize_t length;
    begin(&append->message);
    append->rows = append->bytes = 0;
    append->told = NULL;
    if (!PyList_CheckExact(given[0]) || number_in(given[1], INT64_MAX, &read_version) < 0 ||
        !PyUnicode_CheckExact(given[2])) {
        return -1;
    }
    const char *uuid = PyUnicode_AsUTF8AndSize(given[2], &length);
    if (uuid == NULL || length == 0 || (append->told = PyList_New(0)) == NULL) {
        return -1;
    }
    Out body;
    begin(&body);
    int failed = 0;
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(given[0]); i++) {
        PyObject *fragment = Py_NewRef(PyList_GET_ITEM(given[0], i));
        Out inner;
        begin(&inner);
        failed = put_fragment(&inner, fragment, append->told, &append->rows, &append->bytes) < 0 ||
                 put_field(&body, 1, inner.start, inner.at - inner.start) < 0;
        end(&inner);
        Py_DECREF(fragment);
    }
    failed = failed || put_number(&append->message, 1, read_version) < 0 ||
             put_field(&append->message, 2, uuid, length) < 0 ||
             put_field(&append->message, 100, body.start, body.at - body.start) < 0;
    end(&body);
    return failed ? -1 : 0;
}

static void end_append(Appending *append)
{
    end(&append->message);
    Py_XDECREF(append->told);
}

static PyObject *encode_append(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    Appending append;
    PyObject *made = NULL;
    if (count != 3) {
        return refused();
    }
    if (fill_append(&append, given) == 0) {
        made = Py_BuildValue("(y#KKO)", append.message.start,
                             append.message.at - append.message.start,
                             (unsigned long long)append.rows, (unsigned long long)append.bytes,
                             append.told);
    }
    end_append(&append);
    return made ? made : refused();
}

/* --- The record of a transaction that is one append: `avro.py` is the reference ---------------- */

enum { BEFORE_ID, BEFORE_TIME, BEFORE_VERSION, AFTER_MESSAGE, AROUND };

static int put_string(Out *out, PyObject *text)
{
    Py_ssize_t size;
    const char *data = PyUnicode_AsUTF8AndSize(text, &size);
    return data == NULL || put_long(out, size) < 0 ? -1 : put(out, data, size);
}

/* Six numbers and the paths of the files. */
static int put_summary(Out *out, Appending *append, Py_ssize_t fragments)
{
    Py_ssize_t files = PyList_GET_SIZE(append->told);
    int failed = put_long(out, (int64_t)append->rows) < 0 || put_long(out, 0) < 0 ||
                 put_long(out, (int64_t)append->bytes) < 0 || put_long(out, fragments) < 0 ||
                 put_long(out, 0) < 0 || put_long(out, 0) < 0 ||
                 (files && put_long(out, files) < 0);
    for (Py_ssize_t i = 0; !failed && i < files; i++) {
        failed = put_string(out, PyTuple_GET_ITEM(PyList_GET_ITEM(append->told, i), 0)) < 0;
    }
    return failed || put_long(out, 0) < 0 ? -1 : 0;
}

static PyObject *encode_append_record(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    (void)module;
    Appending append;
    Out record;
    uint64_t time_ms;
    PyObject *made = NULL, *around;
    if (count != 5 || number_in(given[3], INT64_MAX, &time_ms) < 0 ||
        !PyTuple_CheckExact(around = given[4]) || PyTuple_GET_SIZE(around) != AROUND) {
        return refused();
    }
    for (int i = 0; i < AROUND; i++) {
        if (!PyBytes_CheckExact(PyTuple_GET_ITEM(around, i))) {
            return refused();
        }
    }
#define PUT_AROUND(place)                                                                         \
    put(&record, PyBytes_AS_STRING(PyTuple_GET_ITEM(around, place)),                              \
        PyBytes_GET_SIZE(PyTuple_GET_ITEM(around, place)))
    begin(&record);
    if (fill_append(&append, given) == 0 && PUT_AROUND(BEFORE_ID) == 0 &&
        put_string(&record, given[2]) == 0 && PUT_AROUND(BEFORE_TIME) == 0 &&
        put_long(&record, (int64_t)time_ms) == 0 && PUT_AROUND(BEFORE_VERSION) == 0 &&
        put_long(&record, PyLong_AsLongLong(given[1])) == 0 &&
        put_long(&record, append.message.at - append.message.start) == 0 &&
        put(&record, append.message.start, append.message.at - append.message.start) == 0 &&
        PUT_AROUND(AFTER_MESSAGE) == 0 &&
        put_summary(&record, &append, PyList_GET_SIZE(given[0])) == 0 &&
        put_long(&record, 0) == 0) { /* no more operations */
        made = Py_BuildValue("(y#O)", record.start, record.at - record.start, append.told);
    }
#undef PUT_AROUND
    end(&record);
    end_append(&append);
    return made ? made : refused();
}

static PyMethodDef append_methods[] = {
    {"encode_append", (PyCFunction)(void (*)(void))encode_append, METH_FASTCALL,
     "encode_append(fragments, read_version, uuid, /): return the message, its rows, its bytes and "
     "its files (path, size, fields), or None to leave it to the reference."},
    {"encode_append_record", (PyCFunction)(void (*)(void))encode_append_record, METH_FASTCALL,
     "encode_append_record(fragments, read_version, id, time_ms, around, /): return the record of a "
     "transaction, and the files of its append, or None to leave it to the reference."},
    {NULL, NULL, 0, NULL},
};

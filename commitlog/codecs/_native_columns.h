/* The version index's rows of committed appends, straight into columns as Arrow lays them out.
 *
 * `rows.py` is the reference. A decided transaction is taken if it is a committed append of new
 * fragments to one table, and nothing else is to be told of it; any other is left to the reference.
 */

#define COLUMNS_MAX 40
#define COLUMN_BYTES_MAX (1 << 30)   /* offsets have 31 bits */
#define BUFFER_BYTES_KEPT (1 << 16)

enum { TRANSACTIONS, CHANGES_OF_TABLES, FRAGMENT_CHANGES, RELATIONS };
static const Py_ssize_t relation_columns[RELATIONS] = {25, 32, 15};

typedef struct {
    char *data;
    size_t size, room;
} Buffer;

/* A column of kind i (32 bits), l (64 bits), b (boolean), s (text or bytes), L (list of numbers)
 * or S (list of texts). */
typedef struct {
    char kind;
    Py_ssize_t rows, nulls, items;
    Buffer valid;             /* a byte per row */
    Buffer data;              /* numbers, a byte per boolean, or characters */
    Buffer ends;              /* of each row: in characters, or in items of a list */
    Buffer item_ends;         /* of each text in a list */
} Column;

typedef struct {
    Column columns[COLUMNS_MAX];
    Py_ssize_t count, at, rows;
} ColumnSet;

typedef struct {
    PyObject_HEAD
    ColumnSet relations[RELATIONS];
    PyObject *transaction, *operation;   /* classes */
    PyObject *committed;                 /* the status */
    size_t bytes;                        /* a bound of what the columns hold */
} AppendColumns;

/* --- Columns: 0, or -1 with MemoryError ---------------------------------------------------------- */

static int buffer_put(Buffer *buffer, const void *data, size_t size)
{
    if (buffer->room - buffer->size < size) {
        size_t room = (buffer->size + size) * 2 + 64;
        char *made = PyMem_Realloc(buffer->data, room);
        if (made == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        buffer->data = made;
        buffer->room = room;
    }
    if (size) {
        memcpy(buffer->data + buffer->size, data, size);
        buffer->size += size;
    }
    return 0;
}

static int put_end(Buffer *buffer, size_t end)
{
    int32_t zero = 0, value = (int32_t)end;
    return buffer->size == 0 && buffer_put(buffer, &zero, sizeof zero) < 0
               ? -1
               : buffer_put(buffer, &value, sizeof value);
}

/* The next column of the row, which gets a value or none. */
static Column *next_column(ColumnSet *set, int is_there)
{
    Column *column = &set->columns[set->at++];
    char valid = (char)is_there;
    column->rows++;
    column->nulls += !is_there;
    return buffer_put(&column->valid, &valid, 1) < 0 ? NULL : column;
}

static int add_number(ColumnSet *set, int is_there, int64_t number)
{
    Column *column = next_column(set, is_there);
    int64_t value = is_there ? number : 0;
    int32_t narrow = (int32_t)value;
    char byte = value != 0;
    if (column == NULL) {
        return -1;
    }
    return column->kind == 'l'   ? buffer_put(&column->data, &value, sizeof value)
           : column->kind == 'i' ? buffer_put(&column->data, &narrow, sizeof narrow)
                                 : buffer_put(&column->data, &byte, 1);
}

static int add_text(ColumnSet *set, int is_there, Bytes text)
{
    Column *column = next_column(set, is_there);
    if (column == NULL ||
        (is_there && buffer_put(&column->data, text.data, (size_t)text.size) < 0)) {
        return -1;
    }
    return put_end(&column->ends, column->data.size);
}

static int add_word(ColumnSet *set, const char *word)
{
    return add_text(set, 1, (Bytes){word, (Py_ssize_t)strlen(word)});
}

static int add_none(ColumnSet *set)
{
    switch (set->columns[set->at].kind) {
    case 's':
        return add_text(set, 0, (Bytes){NULL, 0});
    case 'L':
    case 'S': {
        Column *column = next_column(set, 0);
        return column == NULL ? -1 : put_end(&column->ends, (size_t)column->items);
    }
    default:
        return add_number(set, 0, 0);
    }
}

static int add_texts(ColumnSet *set, const Bytes *texts, Py_ssize_t count)
{
    Column *column = next_column(set, 1);
    for (Py_ssize_t i = 0; column != NULL && i < count; i++) {
        if (buffer_put(&column->data, texts[i].data, (size_t)texts[i].size) < 0 ||
            put_end(&column->item_ends, column->data.size) < 0) {
            return -1;
        }
        column->items++;
    }
    return column == NULL ? -1 : put_end(&column->ends, (size_t)column->items);
}

static int add_numbers(ColumnSet *set, int64_t number)
{
    Column *column = next_column(set, 1);
    if (column == NULL || buffer_put(&column->data, &number, sizeof number) < 0) {
        return -1;
    }
    return put_end(&column->ends, (size_t)++column->items);
}

/* --- What is taken: 0, or -1 for what is left to the reference ------------------------------------ */

enum { OF_TABLE, OF_PROPERTIES, OF_RESULTS, OF_STATUS, OF_ANSWERS,
       OF_CONFLICT, OF_FAILED_REQUIREMENTS, OF_CODE, OF_MESSAGE, OF_DELTA,
       OF_IMAGES, OF_LOCATION, OF_METADATA_LOCATION, OF_SNAPSHOT_ID, OF_REBASED,
       OF_SEQUENCE, OF_TIME_MS, OF_ATTEMPT, OF_EPOCH, OF_TRANSACTION_ID,
       OF_NODE, OF_PAYLOAD_HASH, OF_HASH, OF_INCARNATION, OF_VERSION,
       OF_READ_VERSION, OF_REBASED_OVER, OF_FIRST_FRAGMENT_ID, OF_FIRST_ROW_ID, OF_EXPECTS,
       OF_OPERATIONS, OF_APPLICATION, OF_APPLICATION_ID, OF_RUN, OF_PRINCIPAL,
       OF_SUBMITTED_AT_MS, OF_OPERATION, OF_BRANCH, OF_SUBMITTED, OF_ANSWERED_OFFSET,
       OF_PARTITION, OF_OFFSET, OF_OUTCOME, OF_RECORD,
       DECIDED_NAMES };
static const char *const decided_names[DECIDED_NAMES] = {
    "table", "properties", "results", "status", "answers", "conflict", "failed_requirements",
    "code", "message", "delta", "images", "location", "metadata_location", "snapshot_id",
    "rebased", "sequence", "time_ms", "attempt", "epoch", "transaction_id", "node",
    "payload_hash", "hash", "incarnation", "version", "read_version", "rebased_over",
    "first_fragment_id", "first_row_id", "expects", "operations", "application", "application_id", "run", "principal",
    "submitted_at_ms", "operation", "branch", "submitted", "answered_offset", "partition", "offset",
    "outcome", "record"};
static PyObject *decided_name[DECIDED_NAMES];

typedef struct {
    uint64_t rows, bytes;
    Py_ssize_t files;         /* how many */
} NewFragment;

typedef struct {
    PyObject *held[80];       /* what the texts belong to */
    int count;
    int64_t partition, offset, sequence, time_us, attempt, submitted_us, answered_offset, epoch;
    int64_t version, built_on, rebased_over, rebased, first_fragment, first_row, read_version;
    int64_t application_sequence, rows, bytes;
    Bytes transaction_id, principal, node, payload_hash, hash, table, incarnation, operation;
    Bytes branch, application, run;
    int has_application;
    Buffer properties, fragments, files;
} Append;

static PyObject *hold(Append *append, PyObject *object)
{
    if (object == NULL || append->count == (int)(sizeof append->held / sizeof *append->held)) {
        Py_XDECREF(object);
        return NULL;
    }
    return append->held[append->count++] = object;
}

static PyObject *of(Append *append, PyObject *object, int name)
{
    return object == NULL ? NULL : hold(append, PyObject_GetAttr(object, decided_name[name]));
}

static int long_of(Append *append, PyObject *object, int name, int64_t *number)
{
    int is_over = 0;
    PyObject *found = of(append, object, name);
    if (found == NULL || !PyLong_CheckExact(found)) {
        return -1;
    }
    *number = PyLong_AsLongLongAndOverflow(found, &is_over);
    return is_over ? -1 : 0;
}

static int text_in(PyObject *found, Bytes *text)
{
    if (found == NULL || !PyUnicode_Check(found)) {
        return -1;
    }
    text->data = PyUnicode_AsUTF8AndSize(found, &text->size);
    return text->data == NULL ? -1 : 0;
}

static int text_of(Append *append, PyObject *object, int name, Bytes *text)
{
    return text_in(of(append, object, name), text);
}

static int bytes_of(Append *append, PyObject *object, int name, Bytes *bytes)
{
    PyObject *found = of(append, object, name);
    if (found == NULL || !PyBytes_CheckExact(found)) {
        return -1;
    }
    *bytes = (Bytes){PyBytes_AS_STRING(found), PyBytes_GET_SIZE(found)};
    return 0;
}

static int is_none(Append *append, PyObject *object, int name)
{
    return of(append, object, name) == Py_None;
}

static int is_empty(Append *append, PyObject *object, int name)
{
    PyObject *found = of(append, object, name);
    return found != NULL && ((PyTuple_CheckExact(found) && PyTuple_GET_SIZE(found) == 0) ||
                             (PyUnicode_Check(found) && PyUnicode_GET_LENGTH(found) == 0));
}

/* The one item of a tuple. */
static PyObject *only(PyObject *items)
{
    return items != NULL && PyTuple_CheckExact(items) && PyTuple_GET_SIZE(items) == 1
               ? PyTuple_GET_ITEM(items, 0)
               : NULL;
}

static int micros_of(Append *append, PyObject *object, int name, int64_t *micros)
{
    if (long_of(append, object, name, micros) < 0 || *micros > INT64_MAX / 1000 ||
        *micros < INT64_MIN / 1000) {
        return -1;
    }
    *micros *= 1000;
    return 0;
}

static int submitted_of(Append *append, PyObject *record)
{
    int64_t *micros = &append->submitted_us;
    /* What no calendar shows is left to Python. */
    if (micros_of(append, record, OF_SUBMITTED_AT_MS, micros) < 0 || *micros < 0 ||
        *micros > INT64_C(253402300799999000)) {
        return -1;
    }
    return 0;
}

static int is_int32(int64_t number)
{
    return number >= INT32_MIN && number <= INT32_MAX;
}

static int table_of(Append *append, PyObject *operation)
{
    PyObject *parts = of(append, operation, OF_TABLE), *joined = NULL;
    PyObject *delimiter = hold(append, PyUnicode_FromString("$")); /* as in model/table.py */
    if (parts != NULL && delimiter != NULL && PyTuple_CheckExact(parts)) {
        joined = hold(append, PyUnicode_Join(delimiter, parts));
    }
    return text_in(joined, &append->table);
}

/* Properties as a JSON object, of texts that need no escape. */
static int properties_of(Append *append, PyObject *transaction)
{
    PyObject *pairs = of(append, transaction, OF_PROPERTIES);
    if (pairs == NULL || !PyTuple_CheckExact(pairs)) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(pairs); i++) {
        PyObject *pair = PyTuple_GET_ITEM(pairs, i);
        if (!PyTuple_CheckExact(pair) || PyTuple_GET_SIZE(pair) != 2) {
            return -1;
        }
        for (Py_ssize_t k = 0; k < i; k++) {  /* the reference keeps the last of one name */
            PyObject *name = PyTuple_GET_ITEM(PyTuple_GET_ITEM(pairs, k), 0);
            if (PyObject_RichCompareBool(name, PyTuple_GET_ITEM(pair, 0), Py_EQ) != 0) {
                return -1;
            }
        }
        for (Py_ssize_t k = 0; k < 2; k++) {
            Bytes text;
            const char *before = k ? "\": \"" : i ? ", \"" : "{\"";
            if (text_in(PyTuple_GET_ITEM(pair, k), &text) < 0 ||
                buffer_put(&append->properties, before, strlen(before)) < 0 ||
                buffer_put(&append->properties, text.data, (size_t)text.size) < 0) {
                return -1;
            }
            for (Py_ssize_t c = 0; c < text.size; c++) {
                char byte = text.data[c];
                if (byte < 0x20 || byte > 0x7E || byte == '"' || byte == '\\') {
                    return -1;
                }
            }
        }
        const char *after = i + 1 == PyTuple_GET_SIZE(pairs) ? "\"}" : "\"";
        if (buffer_put(&append->properties, after, strlen(after)) < 0) {
            return -1;
        }
    }
    return 0;
}

/* --- The message, as protobuf has it -------------------------------------------------------------- */

static int take_varint(In *in, uint64_t *number)
{
    uint64_t found = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (in->at >= in->end) {
            return -1;
        }
        unsigned char byte = *in->at++;
        if (shift == 63 && byte > 1) {
            return -1;
        }
        found |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *number = found;
            return 0;
        }
    }
    return -1;
}

/* Take a tag or a length, which protobuf reads of five bytes at most. */
static int take_narrow(In *in, uint64_t *number)
{
    const unsigned char *start = in->at;
    return take_varint(in, number) < 0 || in->at - start > 5 ? -1 : 0;
}

/* Take a field: its number, and its value as a number or as what follows its length. */
static int take_field(In *in, uint64_t *field, uint64_t *number, In *inner)
{
    uint64_t tag, size;
    if (take_narrow(in, &tag) < 0) {
        return -1;
    }
    *field = tag >> 3;
    *inner = (In){NULL, NULL, NULL, 0};
    if ((tag & 7) == 0) {
        return take_varint(in, number);
    }
    if ((tag & 7) != 2 || take_narrow(in, &size) < 0 || size > (uint64_t)(in->end - in->at)) {
        return -1;
    }
    *inner = (In){in->at, in->at, in->at + size, 0};
    in->at += size;
    return 0;
}

static int take_file(Append *append, In in, NewFragment *fragment)
{
    uint64_t field, number, size = 0;
    Bytes path = {"", 0};
    In inner;
    while (in.at < in.end) {
        if (take_field(&in, &field, &number, &inner) < 0) {
            return -1;
        }
        if (field == 1 && inner.at != NULL) {
            path = (Bytes){(const char *)inner.at, inner.end - inner.at};
        } else if (field == 6 && inner.at == NULL) {
            size = number;
        } else if (!((field == 2 || field == 3) && inner.at != NULL) &&
                   !((field == 4 || field == 5) && inner.at == NULL)) {
            return -1;
        }
        if (field == 2 || field == 3) {
            while (inner.at < inner.end) {
                if (take_varint(&inner, &number) < 0) {
                    return -1;
                }
            }
        }
    }
    fragment->bytes += size;
    fragment->files++;
    return size > INT64_MAX || fragment->bytes > INT64_MAX || !is_utf8(path.data, path.size)
               ? -1
               : buffer_put(&append->files, &path, sizeof path);
}

static int take_fragment(Append *append, In in)
{
    NewFragment fragment = {0, 0, 0};
    uint64_t field, number;
    In inner;
    while (in.at < in.end) {
        if (take_field(&in, &field, &number, &inner) < 0) {
            return -1;
        }
        if (field == 2 && inner.at != NULL) {
            if (take_file(append, inner, &fragment) < 0) {
                return -1;
            }
        } else if (field == 4 && inner.at == NULL && number <= INT64_MAX) {
            fragment.rows = number;
        } else if (field != 1 || inner.at != NULL) {
            return -1;
        }
    }
    if (fragment.rows > (uint64_t)(INT64_MAX - append->rows) ||
        fragment.bytes > (uint64_t)(INT64_MAX - append->bytes)) {
        return -1;
    }
    append->rows += (int64_t)fragment.rows;
    append->bytes += (int64_t)fragment.bytes;
    return buffer_put(&append->fragments, &fragment, sizeof fragment);
}

static int take_message(Append *append, Bytes message)
{
    const unsigned char *start = (const unsigned char *)message.data;
    In in = {start, start, start + message.size, 0}, inner, fragment;
    uint64_t field, number;
    int appends = 0;
    while (in.at < in.end) {
        if (take_field(&in, &field, &number, &inner) < 0) {
            return -1;
        }
        if (field == 100 && inner.at != NULL && !appends++) {
            while (inner.at < inner.end) {
                if (take_field(&inner, &field, &number, &fragment) < 0 || field != 1 ||
                    fragment.at == NULL || take_fragment(append, fragment) < 0) {
                    return -1;
                }
            }
        } else if (field == 2 && inner.at != NULL) {
            if (!is_utf8((const char *)inner.at, inner.end - inner.at)) {
                return -1;
            }
        } else if (field != 1 || inner.at != NULL) {
            return -1;
        }
    }
    return appends - 1;
}

static Py_ssize_t fragments_in(const Append *append)
{
    return (Py_ssize_t)(append->fragments.size / sizeof(NewFragment));
}

/* --- Objects -------------------------------------------------------------------------------------- */

static int take_outcome(Append *append, PyObject *outcome, PyObject *committed)
{
    PyObject *result = only(of(append, outcome, OF_RESULTS));
    int64_t snapshot;
    if (of(append, outcome, OF_STATUS) != committed || result == NULL ||
        !is_none(append, outcome, OF_ANSWERS) || !is_none(append, outcome, OF_CONFLICT) ||
        !is_empty(append, outcome, OF_FAILED_REQUIREMENTS) || !is_empty(append, outcome, OF_CODE) ||
        !is_empty(append, outcome, OF_MESSAGE) || !is_none(append, result, OF_DELTA) ||
        !is_empty(append, result, OF_IMAGES) || !is_empty(append, result, OF_LOCATION) ||
        !is_empty(append, result, OF_METADATA_LOCATION) ||
        long_of(append, result, OF_SNAPSHOT_ID, &snapshot) < 0 || snapshot >= 0) {
        return -1;
    }
    PyObject *rebased = of(append, result, OF_REBASED);
    append->rebased = rebased == Py_True;
    return rebased == NULL || !PyBool_Check(rebased) ||
                   long_of(append, outcome, OF_SEQUENCE, &append->sequence) < 0 ||
                   micros_of(append, outcome, OF_TIME_MS, &append->time_us) < 0 ||
                   long_of(append, outcome, OF_ATTEMPT, &append->attempt) < 0 ||
                   long_of(append, outcome, OF_EPOCH, &append->epoch) < 0 ||
                   text_of(append, outcome, OF_TRANSACTION_ID, &append->transaction_id) < 0 ||
                   text_of(append, outcome, OF_NODE, &append->node) < 0 ||
                   bytes_of(append, outcome, OF_PAYLOAD_HASH, &append->payload_hash) < 0 ||
                   bytes_of(append, outcome, OF_HASH, &append->hash) < 0 ||
                   text_of(append, result, OF_INCARNATION, &append->incarnation) < 0 ||
                   long_of(append, result, OF_VERSION, &append->version) < 0 ||
                   long_of(append, result, OF_READ_VERSION, &append->built_on) < 0 ||
                   long_of(append, result, OF_REBASED_OVER, &append->rebased_over) < 0 ||
                   long_of(append, result, OF_FIRST_FRAGMENT_ID, &append->first_fragment) < 0 ||
                   long_of(append, result, OF_FIRST_ROW_ID, &append->first_row) < 0
               ? -1
               : 0;
}

static int take_transaction(Append *append, AppendColumns *self, PyObject *record)
{
    if (record == NULL || (PyObject *)Py_TYPE(record) != self->transaction ||
        !is_empty(append, record, OF_EXPECTS)) {
        return -1;
    }
    PyObject *operation = only(of(append, record, OF_OPERATIONS));
    PyObject *application = of(append, record, OF_APPLICATION);
    Bytes message;
    append->has_application = application != Py_None;
    if (operation == NULL || application == NULL ||
        (PyObject *)Py_TYPE(operation) != self->operation) {
        return -1;
    }
    if (append->has_application &&
        (text_of(append, application, OF_APPLICATION_ID, &append->application) < 0 ||
         long_of(append, application, OF_SEQUENCE, &append->application_sequence) < 0 ||
         text_of(append, application, OF_RUN, &append->run) < 0)) {
        return -1;
    }
    return text_of(append, record, OF_PRINCIPAL, &append->principal) < 0 ||
                   submitted_of(append, record) < 0 ||
                   properties_of(append, record) < 0 || table_of(append, operation) < 0 ||
                   text_of(append, operation, OF_OPERATION, &append->operation) < 0 ||
                   !is_equal(append->operation, "Append", 6) ||
                   text_of(append, operation, OF_BRANCH, &append->branch) < 0 ||
                   long_of(append, operation, OF_READ_VERSION, &append->read_version) < 0 ||
                   bytes_of(append, operation, OF_MESSAGE, &message) < 0 ||
                   take_message(append, message) < 0
               ? -1
               : 0;
}

static int take_decided(Append *append, AppendColumns *self, PyObject *decided)
{
    PyObject *submitted = of(append, decided, OF_SUBMITTED);
    if (long_of(append, decided, OF_ANSWERED_OFFSET, &append->answered_offset) < 0 ||
        long_of(append, submitted, OF_PARTITION, &append->partition) < 0 ||
        long_of(append, submitted, OF_OFFSET, &append->offset) < 0 ||
        take_outcome(append, of(append, decided, OF_OUTCOME), self->committed) < 0 ||
        take_transaction(append, self, of(append, submitted, OF_RECORD)) < 0) {
        return -1;
    }
    Py_ssize_t fragments = fragments_in(append);
    return is_int32(append->partition) && is_int32(append->attempt) && is_int32(append->epoch) &&
                   append->version > 0 && append->incarnation.size > 0 &&
                   (fragments == 0 || (append->first_fragment >= 0 &&
                                       append->first_fragment <= INT64_MAX - fragments))
               ? 0
               : -1;
}

/* --- Rows, with the columns of `schema.py` in their order ----------------------------------------- */

static int add_place(ColumnSet *set, const Append *one)
{
    set->at = 0;
    set->rows++;
    return add_number(set, 1, one->partition) | add_number(set, 1, one->sequence) |
           add_number(set, 1, one->time_us);
}

static int add_transaction(ColumnSet *set, const Append *one)
{
    Bytes properties = {one->properties.data, (Py_ssize_t)one->properties.size};
    return add_place(set, one) | add_word(set, "committed") | add_none(set) |
           add_text(set, 1, one->transaction_id) | add_number(set, 1, one->attempt) |
           add_text(set, 1, one->principal) | add_word(set, "transaction") |
           add_texts(set, &one->operation, 1) | add_texts(set, &one->table, 1) |
           add_numbers(set, one->version) | add_none(set) | add_none(set) |
           add_number(set, one->submitted_us != 0, one->submitted_us) |
           add_text(set, one->has_application, one->application) |
           add_number(set, one->has_application, one->application_sequence) |
           add_text(set, one->run.size > 0, one->run) |
           add_text(set, properties.size > 0, properties) | add_number(set, 1, one->offset) |
           add_number(set, 1, one->answered_offset) | add_number(set, 1, one->epoch) |
           add_text(set, 1, one->node) | add_text(set, 1, one->payload_hash) |
           add_text(set, 1, one->hash);
}

static int add_operation(ColumnSet *set, const Append *one)
{
    return add_place(set, one) | add_number(set, 1, 0) | add_text(set, 1, one->table) |
           add_text(set, 1, one->incarnation) | add_text(set, 1, one->operation) |
           add_word(set, "committed") | add_none(set) | add_none(set) |
           add_text(set, 1, one->principal) | add_text(set, 1, one->transaction_id) |
           add_number(set, 1, one->read_version) | add_number(set, 1, one->version) |
           add_number(set, 1, one->built_on) | add_number(set, 1, one->rebased_over) |
           add_number(set, 1, one->rebased) | add_number(set, 1, one->rows) |
           add_number(set, 1, 0) | add_number(set, 1, one->bytes) |
           add_number(set, 1, fragments_in(one)) | add_number(set, 1, 0) | add_number(set, 1, 0) |
           add_number(set, one->first_fragment >= 0, one->first_fragment) |
           add_number(set, one->first_row >= 0, one->first_row) |
           add_text(set, one->branch.size > 0, one->branch) | add_number(set, 1, 1) |
           add_text(set, 1, one->table) | add_none(set) | add_none(set) | add_none(set) |
           add_number(set, 1, one->answered_offset);
}

static int add_fragments(ColumnSet *set, const Append *one)
{
    const NewFragment *fragments = (const NewFragment *)one->fragments.data;
    const Bytes *files = (const Bytes *)one->files.data;
    for (Py_ssize_t i = 0; i < fragments_in(one); files += fragments[i++].files) {
        if (add_place(set, one) | add_number(set, 1, 0) | add_text(set, 1, one->table) |
            add_text(set, 1, one->incarnation) | add_number(set, 1, one->version) |
            add_number(set, 1, one->first_fragment + i) | add_number(set, 1, 0) |
            add_number(set, 1, (int64_t)fragments[i].rows) | add_number(set, 1, 0) |
            add_number(set, 1, (int64_t)fragments[i].bytes) |
            add_texts(set, files, fragments[i].files) | add_none(set) | add_none(set)) {
            return -1;
        }
    }
    return 0;
}

/* (table, incarnation, version, rows, bytes, ((fragment, rows, bytes), ...)) */
static PyObject *told_of(const Append *one)
{
    const NewFragment *fragments = (const NewFragment *)one->fragments.data;
    PyObject *told = PyTuple_New(fragments_in(one));
    for (Py_ssize_t i = 0; told != NULL && i < fragments_in(one); i++) {
        PyObject *item = Py_BuildValue("LKK", (long long)(one->first_fragment + i),
                                       (unsigned long long)fragments[i].rows,
                                       (unsigned long long)fragments[i].bytes);
        if (item == NULL) {
            Py_CLEAR(told);
        } else {
            PyTuple_SET_ITEM(told, i, item);
        }
    }
    return told == NULL ? NULL
                        : Py_BuildValue("s#s#LLLN", one->table.data, one->table.size,
                                        one->incarnation.data, one->incarnation.size,
                                        (long long)one->version, (long long)one->rows,
                                        (long long)one->bytes, told);
}

/* --- The class ------------------------------------------------------------------------------------ */

static PyObject *columns_add(AppendColumns *self, PyObject *decided)
{
    Append append = {0};
    PyObject *made = NULL;
    int is_taken = take_decided(&append, self, decided) == 0;
    size_t more = append.files.size + append.properties.size + 4096;
    for (size_t i = 0; is_taken && i < append.files.size / sizeof(Bytes); i++) {
        more += (size_t)((Bytes *)append.files.data)[i].size;
    }
    const Bytes *texts[] = {&append.transaction_id, &append.principal, &append.node, &append.table,
                            &append.incarnation, &append.branch, &append.application, &append.run};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        more += 4 * (size_t)texts[i]->size * (size_t)(1 + fragments_in(&append));
    }
    if (is_taken && self->bytes + more <= COLUMN_BYTES_MAX) {
        self->bytes += more;
        if (add_transaction(&self->relations[TRANSACTIONS], &append) == 0 &&
            add_operation(&self->relations[CHANGES_OF_TABLES], &append) == 0 &&
            add_fragments(&self->relations[FRAGMENT_CHANGES], &append) == 0) {
            made = told_of(&append);
        }
    } else {
        made = refused();
    }
    for (int i = 0; i < append.count; i++) {
        Py_DECREF(append.held[i]);
    }
    PyMem_Free(append.properties.data);
    PyMem_Free(append.fragments.data);
    PyMem_Free(append.files.data);
    return made;
}

static PyObject *bits_of(const Buffer *bytes)
{
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)((bytes->size + 7) / 8));
    if (made != NULL) {
        char *bits = PyBytes_AS_STRING(made);
        memset(bits, 0, (bytes->size + 7) / 8);
        for (size_t i = 0; i < bytes->size; i++) {
            bits[i / 8] = (char)(bits[i / 8] | (bytes->data[i] != 0) << i % 8);
        }
    }
    return made;
}

/* A column as (nulls, items, (validity, ends or nothing, data), ends of items or None). */
static PyObject *column_of(const Column *column)
{
    PyObject *data = column->kind == 'b'
                         ? bits_of(&column->data)
                         : PyBytes_FromStringAndSize(column->data.data,
                                                     (Py_ssize_t)column->data.size);
    return Py_BuildValue("nnNy#y#N", column->nulls, column->items, bits_of(&column->valid),
                         column->ends.data, (Py_ssize_t)column->ends.size,
                         column->item_ends.data, (Py_ssize_t)column->item_ends.size, data);
}

/* What a large batch took goes back to the system. */
static void clear(Buffer *buffer)
{
    buffer->size = 0;
    if (buffer->room > BUFFER_BYTES_KEPT) {
        PyMem_Free(buffer->data);
        *buffer = (Buffer){NULL, 0, 0};
    }
}

static void empty(ColumnSet *set)
{
    for (Py_ssize_t i = 0; i < set->count; i++) {
        Column *column = &set->columns[i];
        column->rows = column->nulls = column->items = 0;
        clear(&column->valid);
        clear(&column->data);
        clear(&column->ends);
        clear(&column->item_ends);
    }
    set->rows = 0;
}

static PyObject *columns_take(AppendColumns *self, PyObject *ignored)
{
    (void)ignored;
    PyObject *made = PyTuple_New(RELATIONS);
    for (int r = 0; made != NULL && r < RELATIONS; r++) {
        ColumnSet *set = &self->relations[r];
        PyObject *columns = PyTuple_New(set->count);
        for (Py_ssize_t i = 0; columns != NULL && i < set->count; i++) {
            PyObject *column = column_of(&set->columns[i]);
            if (column == NULL) {
                Py_CLEAR(columns);
            } else {
                PyTuple_SET_ITEM(columns, i, column);
            }
        }
        PyObject *relation = columns ? Py_BuildValue("nN", set->rows, columns) : NULL;
        if (relation == NULL) {
            Py_CLEAR(made);
        } else {
            PyTuple_SET_ITEM(made, r, relation);
        }
    }
    for (int r = 0; r < RELATIONS; r++) {
        empty(&self->relations[r]);
    }
    self->bytes = 0;
    return made;
}

static PyObject *columns_new(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    PyObject *transaction, *operation, *committed;
    const char *kinds[RELATIONS];
    static char *names[] = {"transaction", "operation", "committed", "transactions", "operations",
                            "fragment_changes", NULL};
    if (!PyArg_ParseTupleAndKeywords(arguments, named, "OOOsss", names, &transaction, &operation,
                                     &committed, &kinds[0], &kinds[1], &kinds[2])) {
        return NULL;
    }
    for (int r = 0; r < RELATIONS; r++) {
        if (strlen(kinds[r]) != (size_t)relation_columns[r] ||
            strspn(kinds[r], "ilbsLS") != strlen(kinds[r])) {
            PyErr_SetString(PyExc_ValueError, "a relation has other columns than these rows");
            return NULL;
        }
    }
    AppendColumns *self = (AppendColumns *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->transaction = Py_NewRef(transaction);
    self->operation = Py_NewRef(operation);
    self->committed = Py_NewRef(committed);
    for (int r = 0; r < RELATIONS; r++) {
        self->relations[r].count = relation_columns[r];
        for (Py_ssize_t i = 0; i < relation_columns[r]; i++) {
            self->relations[r].columns[i].kind = kinds[r][i];
        }
    }
    return (PyObject *)self;
}

static void columns_dealloc(AppendColumns *self)
{
    PyTypeObject *type = Py_TYPE(self);
    for (int r = 0; r < RELATIONS; r++) {
        for (Py_ssize_t i = 0; i < self->relations[r].count; i++) {
            Column *column = &self->relations[r].columns[i];
            PyMem_Free(column->valid.data);
            PyMem_Free(column->data.data);
            PyMem_Free(column->ends.data);
            PyMem_Free(column->item_ends.data);
        }
    }
    Py_XDECREF(self->transaction);
    Py_XDECREF(self->operation);
    Py_XDECREF(self->committed);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyMethodDef columns_methods[] = {
    {"add", (PyCFunction)columns_add, METH_O,
     "Add a decided transaction's rows and return what they tell, or None to leave it to Python."},
    {"take", (PyCFunction)columns_take, METH_NOARGS,
     "Return the columns of the rows that were added, and begin again without any."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot columns_slots[] = {
    {Py_tp_doc, "Rows of committed appends as columns; see `appends.py` of the version index."},
    {Py_tp_new, columns_new},
    {Py_tp_dealloc, columns_dealloc},
    {Py_tp_methods, columns_methods},
    {0, NULL},
};

static PyType_Spec columns_spec = {
    "commitlog.codecs._native.AppendColumns", sizeof(AppendColumns), 0, Py_TPFLAGS_DEFAULT,
    columns_slots};

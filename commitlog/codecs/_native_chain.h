/* The chain of hashes over records' bytes: no Python object is made of a record.
 *
 * A Chain follows the outcomes of a partition, each with the transaction that it answers, as long
 * as they are plain: valid, in the order of the transactions, answering what stands there, and with
 * nothing that is noted down about them but their number. `avro_chain.py` says what that takes. It
 * stops before the first pair that isn't plain, or that it doesn't understand, and Python goes on.
 */

#include "_native_sha256.h"

#define FIELDS_MAX 32
#define DIGEST_BYTES 32
#define ID_BYTES_MAX 128      /* as in record_ids.py */

/* The fields of an outcome and of a transaction, in the order in which Chain is told of them. */
enum { EPOCH, NODE, PREVIOUS_HASH, HASH, SEQUENCE, ANSWERED_ID, ANSWERED_OFFSET, STATUS,
       PAYLOAD_HASH, OUTCOME_FIELDS };
enum { TRANSACTION_ID, PRINCIPAL, PROPERTIES, OPERATIONS, ATTEMPT, SUBMITTED_AT, APPLICATION,
       EXPECTS, TRANSACTION_FIELDS };

typedef struct {
    Node *root;
    PyObject *prefix;
    Py_ssize_t fields[OUTCOME_FIELDS];   /* which field of the record each of ours is */
    const unsigned char *starts[FIELDS_MAX];
    const unsigned char *end;
} Shape;

typedef struct {
    PyObject_HEAD
    Shape outcomes[2];
    Py_ssize_t outcomes_count;
    Shape transaction;
    PyObject *principal;      /* bytes: the property that names the principal */
    PyObject *noted;          /* tuple of bytes: properties that make a transaction not plain */
    long long committed;      /* the number of this status */
    long long operation;      /* the number of the kind of operation that is plain */
} Chain;

typedef struct {
    const char *data;
    Py_ssize_t size;
} Bytes;

/* --- Skimming: 0 if reading would succeed, else -1 -------------------------------------------- */

static int is_utf8(const char *data, Py_ssize_t size)
{
    Py_ssize_t i = 0;
    while (i < size && !(data[i] & 0x80)) {
        i++;
    }
    if (i == size) {
        return 1;
    }
    PyObject *text = PyUnicode_DecodeUTF8(data, size, NULL);
    int is_text = text != NULL;
    Py_XDECREF(text);
    PyErr_Clear();
    return is_text;
}

static int is_member(PyObject *members, const char *data, Py_ssize_t size)
{
    PyObject *text = PyUnicode_DecodeUTF8(data, size, NULL);
    int found = text != NULL && PyDict_GetItemWithError(members, text) != NULL;
    Py_XDECREF(text);
    PyErr_Clear();
    return found;
}

static int skim(Node *node, In *in)
{
    int64_t number;
    Py_ssize_t size;
    const char *data;
    switch (node->kind) {
    case LONG:
        return take_long(in, &number);
    case STRING:
        if ((data = take_bytes(in, &size)) == NULL) {
            return -1;
        }
        return (node->members ? is_member(node->members, data, size) : is_utf8(data, size)) - 1;
    case BYTES:
        return take_bytes(in, &size) ? 0 : -1;
    case BOOLEAN:
        return in->at < in->end && *in->at++ <= 1 ? 0 : -1;
    case ENUM:
        return take_long(in, &number) < 0 || number < 0 ||
                       number >= PyTuple_GET_SIZE(node->members)
                   ? -1
                   : 0;
    case ARRAY:
        if (take_long(in, &number) < 0 || number < 0 || number > in->end - in->at) {
            return -1;
        }
        for (int64_t i = 0; i < number; i++) {
            const unsigned char *before = in->at;
            if (skim(node->parts[0], in) < 0 || in->at == before) {
                return -1;
            }
        }
        return number == 0 || (take_long(in, &number) == 0 && number == 0) ? 0 : -1;
    case UNION:
        if (take_long(in, &number) < 0 || number < 0 || number >= node->count) {
            return -1;
        }
        return node->parts[number] ? skim(node->parts[number], in) : 0;
    case RECORD:
        for (Py_ssize_t i = 0; i < node->count; i++) {
            if (skim(node->parts[i], in) < 0) {
                return -1;
            }
        }
        return 0;
    }
    return -1;
}

/* Find where a whole record's fields begin. */
static int skim_record(Shape *shape, PyObject *value)
{
    Py_ssize_t before = PyBytes_GET_SIZE(shape->prefix);
    if (!PyBytes_CheckExact(value) || PyBytes_GET_SIZE(value) < before ||
        memcmp(PyBytes_AS_STRING(value), PyBytes_AS_STRING(shape->prefix), (size_t)before) != 0) {
        return -1;
    }
    const unsigned char *start = (const unsigned char *)PyBytes_AS_STRING(value);
    In in = {start, start + before, start + PyBytes_GET_SIZE(value), 0};
    for (Py_ssize_t i = 0; i < shape->root->count; i++) {
        shape->starts[i] = in.at;
        if (skim(shape->root->parts[i], &in) < 0) {
            return -1;
        }
    }
    shape->end = in.end;
    return in.at == in.end ? 0 : -1;
}

static int64_t long_at(const Shape *shape, int field)
{
    int64_t number = 0;
    In in = {NULL, shape->starts[shape->fields[field]], shape->end, 0};
    take_long(&in, &number);
    return number;
}

static Bytes bytes_at(const Shape *shape, int field)
{
    Bytes found = {NULL, 0};
    In in = {NULL, shape->starts[shape->fields[field]], shape->end, 0};
    found.data = take_bytes(&in, &found.size);
    return found;
}

static int is_equal(Bytes one, const char *data, Py_ssize_t size)
{
    return one.size == size && memcmp(one.data, data, (size_t)size) == 0;
}

static int is_same(Bytes one, PyObject *other)
{
    return is_equal(one, PyBytes_AS_STRING(other), PyBytes_GET_SIZE(other));
}

/* Whether a digest is that of the inlined record that ends a record, behind other bytes. */
static int is_digest(Bytes digest, const Shape *shape, const unsigned char *before, size_t size)
{
    unsigned char found[DIGEST_BYTES];
    const unsigned char *inlined = shape->starts[shape->root->inlined];
    sha256_of(before, size, inlined, (size_t)(shape->end - inlined), found);
    return is_equal(digest, (const char *)found, DIGEST_BYTES);
}

/* --- What is plain ----------------------------------------------------------------------------- */

/* Whether the key of a record is its id, or begins with it and a slash. */
static int is_keyed(PyObject *key, Bytes id)
{
    if (!PyBytes_CheckExact(key) || id.size == 0 || id.size > ID_BYTES_MAX ||
        PyBytes_GET_SIZE(key) < id.size) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < id.size; i++) {
        if (id.data[i] < 0x20 || id.data[i] > 0x7E || id.data[i] == '/') {
            return 0;
        }
    }
    const char *data = PyBytes_AS_STRING(key);
    return memcmp(data, id.data, (size_t)id.size) == 0 &&
           (PyBytes_GET_SIZE(key) == id.size || data[id.size] == '/');
}

/* 1 if its properties name the principal, 0 if they name none, -1 for what isn't plain. */
static int attribution(Chain *self)
{
    Shape *shape = &self->transaction;
    Bytes principal = bytes_at(shape, PRINCIPAL);
    In in = {NULL, shape->starts[shape->fields[PROPERTIES]], shape->end, 0};
    int64_t count = 0;
    int is_named = 0;
    take_long(&in, &count);
    for (int64_t i = 0; i < count; i++) {
        Bytes name = {NULL, 0}, value = {NULL, 0};
        name.data = take_bytes(&in, &name.size);
        value.data = take_bytes(&in, &value.size);
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(self->noted); k++) {
            if (is_same(name, PyTuple_GET_ITEM(self->noted, k))) {
                return -1;
            }
        }
        if (!is_named && is_same(name, self->principal)) {
            if (!is_equal(value, principal.data, principal.size)) {
                return -1;
            }
            is_named = 1;
        }
    }
    return is_named || principal.size == 0;
}

static int are_operations_plain(Chain *self)
{
    Shape *shape = &self->transaction;
    Node *array = shape->root->parts[shape->fields[OPERATIONS]];
    In in = {NULL, shape->starts[shape->fields[OPERATIONS]], shape->end, 0};
    int64_t count = 0, kind = 0;
    take_long(&in, &count);
    for (int64_t i = 0; i < count; i++) {
        In next = in;
        if (take_long(&next, &kind) < 0 || kind != self->operation ||
            skim(array->parts[0], &in) < 0) {
            return 0;
        }
    }
    return 1;
}

typedef struct {
    long long end, epoch, sequence;
    const char *node, *hash;
    Py_ssize_t node_size, hash_size;
} Place;

/* The outcome's shape if it is the next one of the chain, else NULL. */
static Shape *next_outcome(Chain *self, PyObject *record, const Place *at)
{
    PyObject *value = PyTuple_GET_ITEM(record, 3);
    Shape *shape = NULL;
    for (Py_ssize_t i = 0; i < self->outcomes_count && shape == NULL; i++) {
        shape = skim_record(&self->outcomes[i], value) < 0 ? NULL : &self->outcomes[i];
    }
    if (shape == NULL || PyLong_AsLongLong(PyTuple_GET_ITEM(record, 0)) >= at->end ||
        long_at(shape, EPOCH) != at->epoch || long_at(shape, SEQUENCE) != at->sequence + 1 ||
        !is_equal(bytes_at(shape, NODE), at->node, at->node_size) ||
        !is_equal(bytes_at(shape, PREVIOUS_HASH), at->hash, at->hash_size)) {
        return NULL;
    }
    const unsigned char *before = (const unsigned char *)at->hash;
    return is_digest(bytes_at(shape, HASH), shape, before, (size_t)at->hash_size) ? shape : NULL;
}

/* Whether a transaction is what an outcome answers: -1 if not, else as `attribution`. */
static int answered(Chain *self, const Shape *outcome, PyObject *record)
{
    Shape *shape = &self->transaction;
    if (PyLong_AsLongLong(PyTuple_GET_ITEM(record, 0)) != long_at(outcome, ANSWERED_OFFSET) ||
        skim_record(shape, PyTuple_GET_ITEM(record, 3)) < 0) {
        return -1;
    }
    Bytes id = bytes_at(shape, TRANSACTION_ID), named = bytes_at(outcome, ANSWERED_ID);
    if (!is_equal(id, named.data, named.size) || !is_keyed(PyTuple_GET_ITEM(record, 2), id) ||
        !are_operations_plain(self) ||
        !is_digest(bytes_at(outcome, PAYLOAD_HASH), shape, NULL, 0)) {
        return -1;
    }
    return attribution(self);
}

struct Appends;
static int are_appends(PyObject *value);
static int decide_again(struct Appends *self, Chain *chain, const Shape *outcome, PyObject *record);

/* --- The class --------------------------------------------------------------------------------- */

static PyObject *record_at(PyObject *records, Py_ssize_t at)
{
    if (at >= PyList_GET_SIZE(records)) {
        return NULL;
    }
    PyObject *record = PyList_GET_ITEM(records, at);
    int is_raw = PyTuple_Check(record) && PyTuple_GET_SIZE(record) == 4 &&
                 PyLong_CheckExact(PyTuple_GET_ITEM(record, 0));
    return is_raw ? record : NULL;
}

static PyObject *chain_follow(Chain *self, PyObject *arguments)
{
    PyObject *outcomes, *transactions, *appends;
    Py_ssize_t first, taken;
    Place at;
    if (!PyArg_ParseTuple(arguments, "O!nLOnLLs#y#O", &PyList_Type, &outcomes, &first, &at.end,
                          &transactions, &taken, &at.epoch, &at.sequence, &at.node, &at.node_size,
                          &at.hash, &at.hash_size, &appends)) {
        return NULL;
    }
    if (first < 0 || taken < 0 || (transactions != Py_None && !PyList_Check(transactions))) {
        PyErr_SetString(PyExc_ValueError, "records are a list, from an index on, or None");
        return NULL;
    }
    if (appends != Py_None && (transactions == Py_None || !are_appends(appends))) {
        PyErr_SetString(PyExc_TypeError, "Appends decide transactions");
        return NULL;
    }
    Out hashes;
    begin(&hashes);
    long long committed = 0, unattributed = 0, low = -1, high = -1;
    Py_ssize_t count = 0;
    int is_failed = 0;
    for (PyObject *record; (record = record_at(outcomes, first + count)) != NULL; count++) {
        Shape *outcome = next_outcome(self, record, &at);
        if (outcome == NULL) {
            break;
        }
        if (transactions != Py_None) {
            PyObject *transaction = record_at(transactions, taken + count);
            int is_named = transaction ? answered(self, outcome, transaction) : -1;
            int done = is_named < 0               ? 0
                       : appends == Py_None       ? 1
                       : decide_again((struct Appends *)appends, self, outcome, transaction);
            if (done <= 0) {
                is_failed = done < 0;
                break;
            }
            unattributed += !is_named;
        }
        long long offset = long_at(outcome, ANSWERED_OFFSET);
        low = low < 0 || offset < low ? offset : low;
        high = offset > high ? offset : high;
        committed += long_at(outcome, STATUS) == self->committed;
        /* The bytes stay where they are: the list holds the record. */
        at.hash = bytes_at(outcome, HASH).data;
        at.hash_size = DIGEST_BYTES;
        at.sequence++;
        if (put(&hashes, at.hash, DIGEST_BYTES) < 0) {
            is_failed = 1;
            break;
        }
    }
    PyObject *made = NULL;
    if (!is_failed) {
        PyErr_Clear(); /* of an offset above 64 bits, which isn't plain */
        made = Py_BuildValue("nLLLLy#", count, committed, unattributed, low, high, hashes.start,
                             (Py_ssize_t)(hashes.at - hashes.start));
    }
    end(&hashes);
    return made;
}

/* (plan, prefix, the numbers of the fields) */
static int parse_shape(Shape *shape, PyObject *given, Py_ssize_t count)
{
    PyObject *plan, *fields;
    if (!PyTuple_Check(given) ||
        !PyArg_ParseTuple(given, "OO!O!", &plan, &PyBytes_Type, &shape->prefix, &PyTuple_Type,
                          &fields)) {
        shape->prefix = NULL;
        return -1;
    }
    Py_INCREF(shape->prefix);
    if ((shape->root = parse(plan)) == NULL) {
        return -1;
    }
    int is_right = shape->root->kind == RECORD && shape->root->count <= FIELDS_MAX &&
                   shape->root->inlined >= 0 && PyTuple_GET_SIZE(fields) == count;
    for (Py_ssize_t i = 0; is_right && i < count; i++) {
        shape->fields[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(fields, i));
        is_right = shape->fields[i] >= 0 && shape->fields[i] < shape->root->count;
    }
    if (!is_right && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "a shape of no record that ends in an inlined one");
    }
    return is_right ? 0 : -1;
}

static PyObject *chain_new(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    PyObject *outcomes, *transaction, *principal, *noted;
    long long committed, operation;
    static char *names[] = {"outcomes", "transaction", "principal", "noted", "committed",
                            "operation", NULL};
    if (!PyArg_ParseTupleAndKeywords(arguments, named, "O!OO!O!LL", names, &PyTuple_Type,
                                     &outcomes, &transaction, &PyBytes_Type, &principal,
                                     &PyTuple_Type, &noted, &committed, &operation)) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(noted); i++) {
        if (!PyBytes_CheckExact(PyTuple_GET_ITEM(noted, i))) {
            PyErr_SetString(PyExc_TypeError, "the names of properties are bytes");
            return NULL;
        }
    }
    if (PyTuple_GET_SIZE(outcomes) > 2) {
        PyErr_SetString(PyExc_ValueError, "outcomes have two schemas at most");
        return NULL;
    }
    Chain *self = (Chain *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->principal = Py_NewRef(principal);
    self->noted = Py_NewRef(noted);
    self->committed = committed;
    self->operation = operation;
    int failed = parse_shape(&self->transaction, transaction, TRANSACTION_FIELDS) < 0;
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(outcomes); i++) {
        self->outcomes_count = i + 1;
        failed = parse_shape(&self->outcomes[i], PyTuple_GET_ITEM(outcomes, i), OUTCOME_FIELDS) < 0;
    }
    if (failed) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void chain_dealloc(Chain *self)
{
    PyTypeObject *type = Py_TYPE(self);
    for (Py_ssize_t i = 0; i < self->outcomes_count; i++) {
        free_node(self->outcomes[i].root);
        Py_XDECREF(self->outcomes[i].prefix);
    }
    free_node(self->transaction.root);
    Py_XDECREF(self->transaction.prefix);
    Py_XDECREF(self->principal);
    Py_XDECREF(self->noted);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyMethodDef chain_methods[] = {
    {"follow", (PyCFunction)chain_follow, METH_VARARGS,
     "Follow plain records from a place on; see `avro_chain.py`."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot chain_slots[] = {
    {Py_tp_doc, "Follows the chain of hashes over records' bytes."},
    {Py_tp_new, chain_new},
    {Py_tp_dealloc, chain_dealloc},
    {Py_tp_methods, chain_methods},
    {0, NULL},
};

static PyType_Spec chain_spec = {
    "commitlog.codecs._native.Chain", sizeof(Chain), 0, Py_TPFLAGS_DEFAULT, chain_slots};

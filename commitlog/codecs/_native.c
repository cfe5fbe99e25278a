/* Avro records straight between bytes and the model's values.
 *
 * A Codec is made of a plan, which `avro_native.py` derives from a schema. It writes a value's
 * record and reads it back as the functions of `avro_compiled.py` do, which are the reference: what
 * isn't of the exact types that the plan names, and bytes that aren't whole, are refused with None,
 * and the reference then says what they are. So whatever this file accepts it has to read and write
 * as the reference does, and it may refuse anything.
 *
 * Bytes come from the network. A position is compared with the end before it is read, lengths and
 * counts with what is left, and an item that took no byte is refused, so that no count can ask for
 * more than eight bytes of memory per byte of the record.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdint.h>
#include <string.h>

/* Grows with each change of the plans or of the class: a module of another one isn't used. */
#define INTERFACE 9

enum Kind { LONG, STRING, BYTES, BOOLEAN, ENUM, ARRAY, UNION, RECORD };

typedef struct Node {
    enum Kind kind;
    Py_ssize_t count;         /* of parts */
    struct Node **parts;      /* an array's item, a union's branches (NULL: null), fields */
    Py_ssize_t *offsets;      /* RECORD of a class: where each field lies in an object */
    PyTypeObject *type;       /* RECORD: NULL for a tuple of the fields */
    PyObject *members;        /* ENUM: tuple; STRING: dict from text to member, or NULL */
    PyObject *symbols;        /* ENUM: dict from symbol to its number */
    int is_sorted;            /* ARRAY: tuples of text and bytes, written in their order */
    Py_ssize_t inlined;       /* RECORD: the field at which the inlined record begins, or -1 */
    PyObject *derive;         /* RECORD: takes the inlined record's bytes, or NULL */
    Py_ssize_t derived_at;    /* the field that is derived */
    PyObject *defaults;       /* RECORD: tuple of values of fields that no record carries */
    Py_ssize_t *default_at;   /* and where they lie */
} Node;

typedef struct {
    PyObject_HEAD
    Node *root;
    PyObject *prefix;
} Codec;

/* --- Plans ---------------------------------------------------------------------------------- */

static void free_node(Node *node)
{
    if (node == NULL) {
        return;
    }
    for (Py_ssize_t i = 0; node->parts != NULL && i < node->count; i++) {
        free_node(node->parts[i]);
    }
    PyMem_Free(node->parts);
    PyMem_Free(node->offsets);
    PyMem_Free(node->default_at);
    Py_XDECREF(node->type);
    Py_XDECREF(node->members);
    Py_XDECREF(node->symbols);
    Py_XDECREF(node->derive);
    Py_XDECREF(node->defaults);
    PyMem_Free(node);
}

/* Return where a slot lies in objects of a class, or -1 with TypeError. */
static Py_ssize_t slot_offset(PyTypeObject *type, PyObject *name)
{
    PyObject *found = PyObject_GetAttr((PyObject *)type, name);
    Py_ssize_t offset = -1;
    if (found != NULL && Py_TYPE(found) == &PyMemberDescr_Type) {
        PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
        if (member->type == T_OBJECT_EX) {
            offset = member->offset;
        }
    }
    Py_XDECREF(found);
    if (offset < 0) {
        PyErr_Format(PyExc_TypeError, "%s.%U isn't a slot", type->tp_name, name);
    }
    return offset;
}

static Node *parse(PyObject *plan);

static int parse_parts(Node *node, PyObject *plans)
{
    if (!PyTuple_Check(plans)) {
        PyErr_SetString(PyExc_TypeError, "the parts of a plan are a tuple");
        return -1;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(plans);
    node->parts = PyMem_Calloc(count ? count : 1, sizeof(Node *));
    if (node->parts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    node->count = count;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *plan = PyTuple_GET_ITEM(plans, i);
        if (plan == Py_None && node->kind == UNION) {
            continue;
        }
        if ((node->parts[i] = parse(plan)) == NULL) {
            return -1;
        }
    }
    return 0;
}

/* Return the offsets of named slots; NULL with an error. */
static Py_ssize_t *parse_slots(PyTypeObject *type, PyObject *names)
{
    Py_ssize_t count = PyTuple_GET_SIZE(names);
    Py_ssize_t *offsets = PyMem_Calloc(count ? count : 1, sizeof(Py_ssize_t));
    if (offsets == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        offsets[i] = slot_offset(type, PyTuple_GET_ITEM(names, i));
        if (offsets[i] < 0) {
            PyMem_Free(offsets);
            return NULL;
        }
    }
    return offsets;
}

/* ("record", class or None, names, plans, inlined, derive or None, derived, names, values) */
static int parse_record(Node *node, PyObject *plan)
{
    PyObject *word, *type, *names, *plans, *derive, *derived, *unnamed, *defaults;
    if (!PyArg_ParseTuple(plan, "OOO!O!nOOO!O!", &word, &type, &PyTuple_Type, &names,
                          &PyTuple_Type, &plans, &node->inlined, &derive, &derived,
                          &PyTuple_Type, &unnamed, &PyTuple_Type, &defaults)) {
        return -1;
    }
    if (PyTuple_GET_SIZE(names) != PyTuple_GET_SIZE(plans) ||
        PyTuple_GET_SIZE(unnamed) != PyTuple_GET_SIZE(defaults)) {
        PyErr_SetString(PyExc_ValueError, "a record has as many names as plans and values");
        return -1;
    }
    if (parse_parts(node, plans) < 0 || type == Py_None) {
        return type == Py_None && !PyErr_Occurred() ? 0 : -1;
    }
    if (!PyType_Check(type)) {
        PyErr_SetString(PyExc_TypeError, "a record's class is a class");
        return -1;
    }
    node->type = (PyTypeObject *)Py_NewRef(type);
    node->defaults = Py_NewRef(defaults);
    if ((node->offsets = parse_slots(node->type, names)) == NULL ||
        (node->default_at = parse_slots(node->type, unnamed)) == NULL) {
        return -1;
    }
    if (derive != Py_None) {
        node->derive = Py_NewRef(derive);
        if ((node->derived_at = slot_offset(node->type, derived)) < 0) {
            return -1;
        }
    }
    return 0;
}

static int parse_into(Node *node, const char *word, PyObject *plan)
{
    PyObject *ignored;
    if (strcmp(word, "long") == 0) {
        node->kind = LONG;
        return 0;
    }
    if (strcmp(word, "bytes") == 0) {
        node->kind = BYTES;
        return 0;
    }
    if (strcmp(word, "boolean") == 0) {
        node->kind = BOOLEAN;
        return 0;
    }
    if (strcmp(word, "string") == 0) {
        PyObject *members;
        node->kind = STRING;
        if (!PyArg_ParseTuple(plan, "OO", &ignored, &members)) {
            return -1;
        }
        node->members = members == Py_None ? NULL : Py_NewRef(members);
        return 0;
    }
    if (strcmp(word, "enum") == 0) {
        node->kind = ENUM;
        if (!PyArg_ParseTuple(plan, "OO!O!", &ignored, &PyTuple_Type, &node->members,
                              &PyDict_Type, &node->symbols)) {
            node->members = node->symbols = NULL;
            return -1;
        }
        Py_INCREF(node->members);
        Py_INCREF(node->symbols);
        return 0;
    }
    if (strcmp(word, "array") == 0) {
        PyObject *parts;
        node->kind = ARRAY;
        return PyArg_ParseTuple(plan, "OOp", &ignored, &parts, &node->is_sorted)
                   ? parse_parts(node, parts)
                   : -1;
    }
    if (strcmp(word, "union") == 0) {
        PyObject *parts;
        node->kind = UNION;
        return PyArg_ParseTuple(plan, "OO", &ignored, &parts) ? parse_parts(node, parts) : -1;
    }
    if (strcmp(word, "record") == 0) {
        node->kind = RECORD;
        return parse_record(node, plan);
    }
    PyErr_Format(PyExc_ValueError, "a plan of no known kind: %s", word);
    return -1;
}

static Node *parse(PyObject *plan)
{
    const char *word;
    if (!PyTuple_Check(plan) || PyTuple_GET_SIZE(plan) == 0 ||
        (word = PyUnicode_AsUTF8(PyTuple_GET_ITEM(plan, 0))) == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "a plan is a tuple that begins with a word");
        }
        return NULL;
    }
    Node *node = PyMem_Calloc(1, sizeof(Node));
    if (node == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    node->inlined = -1;
    if (parse_into(node, word, plan) < 0) {
        free_node(node);
        return NULL;
    }
    return node;
}

/* --- Writing: 0, or -1 for what is left to the reference ------------------------------------- */

typedef struct {
    char *start, *at, *end;
    char inside[1024];
} Out;

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

static int grow(Out *out, size_t more)
{
    size_t used = (size_t)(out->at - out->start), size = (size_t)(out->end - out->start);
    size_t wanted = size * 2 > used + more ? size * 2 : used + more;
    char *made = out->start == out->inside ? PyMem_Malloc(wanted)
                                           : PyMem_Realloc(out->start, wanted);
    if (made == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (out->start == out->inside) {
        memcpy(made, out->inside, used);
    }
    out->start = made;
    out->at = made + used;
    out->end = made + wanted;
    return 0;
}

static inline int put(Out *out, const char *data, Py_ssize_t size)
{
    if (out->end - out->at < size && grow(out, (size_t)size) < 0) {
        return -1;
    }
    memcpy(out->at, data, (size_t)size);
    out->at += size;
    return 0;
}

static inline int put_long(Out *out, int64_t number)
{
    uint64_t rest = ((uint64_t)number << 1) ^ (number < 0 ? UINT64_MAX : 0);
    if (out->end - out->at < 10 && grow(out, 10) < 0) {
        return -1;
    }
    while (rest > 0x7F) {
        *out->at++ = (char)(rest | 0x80);
        rest >>= 7;
    }
    *out->at++ = (char)rest;
    return 0;
}

static int write_node(Node *node, PyObject *value, Out *out);

/* Return the items in the order in which they are written: a new list, or NULL. */
static PyObject *in_order(PyObject *items)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items); i++) {
        PyObject *item = PyTuple_GET_ITEM(items, i);
        if (!PyTuple_CheckExact(item)) {
            return NULL;
        }
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(item); k++) {
            PyObject *part = PyTuple_GET_ITEM(item, k);
            if (!PyUnicode_CheckExact(part) && !PyBytes_CheckExact(part)) {
                return NULL;
            }
        }
    }
    PyObject *list = PySequence_List(items);
    if (list != NULL && PyList_Sort(list) < 0) {
        Py_CLEAR(list);
    }
    return list;
}

static int write_array(Node *node, PyObject *value, Out *out)
{
    if (!PyTuple_CheckExact(value)) {
        return -1;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(value);
    PyObject *ordered = NULL;
    if (node->is_sorted && count && (ordered = in_order(value)) == NULL) {
        return -1;
    }
    int failed = count && put_long(out, count) < 0;
    for (Py_ssize_t i = 0; !failed && i < count; i++) {
        PyObject *item = ordered ? PyList_GET_ITEM(ordered, i) : PyTuple_GET_ITEM(value, i);
        failed = write_node(node->parts[0], item, out) < 0;
    }
    Py_XDECREF(ordered);
    return failed ? -1 : put_long(out, 0);
}

static int write_union(Node *node, PyObject *value, Out *out)
{
    for (Py_ssize_t i = 0; i < node->count; i++) {
        Node *branch = node->parts[i];
        int is_it;
        if (branch == NULL) {
            is_it = value == Py_None;
        } else if (branch->kind == RECORD) {
            is_it = Py_TYPE(value) == branch->type;
        } else {
            is_it = value != Py_None;
        }
        if (is_it) {
            return put_long(out, i) < 0 || (branch && write_node(branch, value, out) < 0) ? -1 : 0;
        }
    }
    return -1;
}

static int write_record(Node *node, PyObject *value, Out *out)
{
    if (node->type == NULL) {
        if (!PyTuple_CheckExact(value) || PyTuple_GET_SIZE(value) != node->count) {
            return -1;
        }
    } else if (Py_TYPE(value) != node->type) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < node->count; i++) {
        PyObject *field = node->type == NULL ? PyTuple_GET_ITEM(value, i)
                                             : *(PyObject **)((char *)value + node->offsets[i]);
        if (field == NULL || write_node(node->parts[i], field, out) < 0) {
            return -1;
        }
    }
    return 0;
}

static int write_node(Node *node, PyObject *value, Out *out)
{
    switch (node->kind) {
    case LONG: {
        int is_over = 0;
        if (!PyLong_CheckExact(value)) {
            return -1;
        }
        int64_t number = PyLong_AsLongLongAndOverflow(value, &is_over);
        return is_over ? -1 : put_long(out, number);
    }
    case STRING: {
        Py_ssize_t size;
        const char *text = PyUnicode_Check(value) ? PyUnicode_AsUTF8AndSize(value, &size) : NULL;
        return text == NULL || put_long(out, size) < 0 ? -1 : put(out, text, size);
    }
    case BYTES: {
        if (!PyBytes_CheckExact(value)) {
            return -1;
        }
        Py_ssize_t size = PyBytes_GET_SIZE(value);
        return put_long(out, size) < 0 ? -1 : put(out, PyBytes_AS_STRING(value), size);
    }
    case BOOLEAN:
        return PyBool_Check(value) ? put(out, value == Py_True ? "\1" : "\0", 1) : -1;
    case ENUM: {
        PyObject *number = PyUnicode_Check(value) ? PyDict_GetItemWithError(node->symbols, value)
                                                  : NULL;
        return number == NULL ? -1 : put_long(out, PyLong_AsLongLong(number));
    }
    case ARRAY:
        return write_array(node, value, out);
    case UNION:
        return write_union(node, value, out);
    case RECORD:
        return write_record(node, value, out);
    }
    return -1;
}

/* --- Reading: a new reference, or NULL for what is left to the reference ----------------------- */

typedef struct {
    const unsigned char *start, *at, *end;
    Py_ssize_t inlined;
} In;

static inline int take_long(In *in, int64_t *number)
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
            *number = (int64_t)(found >> 1) ^ -(int64_t)(found & 1);
            return 0;
        }
    }
    return -1;
}

/* Take bytes that follow their length; NULL if they aren't there. */
static inline const char *take_bytes(In *in, Py_ssize_t *size)
{
    int64_t length;
    if (take_long(in, &length) < 0 || length < 0 || length > in->end - in->at) {
        return NULL;
    }
    const char *found = (const char *)in->at;
    in->at += length;
    *size = (Py_ssize_t)length;
    return found;
}

static PyObject *read_node(Node *node, In *in);

static PyObject *read_array(Node *node, In *in)
{
    int64_t count;
    if (take_long(in, &count) < 0 || count < 0 || count > in->end - in->at) {
        return NULL;
    }
    PyObject *items = PyTuple_New((Py_ssize_t)count);
    if (items == NULL || count == 0) {
        return items;
    }
    for (Py_ssize_t i = 0; i < (Py_ssize_t)count; i++) {
        const unsigned char *before = in->at;
        PyObject *item = read_node(node->parts[0], in);
        if (item == NULL) {
            Py_DECREF(items);
            return NULL;
        }
        PyTuple_SET_ITEM(items, i, item);
        if (in->at == before) {
            Py_DECREF(items);
            return NULL;
        }
    }
    /* This program writes one block; several are left to the reference. */
    if (take_long(in, &count) < 0 || count != 0) {
        Py_DECREF(items);
        return NULL;
    }
    return items;
}

static int derive(Node *node, PyObject *value, const unsigned char *start, In *in)
{
    PyObject *tail = PyBytes_FromStringAndSize((const char *)start, in->end - start);
    PyObject *found = tail ? PyObject_CallOneArg(node->derive, tail) : NULL;
    Py_XDECREF(tail);
    if (found == NULL) {
        return -1;
    }
    Py_XSETREF(*(PyObject **)((char *)value + node->derived_at), found);
    return 0;
}

static PyObject *read_record(Node *node, In *in)
{
    PyObject *value = node->type == NULL ? PyTuple_New(node->count)
                                         : node->type->tp_alloc(node->type, 0);
    if (value == NULL) {
        return NULL;
    }
    const unsigned char *inlined = NULL;
    for (Py_ssize_t i = 0; i < node->count; i++) {
        if (i == node->inlined) {
            inlined = in->at;
            in->inlined = in->at - in->start;
        }
        PyObject *field = read_node(node->parts[i], in);
        if (field == NULL) {
            Py_DECREF(value);
            return NULL;
        }
        if (node->type == NULL) {
            PyTuple_SET_ITEM(value, i, field);
        } else {
            Py_XSETREF(*(PyObject **)((char *)value + node->offsets[i]), field);
        }
    }
    for (Py_ssize_t i = 0; node->type != NULL && i < PyTuple_GET_SIZE(node->defaults); i++) {
        PyObject *given = PyTuple_GET_ITEM(node->defaults, i);
        Py_XSETREF(*(PyObject **)((char *)value + node->default_at[i]), Py_NewRef(given));
    }
    if (node->derive != NULL && (inlined == NULL || derive(node, value, inlined, in) < 0)) {
        Py_CLEAR(value);
    }
    return value;
}

static PyObject *read_node(Node *node, In *in)
{
    int64_t number;
    Py_ssize_t size;
    const char *data;
    switch (node->kind) {
    case LONG:
        return take_long(in, &number) < 0 ? NULL : PyLong_FromLongLong(number);
    case STRING: {
        if ((data = take_bytes(in, &size)) == NULL) {
            return NULL;
        }
        PyObject *text = PyUnicode_DecodeUTF8(data, size, NULL);
        if (text == NULL || node->members == NULL) {
            return text;
        }
        PyObject *member = PyDict_GetItemWithError(node->members, text);
        Py_DECREF(text);
        return Py_XNewRef(member);
    }
    case BYTES:
        return (data = take_bytes(in, &size)) ? PyBytes_FromStringAndSize(data, size) : NULL;
    case BOOLEAN:
        return in->at < in->end && *in->at <= 1 ? PyBool_FromLong(*in->at++) : NULL;
    case ENUM:
        if (take_long(in, &number) < 0 || number < 0 ||
            number >= PyTuple_GET_SIZE(node->members)) {
            return NULL;
        }
        return Py_NewRef(PyTuple_GET_ITEM(node->members, (Py_ssize_t)number));
    case ARRAY:
        return read_array(node, in);
    case UNION:
        if (take_long(in, &number) < 0 || number < 0 || number >= node->count) {
            return NULL;
        }
        return node->parts[number] ? read_node(node->parts[number], in) : Py_NewRef(Py_None);
    case RECORD:
        return read_record(node, in);
    }
    return NULL;
}

/* --- The class --------------------------------------------------------------------------------- */

/* None for what is refused; a lack of memory is an error, and so is a Ctrl-C in called Python. */
static PyObject *refused(void)
{
    if (PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_MemoryError) ||
            !PyErr_ExceptionMatches(PyExc_Exception)) {
            return NULL;
        }
        PyErr_Clear();
    }
    Py_RETURN_NONE;
}

static PyObject *codec_write(Codec *self, PyObject *value)
{
    Out out;
    begin(&out);
    PyObject *made = NULL;
    if (put(&out, PyBytes_AS_STRING(self->prefix), PyBytes_GET_SIZE(self->prefix)) == 0 &&
        write_node(self->root, value, &out) == 0) {
        made = PyBytes_FromStringAndSize(out.start, out.at - out.start);
    }
    end(&out);
    return made ? made : refused();
}

static PyObject *codec_read(Codec *self, PyObject *data)
{
    if (!PyBytes_CheckExact(data)) {
        Py_RETURN_NONE;
    }
    const unsigned char *start = (const unsigned char *)PyBytes_AS_STRING(data);
    Py_ssize_t size = PyBytes_GET_SIZE(data), before = PyBytes_GET_SIZE(self->prefix);
    if (size < before || memcmp(start, PyBytes_AS_STRING(self->prefix), (size_t)before) != 0) {
        Py_RETURN_NONE;
    }
    In in = {start, start + before, start + size, 0};
    PyObject *value = read_node(self->root, &in);
    if (value == NULL) {
        return refused();
    }
    if (in.at != in.end) {
        Py_DECREF(value);
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(Nn)", value, in.inlined);
}

static PyObject *codec_new(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    PyObject *plan, *prefix;
    static char *names[] = {"plan", "prefix", NULL};
    if (!PyArg_ParseTupleAndKeywords(arguments, named, "OO!", names, &plan, &PyBytes_Type,
                                     &prefix)) {
        return NULL;
    }
    Codec *self = (Codec *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->prefix = Py_NewRef(prefix);
    if ((self->root = parse(plan)) == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void codec_dealloc(Codec *self)
{
    PyTypeObject *type = Py_TYPE(self);
    free_node(self->root);
    Py_XDECREF(self->prefix);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyMethodDef codec_methods[] = {
    {"write", (PyCFunction)codec_write, METH_O,
     "Return a value's record behind the prefix, or None to leave it to the reference."},
    {"read", (PyCFunction)codec_read, METH_O,
     "Return a record's value and where its inlined record begins (0 without one), or None."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot codec_slots[] = {
    {Py_tp_doc, "Writes and reads the records of one schema."},
    {Py_tp_new, codec_new},
    {Py_tp_dealloc, codec_dealloc},
    {Py_tp_methods, codec_methods},
    {0, NULL},
};

static PyType_Spec codec_spec = {
    "commitlog.codecs._native.Codec", sizeof(Codec), 0, Py_TPFLAGS_DEFAULT, codec_slots};

#include "_native_chain.h"
#include "_native_appends.h"
#include "_native_columns.h"
#include "_native_plain.h"
#include "_native_json.h"
#include "_native_parts.h"
#include "_native_decided.h"

/* --- The module --------------------------------------------------------------------------------- */

static int add_class(PyObject *module, PyType_Spec *spec, const char *name)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    int failed = type == NULL || PyModule_AddObjectRef(module, name, type) < 0;
    Py_XDECREF(type);
    return failed;
}

static int module_exec(PyObject *module)
{
    int failed = intern(append_name, append_names, APPEND_NAMES) < 0 ||
                 intern(decided_name, decided_names, DECIDED_NAMES) < 0 ||
                 PyModule_AddFunctions(module, append_methods) < 0 ||
                 PyModule_AddFunctions(module, plain_methods) < 0 ||
                 PyModule_AddFunctions(module, json_methods) < 0 ||
                 PyModule_AddFunctions(module, parts_methods) < 0 ||
                 add_class(module, &codec_spec, "Codec") ||
                 add_class(module, &chain_spec, "Chain") ||
                 add_class(module, &columns_spec, "AppendColumns") ||
                 add_class(module, &head_spec, "AppendHead") ||
                 add_class(module, &appends_spec, "Appends") ||
                 PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0;
    return failed ? -1 : 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "commitlog.codecs._native",
    "Records between bytes and values, in machine code.", 0, NULL, module_slots,
    NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&module_definition); }

/* Plain appends, decided again over their records' bytes: `core/partition/decided_appends.py` makes
 * the state for it and takes what comes of it. `core/lance/plain_commits.py` is the reference.
 *
 * An append counts if its outcome's bytes are those that deciding it gives. Before the first one of
 * which anything else is true, or isn't sure, a run ends, and Python decides.
 */

#define APPEND_BYTES_MAX 65536    /* far below what an outcome may have */
#define FILES_MAX 64
#define FRAGMENT_IDS (1LL << 32)
#define UUID_BYTES 36

enum { COMMIT_TABLE, COMMIT_OPERATION, COMMIT_READ_VERSION, COMMIT_MESSAGE, COMMIT_INCARNATION,
       COMMIT_BRANCH, COMMIT_METADATA, COMMIT_ROWS, COMMIT_KEYS, COMMIT_SUMMARY, COMMIT_FIELDS };

static const char append_kind[] = "Append";

/* A table as a run finds it, and as it leaves it. */
typedef struct {
    PyObject_HEAD
    PyObject *incarnation;    /* str */
    PyObject *row;            /* bytes: how a result begins in what is remembered of an id */
    PyObject *accepted;       /* dict: known layouts, and whether they mix file formats */
    int is_stable, unmixed_alike, mixed_alike;
    long long version, next_fragment_id, next_row_id;
    long long oldest;         /* versions before it are not known */
    long long window;         /* how many versions back are looked at */
    long long ruled;          /* the last version that an append may conflict with */
    long long room;           /* so many versions until old ones are forgotten */
    PyObject *ids, *fragments, *uuid;
    long long read_version, time_ms, sequence;
} Head;

typedef struct Appends {
    PyObject_HEAD
    PyObject *head_of;        /* called with a table's name: a Head or None */
    PyObject *heads;          /* dict: what it returned */
    PyObject *known;          /* dict of ids that were decided */
    PyObject *packed_in;      /* called with an id: the chunks that may have it */
    PyObject *rows;           /* dict: what is to be remembered, by id */
    long long time_ms, clock_ms, appended_ms, step_ms, horizon_ms, forgotten_ms, oldest_ms;
    int is_bounded, is_confirmed;
} Appends;

/* --- The request -------------------------------------------------------------------------------- */

typedef struct {
    Bytes table, operation, message, incarnation, branch;
    int64_t read_version;
} Commit;

/* Take the only operation of a transaction, of which `are_operations_plain` is true. */
static PyObject *take_commit(Chain *chain, Commit *commit)
{
    Shape *shape = &chain->transaction;
    Node *array = shape->root->parts[shape->fields[OPERATIONS]];
    In in = {NULL, shape->starts[shape->fields[OPERATIONS]], shape->end, 0};
    int64_t count = 0, kind = 0, number = 0;
    take_long(&in, &count);
    if (count != 1 || take_long(&in, &kind) < 0) {
        return NULL;
    }
    Node *node = array->parts[0]->parts[kind];
    if (node->kind != RECORD || node->count != COMMIT_FIELDS) {
        return NULL;
    }
    const unsigned char *start = in.at;
    PyObject *table = read_node(node->parts[COMMIT_TABLE], &in);
    commit->table = (Bytes){(const char *)start, in.at - start};
    if (table == NULL ||
        (commit->operation.data = take_bytes(&in, &commit->operation.size)) == NULL ||
        take_long(&in, &commit->read_version) < 0 ||
        (commit->message.data = take_bytes(&in, &commit->message.size)) == NULL ||
        (commit->incarnation.data = take_bytes(&in, &commit->incarnation.size)) == NULL ||
        (commit->branch.data = take_bytes(&in, &commit->branch.size)) == NULL ||
        !is_equal(commit->operation, append_kind, sizeof append_kind - 1) ||
        commit->branch.size != 0 || take_long(&in, &number) < 0 || number != 0 || /* no metadata */
        take_long(&in, &number) < 0 || number != 0 ||                             /* no rows */
        take_long(&in, &number) < 0 || number != 0) {                             /* no keys */
        Py_CLEAR(table);
    }
    return table;
}

/* Return the time in a UUIDv7, 0 of another id; -1 where Python has to read it. */
static long long made_ms(Bytes id)
{
    long long found = 0;
    if (id.size != UUID_BYTES || id.data[14] != '7') {
        return 0;
    }
    for (int i = 0; i < 13; i++) {
        char letter = id.data[i];
        int digit = letter >= '0' && letter <= '9'   ? letter - '0'
                    : letter >= 'a' && letter <= 'f' ? letter - 'a' + 10
                    : letter >= 'A' && letter <= 'F' ? letter - 'A' + 10
                                                     : -1;
        if (i == 8) {
            continue;
        }
        if (digit < 0) {
            return -1;
        }
        found = found << 4 | digit;
    }
    return found;
}

static long long most(long long one, long long other) { return one > other ? one : other; }
static long long least(long long one, long long other) { return one < other ? one : other; }

typedef struct {
    long long time_ms, clock_ms, appended_ms, kept_ms, made_ms;
} Times;

/* Whether the log's clocks are known after a record; `core/partition/log_time.py` says how. */
static int take_times(const Appends *self, Bytes id, long long submitted_ms, long long appended_ms,
                      Times *times)
{
    long long born_ms = made_ms(id), claimed_ms = most(submitted_ms, born_ms);
    if (born_ms < 0 || submitted_ms < 0 || appended_ms < 0 || claimed_ms > INT64_MAX / 4 ||
        appended_ms > INT64_MAX / 4) {
        return 0;
    }
    long long floor_ms = self->forgotten_ms + 1, now_ms;
    times->appended_ms = self->appended_ms;
    if (self->is_bounded) {
        long long confirmed_ms = claimed_ms      ? claimed_ms
                                 : self->time_ms ? self->time_ms
                                                 : appended_ms;
        confirmed_ms = least(appended_ms, confirmed_ms + self->step_ms);
        times->time_ms = most(self->time_ms, confirmed_ms);
        times->made_ms = least(claimed_ms, most(times->time_ms, appended_ms) + self->horizon_ms);
        times->kept_ms = most(times->time_ms, times->made_ms);
        long long since_ms = self->clock_ms  ? self->clock_ms
                             : self->time_ms ? self->time_ms
                                             : times->time_ms;
        long long goal_ms = appended_ms;
        if (self->is_confirmed) {
            long long before_ms = self->appended_ms ? self->appended_ms : appended_ms;
            since_ms = self->appended_ms ? since_ms : least(since_ms, times->time_ms);
            goal_ms = least(appended_ms, most(since_ms + appended_ms - before_ms, confirmed_ms));
            times->appended_ms = appended_ms;
        }
        now_ms = most(since_ms, least(goal_ms, since_ms + self->step_ms));
        times->clock_ms = now_ms;
    } else {
        now_ms = times->time_ms = most(self->time_ms, appended_ms);
        times->made_ms = times->kept_ms = times->time_ms;
        times->clock_ms = self->clock_ms;
        floor_ms = most(floor_ms, times->time_ms - self->horizon_ms);
    }
    int is_old = (0 < submitted_ms && submitted_ms < floor_ms) || (0 < born_ms && born_ms < floor_ms);
    /* Ids are forgotten by Python. */
    return !is_old && self->oldest_ms > 0 && self->oldest_ms >= now_ms - self->horizon_ms;
}

/* --- The decision ------------------------------------------------------------------------------- */

static int is_free(const Head *head, long long read_version)
{
    return read_version == head->version ||
           (read_version < head->version && read_version >= head->ruled &&
            read_version >= most(head->oldest, head->version - head->window));
}

static int put_piece(Out *out, unsigned field, const Out *piece)
{
    return put_field(out, field, piece->start, piece->at - piece->start);
}

static int put_range(Out *out, uint64_t start, uint64_t end)
{
    Out bounds;
    begin(&bounds);
    return put_number(&bounds, 1, start) < 0 || put_number(&bounds, 2, end) < 0
               ? -1
               : put_piece(out, 1, &bounds);
}

/* `core/manifest/row_lineage.py` */
static int put_lineage(Out *out, uint64_t first_row_id, uint64_t rows, uint64_t version)
{
    Out range, run, versions, ids;
    begin(&range);
    begin(&run);
    begin(&versions);
    begin(&ids);
    if (put_range(&range, first_row_id, first_row_id + rows) < 0 || put_piece(&ids, 1, &range) < 0) {
        return -1;
    }
    begin(&range);
    if (put_range(&range, 0, rows) < 0 || put_piece(&run, 1, &range) < 0 ||
        put_number(&run, 2, version) < 0 || put_piece(&versions, 1, &run) < 0) {
        return -1;
    }
    return put_piece(out, 5, &ids) < 0 || put_piece(out, 7, &versions) < 0
               ? -1
               : put_piece(out, 9, &versions);
}

/* Return the fragments under their ids, None if they aren't sure; `next_row_id` goes on. */
static PyObject *with_ids(const Head *head, PyObject *plain, int is_current, long long *next_row_id)
{
    PyObject *fragments = PyTuple_GET_ITEM(plain, 2), *made = PyList_New(0);
    Py_ssize_t count = PyTuple_GET_SIZE(fragments);
    int is_sure = head->next_fragment_id >= 0 && head->next_fragment_id + count <= FRAGMENT_IDS;
    for (Py_ssize_t i = 0; made != NULL && is_sure && i < count; i++) {
        PyObject *fragment = PyTuple_GET_ITEM(fragments, i), *layout = PyTuple_GET_ITEM(fragment, 1);
        PyObject *bytes = PyTuple_GET_ITEM(fragment, 2), *one = NULL, *known = NULL;
        Py_ssize_t parts = PyTuple_GET_SIZE(layout);
        long long rows = PyLong_AsLongLong(PyTuple_GET_ITEM(fragment, 0));
        PyObject *key = PyTuple_New(parts + 1);
        if (key != NULL) {
            PyTuple_SET_ITEM(key, 0, PyBool_FromLong(is_current));
            for (Py_ssize_t k = 0; k < parts; k++) {
                PyTuple_SET_ITEM(key, k + 1, Py_NewRef(PyTuple_GET_ITEM(layout, k)));
            }
            known = PyDict_GetItemWithError(head->accepted, key);
            Py_DECREF(key);
        }
        is_sure = known != NULL && (known == Py_True ? head->mixed_alike : head->unmixed_alike) &&
                  (!head->is_stable || rows <= INT64_MAX - *next_row_id);
        if (!is_sure) {
            break;
        }
        Out out;
        begin(&out);
        long long id = head->next_fragment_id + i;
        int failed = put_number(&out, 1, (uint64_t)id) < 0 ||
                     put(&out, PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes)) < 0 ||
                     (head->is_stable && put_lineage(&out, (uint64_t)*next_row_id, (uint64_t)rows,
                                                     (uint64_t)head->version + 1) < 0);
        *next_row_id += head->is_stable ? rows : 0;
        if (!failed) {
            one = Py_BuildValue("(Ly#)", id, out.start, (Py_ssize_t)(out.at - out.start));
        }
        end(&out);
        if (one == NULL || PyList_Append(made, one) < 0) {
            Py_CLEAR(made);
        }
        Py_XDECREF(one);
    }
    if (made == NULL || is_sure) {
        return made;
    }
    Py_DECREF(made);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static int put_sized(Out *out, const char *data, Py_ssize_t size)
{
    return put_long(out, size) < 0 ? -1 : put(out, data, size);
}

/* Put what was seen of the files that an append brings: each as large as it says. */
static int put_observed(Out *out, PyObject *plain)
{
    PyObject *fragments = PyTuple_GET_ITEM(plain, 2), *seen[FILES_MAX];
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(fragments); i++) {
        PyObject *files = PyTuple_GET_ITEM(PyTuple_GET_ITEM(fragments, i), 3);
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(files); k++) {
            if (count == FILES_MAX) {
                return -1;
            }
            seen[count] = PyTuple_GET_ITEM(files, k);
            for (Py_ssize_t j = 0; j < count; j++) {
                if (PyUnicode_Compare(PyTuple_GET_ITEM(seen[j], 0),
                                      PyTuple_GET_ITEM(seen[count], 0)) == 0) {
                    return -1;
                }
            }
            count++;
        }
    }
    if (put_long(out, count) < 0) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t size;
        const char *path = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(seen[i], 0), &size);
        if (path == NULL || put_long(out, size + 5) < 0 || put(out, "data/", 5) < 0 ||
            put(out, path, size) < 0 ||
            put_long(out, PyLong_AsLongLong(PyTuple_GET_ITEM(seen[i], 1))) < 0 ||
            put_long(out, 0) < 0) {
            return -1;
        }
    }
    return put_long(out, 0);
}

typedef struct {
    Bytes id, payload_hash;
    long long sequence, offset, attempt, first_row_id;
    Times times;
} Answer;

/* Put the decision of an outcome of the first schema that commits an append. */
static int put_decision(Out *out, const Chain *chain, const Head *head, const Commit *commit,
                        const Answer *answer, PyObject *plain)
{
    Py_ssize_t size;
    const char *incarnation = PyUnicode_AsUTF8AndSize(head->incarnation, &size);
    long long over = head->version - commit->read_version;
    return incarnation == NULL || put_long(out, answer->sequence) < 0 ||
                   put_sized(out, answer->id.data, answer->id.size) < 0 ||
                   put_long(out, answer->offset) < 0 || put_long(out, chain->committed) < 0 ||
                   put_long(out, answer->attempt) < 0 ||
                   put(out, "\0\0\0", 3) < 0 ||           /* code, message, answers */
                   put_long(out, answer->times.time_ms) < 0 ||
                   put_sized(out, answer->payload_hash.data, answer->payload_hash.size) < 0 ||
                   put_long(out, 1) < 0 || put(out, commit->table.data, commit->table.size) < 0 ||
                   put_sized(out, incarnation, size) < 0 ||
                   put_sized(out, append_kind, sizeof append_kind - 1) < 0 ||
                   put_long(out, head->version + 1) < 0 || put_long(out, commit->read_version) < 0 ||
                   put_long(out, head->next_fragment_id) < 0 ||
                   put_long(out, answer->first_row_id) < 0 || put_long(out, over) < 0 ||
                   put(out, "\0\0\0\0\0\0", 6) < 0 ||     /* rebased, files, images, delta, places */
                   put_long(out, -1) < 0 || put_long(out, 0) < 0 || /* snapshot, end of results */
                   put_long(out, 0) < 0 ||                /* conflict */
                   put_observed(out, plain) < 0
               ? -1
               : put_long(out, 0);                        /* failed requirements */
}

static int put_decimal(Out *out, const char *before, long long number)
{
    char digits[64];
    int size = snprintf(digits, sizeof digits, "%s%lld", before, number);
    return put(out, digits, size);
}

/* Return what is remembered of an id; `core/log/known_ids.py` is the reference. */
static PyObject *row_of(const Head *head, const Commit *commit, const Answer *answer)
{
    char digest[2 * DIGEST_BYTES];
    for (int i = 0; i < DIGEST_BYTES; i++) {
        unsigned char byte = (unsigned char)answer->payload_hash.data[i];
        digest[2 * i] = "0123456789abcdef"[byte >> 4];
        digest[2 * i + 1] = "0123456789abcdef"[byte & 15];
    }
    const Times *times = &answer->times;
    PyObject *made = NULL;
    Out out;
    begin(&out);
    int failed = put(&out, "[\"", 2) < 0 || put(&out, answer->id.data, answer->id.size) < 0 ||
                 put_decimal(&out, "\",", answer->sequence) < 0 ||
                 put_decimal(&out, ",\"committed\",", answer->attempt) < 0 ||
                 put(&out, ",\"", 2) < 0 || put(&out, digest, sizeof digest) < 0 ||
                 put_decimal(&out, "\",", times->kept_ms) < 0 || put(&out, ",\"\",[", 5) < 0 ||
                 put(&out, PyBytes_AS_STRING(head->row), PyBytes_GET_SIZE(head->row)) < 0 ||
                 put_decimal(&out, ",", head->version + 1) < 0 ||
                 put_decimal(&out, ",", commit->read_version) < 0 ||
                 put_decimal(&out, ",", head->next_fragment_id) < 0 ||
                 put_decimal(&out, ",", answer->first_row_id) < 0 ||
                 put_decimal(&out, ",", head->version - commit->read_version) < 0 ||
                 put(&out, ",false,\"\",\"\",-1]]", 17) < 0 ||
                 put_decimal(&out, ",", answer->sequence) < 0 || put(&out, ",[]", 3) < 0 ||
                 (times->made_ms != times->kept_ms && put_decimal(&out, ",", times->made_ms) < 0) ||
                 put(&out, "]", 1) < 0;
    if (!failed) {
        made = PyBytes_FromStringAndSize(out.start, out.at - out.start);
    }
    end(&out);
    return made;
}

/* --- A run: 1 for an append that was decided again alike, 0 where Python has to decide, or -1 ---- */

static void head_dealloc(Head *self);

/* Return a borrowed Head, or NULL if a table has none or with an error. */
static Head *head_of(Appends *self, PyObject *table)
{
    PyObject *found = PyDict_GetItemWithError(self->heads, table);
    if (found == NULL && !PyErr_Occurred()) {
        PyObject *made = PyObject_CallOneArg(self->head_of, table);
        if (made != NULL && PyDict_SetItem(self->heads, table, made) == 0) {
            found = made;
        }
        Py_XDECREF(made);
    }
    int is_head = found != NULL && Py_TYPE(found)->tp_dealloc == (destructor)head_dealloc;
    return is_head ? (Head *)found : NULL;
}

static int is_new(Appends *self, PyObject *id)
{
    int found = PyDict_Contains(self->rows, id);
    found = found ? found : PyDict_Contains(self->known, id);
    if (found == 0) {
        PyObject *said = PyObject_CallOneArg(self->packed_in, id);
        found = said == NULL ? -1 : PyObject_IsTrue(said);
        Py_XDECREF(said);
    }
    return found < 0 ? -1 : !found;
}

static int are_quoted_alike(Bytes id)
{
    for (Py_ssize_t i = 0; i < id.size; i++) {
        if (id.data[i] == '"' || id.data[i] == '\\') {
            return 0;
        }
    }
    return 1;
}

static int is_incarnation(const Head *head, Bytes named)
{
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(head->incarnation, &size);
    return text != NULL && (named.size == 0 || is_equal(named, text, size));
}

/* Note what an append does, of which all is sure by now. */
static int note(Appends *self, Head *head, const Commit *commit, const Answer *answer, PyObject *id,
                PyObject *plain, PyObject *fragments, long long next_row_id)
{
    PyObject *row = row_of(head, commit, answer);
    Py_ssize_t count = PyList_GET_SIZE(fragments), before = PyList_GET_SIZE(head->fragments);
    if (row == NULL || PyDict_SetItem(self->rows, id, row) < 0 || PyList_Append(head->ids, id) < 0 ||
        PyList_SetSlice(head->fragments, before, before, fragments) < 0) {
        Py_XDECREF(row);
        return -1;
    }
    Py_DECREF(row);
    Py_XSETREF(head->uuid, Py_NewRef(PyTuple_GET_ITEM(plain, 1)));
    head->read_version = commit->read_version;
    head->version++;
    head->next_fragment_id += count;
    head->next_row_id = next_row_id;
    head->room--;
    head->sequence = answer->sequence;
    head->time_ms = self->time_ms = answer->times.time_ms;
    self->clock_ms = answer->times.clock_ms;
    self->appended_ms = answer->times.appended_ms;
    return 1;
}

/* `chain` has looked at both records; the outcome is of a schema, which is the first one. */
static int decide_again(Appends *self, Chain *chain, const Shape *outcome, PyObject *record)
{
    Shape *shape = &chain->transaction;
    Commit commit;
    Answer answer;
    int64_t none = 0;
    PyObject *value = PyTuple_GET_ITEM(record, 3);
    In application = {NULL, shape->starts[shape->fields[APPLICATION]], shape->end, 0};
    In expects = {NULL, shape->starts[shape->fields[EXPECTS]], shape->end, 0};
    if (outcome != &chain->outcomes[0] || PyBytes_GET_SIZE(value) > APPEND_BYTES_MAX ||
        take_long(&application, &none) < 0 || none || take_long(&expects, &none) < 0 || none) {
        return 0;
    }
    answer.id = bytes_at(shape, TRANSACTION_ID);
    answer.payload_hash = bytes_at(outcome, PAYLOAD_HASH);
    answer.sequence = long_at(outcome, SEQUENCE);
    answer.offset = long_at(outcome, ANSWERED_OFFSET);
    answer.attempt = long_at(shape, ATTEMPT);
    long long appended_ms = PyLong_AsLongLong(PyTuple_GET_ITEM(record, 1));
    if (!are_quoted_alike(answer.id) || answer.payload_hash.size != DIGEST_BYTES ||
        (appended_ms < 0 && PyErr_Occurred()) ||
        !take_times(self, answer.id, long_at(shape, SUBMITTED_AT), appended_ms, &answer.times)) {
        PyErr_Clear();
        return 0;
    }
    PyObject *table = take_commit(chain, &commit), *plain = NULL, *fragments = NULL, *id = NULL;
    Head *head = table == NULL ? NULL : head_of(self, table);
    int done = head != NULL && head->room > 0 && is_incarnation(head, commit.incarnation) &&
               commit.read_version > 0 && is_free(head, commit.read_version);
    if (done) {
        const unsigned char *message = (const unsigned char *)commit.message.data;
        plain = take_plain_append((In){message, message, message + commit.message.size, 0});
        done = plain != NULL &&
               PyLong_AsLongLong(PyTuple_GET_ITEM(plain, 0)) == commit.read_version;
    }
    long long next_row_id = head == NULL ? 0 : head->next_row_id;
    if (done) {
        fragments = with_ids(head, plain, commit.read_version == head->version, &next_row_id);
        done = fragments != NULL && fragments != Py_None;
    }
    if (done) {
        answer.first_row_id = next_row_id > head->next_row_id ? head->next_row_id : -1;
        const unsigned char *recorded = outcome->starts[outcome->root->inlined];
        Out out;
        begin(&out);
        done = put_decision(&out, chain, head, &commit, &answer, plain) == 0 &&
               out.at - out.start == outcome->end - recorded &&
               memcmp(out.start, recorded, (size_t)(out.at - out.start)) == 0;
        end(&out);
    }
    if (done) {
        id = PyUnicode_FromStringAndSize(answer.id.data, answer.id.size);
        done = id == NULL ? -1 : is_new(self, id);
    }
    if (done > 0) {
        done = note(self, head, &commit, &answer, id, plain, fragments, next_row_id);
    }
    Py_XDECREF(id);
    Py_XDECREF(fragments);
    Py_XDECREF(plain);
    Py_XDECREF(table);
    return PyErr_Occurred() ? -1 : done;
}

/* --- The classes -------------------------------------------------------------------------------- */

static PyObject *head_new(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    static char *names[] = {"incarnation", "row", "accepted", "is_stable", "unmixed_alike",
                            "mixed_alike", "version", "next_fragment_id", "next_row_id", "oldest",
                            "window", "ruled", "room", NULL};
    Head *self = (Head *)type->tp_alloc(type, 0);
    if (self == NULL ||
        !PyArg_ParseTupleAndKeywords(
            arguments, named, "UO!O!pppLLLLLLL", names, &self->incarnation, &PyBytes_Type, &self->row,
            &PyDict_Type, &self->accepted, &self->is_stable, &self->unmixed_alike,
            &self->mixed_alike, &self->version, &self->next_fragment_id, &self->next_row_id,
            &self->oldest, &self->window, &self->ruled, &self->room)) {
        if (self != NULL) {
            self->incarnation = self->row = self->accepted = NULL;
            Py_DECREF(self);
        }
        return NULL;
    }
    Py_INCREF(self->incarnation);
    Py_INCREF(self->row);
    Py_INCREF(self->accepted);
    if ((self->ids = PyList_New(0)) == NULL || (self->fragments = PyList_New(0)) == NULL) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void head_dealloc(Head *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->incarnation);
    Py_XDECREF(self->row);
    Py_XDECREF(self->accepted);
    Py_XDECREF(self->ids);
    Py_XDECREF(self->fragments);
    Py_XDECREF(self->uuid);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

#define HEAD_NUMBER(name) {#name, T_LONGLONG, offsetof(Head, name), READONLY, NULL}
#define HEAD_OBJECT(name) {#name, T_OBJECT_EX, offsetof(Head, name), READONLY, NULL}

static PyMemberDef head_members[] = {
    HEAD_OBJECT(ids), HEAD_OBJECT(fragments), HEAD_OBJECT(uuid), HEAD_NUMBER(read_version),
    HEAD_NUMBER(version), HEAD_NUMBER(next_fragment_id), HEAD_NUMBER(next_row_id),
    HEAD_NUMBER(time_ms), HEAD_NUMBER(sequence), {NULL, 0, 0, 0, NULL}};

static PyType_Slot head_slots[] = {
    {Py_tp_doc, "A table that takes appends; see `decided_appends.py`."},
    {Py_tp_new, head_new},
    {Py_tp_dealloc, head_dealloc},
    {Py_tp_members, head_members},
    {0, NULL},
};

static PyType_Spec head_spec = {
    "commitlog.codecs._native.AppendHead", sizeof(Head), 0, Py_TPFLAGS_DEFAULT, head_slots};

static PyObject *appends_new(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    static char *names[] = {"head_of", "known", "packed_in", "time_ms", "clock_ms", "appended_ms", "step_ms",
                            "horizon_ms", "forgotten_ms", "oldest_ms", "is_bounded",
                            "is_confirmed", NULL};
    Appends *self = (Appends *)type->tp_alloc(type, 0);
    if (self == NULL ||
        !PyArg_ParseTupleAndKeywords(arguments, named, "OO!OLLLLLLLpp", names, &self->head_of,
                                     &PyDict_Type, &self->known, &self->packed_in, &self->time_ms,
                                     &self->clock_ms, &self->appended_ms, &self->step_ms,
                                     &self->horizon_ms, &self->forgotten_ms, &self->oldest_ms,
                                     &self->is_bounded, &self->is_confirmed)) {
        if (self != NULL) {
            self->head_of = self->known = self->packed_in = NULL;
            Py_DECREF(self);
        }
        return NULL;
    }
    Py_INCREF(self->head_of);
    Py_INCREF(self->known);
    Py_INCREF(self->packed_in);
    if ((self->heads = PyDict_New()) == NULL || (self->rows = PyDict_New()) == NULL) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void appends_dealloc(Appends *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->head_of);
    Py_XDECREF(self->heads);
    Py_XDECREF(self->known);
    Py_XDECREF(self->packed_in);
    Py_XDECREF(self->rows);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static int are_appends(PyObject *value)
{
    return Py_TYPE(value)->tp_dealloc == (destructor)appends_dealloc;
}

static PyMemberDef appends_members[] = {
    {"heads", T_OBJECT_EX, offsetof(Appends, heads), READONLY, NULL},
    {"rows", T_OBJECT_EX, offsetof(Appends, rows), READONLY, NULL},
    {"time_ms", T_LONGLONG, offsetof(Appends, time_ms), READONLY, NULL},
    {"clock_ms", T_LONGLONG, offsetof(Appends, clock_ms), READONLY, NULL},
    {"appended_ms", T_LONGLONG, offsetof(Appends, appended_ms), READONLY, NULL},
    {NULL, 0, 0, 0, NULL}};

static PyType_Slot appends_slots[] = {
    {Py_tp_doc, "Plain appends that are decided again; see `decided_appends.py`."},
    {Py_tp_new, appends_new},
    {Py_tp_dealloc, appends_dealloc},
    {Py_tp_members, appends_members},
    {0, NULL},
};

static PyType_Spec appends_spec = {
    "commitlog.codecs._native.Appends", sizeof(Appends), 0, Py_TPFLAGS_DEFAULT, appends_slots};

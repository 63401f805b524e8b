/* publish_rows: rows of one payload to many rings, in three passes. First the entries are read and
 * their rings looked up, which may run Python code; then every row is checked; then all is
 * published, a group of rings at a time, with one fence for the group. */
#include "py_ring.h"

#include <string.h>

#define UC_GROUP_COUNT 32u

/* One entry whose record a ring takes without further ado. */
typedef struct {
    uc_producer_ring_t *ring; /* owned */
    Py_ssize_t index;         /* of the entry */
    Py_ssize_t row;
    int64_t token_pos;
    uint32_t flags;
    int32_t answer;
} uc_row_t;

typedef struct {
    uc_state_t *state;
    PyObject *targets;
    PyObject *tail; /* what follows the first two fields of an entry in a key */
    PyObject *rest; /* list of the indices of entries that no ring took */
    uc_row_t *rows;
    Py_ssize_t count;
    PyTypeObject *ring_type; /* the type seen last, known to be a ring's */
} uc_call_t;

/* ---- reading entries -------------------------------------------------------------------------- */

static int add_rest(uc_call_t *call, Py_ssize_t index)
{
    PyObject *number = PyLong_FromSsize_t(index);
    if (number == NULL)
        return -1;
    int status = PyList_Append(call->rest, number);
    Py_DECREF(number);
    return status;
}

/* Borrowed: what `targets` has for an entry; NULL with or without an error set. */
static PyObject *find_target(const uc_call_t *call, PyObject *first, PyObject *second)
{
    Py_ssize_t tail_count = PyTuple_Size(call->tail);
    PyObject *key = PyTuple_New(2 + tail_count);
    if (key == NULL)
        return NULL;
    (void)PyTuple_SetItem(key, 0, Py_NewRef(first));
    (void)PyTuple_SetItem(key, 1, Py_NewRef(second));
    for (Py_ssize_t i = 0; i < tail_count; i++)
        (void)PyTuple_SetItem(key, 2 + i, Py_NewRef(PyTuple_GetItem(call->tail, i)));
    PyObject *target = PyDict_GetItemWithError(call->targets, key);
    Py_DECREF(key);
    return target;
}

/* A new reference to the ring of a target (lane or None, ring, ...); NULL without an error where its
 * records go one by one. */
static uc_producer_ring_t *ring_of(uc_call_t *call, PyObject *target)
{
    if (!PyTuple_Check(target) || PyTuple_Size(target) < 2) {
        PyErr_SetString(PyExc_TypeError, "expected targets of (lane or None, ring, ...)");
        return NULL;
    }
    if (PyTuple_GetItem(target, 0) == Py_None)
        return NULL;
    PyObject *ring = PyTuple_GetItem(target, 1);
    if (Py_TYPE(ring) != call->ring_type) {
        if (!PyObject_TypeCheck(ring, (PyTypeObject *)call->state->producer_ring_type)) {
            PyErr_SetString(PyExc_TypeError, "the second field of a target is not a ring");
            return NULL;
        }
        call->ring_type = Py_TYPE(ring);
    }
    return (uc_producer_ring_t *)Py_NewRef(ring);
}

/* Reads the fields behind the first two of an entry: token_pos, a flag, and perhaps a row. */
static int read_fields(PyObject *entry, Py_ssize_t size, uc_row_t *row)
{
    row->token_pos = PyLong_AsLongLong(PyTuple_GetItem(entry, 2));
    if (row->token_pos == -1 && PyErr_Occurred())
        return -1;
    int is_set = PyObject_IsTrue(PyTuple_GetItem(entry, 3));
    if (is_set < 0)
        return -1;
    row->flags = is_set != 0 ? UC_FLAG_IS_GENERATED : 0u;
    PyObject *number = size == 5 ? PyTuple_GetItem(entry, 4) : Py_None;
    row->row = row->index;
    if (number != Py_None)
        row->row = PyNumber_AsSsize_t(number, PyExc_IndexError);
    return row->row == -1 && PyErr_Occurred() ? -1 : 0;
}

static int read_tuple(uc_call_t *call, PyObject *entry, Py_ssize_t index)
{
    Py_ssize_t size = PyTuple_Size(entry);
    if (size != 4 && size != 5) {
        PyErr_Format(PyExc_ValueError, "expected 4 or 5 fields in entry %zd, got %zd", index, size);
        return -1;
    }
    PyObject *target = find_target(call, PyTuple_GetItem(entry, 0), PyTuple_GetItem(entry, 1));
    if (target == NULL)
        return PyErr_Occurred() ? -1 : add_rest(call, index);
    uc_row_t row = {.ring = ring_of(call, target), .index = index};
    if (row.ring == NULL)
        return PyErr_Occurred() ? -1 : add_rest(call, index);
    call->rows[call->count++] = row; /* owned from here on */
    return read_fields(entry, size, &call->rows[call->count - 1]);
}

/* Fetches an entry that is read soon, and the first field of one that is read sooner. A step has
 * hundreds of them, whose lines have left the caches since the step before. */
static void prefetch_entries(PyObject *entries, bool is_list, Py_ssize_t index, Py_ssize_t count)
{
    if (index + 8 < count) {
        Py_ssize_t far = index + 8;
        PyObject *item = is_list ? PyList_GetItem(entries, far) : PyTuple_GetItem(entries, far);
        __builtin_prefetch(item);
        __builtin_prefetch((const char *)item + 63);
    }
    if (index + 4 < count) {
        Py_ssize_t near = index + 4;
        PyObject *item = is_list ? PyList_GetItem(entries, near) : PyTuple_GetItem(entries, near);
        if (item != NULL && PyTuple_Check(item) && PyTuple_Size(item) > 0)
            __builtin_prefetch(PyTuple_GetItem(item, 0));
    }
    PyErr_Clear(); /* a list may have shrunk: its reader says so */
}

static int read_entries(uc_call_t *call, PyObject *entries, Py_ssize_t count)
{
    bool is_list = PyList_Check(entries);
    for (Py_ssize_t i = 0; i < count; i++) {
        prefetch_entries(entries, is_list, i, count);
        PyObject *item = is_list ? PyList_GetItem(entries, i) : PyTuple_GetItem(entries, i);
        if (item == NULL)
            return -1; /* somebody shortened the list */
        PyObject *entry = PyTuple_Check(item) ? Py_NewRef(item) : PySequence_Tuple(item);
        int status = entry == NULL ? -1 : read_tuple(call, entry, i);
        Py_XDECREF(entry);
        if (status != 0)
            return -1;
    }
    return 0;
}

/* ---- publishing ------------------------------------------------------------------------------- */

/* Rings that were begun and not committed, each with the header its slot gets. */
typedef struct {
    uint32_t count;
    uc_row_t *rows[UC_GROUP_COUNT];
    uc_fill_t fills[UC_GROUP_COUNT];
    uc_slot_header_t headers[UC_GROUP_COUNT];
} uc_group_t;

static void announce(uc_row_t *row)
{
    uc_producer_lane_t *lane = row->ring->lane;
    uc_doorbell_announce(&lane->mapping.lane, row->ring->ring.ring_index);
    lane->wake_pending = true;
}

static void commit_group(uc_group_t *group)
{
    uc_slots_fill(group->fills, group->count);
    for (uint32_t i = 0; i < group->count; i++) {
        uc_row_t *row = group->rows[i];
        row->answer = (int32_t)uc_producer_commit(&row->ring->ring, group->headers[i].monotonic_ns);
        if (row->answer == UC_OK)
            announce(row);
    }
    group->count = 0;
}

static void describe_row(uc_slot_header_t *header, const uc_slot_header_t *common, uc_row_t *row)
{
    *header = *common;
    header->token_pos = row->token_pos;
    header->flags = row->flags;
    memcpy(header->trace, row->ring->trace, sizeof header->trace);
}

/* Begins one row's record, or publishes it alone where its ring has to get a slot first. */
static int publish_row(uc_group_t *group, const uc_slot_header_t *common, const uint8_t *bytes,
                       uc_row_t *row)
{
    uc_producer_ring_t *ring = row->ring;
    if (ring->ring.is_begun || group->count == UC_GROUP_COUNT)
        commit_group(group);
    row->answer = UC_CLOSED;
    if (!ring->lane->mapping.is_open)
        return 0;
    uc_slot_header_t *header = &group->headers[group->count];
    describe_row(header, common, row);
    row->answer =
        (int32_t)uc_producer_begin(&ring->ring, header, bytes, &group->fills[group->count]);
    if (row->answer == UC_OK)
        group->rows[group->count++] = row;
    if (row->answer != UC_NO_SLOT)
        return 0;
    commit_group(group); /* getting a slot runs Python code and may let another thread in */
    describe_row(&group->headers[0], common, row);
    row->answer = uc_py_publish(ring, &group->headers[0], bytes);
    if (row->answer == UC_OK)
        announce(row);
    return row->answer < 0 ? -1 : 0;
}

static void prefetch_ring(const uc_producer_ring_t *ring)
{
    const uint8_t *bytes = (const uint8_t *)ring;
    for (size_t offset = 0; offset < sizeof *ring; offset += 64)
        __builtin_prefetch(bytes + offset, 1);
}

/* The words that a row's publication will write, so that they come while others are copied. */
static void prefetch_words(const uc_producer_ring_t *ring)
{
    if (!ring->lane->mapping.is_open)
        return;
    const uc_lane_t *lane = &ring->lane->mapping.lane;
    uc_prefetch_write(uc_lane_entry(lane, ring->ring.first_entry, ring->ring.index));
    uc_prefetch_write(&ring->ring.block->progress);
    uc_prefetch_write(&uc_lane_ticks(lane)[ring->ring.ring_index]);
}

static int publish_all(uc_call_t *call, const uc_slot_header_t *common, const uint8_t *bytes)
{
    uc_group_t group;
    group.count = 0;
    int status = 0;
    for (Py_ssize_t i = 0; i < call->count && status == 0; i++) {
        if (i % UC_GROUP_COUNT == 0) {
            for (Py_ssize_t j = i; j < call->count && j < i + UC_GROUP_COUNT; j++)
                prefetch_words(call->rows[j].ring);
        }
        uc_row_t *row = &call->rows[i];
        status = publish_row(&group, common, bytes + (uint64_t)row->row * common->length, row);
    }
    if (group.count > 0)
        commit_group(&group);
    return status;
}

/* Wakes each lane's consumer once, where no step will. */
static void wake_lanes(uc_call_t *call)
{
    for (Py_ssize_t i = 0; i < call->count; i++) {
        uc_producer_lane_t *lane = call->rows[i].ring->lane;
        if (!lane->wake_pending || lane->step_depth > 0)
            continue;
        lane->wake_pending = false;
        if (lane->mapping.is_open)
            (void)uc_doorbell_wake(&lane->mapping.lane);
    }
}

/* ---- the call --------------------------------------------------------------------------------- */

static int check_rows(const uc_call_t *call, Py_ssize_t row_count)
{
    for (Py_ssize_t i = 0; i < call->count; i++) {
        Py_ssize_t row = call->rows[i].row;
        if (row < 0 || row >= row_count) {
            PyErr_Format(PyExc_IndexError, "row %zd of entry %zd is outside of %zd rows", row,
                         call->rows[i].index, row_count);
            return -1;
        }
        prefetch_ring(call->rows[i].ring);
    }
    return 0;
}

/* args: rows, kind, layer, timestamp. What all headers have in common, but for the row's own. */
static int read_common(PyObject *const *args, const uc_source_t *source, uc_slot_header_t *header)
{
    memset(header, 0, sizeof *header);
    unsigned long kind = PyLong_AsUnsignedLong(args[1]);
    long layer = PyErr_Occurred() ? 0 : PyLong_AsLong(args[2]);
    header->timestamp = PyErr_Occurred() ? 0.0 : PyFloat_AsDouble(args[3]);
    if (PyErr_Occurred())
        return -1;
    if (kind > UINT8_MAX || layer > INT32_MAX || layer < INT32_MIN) {
        PyErr_SetString(PyExc_ValueError, "`kind` is 0 to 255 and `layer` a 32-bit number");
        return -1;
    }
    uint64_t row_bytes = (uint64_t)source->shape[1] * (source->dtype_bits / 8u);
    header->kind = (uint8_t)kind;
    header->layer = (int32_t)layer;
    header->length = (uint32_t)(row_bytes > UINT32_MAX ? UINT32_MAX : row_bytes);
    header->monotonic_ns = uc_monotonic_ns();
    header->ndim = 1;
    header->shape[0] = source->shape[1];
    header->dtype_code = source->dtype_code;
    header->dtype_bits = source->dtype_bits;
    return 0;
}

static int publish_source(uc_call_t *call, PyObject *const *args, const uc_source_t *source)
{
    uc_slot_header_t common;
    if (source->ndim != 2) {
        PyErr_Format(PyExc_ValueError, "expected two dimensions, got %d", (int)source->ndim);
        return -1;
    }
    if (read_common(args, source, &common) != 0 || check_rows(call, source->shape[0]) != 0)
        return -1;
    int status = publish_all(call, &common, source->bytes);
    wake_lanes(call);
    return status;
}

/* Entries that a ring neither took nor dropped join the rest, which is sorted then. */
static int collect_rest(uc_call_t *call)
{
    bool is_grown = false;
    for (Py_ssize_t i = 0; i < call->count; i++) {
        int32_t answer = call->rows[i].answer;
        if (answer == UC_OK || answer == UC_FULL)
            continue;
        if (add_rest(call, call->rows[i].index) != 0)
            return -1;
        is_grown = true;
    }
    return is_grown ? PyList_Sort(call->rest) : 0;
}

static int publish_call(uc_call_t *call, PyObject *const *args, PyObject *entries, Py_ssize_t count)
{
    if (read_entries(call, entries, count) != 0)
        return -1;
    if (call->count == 0)
        return 0;
    uc_source_t source;
    int status = uc_source_open(call->state, args[0], &source);
    if (status < 0)
        return -1;
    if (status == UC_OK) {
        status = publish_source(call, args, &source);
        uc_source_close(&source);
    } else {
        for (Py_ssize_t i = 0; i < call->count; i++)
            call->rows[i].answer = status;
        status = 0;
    }
    return status != 0 ? -1 : collect_rest(call);
}

const char uc_publish_rows_doc[] = PyDoc_STR(
    "publish_rows($module, rows, kind, layer, timestamp, targets, tail, entries, /)\n--\n\n"
    "Publishes rows of a two-dimensional payload and wakes each lane's consumer once.\n\n"
    "An entry is (first, second, token_pos, is_generated) or has the index of its row behind, "
    "None\n"
    "for the entry's own; `targets[first, second, *tail]` is a tuple of (lane or None, ring, "
    "...).\n"
    "Returns the indices, sorted, of entries without target, with None for a lane, and of those\n"
    "that the ring answered neither OK nor FULL to. Nothing is published when an entry, a row's\n"
    "index or the payload is wrong.\n\n"
    "Raises:\n    ValueError: not two dimensions, or an entry with too few or too many fields.\n"
    "    IndexError: a row that is not there.");

PyObject *uc_py_publish_rows(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 7 || !PyDict_Check(args[4]) || !PyTuple_Check(args[5])) {
        PyErr_SetString(PyExc_TypeError,
                        "publish_rows() takes (rows, kind, layer, timestamp, dict of targets, "
                        "tuple of the key's tail, sequence of entries)");
        return NULL;
    }
    bool is_known = PyList_Check(args[6]) || PyTuple_Check(args[6]);
    PyObject *entries = is_known ? Py_NewRef(args[6]) : PySequence_List(args[6]);
    if (entries == NULL)
        return NULL;
    Py_ssize_t count = PySequence_Size(entries);
    uc_call_t call = {
        .state = PyModule_GetState(module),
        .targets = args[4],
        .tail = args[5],
        .rest = PyList_New(0),
        .rows = PyMem_Malloc(sizeof(uc_row_t) * (size_t)(count + 1)),
    };
    if (call.rows == NULL)
        (void)PyErr_NoMemory();
    else if (call.rest != NULL && publish_call(&call, args, entries, count) != 0)
        Py_CLEAR(call.rest);
    for (Py_ssize_t i = 0; i < call.count; i++)
        Py_DECREF((PyObject *)call.rows[i].ring);
    bool is_whole = call.rows != NULL;
    PyMem_Free(call.rows);
    Py_DECREF(entries);
    if (!is_whole)
        Py_CLEAR(call.rest);
    return call.rest;
}

/* ConsumerLaneCore and ConsumerRingCore: the worker's side. ipc/ring.py subclasses them. */
#include "py_ring.h"

#include <stdlib.h>
#include <string.h>

/* ---- the lane ------------------------------------------------------------------------------- */

static PyObject *lane_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *control, *payload;
    (void)kwargs;
    uc_state_t *state = uc_state_of(type);
    if (state == NULL || !PyArg_ParseTuple(args, "OO:ConsumerLaneCore", &control, &payload))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    uc_consumer_lane_t *self = (uc_consumer_lane_t *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    self->state = state;
    uc_mapping_t *mapping = &self->mapping;
    if (uc_mapping_open(mapping, control, payload, false) != 0) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    if (uc_geometry_check(mapping->control.buf, (uint64_t)mapping->control.len,
                          (uint64_t)mapping->payload.len, &mapping->lane.geometry)
        != UC_OK) {
        PyErr_SetString(
            state->ring_corrupt_error,
            "the control memory does not begin with the header of a lane of this format");
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    uint32_t ring_capacity = mapping->lane.geometry.ring_capacity;
    self->sleeper.seen = calloc(ring_capacity, sizeof *self->sleeper.seen);
    self->sleeper.pending = calloc(ring_capacity / 64u, sizeof *self->sleeper.pending);
    if (self->sleeper.seen == NULL || self->sleeper.pending == NULL) {
        Py_DECREF((PyObject *)self);
        return PyErr_NoMemory();
    }
    const uc_doorbell_t *doorbell = uc_lane_doorbell(&mapping->lane);
    self->epoch = uc_load_acquire(&doorbell->epoch); /* SYNC epoch: the hands dealt for it */
    return (PyObject *)self;
}

static int lane_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    return 0;
}

static void lane_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op);
    uc_consumer_lane_t *self = (uc_consumer_lane_t *)op;
    uc_mapping_close(&self->mapping);
    free(self->sleeper.seen);
    free(self->sleeper.pending);
    uc_free_object(op);
}

static PyObject *raise_closed(const uc_consumer_lane_t *self)
{
    PyErr_SetString(self->state->ring_error, "the lane is closed in this process");
    return NULL;
}

PyDoc_STRVAR(
    lane_wait_doc,
    "wait($self, timeout_s, /)\n--\n\n"
    "Waits until a ring is ready or mail is new, without the interpreter's lock.\n\n"
    "Spins 20 us, naps by timer while something came within the last 20 ms, then parks. "
    "Where records\ncome at a steady pace, it is awake when the next one is due, and calls "
    "its ring ready once in\nadvance. False: the time is over, or `wake` was called. One "
    "thread at a time.");

static PyObject *lane_wait(PyObject *op, PyObject *timeout)
{
    uc_consumer_lane_t *self = (uc_consumer_lane_t *)op;
    double timeout_s = PyFloat_AsDouble(timeout);
    if (PyErr_Occurred())
        return NULL;
    if (!self->mapping.is_open)
        return raise_closed(self);
    uint64_t timeout_ns =
        timeout_s > 1e9 ? 1000000000000000000ull : (uint64_t)(timeout_s > 0 ? timeout_s * 1e9 : 0);
    uint64_t deadline_ns = uc_monotonic_ns() + timeout_ns;
    self->sleeper.is_idle = self->attached_count == 0;
    uc_status_t status;
    uc_mapping_use(&self->mapping);
    Py_BEGIN_ALLOW_THREADS status =
        uc_doorbell_wait(&self->mapping.lane, &self->sleeper, deadline_ns);
    Py_END_ALLOW_THREADS uc_mapping_leave(&self->mapping);
    if (PyErr_CheckSignals() != 0)
        return NULL;
    return PyBool_FromLong(status == UC_OK);
}

static int append_bits(PyObject *list, uint64_t bits, uint32_t first)
{
    while (bits != 0) {
        uint32_t bit = (uint32_t)__builtin_ctzll(bits);
        bits &= bits - 1;
        PyObject *index = PyLong_FromUnsignedLong(first + bit);
        int failed = index == NULL ? -1 : PyList_Append(list, index);
        Py_XDECREF(index);
        if (failed != 0)
            return -1;
    }
    return 0;
}

static PyObject *lane_take_ready(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    uc_consumer_lane_t *self = (uc_consumer_lane_t *)op;
    if (!self->mapping.is_open)
        return raise_closed(self);
    PyObject *list = PyList_New(0);
    for (uint32_t word = 0; list != NULL && word * 64u < self->sleeper.ring_limit; word++)
        if (append_bits(list, uc_doorbell_collect(&self->mapping.lane, &self->sleeper, word),
                        word * 64u)
            != 0)
            Py_CLEAR(list);
    return list;
}

static PyObject *lane_mark_ready(PyObject *op, PyObject *argument)
{
    uc_consumer_lane_t *self = (uc_consumer_lane_t *)op;
    unsigned long index = PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred())
        return NULL;
    if (index >= self->mapping.lane.geometry.ring_capacity) {
        PyErr_Format(PyExc_IndexError, "ring %lu is outside of the lane's %u", index,
                     self->mapping.lane.geometry.ring_capacity);
        return NULL;
    }
    uc_doorbell_mark(&self->sleeper, (uint32_t)index);
    Py_RETURN_NONE;
}

static PyObject *lane_set_activity(PyObject *op, PyObject *argument)
{
    uc_consumer_lane_t *self = (uc_consumer_lane_t *)op;
    unsigned long long generation = PyLong_AsUnsignedLongLong(argument);
    if (generation == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    if (self->mapping.is_open)
        uc_doorbell_set_activity(&self->mapping.lane, generation);
    Py_RETURN_NONE;
}

static PyObject *lane_never_nap(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    ((uc_consumer_lane_t *)op)->sleeper.never_naps = true;
    Py_RETURN_NONE;
}

static PyObject *lane_wake(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    uc_consumer_lane_t *self = (uc_consumer_lane_t *)op;
    if (self->mapping.is_open)
        uc_doorbell_interrupt(&self->mapping.lane, &self->sleeper);
    Py_RETURN_NONE;
}

static PyObject *lane_set_producer_gone(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    uc_consumer_lane_t *self = (uc_consumer_lane_t *)op;
    self->producer_is_gone = true;
    /* It may have died between its last record and the tick: every ring has news now. */
    for (uint32_t i = 0; i < self->sleeper.ring_limit; i++)
        uc_doorbell_mark(&self->sleeper, i);
    Py_RETURN_NONE;
}

static PyObject *lane_close_core(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    uc_consumer_lane_t *self = (uc_consumer_lane_t *)op;
    if (self->mapping.is_open)
        uc_doorbell_interrupt(&self->mapping.lane, &self->sleeper);
    uc_mapping_close(&self->mapping);
    Py_RETURN_NONE;
}

static PyObject *lane_forget(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    uc_mapping_forget(&((uc_consumer_lane_t *)op)->mapping);
    Py_RETURN_NONE;
}

static PyObject *lane_get(PyObject *op, void *closure)
{
    const uc_consumer_lane_t *self = (uc_consumer_lane_t *)op;
    const uc_doorbell_t *doorbell =
        self->mapping.is_open ? uc_lane_doorbell(&self->mapping.lane) : NULL;
    switch ((int)(intptr_t)closure) {
    case 0:
        return PyLong_FromUnsignedLong(doorbell ? uc_load_acquire(&doorbell->mail)
                                                : 0); /* SYNC mail */
    case 1: /* SYNC closed */
        return PyBool_FromLong(doorbell == NULL || uc_load_acquire(&doorbell->closed) != 0);
    case 2:
        return PyBool_FromLong(self->mapping.is_open);
    case 3:
        return PyLong_FromUnsignedLong(self->mapping.lane.geometry.ring_capacity);
    default:
        return PyLong_FromUnsignedLong(self->epoch);
    }
}

static PyMethodDef lane_methods[] = {
    {"wait", lane_wait, METH_O, lane_wait_doc},
    {"take_ready", lane_take_ready, METH_NOARGS,
     "take_ready($self, /)\n--\n\nIndices of the rings marked ready, in order; clears the marks."},
    {"mark_ready", lane_mark_ready, METH_O,
     "mark_ready($self, ring_index, /)\n--\n\nMarks a ring again that was left before it was "
     "empty."},
    {"set_activity", lane_set_activity, METH_O,
     "set_activity($self, generation, /)\n--\n\nSays whose user code runs from now on, 0 for "
     "none."},
    {"never_nap", lane_never_nap, METH_NOARGS,
     "never_nap($self, /)\n--\n\nFrom now on `wait` parks where it would nap: each record wakes it "
     "at once."},
    {"wake", lane_wake, METH_NOARGS,
     "wake($self, /)\n--\n\nMakes the wait that runs, or else the next one, return False. Any "
     "thread."},
    {"producer_gone", lane_set_producer_gone, METH_NOARGS,
     "producer_gone($self, /)\n--\n\nTells the lane that the producer is dead: an empty ring is "
     "then at "
     "its end."},
    {"_close", lane_close_core, METH_NOARGS, "_close($self, /)\n--\n\nLets go of the mappings."},
    {"_forget", lane_forget, METH_NOARGS,
     "_forget($self, /)\n--\n\nIn a forked child: the lane is closed here and its mappings are not "
     "touched."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef lane_getset[] = {
    {"mail", lane_get, NULL, "Count of socket frames that the producer announced.", (void *)0},
    {"is_closed_by_producer", lane_get, NULL, "Whether the producer closed the lane.", (void *)1},
    {"is_open", lane_get, NULL, "Whether the lane can be used in this process.", (void *)2},
    {"ring_capacity", lane_get, NULL, "Rings that the lane can hold.", (void *)3},
    {"epoch", lane_get, NULL, "The consumer generation this object belongs to.", (void *)4},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot lane_slots[] = {
    {Py_tp_doc, "The consumer side of a lane, in C."},
    {Py_tp_new, UC_SLOT(lane_new)},
    {Py_tp_dealloc, UC_SLOT(lane_dealloc)},
    {Py_tp_traverse, UC_SLOT(lane_traverse)},
    {Py_tp_methods, lane_methods},
    {Py_tp_getset, lane_getset},
    {0, NULL},
};

PyType_Spec uc_consumer_lane_spec = {
    .name = "undercurrent.ipc._ring.ConsumerLaneCore",
    .basicsize = sizeof(uc_consumer_lane_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = lane_slots,
};

/* ---- the ring ------------------------------------------------------------------------------- */

static PyObject *ring_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *lane_object;
    unsigned int ring_index, queue_depth, policy;
    unsigned long long generation;
    (void)kwargs;
    uc_state_t *state = uc_state_of(type);
    if (state == NULL
        || !PyArg_ParseTuple(args, "OIIIK:ConsumerRingCore", &lane_object, &ring_index,
                             &queue_depth, &policy, &generation))
        return NULL;
    if (!PyObject_TypeCheck(lane_object, (PyTypeObject *)state->consumer_lane_type)) {
        PyErr_SetString(PyExc_TypeError, "expected a consumer's lane");
        return NULL;
    }
    uc_consumer_lane_t *lane = (uc_consumer_lane_t *)lane_object;
    if (!lane->mapping.is_open)
        return raise_closed(lane);
    uc_consumer_t ring;
    if (uc_consumer_attach(&lane->mapping.lane, ring_index, queue_depth, policy, generation, &ring)
        != UC_OK) {
        PyErr_Format(state->ring_corrupt_error,
                     "ring %u is not the one expected: depth %u, policy %u, generation %llu",
                     ring_index, queue_depth, policy, generation);
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    uc_consumer_ring_t *self = (uc_consumer_ring_t *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    self->lane = (uc_consumer_lane_t *)Py_NewRef(lane_object);
    self->ring = ring;
    self->is_counted = true;
    lane->attached_count++;
    if (lane->sleeper.ring_limit <= ring_index)
        lane->sleeper.ring_limit = ring_index + 1;
    /* What was published before the attachment was collected by nobody, or by a predecessor. */
    uc_doorbell_mark(&lane->sleeper, ring_index);
    return (PyObject *)self;
}

static int ring_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((uc_consumer_ring_t *)op)->lane);
    return 0;
}

void uc_ring_uncount(uc_consumer_ring_t *ring)
{
    if (ring->is_counted)
        ring->lane->attached_count--;
    ring->is_counted = false;
}

static void ring_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op);
    uc_ring_uncount((uc_consumer_ring_t *)op);
    Py_CLEAR(((uc_consumer_ring_t *)op)->lane);
    uc_free_object(op);
}

static void keep_taken(uc_batch_t *batch, const uc_taken_t *taken, uint8_t *copy)
{
    batch->headers[batch->count] = taken->header;
    batch->slots[batch->count] = taken->slot;
    batch->class_indices[batch->count] = taken->class_index;
    batch->copies[batch->count] = copy;
    batch->count++;
}

/* The hand is empty, because views hold its slots: the record is copied instead of exchanged. */
static uc_status_t take_copy(uc_consumer_ring_t *self, uc_batch_t *batch)
{
    uc_consumer_lane_t *lane = self->lane;
    uint64_t capacity = lane->mapping.lane.geometry.record_bytes_max + UC_SLOT_HEADER_BYTES;
    uint32_t class_index = uc_class_of(capacity);
    uint8_t *bytes = malloc(uc_class_bytes(class_index));
    uc_taken_t taken;
    if (bytes == NULL)
        return UC_TIMEOUT;
    uc_status_t status = uc_consumer_take_copy(&self->ring, lane->producer_is_gone, bytes,
                                               uc_class_bytes(class_index), &taken);
    if (status != UC_OK) {
        free(bytes);
        return status;
    }
    uint8_t *fitted = realloc(bytes, taken.header.length > 0 ? taken.header.length : 1);
    keep_taken(batch, &taken, fitted != NULL ? fitted : bytes);
    return UC_OK;
}

static uc_status_t fill_batch(uc_consumer_ring_t *self, uc_batch_t *batch, uint32_t limit)
{
    uc_consumer_lane_t *lane = self->lane;
    uc_status_t status = UC_OK;
    while (status == UC_OK && batch->count < limit) {
        uc_taken_t taken;
        status = uc_consumer_take(&self->ring, &lane->hands, lane->producer_is_gone, &taken);
        if (status == UC_OK) {
            keep_taken(batch, &taken, NULL);
            if (batch->count == 1)
                uc_doorbell_arrived(&lane->sleeper, self->ring.ring_index,
                                    taken.header.monotonic_ns);
        } else if (status == UC_NO_HAND && batch->count == 0)
            status = take_copy(self, batch);
    }
    if (batch->count > 0 && self->ring.policy == UC_BLOCK)
        uc_room_signal(&self->ring);
    return status;
}

/* How many records may be taken now, or -1 with an error set. */
static long take_limit(uc_consumer_ring_t *self, PyObject *argument)
{
    uc_consumer_lane_t *lane = self->lane;
    long limit = PyLong_AsLong(argument);
    if (limit == -1 && PyErr_Occurred())
        return -1;
    long depth = (long)self->ring.queue_depth;
    long hand = (depth < (long)UC_HAND_COUNT ? depth : (long)UC_HAND_COUNT) - (long)self->in_hand;
    if (!lane->mapping.is_open)
        (void)raise_closed(lane);
    else if (limit < 1)
        PyErr_Format(PyExc_ValueError, "`max_records` must be >= 1, got %ld", limit);
    else if (hand < 1)
        PyErr_SetString(lane->state->ring_error,
                        "the hand is full: finish an earlier batch of this ring first");
    else if (uc_load_relaxed(&uc_lane_doorbell(&lane->mapping.lane)->epoch) != lane->epoch)
        PyErr_SetString(lane->state->ring_error,
                        "another consumer took this lane over: this one was taken for dead");
    else
        return limit < hand ? limit : hand;
    return -1;
}

PyDoc_STRVAR(
    ring_take_doc,
    "take($self, max_records, /)\n--\n\n"
    "Takes up to max_records waiting records, at most 16 or the ring's depth in hand at once.\n\n"
    "None: empty now, or at its end (see `at_end`).\n\n"
    "Raises:\n    RingCorruptError: shared memory holds what no honest producer writes.\n"
    "    RingError: the hand is full, the lane closed or taken over.");

static PyObject *ring_take(PyObject *op, PyObject *argument)
{
    uc_consumer_ring_t *self = (uc_consumer_ring_t *)op;
    uc_state_t *state = self->lane->state;
    long limit = take_limit(self, argument);
    if (limit < 0)
        return NULL;
    PyTypeObject *type = (PyTypeObject *)state->batch_type;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    uc_batch_t *batch = (uc_batch_t *)allocate(type, 0);
    if (batch == NULL)
        return NULL;
    uc_status_t status = fill_batch(self, batch, (uint32_t)limit);
    if (status == UC_END_OF_STREAM)
        self->is_at_end = true;
    if (status == UC_TIMEOUT || status == UC_NO_HAND)
        uc_doorbell_mark(&self->lane->sleeper, self->ring.ring_index);
    if (batch->count > 0) {
        batch->ring = (uc_consumer_ring_t *)Py_NewRef(op);
        self->in_hand += batch->count;
        return (PyObject *)batch;
    }
    Py_DECREF((PyObject *)batch);
    if (status == UC_CORRUPT) {
        PyErr_Format(state->ring_corrupt_error,
                     "ring %u holds what no honest producer writes, at position %llu",
                     self->ring.ring_index, (unsigned long long)self->ring.next);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *ring_finish(PyObject *op, PyObject *argument)
{
    uc_consumer_ring_t *self = (uc_consumer_ring_t *)op;
    if (!PyObject_TypeCheck(argument, (PyTypeObject *)self->lane->state->batch_type)
        || ((uc_batch_t *)argument)->ring != self) {
        PyErr_SetString(PyExc_TypeError, "expected a batch taken from this ring");
        return NULL;
    }
    uc_batch_finish((uc_batch_t *)argument);
    Py_RETURN_NONE;
}

static PyObject *ring_detach(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    uc_consumer_ring_t *self = (uc_consumer_ring_t *)op;
    if (self->lane->mapping.is_open)
        uc_consumer_detach(&self->ring);
    uc_ring_uncount(self);
    Py_RETURN_NONE;
}

static PyObject *ring_asked_until(PyObject *op, void *closure)
{
    (void)closure;
    const uc_consumer_ring_t *self = (uc_consumer_ring_t *)op;
    uint64_t drain_until_ns = 0;
    if (!self->lane->mapping.is_open || !uc_consumer_is_asked(&self->ring, &drain_until_ns))
        Py_RETURN_NONE;
    return PyFloat_FromDouble((double)drain_until_ns / 1e9);
}

static PyObject *ring_set_user(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    uc_consumer_ring_t *self = (uc_consumer_ring_t *)op;
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "set_user() takes (index, value)");
        return NULL;
    }
    unsigned long index = PyLong_AsUnsignedLong(args[0]);
    if (index == (unsigned long)-1 && PyErr_Occurred())
        return NULL;
    unsigned long long value = PyLong_AsUnsignedLongLong(args[1]);
    if (value == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    if (index >= 4) {
        PyErr_Format(PyExc_IndexError, "counter %lu is outside of 4", index);
        return NULL;
    }
    if (self->lane->mapping.is_open)
        uc_consumer_set_user(&self->ring, (uint32_t)index, value);
    Py_RETURN_NONE;
}

static PyObject *ring_counts(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    uc_consumer_ring_t *self = (uc_consumer_ring_t *)op;
    uc_counts_t counts;
    if (!self->lane->mapping.is_open
        || uc_ring_count(&self->lane->mapping.lane, self->ring.ring_index, &counts) != UC_OK)
        Py_RETURN_NONE;
    return uc_counts_to_tuple(&counts);
}

static PyObject *ring_get(PyObject *op, void *closure)
{
    const uc_consumer_ring_t *self = (uc_consumer_ring_t *)op;
    switch ((int)(intptr_t)closure) {
    case 0:
        return PyBool_FromLong(self->is_at_end);
    case 1:
        return PyLong_FromUnsignedLong(self->ring.ring_index);
    case 2:
        return PyLong_FromUnsignedLongLong(self->ring.generation);
    case 3:
        return PyLong_FromUnsignedLong(self->ring.queue_depth);
    case 4:
        return PyLong_FromUnsignedLong(self->ring.policy);
    case 5:
        return PyLong_FromUnsignedLong(self->in_hand);
    default:
        return PyLong_FromUnsignedLongLong(self->ring.next);
    }
}

static PyMethodDef ring_methods[] = {
    {"take", ring_take, METH_O, ring_take_doc},
    {"finish", ring_finish, METH_O,
     "finish($self, batch, /)\n--\n\nThe batch was handled: it counts as consumed and its slots "
     "return.\n\n"
     "A slot with a living view returns when the view dies; `batch.held` counts those. "
     "Idempotent."},
    {"detach", ring_detach, METH_NOARGS,
     "detach($self, /)\n--\n\nLets go of the ring: the producer may take its memory back. "
     "Idempotent."},
    {"answer", UC_METHOD(uc_py_answer), METH_FASTCALL, uc_answer_doc},
    {"answer_end", UC_METHOD(uc_py_answer_end), METH_FASTCALL, uc_answer_end_doc},
    {"caller_cpu", uc_py_caller_cpu, METH_NOARGS,
     "caller_cpu($self, /)\n--\n\nThe CPU on which the producer waits for answers, as it "
     "said last; -1: it does not."},
    {"set_user", UC_METHOD(ring_set_user), METH_FASTCALL,
     "set_user($self, index, value, /)\n--\n\nStores one of four counters whose meaning is the "
     "consumer's "
     "own."},
    {"_counts", ring_counts, METH_NOARGS,
     "_counts($self, /)\n--\n\nThe counters, None when closed or corrupt."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef ring_getset[] = {
    {"at_end", ring_get, NULL, "Closed by the producer, or the producer is gone; and drained.",
     (void *)0},
    {"asked_until", ring_asked_until, NULL,
     "None, or until when (CLOCK_MONOTONIC, seconds) what waits is to be looked at: the producer "
     "ended the\n"
     "ring and waits for `answer_end`.",
     NULL},
    {"ring_index", ring_get, NULL, "Which of the lane's rings this is.", (void *)1},
    {"generation", ring_get, NULL, "Names this use of the ring.", (void *)2},
    {"queue_depth", ring_get, NULL, "Records that may wait.", (void *)3},
    {"policy", ring_get, NULL, "0 drop_oldest, 1 drop_newest, 2 block.", (void *)4},
    {"in_hand", ring_get, NULL, "Records in batches that are not finished.", (void *)5},
    {"next_position", ring_get, NULL, "Position of the record looked for next.", (void *)6},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot ring_slots[] = {
    {Py_tp_doc, "The consumer of one ring, in C."},
    {Py_tp_new, UC_SLOT(ring_new)},
    {Py_tp_dealloc, UC_SLOT(ring_dealloc)},
    {Py_tp_traverse, UC_SLOT(ring_traverse)},
    {Py_tp_methods, ring_methods},
    {Py_tp_getset, ring_getset},
    {0, NULL},
};

PyType_Spec uc_consumer_ring_spec = {
    .name = "undercurrent.ipc._ring.ConsumerRingCore",
    .basicsize = sizeof(uc_consumer_ring_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = ring_slots,
};

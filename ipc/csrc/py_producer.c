/* ProducerRingCore: one ring's producer. ipc/ring.py subclasses it and provides `_reserve`. */
#include "py_ring.h"

#include <stdlib.h>
#include <string.h>

#define UC_ROOM_SLICE_NS 50000000ull
#define UC_RESERVE_ATTEMPTS 4

static PyObject *ring_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *lane_object;
    unsigned int ring_index, first_entry, queue_depth, policy;
    unsigned long long generation, start;
    (void)kwargs;
    uc_state_t *state = uc_state_of(type);
    if (state == NULL
        || !PyArg_ParseTuple(args, "OIIIIKK:ProducerRingCore", &lane_object, &ring_index,
                             &first_entry, &queue_depth, &policy, &generation, &start))
        return NULL;
    if (!PyObject_TypeCheck(lane_object, (PyTypeObject *)state->producer_lane_type)) {
        PyErr_SetString(PyExc_TypeError, "expected a producer's lane");
        return NULL;
    }
    uc_producer_lane_t *lane = (uc_producer_lane_t *)lane_object;
    uc_producer_t ring;
    uc_status_t status = UC_CLOSED;
    if (lane->mapping.is_open)
        status = uc_producer_open(&lane->mapping.lane, ring_index, first_entry, queue_depth, policy,
                                  generation, start, &ring);
    if (status != UC_OK) {
        PyErr_Format(state->ring_error, "the ring could not be opened (status %d)", (int)status);
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    uc_producer_ring_t *self = (uc_producer_ring_t *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    self->lane = (uc_producer_lane_t *)Py_NewRef(lane_object);
    self->ring = ring;
    return (PyObject *)self;
}

static int ring_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((uc_producer_ring_t *)op)->lane);
    return 0;
}

static void ring_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op);
    Py_CLEAR(((uc_producer_ring_t *)op)->lane);
    uc_free_object(op);
}

static inline bool is_open(const uc_producer_ring_t *self) { return self->lane->mapping.is_open; }

/* ---- publishing ----------------------------------------------------------------------------- */

/* Asks the Python side for slots that hold `length` bytes. A status, or -1 with an error set. */
static int reserve(uc_producer_ring_t *self, uint32_t length)
{
    PyObject *argument = PyLong_FromUnsignedLong(length);
    if (argument == NULL)
        return -1;
    PyObject *answer = PyObject_CallMethodObjArgs((PyObject *)self, self->lane->state->reserve_name,
                                                  argument, NULL);
    Py_DECREF(argument);
    if (answer == NULL)
        return -1;
    long status = PyLong_AsLong(answer);
    Py_DECREF(answer);
    return PyErr_Occurred() ? -1 : (int)status;
}

int uc_py_publish(uc_producer_ring_t *self, uc_slot_header_t *header, const uint8_t *bytes)
{
    /* Another thread may use the slot just reserved while `_reserve` waits for its lock; so it is
     * tried more than once, and not for ever. */
    for (int attempt = 0; attempt < UC_RESERVE_ATTEMPTS; attempt++) {
        if (!is_open(self))
            return UC_CLOSED;
        uc_status_t status = uc_producer_publish(&self->ring, header, bytes);
        if (status != UC_NO_SLOT)
            return (int)status;
        int reserved = reserve(self, header->length);
        if (reserved != UC_OK)
            return reserved;
    }
    return UC_NO_SLOT;
}

static void announce(uc_producer_ring_t *self)
{
    uc_producer_lane_t *lane = self->lane;
    uc_doorbell_announce(&lane->mapping.lane, self->ring.ring_index);
    if (lane->step_depth == 0)
        self->was_consumer_parked = uc_doorbell_wake(&lane->mapping.lane);
    else
        lane->wake_pending = true;
}

/* args: source, kind, layer, token_pos, flags, timestamp; all but the source into the header. */
static int parse_header(PyObject *const *args, Py_ssize_t nargs, uc_slot_header_t *header)
{
    if (nargs != 6) {
        PyErr_Format(
            PyExc_TypeError,
            "expected (source, kind, layer, token_pos, flags, timestamp), got %zd arguments",
            nargs);
        return -1;
    }
    unsigned long kind = PyLong_AsUnsignedLong(args[1]);
    if (kind == (unsigned long)-1 && PyErr_Occurred())
        return -1;
    long layer = PyLong_AsLong(args[2]);
    if (layer == -1 && PyErr_Occurred())
        return -1;
    long long token_pos = PyLong_AsLongLong(args[3]);
    if (token_pos == -1 && PyErr_Occurred())
        return -1;
    unsigned long flags = PyLong_AsUnsignedLong(args[4]);
    if (flags == (unsigned long)-1 && PyErr_Occurred())
        return -1;
    double timestamp = PyFloat_AsDouble(args[5]);
    if (PyErr_Occurred())
        return -1;
    if (kind > UINT8_MAX || layer > INT32_MAX || layer < INT32_MIN || flags > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError,
                        "`kind` has 8 bits, `layer` and `flags` 32; one of them is out of range");
        return -1;
    }
    header->kind = (uint8_t)kind;
    header->layer = (int32_t)layer;
    header->token_pos = token_pos;
    header->flags = (uint32_t)flags;
    header->timestamp = timestamp;
    memset(header->reserved, 0, sizeof header->reserved);
    return 0;
}

static PyObject *publish_source(uc_producer_ring_t *self, uc_slot_header_t *header,
                                const uc_source_t *source)
{
    if (source->length > UINT32_MAX)
        return PyLong_FromLong(UC_TOO_LARGE);
    header->length = (uint32_t)source->length;
    header->ndim = source->ndim;
    header->dtype_code = source->dtype_code;
    header->dtype_bits = source->dtype_bits;
    memcpy(header->shape, source->shape, sizeof header->shape);
    memcpy(header->trace, self->trace, sizeof header->trace);
    header->monotonic_ns = uc_monotonic_ns();
    int status = uc_py_publish(self, header, source->bytes);
    if (status < 0)
        return NULL;
    if (status == UC_OK)
        announce(self);
    return PyLong_FromLong(status);
}

PyDoc_STRVAR(
    publish_doc,
    "publish($self, source, kind, layer, token_pos, flags, timestamp, /)\n--\n\n"
    "Copies one record into the ring and answers a status of `undercurrent.ipc.layout`.\n\n"
    "`source` has the buffer protocol (C-contiguous, a native one-character format, at most four\n"
    "dimensions) or is a torch tensor in this process's memory. UNSUPPORTED, NO_SLOT and "
    "TOO_LARGE\n"
    "are not counted here, nor FULL under `block`: the caller falls back, waits, or calls\n"
    "`count_refused`. Any thread; calls take turns under the interpreter's lock.");

static PyObject *ring_publish(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    uc_producer_ring_t *self = (uc_producer_ring_t *)op;
    uc_slot_header_t header;
    uc_source_t source;
    if (parse_header(args, nargs, &header) != 0)
        return NULL;
    /* Getting a slot runs Python code, so what is read in place must fit the slot in hand. */
    bool is_peeked = uc_source_peek(self->lane->state, args[0], &source)
                     && source.length + UC_SLOT_HEADER_BYTES <= self->ring.hand_bytes;
    int status = is_peeked ? UC_OK : uc_source_open(self->lane->state, args[0], &source);
    if (status != UC_OK)
        return status < 0 ? NULL : PyLong_FromLong(is_open(self) ? status : UC_CLOSED);
    PyObject *answer = publish_source(self, &header, &source);
    uc_source_close(&source);
    return answer;
}

PyDoc_STRVAR(
    publish_opaque_doc,
    "publish_opaque($self, data, kind, layer, token_pos, flags, timestamp, /)\n--\n\n"
    "Publishes bytes without a type: dtype code 255, shape (len(data),). Otherwise like publish.");

static PyObject *ring_publish_opaque(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    uc_producer_ring_t *self = (uc_producer_ring_t *)op;
    uc_slot_header_t header;
    uc_source_t source = {.ndim = 1, .dtype_code = UC_DTYPE_OPAQUE, .dtype_bits = 8};
    if (parse_header(args, nargs, &header) != 0
        || PyObject_GetBuffer(args[0], &source.view, PyBUF_SIMPLE) != 0)
        return NULL;
    source.has_view = true;
    source.bytes = source.view.buf;
    source.length = (uint64_t)source.view.len;
    source.shape[0] = (uint32_t)source.view.len;
    PyObject *answer = publish_source(self, &header, &source);
    uc_source_close(&source);
    return answer;
}

/* ---- waiting for room ----------------------------------------------------------------------- */

/* One slice without the interpreter's lock. The copy is the waiter's; `users` keeps the mapping. */
static uc_status_t wait_slice(uc_producer_ring_t *self, uint64_t slice_ns)
{
    uc_producer_t copy = self->ring;
    uc_status_t status;
    uc_mapping_use(&self->lane->mapping);
    Py_BEGIN_ALLOW_THREADS status = uc_room_wait(&copy, slice_ns);
    Py_END_ALLOW_THREADS uc_mapping_leave(&self->lane->mapping);
    return status;
}

PyDoc_STRVAR(wait_room_doc, "wait_room($self, timeout_s, /)\n--\n\n"
                            "Waits for room, at most timeout_s, without the interpreter's lock.\n\n"
                            "True: try again. False: none came, the ring is closed or corrupt, or "
                            "`interrupt` was called since\n"
                            "the last wait. Signals are handled every 50 ms.");

static PyObject *ring_wait_room(PyObject *op, PyObject *timeout)
{
    uc_producer_ring_t *self = (uc_producer_ring_t *)op;
    double timeout_s = PyFloat_AsDouble(timeout);
    if (PyErr_Occurred())
        return NULL;
    uint64_t deadline_ns = uc_monotonic_ns();
    deadline_ns +=
        timeout_s > 1e9 ? 1000000000000000000ull : (uint64_t)(timeout_s > 0 ? timeout_s * 1e9 : 0);
    if (self->interrupts != self->interrupts_seen) {
        self->interrupts_seen = self->interrupts;
        Py_RETURN_FALSE;
    }
    uint32_t interrupts = self->interrupts;
    uc_status_t status = UC_TIMEOUT;
    while (status == UC_TIMEOUT && is_open(self) && self->ring.state == UC_RING_OPEN) {
        uint64_t now_ns = uc_monotonic_ns();
        uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
        status = wait_slice(self, left_ns < UC_ROOM_SLICE_NS ? left_ns : UC_ROOM_SLICE_NS);
        if (PyErr_CheckSignals() != 0)
            return NULL;
        if (self->interrupts != interrupts) {
            self->interrupts_seen = self->interrupts;
            Py_RETURN_FALSE;
        }
        if (left_ns == 0)
            break;
    }
    return PyBool_FromLong(status == UC_OK);
}

static PyObject *ring_interrupt(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    uc_producer_ring_t *self = (uc_producer_ring_t *)op;
    self->interrupts++;
    if (is_open(self))
        uc_room_interrupt(&self->ring);
    Py_RETURN_NONE;
}

/* ---- the rest ------------------------------------------------------------------------------- */

static PyObject *ring_refuse(PyObject *op, PyObject *refusal)
{
    uc_producer_ring_t *self = (uc_producer_ring_t *)op;
    unsigned long value = PyLong_AsUnsignedLong(refusal);
    if (PyErr_Occurred())
        return NULL;
    if (value > UC_REFUSED_BLOCK_TIMEOUT) {
        PyErr_SetString(PyExc_ValueError, "no such refusal");
        return NULL;
    }
    if (is_open(self))
        uc_producer_refuse(&self->ring, (uc_refusal_t)value);
    Py_RETURN_NONE;
}

static PyObject *ring_close_core(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    uc_producer_ring_t *self = (uc_producer_ring_t *)op;
    if (!is_open(self) || self->ring.state != UC_RING_OPEN)
        Py_RETURN_NONE;
    uc_producer_close(&self->ring);
    uc_room_interrupt(&self->ring);
    announce(self);
    Py_RETURN_NONE;
}

static PyObject *ring_end(PyObject *op, PyObject *drain_until)
{
    uc_producer_ring_t *self = (uc_producer_ring_t *)op;
    double drain_until_s = PyFloat_AsDouble(drain_until);
    if (PyErr_Occurred())
        return NULL;
    uint64_t drain_until_ns =
        drain_until_s > 1e9 ? UINT64_MAX : (uint64_t)(drain_until_s > 0 ? drain_until_s * 1e9 : 0);
    if (!is_open(self) || !uc_producer_end(&self->ring, drain_until_ns))
        Py_RETURN_FALSE;
    uc_room_interrupt(&self->ring);
    const uc_lane_t *lane = &self->lane->mapping.lane;
    uc_doorbell_announce(lane, self->ring.ring_index);
    /* The waiter spins only for a consumer that is awake. */
    self->was_consumer_parked = uc_load_relaxed(&uc_lane_doorbell(lane)->sleep) != UC_AWAKE;
    Py_RETURN_TRUE;
}

static PyObject *ring_waive_last_word(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    const uc_producer_ring_t *self = (uc_producer_ring_t *)op;
    if (is_open(self))
        uc_producer_waive_last_word(&self->ring);
    Py_RETURN_NONE;
}

static PyObject *ring_counts(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    uc_producer_ring_t *self = (uc_producer_ring_t *)op;
    uc_counts_t counts;
    if (!is_open(self) || uc_producer_count(&self->ring, &counts) != UC_OK)
        Py_RETURN_NONE;
    return uc_counts_to_tuple(&counts);
}

static PyObject *ring_install(PyObject *op, PyObject *sequence)
{
    uc_producer_ring_t *self = (uc_producer_ring_t *)op;
    Py_ssize_t count = PySequence_Size(sequence);
    if (count < 0)
        return NULL;
    uint32_t *slots = calloc((size_t)count + 1u, sizeof *slots);
    if (slots == NULL)
        return PyErr_NoMemory();
    PyObject *answer = NULL;
    if (uc_parse_slots(sequence, slots, count) == count)
        answer = PyLong_FromLong(
            is_open(self) ? (long)uc_producer_install(&self->ring, slots, (uint32_t)count)
                          : (long)UC_CLOSED);
    free(slots);
    return answer;
}

static PyObject *ring_replace_hand(PyObject *op, PyObject *slot)
{
    uc_producer_ring_t *self = (uc_producer_ring_t *)op;
    unsigned long value = PyLong_AsUnsignedLong(slot);
    uint32_t replaced = UC_SLOT_NONE;
    if (PyErr_Occurred())
        return NULL;
    uc_status_t status = UC_CLOSED;
    if (is_open(self) && value < UC_SLOT_NONE)
        status = uc_producer_replace_hand(&self->ring, (uint32_t)value, &replaced);
    if (status != UC_OK)
        return PyLong_FromLong(-(long)status);
    return PyLong_FromUnsignedLong(replaced);
}

static PyObject *ring_slots_list(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    uc_producer_ring_t *self = (uc_producer_ring_t *)op;
    uint32_t count = 0;
    uint32_t *slots = calloc((size_t)self->ring.queue_depth + 1u, sizeof *slots);
    if (slots == NULL)
        return PyErr_NoMemory();
    if (is_open(self))
        (void)uc_producer_slots(&self->ring, slots, &count);
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (uint32_t i = 0; list != NULL && i < count; i++)
        (void)PyList_SetItem(list, (Py_ssize_t)i, PyLong_FromUnsignedLong(slots[i]));
    free(slots);
    return list;
}

static PyObject *ring_reap(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    uc_producer_ring_t *self = (uc_producer_ring_t *)op;
    return PyLong_FromLong(is_open(self) ? (long)uc_producer_reap(&self->ring) : (long)UC_CLOSED);
}

static PyObject *ring_get(PyObject *op, void *closure)
{
    const uc_producer_ring_t *self = (uc_producer_ring_t *)op;
    switch ((int)(intptr_t)closure) {
    case 0:
        return PyLong_FromUnsignedLong(self->ring.ring_index);
    case 1:
        return PyLong_FromUnsignedLongLong(self->ring.generation);
    case 2:
        return PyLong_FromUnsignedLong(self->ring.queue_depth);
    case 3:
        return PyLong_FromUnsignedLong(self->ring.policy);
    case 4:
        return PyLong_FromUnsignedLongLong(self->ring.start);
    case 5:
        return PyLong_FromUnsignedLong(self->ring.state);
    case 6:
        return PyLong_FromUnsignedLong(self->ring.hand_bytes);
    case 7:
        return PyLong_FromUnsignedLong(is_open(self)
                                           ? uc_load_acquire(&self->ring.block->reader_state)
                                           : UC_READER_NONE); /* SYNC reader */
    case 9:
        return PyLong_FromUnsignedLongLong(self->ring.tail);
    case 10:
        return PyLong_FromUnsignedLong(self->answer_interrupts);
    default:
        return PyBytes_FromStringAndSize((const char *)self->trace, sizeof self->trace);
    }
}

static int ring_set_trace(PyObject *op, PyObject *value, void *closure)
{
    (void)closure;
    char *bytes;
    Py_ssize_t length;
    if (value == NULL || PyBytes_AsStringAndSize(value, &bytes, &length) != 0)
        return -1;
    if (length != 16) {
        PyErr_Format(PyExc_ValueError, "`trace` has 16 bytes, got %zd", length);
        return -1;
    }
    memcpy(((uc_producer_ring_t *)op)->trace, bytes, 16);
    return 0;
}

static PyMethodDef ring_methods[] = {
    {"publish", UC_METHOD(ring_publish), METH_FASTCALL, publish_doc},
    {"publish_opaque", UC_METHOD(ring_publish_opaque), METH_FASTCALL, publish_opaque_doc},
    {"wait_room", ring_wait_room, METH_O, wait_room_doc},
    {"interrupt", ring_interrupt, METH_NOARGS,
     "interrupt($self, /)\n--\n\nMakes the waits for room that run, or else the next one, return "
     "False."},
    {"await_answer", UC_METHOD(uc_py_await_answer), METH_FASTCALL, uc_await_answer_doc},
    {"interrupt_answer", uc_py_interrupt_answer, METH_NOARGS,
     "interrupt_answer($self, /)\n--\n\nEnds the wait for an answer that runs: nobody will give "
     "it. "
     "Any thread."},
    {"last_answered", uc_py_last_answered, METH_NOARGS,
     "last_answered($self, /)\n--\n\nPosition of the record that was answered last, 0 for none."},
    {"_refuse", ring_refuse, METH_O, "_refuse($self, refusal, /)\n--\n\nCounts a refused record."},
    {"end", ring_end, METH_O,
     "end($self, drain_until_s, /)\n--\n\nCloses, and asks the consumer for a last word, for "
     "which\n"
     "`await_answer(SEQUENCE_END, …)` waits. What waits after drain_until_s (CLOCK_MONOTONIC) "
     "need\n"
     "not be looked at. Wakes nobody: `ProducerLane.rouse` does. False when the ring is not open."},
    {"waive_last_word", ring_waive_last_word, METH_NOARGS,
     "waive_last_word($self, /)\n--\n\nTakes the question of `end` back, while there is no "
     "consumer."},
    {"_close", ring_close_core, METH_NOARGS,
     "_close($self, /)\n--\n\nNo more records; wakes both sides."},
    {"_counts", ring_counts, METH_NOARGS,
     "_counts($self, /)\n--\n\nThe counters, None when closed or corrupt."},
    {"_install", ring_install, METH_O,
     "_install($self, slots, /)\n--\n\nGives the ring its slots; a status."},
    {"_replace_hand", ring_replace_hand, METH_O,
     "_replace_hand($self, slot, /)\n--\n\nThe slot that was in hand, or minus a status."},
    {"_slots", ring_slots_list, METH_NOARGS,
     "_slots($self, /)\n--\n\nThe slots that the ring owns."},
    {"_reap", ring_reap, METH_NOARGS,
     "_reap($self, /)\n--\n\nCounts what a dead consumer lost; a status."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef ring_getset[] = {
    {"ring_index", ring_get, NULL, "Which of the lane's rings this is.", (void *)0},
    {"generation", ring_get, NULL, "Names this use of the ring.", (void *)1},
    {"queue_depth", ring_get, NULL, "Records that may wait.", (void *)2},
    {"policy", ring_get, NULL, "0 drop_oldest, 1 drop_newest, 2 block.", (void *)3},
    {"start", ring_get, NULL, "Position of the first record.", (void *)4},
    {"_state", ring_get, NULL, "1 open, 2 closed, 3 corrupt.", (void *)5},
    {"_hand_bytes", ring_get, NULL, "Size of the slot in hand, 0 before the first record.",
     (void *)6},
    {"_reader_state", ring_get, NULL, "0 none, 1 attached, 2 detached, 3 gave up as corrupt.",
     (void *)7},
    {"next_position", ring_get, NULL, "Position of the record published next.", (void *)9},
    {"answer_interrupts", ring_get, NULL, "How often `interrupt_answer` was called.", (void *)10},
    {"trace", ring_get, ring_set_trace, "16 bytes put into every record's header.", (void *)8},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot ring_slots[] = {
    {Py_tp_doc, "The producer of one ring, in C."},
    {Py_tp_new, UC_SLOT(ring_new)},
    {Py_tp_dealloc, UC_SLOT(ring_dealloc)},
    {Py_tp_traverse, UC_SLOT(ring_traverse)},
    {Py_tp_methods, ring_methods},
    {Py_tp_getset, ring_getset},
    {0, NULL},
};

PyType_Spec uc_producer_ring_spec = {
    .name = "undercurrent.ipc._ring.ProducerRingCore",
    .basicsize = sizeof(uc_producer_ring_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = ring_slots,
};

/* Batch: up to K records in the consumer's hand. SlotView: what a memoryview of one keeps alive. */
#include "py_ring.h"

#include <stdlib.h>
#include <string.h>

/* ---- SlotView ------------------------------------------------------------------------------- */

/* The exporter keeps its lane, and the lane's mapping for as long as anything can reach it: an array
 * made over a memoryview may keep the exporter alone, with a bare pointer into the slot. */
static int view_getbuffer(PyObject *op, Py_buffer *buffer, int flags)
{
    uc_slot_view_t *self = (uc_slot_view_t *)op;
    if (self->bytes == NULL || (!self->owns_bytes && !self->lane->mapping.is_mapped)) {
        PyErr_SetString(PyExc_BufferError, "the slot of this view was given back");
        return -1;
    }
    return PyBuffer_FillInfo(buffer, op, self->bytes, self->length, 1, flags);
}

static void view_dealloc(PyObject *op)
{
    uc_slot_view_t *self = (uc_slot_view_t *)op;
    if (self->owns_bytes)
        free(self->bytes);
    if (self->holds_slot)
        uc_hands_put(&self->lane->hands, self->class_index, self->slot);
    if (self->lane != NULL)
        uc_mapping_leave(&self->lane->mapping);
    Py_CLEAR(self->lane);
    uc_free_object(op);
}

static PyType_Slot view_slots[] = {
    {Py_tp_doc, "The owner of a memoryview handed out by Batch.view."},
    {Py_tp_dealloc, UC_SLOT(view_dealloc)},
    {Py_bf_getbuffer, UC_SLOT(view_getbuffer)},
    {0, NULL},
};

PyType_Spec uc_slot_view_spec = {
    .name = "undercurrent.ipc._ring.SlotView",
    .basicsize = sizeof(uc_slot_view_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = view_slots,
};

/* ---- Batch ---------------------------------------------------------------------------------- */

static uint8_t *record_bytes(const uc_batch_t *self, uint32_t index)
{
    if (self->copies[index] != NULL)
        return self->copies[index];
    return uc_lane_slot(&self->ring->lane->mapping.lane, self->slots[index]) + UC_SLOT_HEADER_BYTES;
}

static void put_slot(uc_batch_t *self, uint32_t index)
{
    if (self->slots[index] != UC_SLOT_NONE)
        uc_hands_put(&self->ring->lane->hands, self->class_indices[index], self->slots[index]);
}

void uc_batch_finish(uc_batch_t *self)
{
    if (self->is_finished)
        return;
    self->is_finished = true;
    for (uint32_t i = 0; i < self->count; i++) {
        uc_slot_view_t *view = self->views[i];
        /* The batch's own reference is one: with another, somebody can reach the slot still. */
        if (view != NULL && Py_REFCNT((PyObject *)view) > 1 && self->slots[i] != UC_SLOT_NONE) {
            view->holds_slot = true;
            self->held++;
        } else {
            put_slot(self, i);
        }
        if (view == NULL)
            free(self->copies[i]);
        self->copies[i] = NULL; /* a view's own bytes end with the view */
        Py_CLEAR(self->views[i]);
    }
    self->ring->in_hand -= self->count;
    if (self->ring->lane->mapping.is_open)
        uc_consumer_consume(&self->ring->ring, self->count);
}

static void batch_dealloc(PyObject *op)
{
    uc_batch_t *self = (uc_batch_t *)op;
    if (self->ring != NULL)
        uc_batch_finish(self); /* a batch dropped on the floor must not empty the hand */
    Py_CLEAR(self->ring);
    uc_free_object(op);
}

static Py_ssize_t batch_length(PyObject *op) { return (Py_ssize_t)((uc_batch_t *)op)->count; }

/* Whether the batch's bytes may be touched; -1 with an error set otherwise. */
static int check_usable(const uc_batch_t *self)
{
    if (!self->is_finished && self->ring->lane->mapping.is_open)
        return 0;
    PyErr_SetString(self->ring->lane->state->ring_error,
                    "the batch is finished or its lane closed: copy what is to be kept before");
    return -1;
}

/* The record's index, or -1 with an error set; headers are there after `finish`, too. */
static Py_ssize_t parse_header_index(const uc_batch_t *self, PyObject *argument)
{
    Py_ssize_t index = PyLong_AsSsize_t(argument);
    if (index == -1 && PyErr_Occurred())
        return -1;
    if (index >= 0 && index < (Py_ssize_t)self->count)
        return index;
    PyErr_Format(PyExc_IndexError, "record %zd is outside of a batch of %u", index, self->count);
    return -1;
}

/* The same, for what needs the payload. */
static Py_ssize_t parse_index(const uc_batch_t *self, PyObject *argument)
{
    Py_ssize_t index = parse_header_index(self, argument);
    return index >= 0 && check_usable(self) == 0 ? index : -1;
}

static uc_slot_view_t *make_view(uc_batch_t *self, Py_ssize_t index)
{
    PyTypeObject *type = (PyTypeObject *)self->ring->lane->state->slot_view_type;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    uc_slot_view_t *view = (uc_slot_view_t *)allocate(type, 0);
    if (view == NULL)
        return NULL;
    view->lane = (uc_consumer_lane_t *)Py_NewRef((PyObject *)self->ring->lane);
    uc_mapping_use(&view->lane->mapping);
    view->bytes = record_bytes(self, (uint32_t)index);
    view->length = (Py_ssize_t)self->headers[index].length;
    view->slot = self->slots[index];
    view->class_index = self->class_indices[index];
    view->owns_bytes = self->copies[index] != NULL;
    return view;
}

static PyObject *batch_view(PyObject *op, PyObject *argument)
{
    uc_batch_t *self = (uc_batch_t *)op;
    Py_ssize_t index = parse_index(self, argument);
    if (index < 0)
        return NULL;
    if (self->views[index] == NULL)
        self->views[index] = make_view(self, index);
    if (self->views[index] == NULL)
        return NULL;
    return PyMemoryView_FromObject((PyObject *)self->views[index]);
}

static PyObject *batch_copy(PyObject *op, PyObject *argument)
{
    uc_batch_t *self = (uc_batch_t *)op;
    Py_ssize_t index = parse_index(self, argument);
    if (index < 0)
        return NULL;
    return PyByteArray_FromStringAndSize((const char *)record_bytes(self, (uint32_t)index),
                                         (Py_ssize_t)self->headers[index].length);
}

static PyObject *batch_copy_into(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    uc_batch_t *self = (uc_batch_t *)op;
    Py_buffer target;
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "copy_into() takes (index, buffer)");
        return NULL;
    }
    if (PyObject_GetBuffer(args[1], &target, PyBUF_WRITABLE) != 0)
        return NULL;
    Py_ssize_t index = parse_index(self, args[0]);
    Py_ssize_t length = index < 0 ? 0 : (Py_ssize_t)self->headers[index].length;
    if (index >= 0 && length > target.len)
        PyErr_Format(PyExc_ValueError, "record %zd has %zd bytes, the buffer %zd", index, length,
                     target.len);
    else if (index >= 0)
        memcpy(target.buf, record_bytes(self, (uint32_t)index), (size_t)length);
    PyBuffer_Release(&target);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(length);
}

static void gather_records(const uc_batch_t *self, uint8_t *target, size_t length)
{
    const uint8_t *sources[UC_HAND_COUNT];
    for (uint32_t i = 0; i < self->count; i++)
        sources[i] = record_bytes(self, i);
    uc_gather(target, sources, self->count, length);
}

static PyObject *batch_gather(PyObject *op, PyObject *argument)
{
    uc_batch_t *self = (uc_batch_t *)op;
    Py_buffer target;
    if (check_usable(self) != 0)
        return NULL;
    size_t length = self->count > 0 ? self->headers[0].length : 0;
    for (uint32_t i = 1; i < self->count; i++) {
        if (self->headers[i].length != length) {
            PyErr_Format(PyExc_ValueError,
                         "expected records of one length, got %zu and %u bytes (record %u)", length,
                         self->headers[i].length, i);
            return NULL;
        }
    }
    if (PyObject_GetBuffer(argument, &target, PyBUF_WRITABLE) != 0)
        return NULL;
    size_t total = length * self->count;
    bool fits = total <= (size_t)target.len;
    if (fits)
        gather_records(self, target.buf, length);
    else
        PyErr_Format(PyExc_ValueError, "the records have %zu bytes, the buffer %zd", total,
                     target.len);
    PyBuffer_Release(&target);
    return fits ? PyLong_FromSize_t(total) : NULL;
}

static PyObject *batch_headers(PyObject *op, void *closure)
{
    (void)closure;
    uc_batch_t *self = (uc_batch_t *)op;
    return PyBytes_FromStringAndSize((const char *)self->headers,
                                     (Py_ssize_t)(self->count * sizeof self->headers[0]));
}

/* What says how a payload is rebuilt: the header's bytes from `length` to the end of `shape`. */
#define UC_FORM_AT offsetof(uc_slot_header_t, length)
#define UC_FORM_BYTES (offsetof(uc_slot_header_t, token_pos) - UC_FORM_AT)

static const char *form_of(const uc_batch_t *self, uint32_t index)
{
    return (const char *)&self->headers[index] + UC_FORM_AT;
}

static PyObject *batch_form(PyObject *op, void *closure)
{
    (void)closure;
    uc_batch_t *self = (uc_batch_t *)op;
    for (uint32_t i = 1; i < self->count; i++)
        if (memcmp(form_of(self, i), form_of(self, 0), UC_FORM_BYTES) != 0)
            Py_RETURN_NONE;
    return PyBytes_FromStringAndSize(form_of(self, 0), (Py_ssize_t)UC_FORM_BYTES);
}

/* Appends a new reference; a value that could not be made leaves the error set. */
static int set_item(PyObject *tuple, Py_ssize_t place, PyObject *value)
{
    return value == NULL ? -1 : PyTuple_SetItem(tuple, place, value);
}

static PyObject *batch_facts(PyObject *op, PyObject *argument)
{
    uc_batch_t *self = (uc_batch_t *)op;
    Py_ssize_t index = parse_header_index(self, argument);
    PyObject *facts = index < 0 ? NULL : PyTuple_New(6);
    if (facts == NULL)
        return NULL;
    const uc_slot_header_t *header = &self->headers[index];
    if (set_item(
            facts, 0,
            PyBytes_FromStringAndSize(form_of(self, (uint32_t)index), (Py_ssize_t)UC_FORM_BYTES))
            != 0
        || set_item(facts, 1, PyLong_FromUnsignedLongLong(header->sequence)) != 0
        || set_item(facts, 2, PyLong_FromLong(header->layer)) != 0
        || set_item(facts, 3, PyLong_FromLongLong(header->token_pos)) != 0
        || set_item(facts, 4, PyLong_FromUnsignedLong(header->flags)) != 0
        || set_item(facts, 5, PyFloat_FromDouble(header->timestamp)) != 0)
        Py_CLEAR(facts);
    return facts;
}

static PyObject *batch_age_ns(PyObject *op, PyObject *argument)
{
    uc_batch_t *self = (uc_batch_t *)op;
    Py_ssize_t index = parse_header_index(self, argument);
    if (index < 0)
        return NULL;
    /* The time was read from shared memory and may be any: the difference wraps, and says so. */
    return PyLong_FromLongLong((long long)(uc_monotonic_ns() - self->headers[index].monotonic_ns));
}

static PyObject *batch_held(PyObject *op, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLong(((uc_batch_t *)op)->held);
}

static PyObject *batch_is_finished(PyObject *op, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((uc_batch_t *)op)->is_finished);
}

static PyMethodDef batch_methods[] = {
    {"view", batch_view, METH_O,
     "view($self, index, /)\n--\n\nA read-only memoryview of a record's payload, in place.\n\n"
     "It stays valid after `finish`: the slot then stays out of the consumer's hand until the "
     "view\n"
     "and everything made from it are gone."},
    {"copy", batch_copy, METH_O, "copy($self, index, /)\n--\n\nA record's payload as a bytearray."},
    {"copy_into", UC_METHOD(batch_copy_into), METH_FASTCALL,
     "copy_into($self, index, buffer, /)\n--\n\nCopies a record's payload; the number of bytes.\n\n"
     "Raises:\n    ValueError: the buffer is too small."},
    {"facts", batch_facts, METH_O,
     "facts($self, index, /)\n--\n\n"
     "(form, sequence, layer, token_pos, flags, timestamp) of a record, from its checked "
     "header.\n\n"
     "The form is the header from `length` to `shape`: equal forms are rebuilt alike."},
    {"age_ns", batch_age_ns, METH_O,
     "age_ns($self, index, /)\n--\n\nNanoseconds since a record was published, as its header "
     "says."},
    {"gather", batch_gather, METH_O,
     "gather($self, buffer, /)\n--\n\nCopies all payloads, end to end; the number of bytes.\n\n"
     "Raises:\n    ValueError: the lengths differ or the buffer is too small."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef batch_getset[] = {
    {"headers", batch_headers, NULL, "The records' headers, 128 bytes each: checked copies.", NULL},
    {"form", batch_form, NULL, "The form of all records (see `facts`), None where they differ.",
     NULL},
    {"held", batch_held, NULL, "Slots that living views kept at `finish`.", NULL},
    {"is_finished", batch_is_finished, NULL, "Whether `finish` was called.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot batch_slots[] = {
    {Py_tp_doc, "Records taken from a ring and not yet given back. One thread."},
    {Py_tp_dealloc, UC_SLOT(batch_dealloc)},
    {Py_sq_length, UC_SLOT(batch_length)},
    {Py_tp_methods, batch_methods},
    {Py_tp_getset, batch_getset},
    {0, NULL},
};

PyType_Spec uc_batch_spec = {
    .name = "undercurrent.ipc._ring.Batch",
    .basicsize = sizeof(uc_batch_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = batch_slots,
};

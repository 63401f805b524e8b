/* ProducerLaneCore: the producer side of a lane. ipc/ring.py subclasses it. */
#include "py_ring.h"

#include <stdlib.h>
#include <string.h>

/* ---- mappings, for both lanes --------------------------------------------------------------- */

int uc_mapping_open(uc_mapping_t *mapping, PyObject *control, PyObject *payload,
                    bool payload_writable)
{
    if (PyObject_GetBuffer(control, &mapping->control, PyBUF_WRITABLE) != 0)
        return -1;
    int flags = payload_writable ? PyBUF_WRITABLE : PyBUF_SIMPLE;
    if (PyObject_GetBuffer(payload, &mapping->payload, flags) != 0) {
        PyBuffer_Release(&mapping->control);
        return -1;
    }
    mapping->lane.control = mapping->control.buf;
    mapping->lane.payload = mapping->payload.buf;
    mapping->is_open = true;
    mapping->is_mapped = true;
    return 0;
}

static void unmap_if_idle(uc_mapping_t *mapping)
{
    if (mapping->is_open || !mapping->is_mapped || mapping->users > 0)
        return;
    mapping->is_mapped = false;
    mapping->lane.control = NULL;
    mapping->lane.payload = NULL;
    PyBuffer_Release(&mapping->control);
    PyBuffer_Release(&mapping->payload);
}

void uc_mapping_close(uc_mapping_t *mapping)
{
    mapping->is_open = false;
    unmap_if_idle(mapping);
}

void uc_mapping_forget(uc_mapping_t *mapping)
{
    mapping->is_open = false;
    mapping->is_mapped = false;
    mapping->lane.control = NULL;
    mapping->lane.payload = NULL;
}

void uc_mapping_use(uc_mapping_t *mapping) { mapping->users++; }

void uc_mapping_leave(uc_mapping_t *mapping)
{
    mapping->users--;
    unmap_if_idle(mapping);
}

/* ---- the lane ------------------------------------------------------------------------------- */

static PyObject *lane_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args, (void)kwargs;
    uc_state_t *state = uc_state_of(type);
    if (state == NULL)
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    uc_producer_lane_t *self = (uc_producer_lane_t *)allocate(type, 0);
    if (self != NULL)
        self->state = state;
    return (PyObject *)self;
}

PyDoc_STRVAR(
    lane_format_doc,
    "_format($self, control, payload, ring_capacity, entry_count, record_bytes_max, pid, start, "
    "lane_id, /)\n--\n\n"
    "Writes the header into zeroed control memory and takes both mappings. Once per lane.");

static PyObject *lane_format(PyObject *op, PyObject *args)
{
    uc_producer_lane_t *self = (uc_producer_lane_t *)op;
    PyObject *control, *payload;
    unsigned int ring_capacity;
    unsigned long long entry_count, record_bytes_max, pid, start;
    const char *lane_id;
    Py_ssize_t lane_id_length;
    if (!PyArg_ParseTuple(args, "OOIKKKKy#:_format", &control, &payload, &ring_capacity,
                          &entry_count, &record_bytes_max, &pid, &start, &lane_id, &lane_id_length))
        return NULL;
    if (self->mapping.is_mapped || lane_id_length != 16) {
        PyErr_SetString(PyExc_ValueError, "a lane is formatted once, with an id of 16 bytes");
        return NULL;
    }
    uc_mapping_t mapping = {.users = 0};
    if (uc_mapping_open(&mapping, control, payload, true) != 0)
        return NULL;
    uc_status_t status =
        uc_geometry_measure(ring_capacity, entry_count, (uint64_t)mapping.payload.len,
                            record_bytes_max, &mapping.lane.geometry);
    if (status != UC_OK || mapping.lane.geometry.control_bytes != (uint64_t)mapping.control.len) {
        uc_mapping_close(&mapping);
        PyErr_SetString(PyExc_ValueError, "sizes of the lane's memory do not fit its geometry");
        return NULL;
    }
    mapping.lane.blocks = calloc(mapping.lane.geometry.block_count, sizeof(uint32_t));
    if (mapping.lane.blocks == NULL) {
        uc_mapping_close(&mapping);
        return PyErr_NoMemory();
    }
    mapping.lane.has_barrier = uc_fence_register();
    uc_geometry_format(&mapping.lane.geometry, pid, start, (const uint8_t *)lane_id,
                       mapping.lane.control);
    self->mapping = mapping;
    Py_RETURN_NONE;
}

static int lane_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    return 0;
}

static void lane_dealloc(PyObject *op)
{
    uc_producer_lane_t *self = (uc_producer_lane_t *)op;
    PyObject_GC_UnTrack(op);
    uc_mapping_close(&self->mapping);
    free(self->mapping.lane.blocks);
    uc_free_object(op);
}

static PyObject *raise_status(uc_producer_lane_t *self, uc_status_t status)
{
    PyErr_Format(self->state->ring_error, "the lane refused the call with status %d", (int)status);
    return NULL;
}

static PyObject *lane_commit_run(PyObject *op, PyObject *args)
{
    uc_producer_lane_t *self = (uc_producer_lane_t *)op;
    unsigned int first_block, run_blocks, class_index;
    if (!PyArg_ParseTuple(args, "III:_commit_run", &first_block, &run_blocks, &class_index))
        return NULL;
    if (!self->mapping.is_open)
        return raise_status(self, UC_CLOSED);
    uc_status_t status =
        uc_lane_commit_run(&self->mapping.lane, first_block, run_blocks, class_index);
    if (status != UC_OK)
        return raise_status(self, status);
    Py_RETURN_NONE;
}

static PyObject *lane_deal(PyObject *op, PyObject *args)
{
    uc_producer_lane_t *self = (uc_producer_lane_t *)op;
    unsigned int class_index;
    PyObject *sequence;
    uint32_t slots[UC_HAND_COUNT];
    if (!PyArg_ParseTuple(args, "IO:_deal", &class_index, &sequence))
        return NULL;
    Py_ssize_t count = uc_parse_slots(sequence, slots, UC_HAND_COUNT);
    if (count < 0)
        return NULL;
    if (!self->mapping.is_open)
        return raise_status(self, UC_CLOSED);
    uc_status_t status = uc_lane_deal(&self->mapping.lane, class_index, slots, (uint32_t)count);
    if (status != UC_OK)
        return raise_status(self, status);
    Py_RETURN_NONE;
}

static PyObject *lane_begin_step(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    ((uc_producer_lane_t *)op)->step_depth++;
    Py_RETURN_NONE;
}

static PyObject *lane_end_step(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    uc_producer_lane_t *self = (uc_producer_lane_t *)op;
    if (self->step_depth > 0)
        self->step_depth--;
    if (self->step_depth == 0 && self->wake_pending) {
        self->wake_pending = false;
        if (self->mapping.is_open)
            (void)uc_doorbell_wake(&self->mapping.lane);
    }
    Py_RETURN_NONE;
}

static PyObject *lane_ring_mail(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    uc_producer_lane_t *self = (uc_producer_lane_t *)op;
    if (self->mapping.is_open)
        uc_doorbell_mail(&self->mapping.lane);
    Py_RETURN_NONE;
}

static PyObject *lane_rouse(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    uc_producer_lane_t *self = (uc_producer_lane_t *)op;
    if (self->mapping.is_open)
        uc_doorbell_rouse(&self->mapping.lane);
    Py_RETURN_NONE;
}

static PyObject *lane_sleep_state(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    uc_producer_lane_t *self = (uc_producer_lane_t *)op;
    uint32_t state = UC_AWAKE;
    if (self->mapping.is_open)
        state = uc_load_relaxed(&uc_lane_doorbell(&self->mapping.lane)->sleep);
    return PyLong_FromUnsignedLong(state);
}

static PyObject *lane_activity(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    uc_producer_lane_t *self = (uc_producer_lane_t *)op;
    uint64_t generation = 0, since_ns = 0;
    if (self->mapping.is_open)
        uc_doorbell_activity(&self->mapping.lane, &generation, &since_ns);
    return Py_BuildValue("(KK)", (unsigned long long)generation, (unsigned long long)since_ns);
}

static PyObject *lane_next_epoch(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    uc_producer_lane_t *self = (uc_producer_lane_t *)op;
    if (self->mapping.is_open) {
        uc_doorbell_t *doorbell = uc_lane_doorbell(&self->mapping.lane);
        uc_store_relaxed(&doorbell->sleep, UC_AWAKE);
        uc_store_relaxed(&doorbell->activity, 0);
        uc_store_release(&doorbell->epoch, uc_load_relaxed(&doorbell->epoch) + 1u); /* SYNC epoch */
    }
    Py_RETURN_NONE;
}

static PyObject *lane_shut(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    uc_producer_lane_t *self = (uc_producer_lane_t *)op;
    if (self->mapping.is_open) {
        uc_store_release(&uc_lane_doorbell(&self->mapping.lane)->closed, 1u); /* SYNC closed */
        uc_doorbell_mail(&self->mapping.lane);
    }
    uc_mapping_close(&self->mapping);
    Py_RETURN_NONE;
}

static PyObject *lane_forget(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    uc_mapping_forget(&((uc_producer_lane_t *)op)->mapping);
    Py_RETURN_NONE;
}

static PyObject *lane_is_open(PyObject *op, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((uc_producer_lane_t *)op)->mapping.is_open);
}

static PyMethodDef lane_methods[] = {
    {"_format", lane_format, METH_VARARGS, lane_format_doc},
    {"_commit_run", lane_commit_run, METH_VARARGS,
     "_commit_run($self, first_block, run_blocks, class_index, /)\n--\n\nEnters or clears a run of "
     "blocks."},
    {"_deal", lane_deal, METH_VARARGS,
     "_deal($self, class_index, slots, /)\n--\n\nDeals a class's hand to the consumer."},
    {"_sleep_state", lane_sleep_state, METH_NOARGS,
     "_sleep_state($self, /)\n--\n\n0 awake, 1 napping, 2 parked; anything else is the consumer's "
     "nonsense."},
    {"activity", lane_activity, METH_NOARGS,
     "activity($self, /)\n--\n\n(generation, since): whose user code the consumer runs, 0 for "
     "none, and "
     "the monotonic_ns of\n"
     "its begin. Both are the consumer's word."},
    {"_next_epoch", lane_next_epoch, METH_NOARGS,
     "_next_epoch($self, /)\n--\n\nBegins the next consumer generation."},
    {"_shut", lane_shut, METH_NOARGS,
     "_shut($self, /)\n--\n\nTells the consumer that the lane is closed and lets go of the "
     "mappings."},
    {"_forget", lane_forget, METH_NOARGS,
     "_forget($self, /)\n--\n\nIn a forked child: the lane is closed here and its mappings are not "
     "touched."},
    {"begin_step", lane_begin_step, METH_NOARGS,
     "begin_step($self, /)\n--\n\nUntil the matching end_step, publications mark rings and wake "
     "nobody."},
    {"end_step", lane_end_step, METH_NOARGS,
     "end_step($self, /)\n--\n\nWakes the consumer once, if something was published and it is "
     "parked."},
    {"ring_mail", lane_ring_mail, METH_NOARGS,
     "ring_mail($self, /)\n--\n\nTells the consumer that a socket frame was sent, waking it if "
     "parked."},
    {"rouse", lane_rouse, METH_NOARGS,
     "rouse($self, /)\n--\n\nWakes the consumer from a nap, too: somebody waits for it."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef lane_getset[] = {
    {"is_open", lane_is_open, NULL, "Whether the lane can be used in this process.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot lane_slots[] = {
    {Py_tp_doc, "The producer side of a lane, in C."},
    {Py_tp_new, UC_SLOT(lane_new)},
    {Py_tp_dealloc, UC_SLOT(lane_dealloc)},
    {Py_tp_traverse, UC_SLOT(lane_traverse)},
    {Py_tp_methods, lane_methods},
    {Py_tp_getset, lane_getset},
    {0, NULL},
};

PyType_Spec uc_producer_lane_spec = {
    .name = "undercurrent.ipc._ring.ProducerLaneCore",
    .basicsize = sizeof(uc_producer_lane_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = lane_slots,
};

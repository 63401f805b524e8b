/* undercurrent.ipc._ring: the module. Multi-phase initialisation, heap types, limited API 3.11. */
#include "py_ring.h"

#include <string.h>

uc_state_t *uc_state_of(PyTypeObject *type)
{
    /* A subclass written in Python has no module of ours; its base has. */
    while (type != NULL) {
        uc_state_t *state = PyType_GetModuleState(type);
        if (state != NULL)
            return state;
        PyErr_Clear();
        type = (PyTypeObject *)PyType_GetSlot(type, Py_tp_base);
    }
    PyErr_SetString(PyExc_TypeError, "not a type of undercurrent.ipc._ring");
    return NULL;
}

Py_ssize_t uc_parse_slots(PyObject *sequence, uint32_t *slots, Py_ssize_t capacity)
{
    Py_ssize_t count = PySequence_Size(sequence);
    if (count < 0)
        return -1;
    if (count > capacity) {
        PyErr_Format(PyExc_ValueError, "expected at most %zd slots, got %zd", capacity, count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(sequence, i);
        unsigned long slot = item == NULL ? 0 : PyLong_AsUnsignedLong(item);
        Py_XDECREF(item);
        if (PyErr_Occurred())
            return -1;
        slots[i] = slot > UC_SLOT_NONE ? UC_SLOT_NONE : (uint32_t)slot;
    }
    return count;
}

PyObject *uc_counts_to_tuple(const uc_counts_t *counts)
{
    typedef unsigned long long u64;
    return Py_BuildValue("(KKKKKKKKKKLKKKK)", (u64)counts->published, (u64)counts->consumed,
                         (u64)counts->dropped_oldest, (u64)counts->dropped_newest,
                         (u64)counts->no_memory, (u64)counts->unsupported, (u64)counts->too_large,
                         (u64)counts->block_timeout, (u64)counts->waiting, (u64)counts->lost,
                         (long long)counts->in_hand, (u64)counts->user[0], (u64)counts->user[1],
                         (u64)counts->user[2], (u64)counts->user[3]);
}

PyDoc_STRVAR(measure_doc,
             "measure(ring_capacity, entry_count, payload_bytes, record_bytes_max, /)\n--\n\n"
             "(control bytes, offsets of ring blocks, entry words, answer cells) of a lane.\n\n"
             "Raises:\n    ValueError: a number is out of range.");

static PyObject *module_measure(PyObject *module, PyObject *args)
{
    unsigned int ring_capacity;
    unsigned long long entry_count, payload_bytes, record_bytes_max;
    uc_geometry_t geometry;
    (void)module;
    if (!PyArg_ParseTuple(args, "IKKK:measure", &ring_capacity, &entry_count, &payload_bytes,
                          &record_bytes_max))
        return NULL;
    if (uc_geometry_measure(ring_capacity, entry_count, payload_bytes, record_bytes_max, &geometry)
        != UC_OK) {
        PyErr_SetString(PyExc_ValueError, "a size of the lane is out of range");
        return NULL;
    }
    return Py_BuildValue("(KKKK)", (unsigned long long)geometry.control_bytes,
                         (unsigned long long)geometry.rings_offset,
                         (unsigned long long)geometry.entries_offset,
                         (unsigned long long)geometry.answers_offset);
}

static PyObject *module_class_facts(PyObject *module, PyObject *argument)
{
    (void)module;
    unsigned long class_index = PyLong_AsUnsignedLong(argument);
    if (PyErr_Occurred())
        return NULL;
    if (class_index >= UC_CLASS_COUNT) {
        PyErr_Format(PyExc_IndexError, "size class %lu is outside of %u", class_index,
                     UC_CLASS_COUNT);
        return NULL;
    }
    return Py_BuildValue("(III)", uc_class_bytes((uint32_t)class_index),
                         uc_class_run_blocks((uint32_t)class_index),
                         uc_class_hand_count((uint32_t)class_index));
}

static PyObject *module_monotonic_ns(PyObject *module, PyObject *ignored)
{
    (void)module, (void)ignored;
    return PyLong_FromUnsignedLongLong(uc_monotonic_ns());
}

static PyMethodDef module_methods[] = {
    {"measure", module_measure, METH_VARARGS, measure_doc},
    {"class_facts", module_class_facts, METH_O,
     "class_facts(class_index, /)\n--\n\n(slot bytes, blocks in a run, slots in a hand) of a size "
     "class."},
    {"register_arrays", UC_METHOD(uc_py_register_arrays), METH_FASTCALL, uc_register_arrays_doc},
    {"publish_rows", UC_METHOD(uc_py_publish_rows), METH_FASTCALL, uc_publish_rows_doc},
    {"monotonic_ns", module_monotonic_ns, METH_NOARGS,
     "monotonic_ns()\n--\n\nThe clock of a record's `monotonic_ns`."},
    {NULL, NULL, 0, NULL},
};

static int load_names(uc_state_t *state)
{
    state->reserve_name = PyUnicode_InternFromString("_reserve");
    state->exchange_name = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
    state->gradient_name = PyUnicode_InternFromString("requires_grad");
    PyObject *errors = PyImport_ImportModule("undercurrent.errors");
    if (errors == NULL)
        return -1;
    state->ring_error = PyObject_GetAttrString(errors, "RingError");
    state->ring_corrupt_error = PyObject_GetAttrString(errors, "RingCorruptError");
    Py_DECREF(errors);
    bool is_complete = state->reserve_name != NULL && state->exchange_name != NULL
                       && state->gradient_name != NULL && state->ring_error != NULL
                       && state->ring_corrupt_error != NULL;
    return is_complete ? 0 : -1;
}

static int module_exec(PyObject *module)
{
    uc_state_t *state = PyModule_GetState(module);
    memset(state, 0, sizeof *state);
    if (load_names(state) != 0)
        return -1;
    struct {
        PyType_Spec *spec;
        PyObject **type;
    } const types[] = {
        {&uc_producer_lane_spec, &state->producer_lane_type},
        {&uc_producer_ring_spec, &state->producer_ring_type},
        {&uc_consumer_lane_spec, &state->consumer_lane_type},
        {&uc_consumer_ring_spec, &state->consumer_ring_type},
        {&uc_batch_spec, &state->batch_type},
        {&uc_slot_view_spec, &state->slot_view_type},
    };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        *types[i].type = PyType_FromModuleAndSpec(module, types[i].spec, NULL);
        if (*types[i].type == NULL || PyModule_AddType(module, (PyTypeObject *)*types[i].type) != 0)
            return -1;
    }
    return 0;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    uc_state_t *state = PyModule_GetState(module);
    Py_VISIT(state->ring_error);
    Py_VISIT(state->ring_corrupt_error);
    Py_VISIT(state->producer_lane_type);
    Py_VISIT(state->producer_ring_type);
    Py_VISIT(state->consumer_lane_type);
    Py_VISIT(state->consumer_ring_type);
    Py_VISIT(state->batch_type);
    Py_VISIT(state->slot_view_type);
    for (size_t i = 0; i < UC_DLPACK_TYPES; i++)
        Py_VISIT(state->dlpack_types[i]);
    Py_VISIT(state->array_type);
    for (uint32_t i = 0; i < state->array_dtype_count; i++)
        Py_VISIT(state->array_dtypes[i].dtype);
    return 0;
}

static int module_clear(PyObject *module)
{
    uc_state_t *state = PyModule_GetState(module);
    Py_CLEAR(state->ring_error);
    Py_CLEAR(state->ring_corrupt_error);
    Py_CLEAR(state->producer_lane_type);
    Py_CLEAR(state->producer_ring_type);
    Py_CLEAR(state->consumer_lane_type);
    Py_CLEAR(state->consumer_ring_type);
    Py_CLEAR(state->batch_type);
    Py_CLEAR(state->slot_view_type);
    Py_CLEAR(state->reserve_name);
    Py_CLEAR(state->exchange_name);
    Py_CLEAR(state->gradient_name);
    for (size_t i = 0; i < UC_DLPACK_TYPES; i++)
        Py_CLEAR(state->dlpack_types[i]);
    Py_CLEAR(state->array_type);
    for (uint32_t i = 0; i < state->array_dtype_count; i++)
        Py_CLEAR(state->array_dtypes[i].dtype);
    state->array_dtype_count = 0;
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, UC_SLOT(module_exec)},
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "undercurrent.ipc._ring",
    .m_doc = "The ring, the doorbell and their memory, in C. Use undercurrent.ipc.",
    .m_size = sizeof(uc_state_t),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
};

PyMODINIT_FUNC PyInit__ring(void);

PyMODINIT_FUNC PyInit__ring(void) { return PyModuleDef_Init(&module_definition); }

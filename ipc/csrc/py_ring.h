/* What the files of the extension module share. The binding parses, calls, translates: what a ring
 * does stands in ring.c, consumer.c and doorbell.c. Limited API of CPython 3.11.
 *
 * Threads: every C function here runs under the interpreter's lock from its first to its last
 * effect, and lets go of it around waits only; so "one thread at a time per handle" holds. What
 * unmaps is put off while a waiter or a view still uses a mapping (`users`).
 */
#ifndef UC_PY_RING_H
#define UC_PY_RING_H

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include "ring.h"

struct uc_dlpack_api;

#define UC_DLPACK_TYPES 8
#define UC_ARRAY_DTYPES 16

/* A dtype of the registered array type: the object that every array of it holds. */
typedef struct {
    PyObject *dtype;
    uint8_t code;
    uint8_t bits;
} uc_array_dtype_t;

typedef struct {
    PyObject *ring_error;
    PyObject *ring_corrupt_error;
    PyObject *producer_lane_type;
    PyObject *producer_ring_type;
    PyObject *consumer_lane_type;
    PyObject *consumer_ring_type;
    PyObject *batch_type;
    PyObject *slot_view_type;
    PyObject *reserve_name;  /* "_reserve" */
    PyObject *exchange_name; /* "__dlpack_c_exchange_api__" */
    PyObject *gradient_name; /* "requires_grad" */
    PyObject *dlpack_types[UC_DLPACK_TYPES];
    const struct uc_dlpack_api *dlpack_apis[UC_DLPACK_TYPES];
    uint32_t dlpack_next;
    PyObject *array_type; /* NULL: arrays are read through the buffer protocol */
    uc_array_dtype_t array_dtypes[UC_ARRAY_DTYPES];
    uint32_t array_dtype_count;
} uc_state_t;

/* The module state of a type of ours or of a subclass written in Python; NULL with an error set. */
uc_state_t *uc_state_of(PyTypeObject *type);

/* Parses a sequence of slot references into `slots`; the count, or -1 with an error set. */
Py_ssize_t uc_parse_slots(PyObject *sequence, uint32_t *slots, Py_ssize_t capacity);

/* The counters in the order of their fields. */
PyObject *uc_counts_to_tuple(const uc_counts_t *counts);

/* ---- both lanes ----------------------------------------------------------------------------- */

/* The mappings one lane object holds. `users` counts waiters without the interpreter's lock and
 * exported views; the buffers are released when it is zero and the lane is closed. */
typedef struct {
    uc_lane_t lane;
    Py_buffer control;
    Py_buffer payload;
    uint32_t users;
    bool is_open;   /* false: every call answers CLOSED and touches no mapping */
    bool is_mapped; /* the two buffers are held */
} uc_mapping_t;

/* Takes both buffers. Returns -1 with an error set. */
int uc_mapping_open(uc_mapping_t *mapping, PyObject *control, PyObject *payload,
                    bool payload_writable);
void uc_mapping_close(uc_mapping_t *mapping);
/* In a forked child: the ranges are not mapped here (MADV_DONTFORK), and whatever the child maps
 * later may lie there, so the buffers are never released: their owners would unmap it. */
void uc_mapping_forget(uc_mapping_t *mapping);
void uc_mapping_use(uc_mapping_t *mapping);
void uc_mapping_leave(uc_mapping_t *mapping);

/* ---- sources (py_source.c) ------------------------------------------------------------------ */

typedef struct {
    const uint8_t *bytes;
    uint64_t length;
    uint32_t shape[UC_NDIM_MAX];
    uint8_t ndim;
    uint8_t dtype_code;
    uint8_t dtype_bits;
    bool has_view;
    Py_buffer view;
} uc_source_t;

/* Finds the bytes of a payload: through the buffer protocol, else through the DLPack exchange
 * table of its type. Returns UC_OK, UC_UNSUPPORTED, or -1 with an error set. */
int uc_source_open(uc_state_t *state, PyObject *object, uc_source_t *ret_source);
void uc_source_close(uc_source_t *source);

/* Reads an array of the registered type in place, without an export: its memory is good until
 * Python code runs. False where only uc_source_open knows. */
bool uc_source_peek(const uc_state_t *state, PyObject *object, uc_source_t *ret_source);

/* register_arrays, a function of the module. */
extern const char uc_register_arrays_doc[];
PyObject *uc_py_register_arrays(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

/* ---- producer (py_producer_lane.c, py_producer.c) ------------------------------------------- */

typedef struct {
    PyObject_HEAD uc_state_t *state;
    uc_mapping_t mapping;
    uint32_t step_depth;
    bool wake_pending;
} uc_producer_lane_t;

typedef struct {
    PyObject_HEAD uc_producer_lane_t *lane;
    uc_producer_t ring;
    uint8_t trace[16];
    uint32_t interrupts;
    uint32_t interrupts_seen;
    uint32_t answer_interrupts;
    bool was_consumer_parked; /* when the last record was announced */
} uc_producer_ring_t;

/* Publishes one described record, calling `_reserve` when the hand is too small. Returns a status
 * or -1 with an error set. Does not ring the doorbell. */
int uc_py_publish(uc_producer_ring_t *ring, uc_slot_header_t *header, const uint8_t *bytes);

/* publish_rows, a function of the module (py_rows.c). */
extern const char uc_publish_rows_doc[];
PyObject *uc_py_publish_rows(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

/* ---- consumer (py_consumer.c, py_batch.c) --------------------------------------------------- */

typedef struct {
    PyObject_HEAD uc_state_t *state;
    uc_mapping_t mapping;
    uc_hands_t hands;
    uc_sleeper_t sleeper;
    uint32_t epoch;
    uint32_t attached_count; /* rings that were attached and not detached */
    bool producer_is_gone;
} uc_consumer_lane_t;

typedef struct {
    PyObject_HEAD uc_consumer_lane_t *lane;
    uc_consumer_t ring;
    uint32_t in_hand; /* records in batches that are not finished */
    bool is_at_end;
    bool is_counted; /* among the lane's attached rings */
} uc_consumer_ring_t;

/* The ring was detached, or is dropped: nothing of it is waited for. Idempotent. */
void uc_ring_uncount(uc_consumer_ring_t *ring);

/* The exporter behind Batch.view: one slot, or bytes of its own (a copying take). */
typedef struct {
    PyObject_HEAD uc_consumer_lane_t *lane;
    uint8_t *bytes;
    Py_ssize_t length;
    uint32_t slot;
    uint32_t class_index;
    bool owns_bytes;
    bool holds_slot; /* the batch is finished: the slot goes back when nothing can reach the view */
} uc_slot_view_t;

typedef struct {
    PyObject_HEAD uc_consumer_ring_t *ring;
    uint32_t count;
    uint32_t held;
    bool is_finished;
    uc_slot_header_t headers[UC_HAND_COUNT];
    uint32_t slots[UC_HAND_COUNT];
    uint32_t class_indices[UC_HAND_COUNT];
    uint8_t *copies[UC_HAND_COUNT]; /* malloc'ed bytes of records taken by copy, else NULL */
    uc_slot_view_t *views[UC_HAND_COUNT];
} uc_batch_t;

/* Ends a batch: consumed grows, slots without a living view go back to the hand. Idempotent. */
void uc_batch_finish(uc_batch_t *batch);

/* ---- answers (py_answer.c): methods of both rings --------------------------------------------- */
extern const char uc_await_answer_doc[];
extern const char uc_answer_doc[];
extern const char uc_answer_end_doc[];
PyObject *uc_py_await_answer(PyObject *ring, PyObject *const *args, Py_ssize_t nargs);
PyObject *uc_py_interrupt_answer(PyObject *ring, PyObject *ignored);
PyObject *uc_py_last_answered(PyObject *ring, PyObject *ignored);
PyObject *uc_py_caller_cpu(PyObject *ring, PyObject *ignored);
PyObject *uc_py_answer(PyObject *ring, PyObject *const *args, Py_ssize_t nargs);
PyObject *uc_py_answer_end(PyObject *ring, PyObject *const *args, Py_ssize_t nargs);

/* ---- specs of the types, for module.c ------------------------------------------------------- */
extern PyType_Spec uc_producer_lane_spec;
extern PyType_Spec uc_producer_ring_spec;
extern PyType_Spec uc_consumer_lane_spec;
extern PyType_Spec uc_consumer_ring_spec;
extern PyType_Spec uc_batch_spec;
extern PyType_Spec uc_slot_view_spec;

/* Frees an object of a heap type. */
static inline void uc_free_object(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc tp_free = (freefunc)PyType_GetSlot(type, Py_tp_free);
    tp_free(object);
    Py_DECREF((PyObject *)type);
}

/* Function pointers in slots are void *; the detour keeps -Wpedantic compilers quiet. */
#define UC_SLOT(function) ((void *)(uintptr_t)(function))
#define UC_METHOD(function) ((PyCFunction)(void (*)(void))(function))

#endif

/* Methods of ProducerRingCore and ConsumerRingCore around answers. */
#define _GNU_SOURCE 1 /* sched_getcpu */
#include "py_ring.h"

#include <sched.h>
#include <string.h>

/* A consumer that is awake may answer before a sleep would have begun. One that was parked is slow
 * to come, and the kernel likes to run it on its waker's processor, which must be free then: with
 * a spin of 30 us the answer took 30 us longer. */
#define UC_ANSWER_SPIN_NS 30000ull
/* Between two looks for signals and for an interruption that rang before the sleep began. */
#define UC_ANSWER_WAIT_NS 50000000ull

const char uc_await_answer_doc[] =
    "await_answer($self, sequence, deadline_s, interrupts, is_alone=False, /)\n--\n\n"
    "Waits for the answer to the record at `sequence` until deadline_s (CLOCK_MONOTONIC), without\n"
    "the interpreter's lock: (status, kind, bytes). OK: the answer; TIMEOUT; PEER_DIED: "
    "`interrupt_answer`\n"
    "was called since `interrupts` was read; CLOSED; CORRUPT: shared memory holds what no honest "
    "consumer\n"
    "writes. One thread at a time. Signals are handled every 50 ms. With `is_alone` the thread "
    "waits "
    "for this\n"
    "answer and no other, and the consumer is told on which CPU: see `caller_cpu`.";

static bool is_open(const uc_producer_ring_t *self) { return self->lane->mapping.is_open; }

static uc_status_t wait_slice(uc_producer_ring_t *self, uint64_t sequence, uint64_t spin_ns,
                              uint64_t slice_ns, uc_answer_t *answer)
{
    uc_producer_t copy = self->ring;
    uc_status_t status;
    uc_mapping_use(&self->lane->mapping);
    Py_BEGIN_ALLOW_THREADS status = uc_answer_wait(&copy, sequence, spin_ns, slice_ns, answer);
    Py_END_ALLOW_THREADS uc_mapping_leave(&self->lane->mapping);
    return status;
}

/* Waits in slices. A status, or -1 with the error that a signal handler raised. */
static int await_answer(uc_producer_ring_t *self, uint64_t sequence, uint64_t deadline_ns,
                        uint32_t interrupts, uc_answer_t *answer)
{
    uint64_t spin_ns = self->was_consumer_parked ? 0 : UC_ANSWER_SPIN_NS;
    for (;;) {
        if (!is_open(self))
            return UC_CLOSED;
        uint64_t now_ns = uc_monotonic_ns();
        uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
        uint64_t slice_ns = left_ns < UC_ANSWER_WAIT_NS ? left_ns : UC_ANSWER_WAIT_NS;
        if (self->answer_interrupts != interrupts)
            slice_ns = 0; /* one look: the answer may have come before the death */
        uc_status_t status = wait_slice(self, sequence, spin_ns, slice_ns, answer);
        if (status == UC_OK || status == UC_CORRUPT)
            return (int)status;
        if (PyErr_CheckSignals() != 0)
            return -1;
        if (self->answer_interrupts != interrupts && slice_ns == 0)
            return UC_PEER_DIED;
        if (left_ns == 0)
            return UC_TIMEOUT;
        spin_ns = 0;
    }
}

PyObject *uc_py_await_answer(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    uc_producer_ring_t *self = (uc_producer_ring_t *)op;
    if (nargs != 3 && nargs != 4) {
        PyErr_SetString(PyExc_TypeError,
                        "await_answer() takes (sequence, deadline_s, interrupts, is_alone=False)");
        return NULL;
    }
    int is_alone = nargs == 4 ? PyObject_IsTrue(args[3]) : 0;
    unsigned long long sequence = PyLong_AsUnsignedLongLong(args[0]);
    double deadline_s = PyFloat_AsDouble(args[1]);
    unsigned long interrupts = PyLong_AsUnsignedLong(args[2]);
    if (PyErr_Occurred())
        return NULL;
    uint64_t deadline_ns =
        deadline_s > 1e9 ? UINT64_MAX : (uint64_t)(deadline_s > 0 ? deadline_s * 1e9 : 0);
    uc_answer_t answer = {.kind = 0, .length = 0};
    /* sched_getcpu answers -1 where the kernel does not tell. */
    if (is_open(self))
        uc_answer_say_caller(&self->ring, is_alone == 1 ? (uint32_t)(sched_getcpu() + 1) : 0);
    int status = await_answer(self, sequence, deadline_ns, (uint32_t)interrupts, &answer);
    if (status < 0)
        return NULL;
    Py_ssize_t length = status == UC_OK ? (Py_ssize_t)answer.length : 0;
    return Py_BuildValue("(iIy#)", status, status == UC_OK ? answer.kind : 0u,
                         (const char *)answer.bytes, length);
}

PyObject *uc_py_interrupt_answer(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    uc_producer_ring_t *self = (uc_producer_ring_t *)op;
    self->answer_interrupts++;
    if (is_open(self))
        uc_answer_interrupt(&self->ring);
    Py_RETURN_NONE;
}

PyObject *uc_py_last_answered(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    const uc_producer_ring_t *self = (const uc_producer_ring_t *)op;
    return PyLong_FromUnsignedLongLong(is_open(self) ? uc_answer_last(&self->ring) : 0);
}

PyObject *uc_py_caller_cpu(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    const uc_consumer_ring_t *self = (uc_consumer_ring_t *)op;
    uint32_t caller = self->lane->mapping.is_open ? uc_answer_caller(&self->ring) : 0;
    return PyLong_FromLongLong((long long)caller - 1);
}

const char uc_answer_doc[] =
    "answer($self, sequence, kind, data, /)\n--\n\n"
    "Answers the record at `sequence`, taken from this ring; False when `data` is longer than a "
    "cell holds,\n"
    "or the ring was detached. Wakes the producer where it waits.";

/* Answers with `kind` and `data`, a bytes object; at UC_SEQUENCE_END it is the last word. */
static PyObject *put_answer(uc_consumer_ring_t *self, unsigned long long sequence, PyObject *kind,
                            PyObject *data)
{
    unsigned long number = PyLong_AsUnsignedLong(kind);
    char *bytes = NULL;
    Py_ssize_t length = 0;
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(data, &bytes, &length) != 0)
        return NULL;
    if (!self->lane->mapping.is_open || length > (Py_ssize_t)UC_ANSWER_BYTES_MAX)
        Py_RETURN_FALSE;
    uc_status_t status =
        sequence == UC_SEQUENCE_END
            ? uc_answer_end(&self->ring, (uint32_t)number, bytes, (uint32_t)length)
            : uc_answer_put(&self->ring, sequence, (uint32_t)number, bytes, (uint32_t)length);
    if (status == UC_OK && sequence == UC_SEQUENCE_END)
        uc_ring_uncount(self);
    return PyBool_FromLong(status == UC_OK);
}

PyObject *uc_py_answer(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3) {
        PyErr_SetString(PyExc_TypeError, "answer() takes (sequence, kind, data)");
        return NULL;
    }
    unsigned long long sequence = PyLong_AsUnsignedLongLong(args[0]);
    if (PyErr_Occurred())
        return NULL;
    return put_answer((uc_consumer_ring_t *)op, sequence, args[1], args[2]);
}

const char uc_answer_end_doc[] =
    "answer_end($self, kind, data, /)\n--\n\n"
    "Says the last word that `asked_until` asks for, and detaches; False, and still attached, when "
    "`data`\n"
    "is longer than a cell holds.";

PyObject *uc_py_answer_end(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "answer_end() takes (kind, data)");
        return NULL;
    }
    return put_answer((uc_consumer_ring_t *)op, UC_SEQUENCE_END, args[0], args[1]);
}

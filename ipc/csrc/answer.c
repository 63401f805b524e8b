/* Answers: what the consumer says about one record, or about the whole stream at its end, in a fixed
 * cell that the producer waits on.
 *
 * One word publishes it. A cell is written again only after the next record was taken, and that is
 * published only when its producer has read the answer before it, or has given up on it; so an
 * honest answer is never overwritten under its reader. A late answer carries the position of a
 * record that nobody waits for any more, and is passed over. Each sleep is bounded, so a consumer
 * that is killed between its mark and its wake delays the producer by a slice at most. */
#ifndef __linux__
#error "answers need Linux futexes"
#endif
#include "ring.h"

#include <string.h>

/* A consumer may be killed between storing an answer and waking the waiter: it looks again. */
#define UC_ANSWER_SLICE_NS 10000000ull

static void fill(const uc_consumer_t *ring, uint32_t kind, const void *bytes, uint32_t length)
{
    uc_answer_cell_t *cell = uc_lane_answer(ring->lane, ring->ring_index);
    UC_STEP("answer.begin");
    if (length > 0)
        memcpy(cell->bytes, bytes, length);
    uc_store_relaxed(&cell->generation, ring->generation);
    uc_store_relaxed(&cell->length, length);
    uc_store_relaxed(&cell->kind, kind);
    UC_STEP("answer.filled");
}

static void publish(const uc_consumer_t *ring, uint64_t sequence)
{
    uc_answer_cell_t *cell = uc_lane_answer(ring->lane, ring->ring_index);
    uc_store_release(&cell->sequence, sequence); /* SYNC answer: what `fill` stored comes first */
    UC_STEP("answer.stored");
    uc_fence_park(); /* SYNC asker: the answer is visible before the flag is looked at */
    if (uc_load_relaxed(&cell->waiting) == 0 || uc_exchange_acq_rel(&cell->waiting, 0u) == 0)
        return;
    uc_fetch_add_release(&cell->bell, 1u); /* SYNC bell */
    UC_STEP("answer.grown");
    uc_futex_wake(&cell->bell);
    UC_STEP("answer.woken");
}

uc_status_t uc_answer_put(const uc_consumer_t *ring, uint64_t sequence, uint32_t kind,
                          const void *bytes, uint32_t length)
{
    if (length > UC_ANSWER_BYTES_MAX)
        return UC_TOO_LARGE;
    if (ring->state != UC_READER_ATTACHED)
        return UC_CLOSED;
    fill(ring, kind, bytes, length);
    publish(ring, sequence);
    return UC_OK;
}

uc_status_t uc_answer_end(uc_consumer_t *ring, uint32_t kind, const void *bytes, uint32_t length)
{
    if (length > UC_ANSWER_BYTES_MAX)
        return UC_TOO_LARGE;
    if (ring->state != UC_READER_ATTACHED)
        return UC_CLOSED;
    fill(ring, kind, bytes, length);
    uc_consumer_detach(ring); /* SYNC reader: who sees the answer may take the ring's memory back */
    publish(ring, UC_SEQUENCE_END);
    return UC_OK;
}

uc_status_t uc_answer_look(const uc_producer_t *ring, uint64_t sequence, uc_answer_t *ret_answer)
{
    const uc_answer_cell_t *cell = uc_lane_answer(ring->lane, ring->ring_index);
    if (uc_load_acquire(&cell->sequence) != sequence) /* SYNC answer */
        return UC_EMPTY;
    if (uc_load_relaxed(&cell->generation) != ring->generation)
        return UC_EMPTY; /* the same position of an earlier ring in this block */
    uint32_t length = uc_load_relaxed(&cell->length);
    if (length > UC_ANSWER_BYTES_MAX)
        return UC_CORRUPT;
    ret_answer->kind = uc_load_relaxed(&cell->kind);
    ret_answer->length = length;
    memcpy(ret_answer->bytes, cell->bytes, length);
    return UC_OK;
}

uint64_t uc_answer_last(const uc_producer_t *ring)
{
    const uc_answer_cell_t *cell = uc_lane_answer(ring->lane, ring->ring_index);
    uint64_t sequence = uc_load_acquire(&cell->sequence); /* SYNC answer */
    return uc_load_relaxed(&cell->generation) == ring->generation ? sequence : 0;
}

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Announces the sleep, looks a last time, sleeps. The caller withdraws the announcement. */
static uc_status_t sleep_once(const uc_producer_t *ring, uint64_t sequence, uint64_t duration_ns,
                              uc_answer_t *ret_answer)
{
    uc_answer_cell_t *cell = uc_lane_answer(ring->lane, ring->ring_index);
    uint32_t bell = uc_load_acquire(&cell->bell); /* SYNC bell */
    uc_store_relaxed(&cell->waiting, 1u);
    UC_STEP("answer.waiting");
    uc_fence_park(); /* SYNC asker: pairs with the fence in uc_answer_put */
    uc_status_t status = uc_answer_look(ring, sequence, ret_answer);
    if (status != UC_EMPTY)
        return status;
    bool is_signalled = !uc_futex_wait(&cell->bell, bell, duration_ns);
    UC_STEP("answer.slept");
    status = uc_answer_look(ring, sequence, ret_answer);
    if (status != UC_EMPTY)
        return status;
    if (is_signalled)
        return UC_SIGNALLED;
    /* The bell rang, yet there is no answer: somebody wants the waiter to look around. */
    return uc_load_acquire(&cell->bell) != bell ? UC_INTERRUPTED : UC_EMPTY; /* SYNC bell */
}

uc_status_t uc_answer_wait(const uc_producer_t *ring, uint64_t sequence, uint64_t spin_ns,
                           uint64_t slice_ns, uc_answer_t *ret_answer)
{
    uint64_t now_ns = uc_monotonic_ns();
    uint64_t end_ns = now_ns + slice_ns;
    uint64_t spin_end_ns = now_ns + smaller(spin_ns, slice_ns);
    uc_status_t status;
    while ((status = uc_answer_look(ring, sequence, ret_answer)) == UC_EMPTY
           && uc_monotonic_ns() < spin_end_ns)
        uc_pause();
    while (status == UC_EMPTY && (now_ns = uc_monotonic_ns()) < end_ns)
        status =
            sleep_once(ring, sequence, smaller(end_ns - now_ns, UC_ANSWER_SLICE_NS), ret_answer);
    uc_store_relaxed(&uc_lane_answer(ring->lane, ring->ring_index)->waiting, 0u);
    return status == UC_EMPTY ? UC_TIMEOUT : status;
}

void uc_answer_say_caller(const uc_producer_t *ring, uint32_t caller)
{
    uc_store_relaxed(&uc_lane_answer(ring->lane, ring->ring_index)->caller, caller);
}

uint32_t uc_answer_caller(const uc_consumer_t *ring)
{
    return uc_load_relaxed(&uc_lane_answer(ring->lane, ring->ring_index)->caller);
}

void uc_answer_interrupt(const uc_producer_t *ring)
{
    uc_answer_cell_t *cell = uc_lane_answer(ring->lane, ring->ring_index);
    uc_fetch_add_release(&cell->bell, 1u); /* SYNC bell */
    uc_futex_wake(&cell->bell);
}

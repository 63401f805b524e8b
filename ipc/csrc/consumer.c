/* The exchange ring's consumer side. ring.h states what each function promises. */
#include "ring.h"

#include <string.h>

static uc_status_t corrupt(uc_consumer_t *ring)
{
    ring->state = UC_READER_CORRUPT;
    uc_store_release(&ring->block->reader_state, UC_READER_CORRUPT); /* SYNC reader */
    return UC_CORRUPT;
}

static uc_status_t detached_or_corrupt(const uc_consumer_t *ring)
{
    return ring->state == UC_READER_CORRUPT ? UC_CORRUPT : UC_CLOSED;
}

static inline _Atomic uint64_t *next_entry(const uc_consumer_t *ring)
{
    return uc_lane_entry(ring->lane, ring->first_entry, ring->index);
}

static void step_over(uc_consumer_t *ring)
{
    ring->next++;
    ring->index = ring->index + 1 == ring->queue_depth ? 0 : ring->index + 1;
}

/* ---- the hand ------------------------------------------------------------------------------- */

static uc_status_t read_hand_row(const uc_lane_t *lane, uc_hands_t *hands, uint32_t class_index)
{
    uc_hand_row_t *row = &uc_lane_hands(lane)[class_index];
    uint32_t slots[UC_HAND_COUNT];
    uint32_t count = uc_load_acquire(&row->count); /* SYNC hand */
    if (count == 0)
        return UC_NO_HAND;
    if (count > uc_class_hand_count(class_index))
        return UC_CORRUPT;
    for (uint32_t i = 0; i < count; i++) {
        slots[i] = uc_load_relaxed(&row->slots[i]);
        if (uc_lane_slot_class(lane, slots[i]) != class_index)
            return UC_CORRUPT;
        for (uint32_t j = 0; j < i; j++)
            if (slots[j] == slots[i])
                return UC_CORRUPT;
    }
    memcpy(hands->slots[class_index], slots, count * sizeof slots[0]);
    hands->count[class_index] = (uint8_t)count;
    hands->drawn[class_index] = 1;
    return UC_OK;
}

uc_status_t uc_hands_draw(const uc_lane_t *lane, uc_hands_t *hands, uint32_t class_index,
                          uint32_t *ret_slot)
{
    if (!hands->drawn[class_index]) {
        uc_status_t status = read_hand_row(lane, hands, class_index);
        if (status != UC_OK)
            return status;
    }
    if (hands->count[class_index] == 0)
        return UC_NO_HAND;
    *ret_slot = hands->slots[class_index][--hands->count[class_index]];
    return UC_OK;
}

void uc_hands_put(uc_hands_t *hands, uint32_t class_index, uint32_t slot)
{
    if (class_index < UC_CLASS_COUNT && hands->count[class_index] < UC_HAND_COUNT)
        hands->slots[class_index][hands->count[class_index]++] = slot;
}

/* ---- attaching and letting go --------------------------------------------------------------- */

uc_status_t uc_consumer_attach(const uc_lane_t *lane, uint32_t ring_index, uint32_t queue_depth,
                               uint32_t policy, uint64_t generation, uc_consumer_t *ret_ring)
{
    if (ring_index >= lane->geometry.ring_capacity)
        return UC_CORRUPT;
    uc_ring_block_t *block = uc_lane_ring(lane, ring_index);
    uint32_t state = uc_load_acquire(&block->state); /* SYNC state */
    uint32_t first_entry = uc_load_relaxed(&block->first_entry);
    if ((state != UC_RING_OPEN && state != UC_RING_CLOSED)
        || uc_load_relaxed(&block->generation) != generation
        || uc_load_relaxed(&block->queue_depth) != queue_depth
        || uc_load_relaxed(&block->policy) != policy || policy >= UC_POLICY_COUNT
        || queue_depth == 0 || queue_depth > UC_QUEUE_DEPTH_MAX
        || (uint64_t)first_entry + queue_depth > lane->geometry.entry_count)
        return UC_CORRUPT;
    uint64_t start = uc_load_relaxed(&block->start);
    uint64_t tail = uc_load_acquire(&block->tail); /* SYNC tail: entries before it are seen */
    if (start < queue_depth || tail < start || tail - start > UINT64_MAX / 2)
        return UC_CORRUPT;
    uc_consumer_t ring = {
        .lane = lane,
        .block = block,
        .generation = generation,
        .next = tail - queue_depth,
        .consumed = uc_load_relaxed(&block->consumed),
        .ring_index = ring_index,
        .first_entry = first_entry,
        .queue_depth = queue_depth,
        .policy = policy,
        .index = (uint32_t)((tail - queue_depth) % queue_depth),
        .state = UC_READER_ATTACHED,
    };
    uc_store_release(&block->reader_state, UC_READER_ATTACHED); /* SYNC reader */
    *ret_ring = ring;
    return UC_OK;
}

bool uc_consumer_is_asked(const uc_consumer_t *ring, uint64_t *ret_drain_until_ns)
{
    const uc_ring_block_t *block = ring->block;
    if (uc_load_acquire(&block->state) != UC_RING_CLOSED) /* SYNC state */
        return false;
    *ret_drain_until_ns = uc_load_relaxed(&block->drain_until_ns);
    return uc_load_relaxed(&block->last_word_asked) == 1u;
}

void uc_consumer_detach(uc_consumer_t *ring)
{
    if (ring->state != UC_READER_ATTACHED)
        return;
    ring->state = UC_READER_DETACHED;
    /* SYNC reader: every read of the ring is over; the producer may take its slots back. */
    uc_store_release(&ring->block->reader_state, UC_READER_DETACHED);
}

/* ---- taking --------------------------------------------------------------------------------- */

/* Whether a private copy of a header can describe a payload in `room` bytes. */
static bool header_is_valid(const uc_slot_header_t *header, const uc_consumer_t *ring,
                            uint64_t room)
{
    if (header->sequence != ring->next || header->generation != ring->generation
        || header->length > room || header->length > ring->lane->geometry.record_bytes_max
        || header->ndim > UC_NDIM_MAX || header->dtype_bits == 0)
        return false;
    uint64_t elements = 1;
    for (uint32_t i = 0; i < UC_NDIM_MAX; i++) {
        if (i >= header->ndim) {
            if (header->shape[i] != 0)
                return false;
            continue;
        }
        /* length is below 2^26, so a product beyond 2^32 cannot be right and cannot overflow on
         * the way: each factor is below 2^32. */
        elements *= header->shape[i];
        if (elements > UINT32_MAX)
            return false;
    }
    return elements * header->dtype_bits == (uint64_t)header->length * 8u;
}

/* Where the next record stands. UC_OK: ret_word is FULL and its position is ring->next. */
static uc_status_t look(uc_consumer_t *ring, bool producer_is_gone, uint32_t *looks,
                        uint64_t *ret_word)
{
    bool is_ending = producer_is_gone;
    uint32_t state = UC_RING_OPEN;
    while ((*looks)-- > 0) {
        /* SYNC entry: what was written before this word was swapped in is visible. */
        uint64_t word = uc_load_acquire(next_entry(ring));
        int64_t distance = uc_entry_distance(word, ring->next);
        if (distance == 0) {
            if ((word & UC_ENTRY_FULL) != 0) {
                *ret_word = word;
                return UC_OK;
            }
            step_over(ring); /* a predecessor took it */
        } else if (distance == -(int64_t)ring->queue_depth) {
            if (is_ending)
                return state == UC_RING_CORRUPT ? UC_CORRUPT : UC_END_OF_STREAM;
            UC_STEP("take.empty");
            state = uc_load_acquire(&ring->block->state); /* SYNC state */
            if (state == UC_RING_OPEN)
                return UC_EMPTY;
            is_ending = true; /* look once more: the last entry came before the state */
        } else if (distance > 0 && distance % (int64_t)ring->queue_depth == 0) {
            /* Lapped: the record at next + distance is published, so what can still be there
             * begins one lap before its successor. */
            uint64_t oldest = ring->next + (uint64_t)distance + 1u - ring->queue_depth;
            ring->next = oldest > ring->next ? oldest : ring->next + 1u;
            ring->index = (uint32_t)(ring->next % ring->queue_depth);
        } else {
            return UC_CORRUPT;
        }
    }
    return UC_TIMEOUT;
}

/* The class of the slot that `word` names. A slot may leave the ring, and its block the class,
 * between the two loads: then the entry has changed, and the answer is UC_TIMEOUT: look again.
 * SYNC block: the acquire in uc_lane_slot_class orders the second look behind it. */
static uc_status_t classify(const uc_consumer_t *ring, uint64_t word, uint32_t *ret_class)
{
    uint32_t class_index = uc_lane_slot_class(ring->lane, uc_entry_slot(word));
    if (class_index == UC_CLASS_COUNT)
        return uc_load_acquire(next_entry(ring)) == word ? UC_CORRUPT : UC_TIMEOUT;
    *ret_class = class_index;
    return UC_OK;
}

/* Lock-free; worker's thread. Effects on shared memory, in order:
 *   1. entry[next % depth]: swapped from (next, FULL, s) to (next, free, a slot of ours); from
 *      here on the record is in hand, and nobody writes its slot
 *   2. nothing else: `consumed` is stored by uc_consumer_consume when the record was handled
 * A kill after 1 loses the record; uc_producer_reap counts it. */
uc_status_t uc_consumer_take(uc_consumer_t *ring, uc_hands_t *hands, bool producer_is_gone,
                             uc_taken_t *ret_taken)
{
    if (ring->state != UC_READER_ATTACHED)
        return detached_or_corrupt(ring);
    UC_STEP("take.begin");
    uint32_t looks = 2u * ring->queue_depth + 64u;
    uint64_t word = 0;
    for (;;) {
        uc_status_t status = look(ring, producer_is_gone, &looks, &word);
        if (status != UC_OK)
            return status == UC_CORRUPT ? corrupt(ring) : status;
        uint32_t slot = uc_entry_slot(word);
        uint32_t class_index = 0;
        status = classify(ring, word, &class_index);
        if (status == UC_TIMEOUT)
            continue;
        if (status != UC_OK)
            return corrupt(ring);
        uint32_t hand;
        status = uc_hands_draw(ring->lane, hands, class_index, &hand);
        if (status != UC_OK)
            return status == UC_CORRUPT ? corrupt(ring) : status;
        uint64_t left = uc_entry_pack(ring->next, word & UC_ENTRY_EVICTED, hand);
        UC_STEP("take.looked");
        /* SYNC entry: takes the slot's bytes (acquire) and leaves a slot whose reads are over
         * (release; pairs with the acquire of the producer's swap). */
        if (!uc_cas_take(next_entry(ring), &word, left)) {
            uc_hands_put(hands, class_index, hand); /* overwritten meanwhile: look again */
            continue;
        }
        UC_STEP("take.swapped");
        uc_taken_t taken = {.slot = slot, .class_index = class_index};
        memcpy(&taken.header, uc_lane_slot(ring->lane, slot), sizeof taken.header);
        if (!header_is_valid(&taken.header, ring,
                             uc_class_bytes(class_index) - UC_SLOT_HEADER_BYTES)) {
            uc_hands_put(hands, class_index, slot);
            return corrupt(ring);
        }
        step_over(ring);
        *ret_taken = taken;
        UC_STEP("take.end");
        return UC_OK;
    }
}

/* The bytes below may be written by the producer while they are read: then the entry no longer
 * holds `word`, the swap fails, and what was read is thrown away. ThreadSanitizer would report the
 * copy, rightly as C11 goes; the fences make it right on the machines this runs on (Boehm, "Can
 * seqlocks get along with programming language memory models?", 2012). */
#if defined(__clang__)
__attribute__((no_sanitize("thread")))
#elif defined(__SANITIZE_THREAD__)
__attribute__((no_sanitize_thread))
#endif
static void copy_contended(uint8_t *target, const uint8_t *source, uint64_t length)
{
    for (uint64_t i = 0; i < length; i++)
        target[i] = ((const volatile uint8_t *)source)[i];
}

uc_status_t uc_consumer_take_copy(uc_consumer_t *ring, bool producer_is_gone, uint8_t *target,
                                  uint64_t capacity, uc_taken_t *ret_taken)
{
    if (ring->state != UC_READER_ATTACHED)
        return detached_or_corrupt(ring);
    uint32_t looks = 2u * ring->queue_depth + 64u;
    uint64_t word = 0;
    for (;;) {
        uc_status_t status = look(ring, producer_is_gone, &looks, &word);
        if (status != UC_OK)
            return status == UC_CORRUPT ? corrupt(ring) : status;
        uint32_t slot = uc_entry_slot(word);
        uc_taken_t taken = {.slot = UC_SLOT_NONE};
        status = classify(ring, word, &taken.class_index);
        if (status == UC_TIMEOUT)
            continue;
        if (status != UC_OK)
            return corrupt(ring);
        uint64_t room = uc_class_bytes(taken.class_index) - UC_SLOT_HEADER_BYTES;
        if (capacity < room)
            return UC_NO_SLOT;
        const uint8_t *bytes = uc_lane_slot(ring->lane, slot);
        copy_contended((uint8_t *)&taken.header, bytes, sizeof taken.header);
        uint64_t length = taken.header.length < room ? taken.header.length : room;
        copy_contended(target, bytes + UC_SLOT_HEADER_BYTES, length);
        UC_STEP("take.copied");
        uc_fence_acquire(); /* SYNC reuse: the copy is over before the swap proves it whole */
        if (!uc_cas_take(next_entry(ring), &word, word & ~UC_ENTRY_FULL))
            continue;
        UC_STEP("take.swapped");
        if (!header_is_valid(&taken.header, ring, room))
            return corrupt(ring);
        step_over(ring);
        *ret_taken = taken;
        UC_STEP("take.end");
        return UC_OK;
    }
}

void uc_consumer_consume(uc_consumer_t *ring, uint32_t count)
{
    UC_STEP("consume.begin");
    ring->consumed += count;
    /* SYNC consumed: the takes it counts come first. */
    uc_store_release(&ring->block->consumed, ring->consumed);
    UC_STEP("consume.stored");
}

void uc_consumer_set_user(uc_consumer_t *ring, uint32_t index, uint64_t value)
{
    if (index < 4 && ring->state == UC_READER_ATTACHED)
        uc_store_relaxed(&ring->block->user[index], value);
}

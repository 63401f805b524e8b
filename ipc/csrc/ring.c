/* The exchange ring's producer side and the counters. ring.h states what each function promises. */
#include "ring.h"

static uc_status_t corrupt(uc_producer_t *ring)
{
    ring->state = UC_RING_CORRUPT;
    uc_store_release(&ring->block->state, UC_RING_CORRUPT); /* SYNC state */
    return UC_CORRUPT;
}

static uc_status_t closed_or_corrupt(const uc_producer_t *ring)
{
    return ring->state == UC_RING_CORRUPT ? UC_CORRUPT : UC_CLOSED;
}

static inline _Atomic uint64_t *entry_at(const uc_producer_t *ring, uint32_t index)
{
    return uc_lane_entry(ring->lane, ring->first_entry, index);
}

uint32_t uc_lane_slot_class(const uc_lane_t *lane, uint32_t slot)
{
    uint32_t block = slot >> (UC_BLOCK_SHIFT - 8u);
    if (slot >= UC_SLOT_NONE || block >= lane->geometry.block_count)
        return UC_CLASS_COUNT;
    /* SYNC block: whoever reads that a block was cleared also sees that its slots had left. */
    uint32_t word =
        lane->blocks != NULL ? lane->blocks[block] : uc_load_acquire(&uc_lane_blocks(lane)[block]);
    return uc_slot_class(slot, word, lane->geometry.block_count);
}

uc_status_t uc_lane_commit_run(uc_lane_t *lane, uint32_t first_block, uint32_t run_blocks,
                               uint32_t class_index)
{
    uint32_t block_count = lane->geometry.block_count;
    if (run_blocks == 0 || run_blocks > 255 || first_block >= block_count
        || run_blocks > block_count - first_block || class_index > UC_CLASS_COUNT)
        return UC_CORRUPT;
    for (uint32_t i = 0; i < run_blocks; i++) {
        uint32_t word =
            class_index == UC_CLASS_COUNT ? 0 : uc_block_pack(class_index, i, run_blocks);
        lane->blocks[first_block + i] = word;
        uc_store_release(&uc_lane_blocks(lane)[first_block + i], word); /* SYNC block */
    }
    return UC_OK;
}

uc_status_t uc_lane_deal(const uc_lane_t *lane, uint32_t class_index, const uint32_t *slots,
                         uint32_t count)
{
    if (class_index >= UC_CLASS_COUNT || count > uc_class_hand_count(class_index))
        return UC_CORRUPT;
    uc_hand_row_t *row = &uc_lane_hands(lane)[class_index];
    for (uint32_t i = 0; i < count; i++) {
        uc_store_relaxed(&row->slots[i], slots[i]);
        UC_STEP("deal.slot");
    }
    uc_store_release(&row->count, count); /* SYNC hand: the slots before their number */
    UC_STEP("deal.stored");
    return UC_OK;
}

uc_status_t uc_producer_open(const uc_lane_t *lane, uint32_t ring_index, uint32_t first_entry,
                             uint32_t queue_depth, uint32_t policy, uint64_t generation,
                             uint64_t start, uc_producer_t *ret_ring)
{
    if (ring_index >= lane->geometry.ring_capacity || queue_depth == 0
        || queue_depth > UC_QUEUE_DEPTH_MAX || policy >= UC_POLICY_COUNT || start < queue_depth
        || (uint64_t)first_entry + queue_depth > lane->geometry.entry_count)
        return UC_CORRUPT;
    uc_ring_block_t *block = uc_lane_ring(lane, ring_index);
    uc_producer_t ring = {
        .lane = lane,
        .block = block,
        .generation = generation,
        .start = start,
        .tail = start,
        .ring_index = ring_index,
        .first_entry = first_entry,
        .queue_depth = queue_depth,
        .policy = policy,
        .index = (uint32_t)(start % queue_depth),
        .hand = UC_SLOT_NONE,
        .state = UC_RING_OPEN,
    };
    uc_store_relaxed(&block->generation, generation);
    uc_store_relaxed(&block->start, start);
    uc_store_relaxed(&block->first_entry, first_entry);
    uc_store_relaxed(&block->queue_depth, queue_depth);
    uc_store_relaxed(&block->policy, policy);
    uc_store_relaxed(&block->progress, uc_progress_pack(0, start));
    uc_store_relaxed(&block->tail, start);
    _Atomic uint64_t *const zeroed[] = {
        &block->dropped_newest, &block->no_memory, &block->unsupported, &block->too_large,
        &block->block_timeout,  &block->lost,      &block->consumed,
    };
    for (size_t i = 0; i < sizeof zeroed / sizeof zeroed[0]; i++)
        uc_store_relaxed(zeroed[i], 0);
    for (size_t i = 0; i < 4; i++)
        uc_store_relaxed(&block->user[i], 0);
    uc_store_relaxed(&block->producer_waiting, 0);
    uc_store_relaxed(&block->last_word_asked, 0);
    uc_store_relaxed(&block->reader_state, UC_READER_NONE);
    UC_STEP("open.geometry");
    for (uint64_t position = start - queue_depth; position < start; position++) {
        uint32_t index = (uint32_t)(position % queue_depth);
        uc_store_relaxed(entry_at(&ring, index), uc_entry_pack(position, 0, UC_SLOT_NONE));
    }
    UC_STEP("open.entries");
    uc_store_release(&block->state, UC_RING_OPEN); /* SYNC state: geometry and words come first */
    UC_STEP("open.stored");
    *ret_ring = ring;
    return UC_OK;
}

uc_status_t uc_producer_install(uc_producer_t *ring, const uint32_t *slots, uint32_t count)
{
    if (ring->state != UC_RING_OPEN)
        return closed_or_corrupt(ring);
    if (ring->hand != UC_SLOT_NONE || count != ring->queue_depth + 1)
        return UC_CORRUPT;
    for (uint32_t i = 0; i < count; i++)
        if (uc_lane_slot_class(ring->lane, slots[i]) == UC_CLASS_COUNT)
            return UC_CORRUPT;
    for (uint32_t i = 0; i < ring->queue_depth; i++) {
        uint64_t position = ring->tail - ring->queue_depth + i;
        uint32_t index = (uint32_t)(position % ring->queue_depth);
        uint64_t expected = uc_entry_pack(position, 0, UC_SLOT_NONE);
        if (uc_load_relaxed(entry_at(ring, index)) != expected)
            return corrupt(ring);
        uc_store_relaxed(entry_at(ring, index), uc_entry_pack(position, 0, slots[i]));
        UC_STEP("install.entry");
    }
    ring->hand = slots[ring->queue_depth];
    ring->hand_bytes = uc_class_bytes(uc_lane_slot_class(ring->lane, ring->hand));
    return UC_OK;
}

uc_status_t uc_producer_replace_hand(uc_producer_t *ring, uint32_t slot, uint32_t *ret_slot)
{
    if (ring->state != UC_RING_OPEN)
        return closed_or_corrupt(ring);
    uint32_t class_index = uc_lane_slot_class(ring->lane, slot);
    if (class_index == UC_CLASS_COUNT || ring->hand == UC_SLOT_NONE)
        return UC_CORRUPT;
    *ret_slot = ring->hand;
    ring->hand = slot;
    ring->hand_bytes = uc_class_bytes(class_index);
    ring->hand_is_ours = false;
    return UC_OK;
}

static uc_status_t refuse_full(uc_producer_t *ring)
{
    if (ring->policy == UC_DROP_NEWEST) {
        uc_store_relaxed(&ring->block->dropped_newest, ++ring->dropped_newest);
        UC_STEP("publish.refused");
    }
    return UC_FULL;
}

uc_status_t uc_producer_room(uc_producer_t *ring)
{
    if (ring->state != UC_RING_OPEN)
        return closed_or_corrupt(ring);
    uint64_t word = uc_load_acquire(entry_at(ring, ring->index)); /* SYNC entry */
    if (uc_entry_distance(word, ring->tail) != -(int64_t)ring->queue_depth)
        return corrupt(ring);
    return (word & UC_ENTRY_FULL) != 0 ? UC_FULL : UC_OK;
}

/* Puts the filled hand where the word at the tail was. A free word has no other writer, so a store
 * does; a full one may be taken meanwhile, so it is swapped. A swap that fails can only have met
 * that take: then the word is free. Anything else is nonsense. */
static uc_status_t swap_hand(uc_producer_t *ring, uint64_t *ret_replaced, uint32_t *ret_class)
{
    _Atomic uint64_t *entry = entry_at(ring, ring->index);
    /* SYNC entry: receives a slot whose last reads are over; pairs with the release of the
     * consumer's swap in uc_consumer_take. */
    uint64_t word = uc_load_acquire(entry);
    UC_STEP("publish.looked");
    for (int attempt = 0; attempt < 2; attempt++) {
        bool is_full = (word & UC_ENTRY_FULL) != 0;
        uint32_t class_index = uc_lane_slot_class(ring->lane, uc_entry_slot(word));
        if (uc_entry_distance(word, ring->tail) != -(int64_t)ring->queue_depth
            || class_index == UC_CLASS_COUNT || (attempt == 1 && is_full))
            return UC_CORRUPT;
        uint64_t bits = UC_ENTRY_FULL | (is_full ? UC_ENTRY_EVICTED : 0);
        uint64_t record = uc_entry_pack(ring->tail, bits, ring->hand);
        /* SYNC entry: publishes the slot's bytes; pairs with the acquire of the load and the swap
         * in uc_consumer_take. */
        if (!is_full)
            uc_store_publish(entry, record);
        else if (!uc_cas_publish(entry, &word, record))
            continue;
        *ret_replaced = word;
        *ret_class = class_index;
        return UC_OK;
    }
    return UC_CORRUPT;
}

/* Whether the slot in hand is likely to be in this core's cache still: it was dropped unread, and
 * the lap since it was written took no longer than the cache is filled by such records. */
static bool hand_is_cached(const uc_producer_t *ring, uint64_t now_ns)
{
    return ring->hand_is_ours && ring->lap_ns < UC_CACHED_LAP_NS
           && now_ns - ring->lap_begin_ns < UC_CACHED_LAP_NS;
}

/* The words that the publication writes or looks at behind the copy: the other side has touched some
 * of them since, and after a pause all have left the caches. They come while the payload is copied. */
static void prefetch_words(const uc_producer_t *ring)
{
    uc_prefetch_write(entry_at(ring, ring->index));
    uc_prefetch_write(&ring->block->progress);
    uc_prefetch_write(&uc_lane_ticks(ring->lane)[ring->ring_index]);
    __builtin_prefetch((const void *)&uc_lane_doorbell(ring->lane)->sleep);
}

/* Wait-free; engine's thread. Effects on shared memory of begin, uc_slots_fill and commit, in order:
 *   1. the hand's slot: header and payload (streaming stores, then sfence)
 *   2. entry[tail % depth]: stored if free, swapped if full: here the record is published, and
 *      under drop_oldest on a full ring the oldest dropped, in one atomic step
 *   3. progress: dropped_oldest and the new tail in one store
 *   4. tail: where the next consumer begins to look
 * uc_doorbell_announce follows. A kill after 2 and before 3 leaves EVICTED in the entry at
 * progress' tail: uc_ring_count sees a record more, and the drop it brought.
 * Between 1 and 2 other rings may be begun: what is in a hand is nobody's business. */
uc_status_t uc_producer_begin(uc_producer_t *ring, uc_slot_header_t *header, const void *source,
                              uc_fill_t *ret_fill)
{
    if (ring->state != UC_RING_OPEN)
        return closed_or_corrupt(ring);
    UC_STEP("publish.begin");
    prefetch_words(ring);
    /* drop_oldest takes the word as it is after the copy; the others look before they copy. */
    if (ring->policy != UC_DROP_OLDEST) {
        uc_status_t status = uc_producer_room(ring);
        if (status != UC_OK)
            return status == UC_FULL ? refuse_full(ring) : status;
    }
    if (header->length > ring->lane->geometry.record_bytes_max)
        return UC_TOO_LARGE;
    if ((uint64_t)header->length + UC_SLOT_HEADER_BYTES > ring->hand_bytes)
        return UC_NO_SLOT;
    header->sequence = ring->tail;
    header->generation = ring->generation;
    ret_fill->slot = uc_lane_slot(ring->lane, ring->hand);
    ret_fill->header = header;
    ret_fill->source = source;
    ret_fill->is_cached = hand_is_cached(ring, header->monotonic_ns);
    ring->is_begun = true;
    /* SYNC reuse: the swap that gave us this slot comes before its new bytes; pairs with the
     * acquire fence in uc_consumer_take_copy. */
    uc_fence_release();
    return UC_OK;
}

uc_status_t uc_producer_commit(uc_producer_t *ring, uint64_t monotonic_ns)
{
    uint64_t replaced;
    uint32_t class_index;
    if (ring->state != UC_RING_OPEN)
        return closed_or_corrupt(ring);
    UC_STEP("publish.filled");
    if (!ring->is_begun || swap_hand(ring, &replaced, &class_index) != UC_OK)
        return corrupt(ring);
    UC_STEP("publish.swapped");
    ring->is_begun = false;
    ring->hand = uc_entry_slot(replaced);
    ring->hand_bytes = uc_class_bytes(class_index);
    ring->hand_is_ours = (replaced & UC_ENTRY_FULL) != 0;
    if (ring->hand_is_ours)
        ring->dropped_oldest = (ring->dropped_oldest + 1) & UC_DROPPED_OLDEST_MASK;
    ring->tail++;
    ring->index++;
    if (ring->index == ring->queue_depth) {
        ring->index = 0;
        ring->lap_ns = monotonic_ns - ring->lap_begin_ns;
        ring->lap_begin_ns = monotonic_ns;
    }
    /* SYNC progress: pairs with the acquire in uc_ring_count. */
    uc_store_release(&ring->block->progress, uc_progress_pack(ring->dropped_oldest, ring->tail));
    UC_STEP("publish.progress");
    /* SYNC tail: the entry comes first; pairs with the acquire in uc_consumer_attach. */
    uc_store_release(&ring->block->tail, ring->tail);
    UC_STEP("publish.tail");
    return UC_OK;
}

uc_status_t uc_producer_publish(uc_producer_t *ring, uc_slot_header_t *header, const void *source)
{
    uc_fill_t fill;
    uc_status_t status = uc_producer_begin(ring, header, source, &fill);
    if (status != UC_OK)
        return status;
    uc_slots_fill(&fill, 1);
    return uc_producer_commit(ring, header->monotonic_ns);
}

void uc_producer_refuse(uc_producer_t *ring, uc_refusal_t refusal)
{
    _Atomic uint64_t *const words[] = {
        [UC_REFUSED_NO_MEMORY] = &ring->block->no_memory,
        [UC_REFUSED_UNSUPPORTED] = &ring->block->unsupported,
        [UC_REFUSED_TOO_LARGE] = &ring->block->too_large,
        [UC_REFUSED_BLOCK_TIMEOUT] = &ring->block->block_timeout,
    };
    uc_store_relaxed(words[refusal], ++ring->refused[refusal]);
    UC_STEP("publish.refused");
}

void uc_producer_close(uc_producer_t *ring)
{
    if (ring->state != UC_RING_OPEN)
        return;
    UC_STEP("close.begin");
    ring->state = UC_RING_CLOSED;
    /* SYNC state: the last entry comes first; a consumer that reads CLOSED looks once more. */
    uc_store_release(&ring->block->state, UC_RING_CLOSED);
    UC_STEP("close.stored");
}

bool uc_producer_end(uc_producer_t *ring, uint64_t drain_until_ns)
{
    if (ring->state != UC_RING_OPEN)
        return false;
    uc_store_relaxed(&ring->block->drain_until_ns, drain_until_ns);
    uc_store_relaxed(&ring->block->last_word_asked, 1u);
    uc_producer_close(ring); /* SYNC state: whoever reads CLOSED reads what is asked for */
    return true;
}

void uc_producer_waive_last_word(const uc_producer_t *ring)
{
    uc_store_relaxed(&ring->block->last_word_asked, 0u);
}

/* ---- counters ------------------------------------------------------------------------------- */

/* Counts the entries of the last lap before `tail` that wait. */
static uc_status_t count_waiting(const uc_lane_t *lane, uint32_t first_entry, uint32_t queue_depth,
                                 uint64_t tail, uint64_t *ret_waiting)
{
    uint64_t waiting = 0;
    for (uint32_t i = 0; i < queue_depth; i++) {
        uint64_t word = uc_load_acquire(uc_lane_entry(lane, first_entry, i)); /* SYNC entry */
        int64_t distance = uc_entry_distance(word, tail);
        if (distance >= 0)
            return UC_TIMEOUT; /* published since tail was read */
        if (distance < -(int64_t)queue_depth)
            return UC_CORRUPT;
        waiting += (word & UC_ENTRY_FULL) != 0;
    }
    *ret_waiting = waiting;
    return UC_OK;
}

static void finish_counts(const uc_ring_block_t *block, uc_counts_t *counts)
{
    for (size_t i = 0; i < 4; i++)
        counts->user[i] = uc_load_relaxed(&block->user[i]);
    uint64_t taken = counts->published - counts->dropped_oldest - counts->waiting;
    counts->in_hand = (int64_t)(taken - counts->consumed - counts->lost);
}

uc_status_t uc_producer_count(uc_producer_t *ring, uc_counts_t *ret_counts)
{
    uc_counts_t counts = {
        .published = ring->tail - ring->start,
        .dropped_oldest = ring->dropped_oldest,
        .dropped_newest = ring->dropped_newest,
        .no_memory = ring->refused[UC_REFUSED_NO_MEMORY],
        .unsupported = ring->refused[UC_REFUSED_UNSUPPORTED],
        .too_large = ring->refused[UC_REFUSED_TOO_LARGE],
        .block_timeout = ring->refused[UC_REFUSED_BLOCK_TIMEOUT],
        .lost = ring->lost,
        .consumed = uc_load_acquire(&ring->block->consumed), /* SYNC consumed: before the entries */
    };
    uc_status_t status = count_waiting(ring->lane, ring->first_entry, ring->queue_depth, ring->tail,
                                       &counts.waiting);
    if (status != UC_OK)
        return UC_CORRUPT;
    finish_counts(ring->block, &counts);
    *ret_counts = counts;
    return UC_OK;
}

/* One look at the producer's words: the true tail, with the record counted whose producer was
 * killed (or is just) between swap and progress. UC_TIMEOUT when they moved. */
static uc_status_t read_progress(const uc_lane_t *lane, uc_ring_block_t *block,
                                 uint32_t first_entry, uint32_t queue_depth, uint64_t *ret_tail,
                                 uint64_t *ret_dropped)
{
    uint64_t tail = uc_load_acquire(&block->tail); /* SYNC tail */
    uint64_t progress = uc_load_acquire(&block->progress); /* SYNC progress */
    uint64_t ahead = (progress - tail) & UC_PROGRESS_TAIL_MASK;
    if (ahead > 1)
        return UC_TIMEOUT; /* moved since, or nonsense: the caller's looks are bounded */
    tail += ahead;
    uint64_t dropped = progress >> UC_PROGRESS_TAIL_BITS;
    uint32_t index = (uint32_t)(tail % queue_depth);
    uint64_t word = uc_load_acquire(uc_lane_entry(lane, first_entry, index)); /* SYNC entry */
    if (uc_entry_distance(word, tail) == 0) {
        tail++;
        dropped += (word & UC_ENTRY_EVICTED) != 0;
    }
    *ret_tail = tail;
    *ret_dropped = dropped & UC_DROPPED_OLDEST_MASK;
    return UC_OK;
}

uc_status_t uc_ring_count(const uc_lane_t *lane, uint32_t ring_index, uc_counts_t *ret_counts)
{
    if (ring_index >= lane->geometry.ring_capacity)
        return UC_CORRUPT;
    uc_ring_block_t *block = uc_lane_ring(lane, ring_index);
    uint32_t first_entry = uc_load_relaxed(&block->first_entry);
    uint32_t queue_depth = uc_load_relaxed(&block->queue_depth);
    if (queue_depth == 0 || queue_depth > UC_QUEUE_DEPTH_MAX
        || (uint64_t)first_entry + queue_depth > lane->geometry.entry_count)
        return UC_CORRUPT;
    uc_status_t status = UC_TIMEOUT;
    for (int look = 0; look < 64 && status == UC_TIMEOUT; look++) {
        uint64_t tail;
        uc_counts_t counts = {
            .consumed = uc_load_acquire(&block->consumed), /* SYNC consumed */
            .dropped_newest = uc_load_relaxed(&block->dropped_newest),
            .no_memory = uc_load_relaxed(&block->no_memory),
            .unsupported = uc_load_relaxed(&block->unsupported),
            .too_large = uc_load_relaxed(&block->too_large),
            .block_timeout = uc_load_relaxed(&block->block_timeout),
            .lost = uc_load_relaxed(&block->lost),
        };
        status =
            read_progress(lane, block, first_entry, queue_depth, &tail, &counts.dropped_oldest);
        if (status == UC_OK)
            status = count_waiting(lane, first_entry, queue_depth, tail, &counts.waiting);
        if (status == UC_OK) {
            counts.published = tail - uc_load_relaxed(&block->start);
            finish_counts(block, &counts);
            *ret_counts = counts;
        }
    }
    return status;
}

uc_status_t uc_producer_reap(uc_producer_t *ring)
{
    uc_counts_t counts;
    uc_status_t status = uc_producer_count(ring, &counts);
    if (status != UC_OK)
        return corrupt(ring);
    if (counts.in_hand > 0)
        ring->lost += (uint64_t)counts.in_hand;
    uc_store_relaxed(&ring->block->lost, ring->lost);
    UC_STEP("reap.lost");
    uc_store_release(&ring->block->reader_state, UC_READER_NONE); /* SYNC reader */
    UC_STEP("reap.state");
    return counts.in_hand < 0 ? corrupt(ring) : UC_OK;
}

uc_status_t uc_producer_slots(const uc_producer_t *ring, uint32_t *slots, uint32_t *ret_count)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < ring->queue_depth; i++) {
        uint32_t slot = uc_entry_slot(uc_load_acquire(entry_at(ring, i))); /* SYNC entry */
        if (uc_lane_slot_class(ring->lane, slot) != UC_CLASS_COUNT)
            slots[count++] = slot;
    }
    if (ring->hand != UC_SLOT_NONE)
        slots[count++] = ring->hand;
    *ret_count = count;
    return UC_OK;
}

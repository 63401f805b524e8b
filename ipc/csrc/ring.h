/* The exchange ring: one producer, one consumer, slots that change hands by compare-and-swap.
 *
 * A ring is `queue_depth` entry words in control memory. The producer fills the slot in its hand
 * and swaps it with the word at its tail; what it gets back is a free slot, or under drop_oldest
 * the oldest unread record, which is thereby dropped. The consumer takes a record by swapping in a
 * slot of its own of the same class. No slot ever has two owners, so no byte is read while it may
 * be written (the one exception, uc_consumer_take_copy, discards what it read then), and a kill
 * between two instructions leaves every slot with the owner it had.
 *
 * Rules that hold for every function here:
 *   - no allocation, no errno, no global, no system call, no Python; memory belongs to the caller;
 *   - every value loaded from shared memory is checked at that use; the answer to nonsense is
 *     UC_CORRUPT, and the handle stays corrupt;
 *   - loops are bounded by queue_depth; nothing here waits;
 *   - out-parameters come last and are untouched unless the answer is UC_OK;
 *   - one thread at a time per handle, and per uc_hands_t. The caller sees to that.
 *
 * Who writes which word, in which order, per publication and per take: see ring.c, heads of
 * uc_producer_begin and uc_consumer_take. The labels of UC_STEP in order:
 *   publish   "publish.begin" "publish.filled" "publish.looked" "publish.swapped"
 *             "publish.progress" "publish.tail"; a refusal "publish.refused"
 *   take      "take.begin" "take.looked" "take.swapped" "take.end"; nothing there "take.empty";
 *             copying take "take.copied"
 *   consume   "consume.begin" "consume.stored"
 *   close     "close.begin" "close.stored"
 *   announce  "announce.begin" "announce.ticked"; wake "wake.begin" "wake.exchanged" "wake.done"
 *   sleep     "sleep.napping" "sleep.parked" "sleep.awake"
 *   room      "room.waiting" "room.slept" "room.begin" "room.grown" "room.woken"
 *   answer    "answer.begin" "answer.filled" "answer.stored" "answer.grown" "answer.woken";
 *             its waiter "answer.waiting" "answer.slept"
 *   open      "open.geometry" "open.entries" "open.stored"; install "install.entry"
 *   deal      "deal.slot" "deal.stored"; reap "reap.lost" "reap.state"
 */
#ifndef UC_RING_H
#define UC_RING_H

#include "layout.h"

/* ---- the lane as one process sees it -------------------------------------------------------- */

/* Filled by the caller from a measured (producer) or checked (consumer) geometry. `payload` is
 * never written in the consumer's process, where the kernel would not allow it either. `blocks` is
 * the producer's private block table, block_count words, which alone it trusts; NULL in the
 * consumer's process, which reads the shared table and checks each word. */
typedef struct {
    uint8_t *control;
    uint8_t *payload;
    uint32_t *blocks;
    bool has_barrier; /* producer: uc_fence_register succeeded in this process */
    uc_geometry_t geometry;
} uc_lane_t;

static inline uc_doorbell_t *uc_lane_doorbell(const uc_lane_t *lane)
{
    return (uc_doorbell_t *)(void *)(lane->control + lane->geometry.doorbell_offset);
}

static inline _Atomic uint32_t *uc_lane_ticks(const uc_lane_t *lane)
{
    return (_Atomic uint32_t *)(void *)(lane->control + lane->geometry.ticks_offset);
}

static inline uc_hand_row_t *uc_lane_hands(const uc_lane_t *lane)
{
    return (uc_hand_row_t *)(void *)(lane->control + lane->geometry.hands_offset);
}

static inline _Atomic uint32_t *uc_lane_blocks(const uc_lane_t *lane)
{
    return (_Atomic uint32_t *)(void *)(lane->control + lane->geometry.blocks_offset);
}

/* The caller has checked ring_index < geometry.ring_capacity. */
static inline uc_ring_block_t *uc_lane_ring(const uc_lane_t *lane, uint32_t ring_index)
{
    return (uc_ring_block_t *)(void *)(lane->control + lane->geometry.rings_offset
                                       + (uint64_t)ring_index * sizeof(uc_ring_block_t));
}

/* The caller has checked that first_entry + index < geometry.entry_count. */
static inline _Atomic uint64_t *uc_lane_entry(const uc_lane_t *lane, uint32_t first_entry,
                                              uint32_t index)
{
    return (_Atomic uint64_t *)(void *)(lane->control + lane->geometry.entries_offset
                                        + ((uint64_t)first_entry + index) * UC_ENTRY_STRIDE);
}

/* The caller has checked ring_index < geometry.ring_capacity. */
static inline uc_answer_cell_t *uc_lane_answer(const uc_lane_t *lane, uint32_t ring_index)
{
    return (uc_answer_cell_t *)(void *)(lane->control + lane->geometry.answers_offset
                                        + (uint64_t)ring_index * sizeof(uc_answer_cell_t));
}

/* Class of a slot reference by the table this side trusts or checks; UC_CLASS_COUNT if it is no
 * slot, UC_SLOT_NONE included. Wait-free; both sides. */
uint32_t uc_lane_slot_class(const uc_lane_t *lane, uint32_t slot);

/* First byte of a slot whose class was found above. */
static inline uint8_t *uc_lane_slot(const uc_lane_t *lane, uint32_t slot)
{
    return lane->payload + (uint64_t)slot * UC_UNIT_BYTES;
}

/* Enters a run of blocks as slots of one class in the private table, then in the shared one; or
 * clears it with class_index UC_CLASS_COUNT (every slot of the run must be back). UC_CORRUPT when
 * the run does not lie in the payload. Wait-free; producer's process. */
uc_status_t uc_lane_commit_run(uc_lane_t *lane, uint32_t first_block, uint32_t run_blocks,
                               uint32_t class_index);

/* Deals a class's hand to the consumer: slots, then count with release. count <=
 * uc_class_hand_count(class_index). Wait-free; producer's process, once per class and epoch,
 * before the first record of that class is published. */
uc_status_t uc_lane_deal(const uc_lane_t *lane, uint32_t class_index, const uint32_t *slots,
                         uint32_t count);

/* ---- counters ------------------------------------------------------------------------------- */

/* published = tail - start. produced = published + everything refused. taken = published -
 * dropped_oldest - waiting and is never stored, so no kill can unbalance it. in_hand = taken -
 * consumed - lost. Balanced means 0 <= in_hand <= min(queue_depth, UC_HAND_COUNT). */
typedef struct {
    uint64_t published;
    uint64_t consumed;
    uint64_t dropped_oldest;
    uint64_t dropped_newest;
    uint64_t no_memory;
    uint64_t unsupported;
    uint64_t too_large;
    uint64_t block_timeout;
    uint64_t waiting;
    uint64_t lost;
    uint64_t user[4]; /* the consumer's own counters, as it stored them */
    int64_t in_hand;
} uc_counts_t;

/* Reads a ring's counters from shared memory alone, in any process, also after the producer was
 * killed between its swap and its progress store. Exact at rest. UC_TIMEOUT when a running
 * producer moved under each of 64 looks; UC_CORRUPT on nonsense. Bounded by queue_depth. */
uc_status_t uc_ring_count(const uc_lane_t *lane, uint32_t ring_index, uc_counts_t *ret_counts);

/* ---- the producer --------------------------------------------------------------------------- */

typedef enum {
    UC_REFUSED_NO_MEMORY = 0,
    UC_REFUSED_UNSUPPORTED = 1,
    UC_REFUSED_TOO_LARGE = 2,
    UC_REFUSED_BLOCK_TIMEOUT = 3,
} uc_refusal_t;

/* A slot to be filled; source has header->length bytes. */
typedef struct {
    uint8_t *slot;
    const uc_slot_header_t *header;
    const uint8_t *source;
    bool is_cached; /* the slot's lines are likely in this core's cache */
} uc_fill_t;

typedef struct {
    const uc_lane_t *lane;
    uc_ring_block_t *block;
    uint64_t generation;
    uint64_t start;
    uint64_t tail;           /* position of the next record */
    uint64_t dropped_oldest; /* of 40 bits in the progress word */
    uint64_t dropped_newest;
    uint64_t refused[4];     /* by uc_refusal_t */
    uint64_t lost;
    uint32_t ring_index;
    uint32_t first_entry;
    uint32_t queue_depth;
    uint32_t policy;
    uint32_t index;          /* tail % queue_depth */
    uint32_t hand;           /* the slot to fill next, UC_SLOT_NONE before the first record */
    uint32_t hand_bytes;     /* its size with header; 0 for UC_SLOT_NONE */
    uint32_t state;          /* UC_RING_OPEN, UC_RING_CLOSED, UC_RING_CORRUPT */
    bool hand_is_ours;       /* the slot in hand was dropped unread: the consumer never had it */
    bool is_begun;           /* between uc_producer_begin and uc_producer_commit */
    uint64_t lap_ns;         /* how long the last lap took, by the records' monotonic_ns */
    uint64_t lap_begin_ns;
} uc_producer_t;

/* Writes geometry and entry words (free, without slots), then opens the ring. start >= queue_depth.
 * UC_CORRUPT when an argument is out of range. Bounded by queue_depth; nobody reads it yet. */
uc_status_t uc_producer_open(const uc_lane_t *lane, uint32_t ring_index, uint32_t first_entry,
                             uint32_t queue_depth, uint32_t policy, uint64_t generation,
                             uint64_t start, uc_producer_t *ret_ring);

/* Gives a ring without slots its queue_depth + 1: one for each free word and one for the hand.
 * UC_CORRUPT when the ring has slots, a slot is none, or a word is not as opened. */
uc_status_t uc_producer_install(uc_producer_t *ring, const uint32_t *slots, uint32_t count);

/* Puts a larger slot into the hand and hands out the one it replaces. */
uc_status_t uc_producer_replace_hand(uc_producer_t *ring, uint32_t slot, uint32_t *ret_slot);

/* Publishes one record: header->sequence and ->generation are filled in here, the other fields are
 * the caller's; header->length bytes are copied from source. Wait-free, no system call.
 *   UC_OK       published (and under drop_oldest on a full ring the oldest record was dropped)
 *   UC_FULL     drop_newest: counted; block: not counted, the caller waits for room
 *   UC_NO_SLOT  the hand is empty or too small; nothing was changed
 *   UC_TOO_LARGE, UC_CLOSED, UC_CORRUPT */
uc_status_t uc_producer_publish(uc_producer_t *ring, uc_slot_header_t *header, const void *source);

/* The same in three parts, so that records of several rings are filled together: begin each, fill
 * all, commit each. begin answers as publish does, and only what it answered UC_OK to is filled and
 * committed; a ring is begun once before it is committed, and header and source stay where they are
 * until then. commit answers UC_OK, UC_CORRUPT, or UC_CLOSED where the ring was closed in between.
 * Wait-free. */
uc_status_t uc_producer_begin(uc_producer_t *ring, uc_slot_header_t *header, const void *source,
                              uc_fill_t *ret_fill);
uc_status_t uc_producer_commit(uc_producer_t *ring, uint64_t monotonic_ns);

/* Whether the word at the tail is free: UC_OK, UC_FULL, UC_CLOSED, UC_CORRUPT. Wait-free. */
uc_status_t uc_producer_room(uc_producer_t *ring);

/* Counts a record that was refused before it reached the ring. Wait-free. */
void uc_producer_refuse(uc_producer_t *ring, uc_refusal_t refusal);

/* No more records; the consumer drains what waits and meets its end. Idempotent, wait-free. */
void uc_producer_close(uc_producer_t *ring);

/* Closes, and asks for a last word in the ring's answer cell: what waits after drain_until_ns
 * (CLOCK_MONOTONIC) need not be looked at. False when the ring is not open. Wait-free. */
bool uc_producer_end(uc_producer_t *ring, uint64_t drain_until_ns);

/* Takes the question back, while no consumer can answer it: the next one is asked another way. */
void uc_producer_waive_last_word(const uc_producer_t *ring);

/* Counters as the producer knows them, waiting and consumed from shared memory. Exact at rest. */
uc_status_t uc_producer_count(uc_producer_t *ring, uc_counts_t *ret_counts);

/* After the consumer's death: what was in its hand is lost; the ring waits for another reader.
 * The caller knows that no consumer runs. */
uc_status_t uc_producer_reap(uc_producer_t *ring);

/* All slots the ring owns, unchecked duplicates included, at most queue_depth + 1, for a lane that
 * takes them back or counts them; slots must hold that many. The ring itself is unchanged. */
uc_status_t uc_producer_slots(const uc_producer_t *ring, uint32_t *slots, uint32_t *ret_count);

/* ---- the consumer --------------------------------------------------------------------------- */

/* The consumer's slots, private, shared by all rings of its lane. Zeroed by the caller. */
typedef struct {
    uint32_t slots[UC_CLASS_COUNT][UC_HAND_COUNT];
    uint8_t count[UC_CLASS_COUNT];
    uint8_t drawn[UC_CLASS_COUNT]; /* the lane's row was read */
} uc_hands_t;

/* Takes a slot of a class out of the hand, reading the lane's row at the class's first use.
 * UC_NO_HAND when none is left; UC_CORRUPT when the row is nonsense. */
uc_status_t uc_hands_draw(const uc_lane_t *lane, uc_hands_t *hands, uint32_t class_index,
                          uint32_t *ret_slot);

/* Puts a slot back. Ignored when the class's hand is full, which only a bug can bring about. */
void uc_hands_put(uc_hands_t *hands, uint32_t class_index, uint32_t slot);

typedef struct {
    const uc_lane_t *lane;
    uc_ring_block_t *block;
    uint64_t generation;
    uint64_t next;      /* position looked at next */
    uint64_t consumed;
    uint32_t ring_index;
    uint32_t first_entry;
    uint32_t queue_depth;
    uint32_t policy;
    uint32_t index;     /* next % queue_depth */
    uint32_t state;     /* UC_READER_ATTACHED, UC_READER_DETACHED, UC_READER_CORRUPT */
} uc_consumer_t;

typedef struct {
    uc_slot_header_t header; /* private copy, checked */
    uint32_t slot;
    uint32_t class_index;
} uc_taken_t;

/* Attaches behind the last record taken by a predecessor. The geometry in the ring block is read
 * once and must equal what the caller was told. UC_CORRUPT otherwise. */
uc_status_t uc_consumer_attach(const uc_lane_t *lane, uint32_t ring_index, uint32_t queue_depth,
                               uint32_t policy, uint64_t generation, uc_consumer_t *ret_ring);

/* Takes the next record in place: its slot is the caller's until uc_hands_put.
 *   UC_OK             ret_taken is filled
 *   UC_EMPTY          nothing waits now
 *   UC_END_OF_STREAM  closed by the producer, or producer_is_gone, and drained
 *   UC_NO_HAND        a record waits, but no slot of its class is in the hand
 *   UC_TIMEOUT        the producer lapped this call more often than it may look; look again later
 *   UC_CLOSED         after detach;  UC_CORRUPT
 * Lock-free, bounded by 2 * queue_depth + 64 looks. */
uc_status_t uc_consumer_take(uc_consumer_t *ring, uc_hands_t *hands, bool producer_is_gone,
                             uc_taken_t *ret_taken);

/* For an empty hand: copies the next record to `target` and leaves its slot where it was, so no
 * hand is needed. What the producer overwrote meanwhile is discarded. ret_taken->slot is
 * UC_SLOT_NONE. UC_NO_SLOT when capacity is too small: give uc_class_bytes(ret_class) bytes.
 * Call it after uc_consumer_take answered UC_NO_HAND; answers like it. */
uc_status_t uc_consumer_take_copy(uc_consumer_t *ring, bool producer_is_gone, uint8_t *target,
                                  uint64_t capacity, uc_taken_t *ret_taken);

/* count records taken before were handled. One store. */
void uc_consumer_consume(uc_consumer_t *ring, uint32_t count);

/* One of the consumer's own counters; index < 4. One store. */
void uc_consumer_set_user(uc_consumer_t *ring, uint32_t index, uint64_t value);

/* Whether the producer closed the ring and asked for a last word, and until when what waits is to
 * be looked at. Wait-free. */
bool uc_consumer_is_asked(const uc_consumer_t *ring, uint64_t *ret_drain_until_ns);

/* The consumer lets go; its slots in hand must have been put back by the caller. Idempotent. */
void uc_consumer_detach(uc_consumer_t *ring);

/* ---- copying (copy.c) ----------------------------------------------------------------------- */

/* From this many payload bytes on, slots are written with streaming stores where the processor has
 * them (x86-64 with AVX2): lines that sit in the consumer's cache, or in memory, need not be won
 * back first. The exception is a slot that was dropped unread a moment ago: it is in this core's
 * cache, where plain stores are three times cheaper. */
#define UC_STREAM_BYTES_MIN 1536u
#define UC_CACHED_LAP_NS 50000ull /* 1 MiB of 8 KiB records takes 30 us */

/* Writes headers and payloads into slots. On return every store is ordered before the caller's
 * next store: streaming stores are followed by sfence in the same function, since a release store
 * does not order them (Intel SDM vol. 1, 10.4.6.2). */
void uc_slots_fill(const uc_fill_t *fills, uint32_t count);

/* ---- copying out (gather.c) ----------------------------------------------------------------- */

/* Copies `count` payloads of `length` bytes each, end to end. Pure; any thread. */
void uc_gather(uint8_t *target, const uint8_t *const *sources, size_t count, size_t length);

/* ---- doorbell (doorbell.c; Linux) ----------------------------------------------------------- */

/* What one consumer lane remembers between waits. Zeroed by the caller at attach; `seen` and
 * `pending` are the caller's too: ring_capacity numbers, and a bit for each. */
typedef struct {
    uint32_t *seen;                  /* the tick of each ring when it was last collected */
    uint64_t *pending;               /* rings that the consumer left before they were empty */
    uint64_t last_event_ns;          /* CLOCK_MONOTONIC when a wait last found something */
    uint64_t arrival_ns;             /* when the first record after a wait had been published */
    uint64_t gap_ns;                 /* from one such record to the next, smoothed */
    uint64_t lead_ns;                /* how long before the next one the consumer is awake */
    uint64_t rehearsed_ns;           /* the arrival after which the next one was rehearsed */
    uint32_t arrival_ring;
    uint32_t steady_count;           /* gaps in a row that were alike */
    bool is_arrival_open; /* a wait found something: the next record taken is the first */
    _Atomic uint32_t is_interrupted; /* set by uc_doorbell_interrupt, taken by the next wait */
    uint32_t mail_seen;
    uint32_t ring_limit; /* rings with index below this are looked at */
    bool never_naps; /* somebody waits for this consumer: it parks, and each record wakes it */
    bool is_idle;    /* no ring is attached: no record can come that is worth a spin */
} uc_sleeper_t;

/* Registers this process for the consumers' barriers; false where the kernel has none, and the
 * producer fences for itself. Once per process is enough, more often is harmless. */
bool uc_fence_register(void);

/* Says that a ring has news: its tick grows. No fence, no locked operation. Producer, after
 * publications and after a close. */
void uc_doorbell_announce(const uc_lane_t *lane, uint32_t ring_index);

/* Wakes the consumer if it is parked: one system call then, none otherwise. Returns whether it
 * was parked. Producer, after announce; anyone, after mail. */
bool uc_doorbell_wake(const uc_lane_t *lane);

/* mail += 1, then wake; a nap goes on to its end. Producer's process. */
void uc_doorbell_mail(const uc_lane_t *lane);

/* Wakes the consumer from a nap, too, as somebody waits for it. Producer's process, after announce
 * or mail. */
void uc_doorbell_rouse(const uc_lane_t *lane);

/* The rings 64 * word_index … below ring_limit that have news since they were collected, or are
 * marked; both end with it. Consumer. */
uint64_t uc_doorbell_collect(const uc_lane_t *lane, uc_sleeper_t *sleeper, uint32_t word_index);

/* Marks a ring that the consumer leaves before it is empty, or attaches to. Consumer. */
void uc_doorbell_mark(uc_sleeper_t *sleeper, uint32_t ring_index);

/* Spins up to 20 us, naps by timer while something came within the last 20 ms, then parks;
 * where it never naps, it parks at once. Where records came at a steady pace, it sleeps until
 * shortly before the next one is due, calls its ring ready once in advance, and spins for it. UC_OK
 * when a ring is ready or mail is new, UC_INTERRUPTED, UC_SIGNALLED, UC_TIMEOUT at
 * deadline_ns (CLOCK_MONOTONIC). A lane that closes sends mail. Blocks; consumer. */
uc_status_t uc_doorbell_wait(const uc_lane_t *lane, uc_sleeper_t *sleeper, uint64_t deadline_ns);

/* Tells when a record that was taken had been published, for the pace of those to come. The time is
 * read from shared memory: nonsense makes a sleep or a spin no longer than others. Consumer. */
void uc_doorbell_arrived(uc_sleeper_t *sleeper, uint32_t ring_index, uint64_t published_ns);

/* Says whose user code runs from now on, 0 for none. Two stores; consumer. */
void uc_doorbell_set_activity(const uc_lane_t *lane, uint64_t generation);

/* Whose user code runs, and since when. Any process that watches for hung probes. */
void uc_doorbell_activity(const uc_lane_t *lane, uint64_t *ret_generation, uint64_t *ret_since_ns);

/* Makes the current or the next wait return, from any thread of the consumer's process. */
void uc_doorbell_interrupt(const uc_lane_t *lane, uc_sleeper_t *sleeper);

/* One bounded wait for room in a ring under block: spins briefly, then sleeps at most slice_ns on
 * the ring's futex. `ring` is a copy made by the waiter, so that other threads may go on using the
 * handle. UC_OK room, or another thread moved on; UC_TIMEOUT none yet; UC_CLOSED; UC_CORRUPT when
 * the consumer gave the ring up. Whether the consumer lives is the caller's to ask. Blocks;
 * producer. */
uc_status_t uc_room_wait(const uc_producer_t *ring, uint64_t slice_ns);

/* Wakes a producer that waits for room; one load when none does. Consumer, after takes. */
void uc_room_signal(const uc_consumer_t *ring);

/* Makes a producer's uc_room_wait return early. Any thread of the producer's process. */
void uc_room_interrupt(const uc_producer_t *ring);

/* ---- answers (answer.c; Linux) -------------------------------------------------------------- */

/* A private copy of an answer, checked. */
typedef struct {
    uint32_t kind;
    uint32_t length;
    uint8_t bytes[UC_ANSWER_BYTES_MAX];
} uc_answer_t;

/* Answers the record at `sequence`, which this consumer took from `ring` and nobody answered yet,
 * and wakes the producer if it waits. UC_TOO_LARGE when `length` is more than a cell holds: nothing
 * was written. UC_CLOSED after detach. Wait-free but for one system call when a producer sleeps;
 * consumer. */
uc_status_t uc_answer_put(const uc_consumer_t *ring, uint64_t sequence, uint32_t kind,
                          const void *bytes, uint32_t length);

/* Says the last word about a stream, where uc_consumer_is_asked, and detaches. As uc_answer_put
 * otherwise; when it is UC_TOO_LARGE the ring is still attached. */
uc_status_t uc_answer_end(uc_consumer_t *ring, uint32_t kind, const void *bytes, uint32_t length);

/* One look at the answer to the record at `sequence`, or UC_SEQUENCE_END: UC_OK, UC_EMPTY while it is not there,
 * UC_CORRUPT when its length is nonsense. Wait-free; producer. */
uc_status_t uc_answer_look(const uc_producer_t *ring, uint64_t sequence, uc_answer_t *ret_answer);

/* The position of the record answered last, as the consumer says; 0 for none. Wait-free; producer. */
uint64_t uc_answer_last(const uc_producer_t *ring);

/* Waits for an answer: spins at most spin_ns, then sleeps at most slice_ns in all. The caller, one at a
 * time per ring, published the record at `sequence` and publishes no other before it returns or
 * gives up. `ring` is a copy made by the waiter. UC_OK, UC_TIMEOUT, UC_SIGNALLED when a signal
 * handler must run, UC_CORRUPT. Blocks; producer, without the interpreter's lock. */
uc_status_t uc_answer_wait(const uc_producer_t *ring, uint64_t sequence, uint64_t spin_ns,
                           uint64_t slice_ns, uc_answer_t *ret_answer);

/* What the producer said last about where it waits: a processor, plus 1; 0 for nothing. A hint: no value
 * of it is refused. Wait-free; the one stored on the producer's thread, the other looked at by the consumer. */
void uc_answer_say_caller(const uc_producer_t *ring, uint32_t caller);
uint32_t uc_answer_caller(const uc_consumer_t *ring);

/* Makes a producer's uc_answer_wait return early. Any thread of the producer's process. */
void uc_answer_interrupt(const uc_producer_t *ring);

/* ---- the futex, for those two files --------------------------------------------------------- */

/* Sleeps while *word == value, at most duration_ns. Returns early at will: callers look again.
 * False: a signal handler ran. */
bool uc_futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t duration_ns);
void uc_futex_wake(_Atomic uint32_t *word);

uint64_t uc_monotonic_ns(void);

#endif

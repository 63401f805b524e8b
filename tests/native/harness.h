/* What the native tests share: a lane in anonymous shared memory, records that can be checked to
 * the byte, a generator of random numbers that a seed replays. */
#ifndef UC_TESTS_HARNESS_H
#define UC_TESTS_HARNESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#include "../../ipc/csrc/ring.h"

/* Ends the test with the place and the numbers. The condition is evaluated once. */
#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            fail(); \
        } \
    } while (0)
#define CHECK_EQUAL(left, right) \
    check_equal((left), (right), #left " == " #right, __FILE__, __LINE__)

/* Printed by a failing CHECK: what to say to see it again. */
extern char replay_hint[256];
void fail(void) __attribute__((noreturn));
void check_equal(uint64_t left, uint64_t right, const char *text, const char *file, int line);

/* ---- random numbers (splitmix64, Steele, Lea and Flood, 2014) --------------------------------- */
typedef struct {
    uint64_t state;
} prng_t;
uint64_t mix64(uint64_t value);
uint64_t prng_next(prng_t *prng);
uint32_t prng_below(prng_t *prng, uint32_t limit);

/* ---- a lane with slots of one class ------------------------------------------------------------ */
#define RIG_SLOTS_MAX 256u
#define RIG_ENTRIES 512u
#define RIG_RINGS 64u

typedef struct {
    uc_geometry_t geometry;
    uc_lane_t producer; /* trusts rig->blocks */
    uc_lane_t consumer; /* trusts nothing */
    uint8_t *control;
    uint8_t *payload;
    uint32_t *blocks;
    uint32_t class_index;
    uint32_t record_bytes; /* the longest payload of a slot */
    uint32_t slots[RIG_SLOTS_MAX];
    uint32_t slot_count;
    uint32_t hand_count; /* K */
} rig_t;

/* A lane of slot_count slots for records of up to record_bytes. */
void rig_make(rig_t *rig, uint32_t record_bytes, uint32_t slot_count, uint32_t hand_count);
void rig_free(rig_t *rig);

/* Opens ring 0 with the lane's first queue_depth + 1 slots and deals the next K as the hand: the
 * lane must have exactly queue_depth + 1 + K slots, so that each has one owner. */
void rig_open(rig_t *rig, uint32_t queue_depth, uint32_t policy, uint64_t start,
              uc_producer_t *ret_ring);

/* Finds the dead consumer's hand, which must be whole (exactly K slots), and deals it again. */
void rig_deal_again(rig_t *rig, uc_producer_t *ring);

/* What a consumer lane remembers between waits, with its arrays. */
typedef struct {
    uc_sleeper_t sleeper;
    uint32_t seen[RIG_RINGS];
    uint64_t pending[RIG_RINGS / 64];
} rig_sleeper_t;
void sleeper_make(rig_sleeper_t *ret_sleeper, uint32_t ring_limit);

/* ---- records ------------------------------------------------------------------------------------ */
#define RECORD_BYTES_MAX 65536u
#define SLOT_BYTES_MAX 81920u /* holds any slot of such a record, rounded up to its class */

/* Header and bytes of record `id`, at most length_max bytes long. */
void record_make(uint64_t id, uint32_t length_max, uc_slot_header_t *ret_header,
                 uint8_t *ret_bytes);

/* Whether header and bytes are those of one record, whole; header->token_pos is its id. */
bool record_is_whole(const uc_slot_header_t *header, const uint8_t *bytes);

/* The same for a record in place. */
bool taken_is_whole(const rig_t *rig, const uc_taken_t *taken);

uc_status_t publish_record(uc_producer_t *ring, uint64_t id, uint32_t length_max);

/* Counters of both readers, which must agree; at rest only. */
uc_counts_t count_at_rest(const rig_t *rig, uc_producer_t *ring);

/* ---- processes ---------------------------------------------------------------------------------- */
/* A child that dies with this process. */
pid_t fork_bound(void);

/* Zeroed memory that children share. */
void *shared_memory(size_t size_bytes);

/* Kills the whole test after this many seconds, with the hint: a hang is a failure. */
void set_deadline(unsigned seconds);

/* The seed of this run: the argument, else the clock; printed, and part of the hint. */
uint64_t choose_seed(const char *program, const char *argument);

#endif

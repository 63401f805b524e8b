/* A bounded queue with three policies, said without slots, words or positions: what the ring must
 * be to an onlooker. */
#ifndef UC_TESTS_ORACLE_H
#define UC_TESTS_ORACLE_H

#include <string.h>

#include "../../ipc/csrc/ring.h"

typedef struct {
    uint64_t waiting[64];
    uint32_t count;
    uint64_t held[UC_HAND_COUNT];
    uint32_t held_count;
    uint64_t published, consumed, dropped_oldest, dropped_newest, lost;
} oracle_t;

static inline void oracle_remove_first(oracle_t *oracle)
{
    oracle->count--;
    memmove(oracle->waiting, oracle->waiting + 1, oracle->count * sizeof oracle->waiting[0]);
}

static inline uc_status_t oracle_publish(oracle_t *oracle, uint64_t id, uint32_t depth,
                                         uint32_t policy)
{
    if (oracle->count == depth && policy != UC_DROP_OLDEST) {
        oracle->dropped_newest += policy == UC_DROP_NEWEST;
        return UC_FULL;
    }
    if (oracle->count == depth) {
        oracle_remove_first(oracle);
        oracle->dropped_oldest++;
    }
    oracle->waiting[oracle->count++] = id;
    oracle->published++;
    return UC_OK;
}

static inline void oracle_take(oracle_t *oracle)
{
    oracle->held[oracle->held_count++] = oracle->waiting[0];
    oracle_remove_first(oracle);
}

static inline void oracle_finish(oracle_t *oracle)
{
    oracle->consumed += oracle->held_count;
    oracle->held_count = 0;
}

static inline void oracle_lose(oracle_t *oracle)
{
    oracle->lost += oracle->held_count;
    oracle->held_count = 0;
}

/* Whether the counters that the ring tells are those of the queue. */
static inline bool oracle_agrees(const oracle_t *oracle, const uc_counts_t *counts)
{
    return counts->published == oracle->published && counts->consumed == oracle->consumed
           && counts->dropped_oldest == oracle->dropped_oldest
           && counts->dropped_newest == oracle->dropped_newest && counts->waiting == oracle->count
           && counts->lost == oracle->lost && counts->in_hand == (int64_t)oracle->held_count;
}

#endif

/* The ring's two sides in one thread, held to a plain queue. usage: test_ring [seed] */
#include "harness.h"
#include "oracle.h"

#include <string.h>

#define NEAR_WRAP ((1ull << UC_POSITION_BITS) - 5) /* the entry's position wraps after 5 records */

typedef struct {
    rig_t rig;
    uc_producer_t producer;
    uc_consumer_t consumer;
    uc_hands_t hands;
    uc_taken_t held[UC_HAND_COUNT];
    uint8_t copied[SLOT_BYTES_MAX];
    oracle_t oracle;
    uint64_t next_id;
} pair_t;

static void attach(pair_t *pair)
{
    memset(&pair->hands, 0, sizeof pair->hands);
    CHECK_EQUAL(uc_consumer_attach(&pair->rig.consumer, 0, pair->producer.queue_depth,
                                   pair->producer.policy, 7, &pair->consumer),
                UC_OK);
}

static void pair_make(pair_t *pair, uint32_t record_bytes, uint32_t depth, uint32_t policy,
                      uint64_t start, uint32_t hand_count)
{
    memset(pair, 0, sizeof *pair);
    rig_make(&pair->rig, record_bytes, depth + 1 + hand_count, hand_count);
    rig_open(&pair->rig, depth, policy, start, &pair->producer);
    attach(pair);
}

static void check_accounts(pair_t *pair)
{
    uc_counts_t counts = count_at_rest(&pair->rig, &pair->producer);
    CHECK(oracle_agrees(&pair->oracle, &counts));
}

static void finish(pair_t *pair)
{
    for (uint32_t i = 0; i < pair->oracle.held_count; i++) {
        if (pair->held[i].slot == UC_SLOT_NONE)
            continue; /* copied: it was checked when it was taken */
        CHECK(taken_is_whole(&pair->rig, &pair->held[i]));
        uc_hands_put(&pair->hands, pair->held[i].class_index, pair->held[i].slot);
    }
    uc_consumer_consume(&pair->consumer, pair->oracle.held_count);
    oracle_finish(&pair->oracle);
}

static void take(pair_t *pair)
{
    oracle_t *oracle = &pair->oracle;
    if (oracle->held_count == UC_HAND_COUNT)
        finish(pair);
    uc_taken_t taken;
    uc_status_t status = uc_consumer_take(&pair->consumer, &pair->hands, false, &taken);
    if (oracle->count == 0) {
        CHECK_EQUAL(status, UC_EMPTY);
        return;
    }
    if (status == UC_NO_HAND) {
        status = uc_consumer_take_copy(&pair->consumer, false, pair->copied, sizeof pair->copied,
                                       &taken);
        CHECK_EQUAL(status, UC_OK);
        CHECK_EQUAL(taken.slot, UC_SLOT_NONE);
        CHECK(record_is_whole(&taken.header, pair->copied));
    }
    CHECK_EQUAL(status, UC_OK);
    CHECK_EQUAL((uint64_t)taken.header.token_pos, oracle->waiting[0]);
    pair->held[oracle->held_count] = taken;
    oracle_take(oracle);
}

static void die_and_be_replaced(pair_t *pair)
{
    oracle_lose(&pair->oracle);
    CHECK_EQUAL(uc_producer_reap(&pair->producer), UC_OK);
    rig_deal_again(&pair->rig, &pair->producer);
    attach(pair);
}

static void walk(pair_t *pair, prng_t *prng, int steps)
{
    for (int step = 0; step < steps; step++) {
        uint32_t choice = prng_below(prng, 100);
        if (choice < 45) {
            uint64_t id = ++pair->next_id;
            uc_status_t expected = oracle_publish(&pair->oracle, id, pair->producer.queue_depth,
                                                  pair->producer.policy);
            CHECK_EQUAL(publish_record(&pair->producer, id, pair->rig.record_bytes), expected);
        } else if (choice < 85) {
            take(pair);
        } else if (choice < 97) {
            finish(pair);
        } else {
            die_and_be_replaced(pair);
        }
        check_accounts(pair);
    }
}

static void drain_to_end(pair_t *pair)
{
    uc_producer_close(&pair->producer);
    uc_producer_close(&pair->producer);
    CHECK_EQUAL(publish_record(&pair->producer, 1, 8), UC_CLOSED);
    finish(pair);
    while (pair->oracle.count > 0) {
        take(pair);
        finish(pair);
    }
    uc_taken_t taken;
    CHECK_EQUAL(uc_consumer_take(&pair->consumer, &pair->hands, false, &taken), UC_END_OF_STREAM);
    CHECK_EQUAL(uc_consumer_take(&pair->consumer, &pair->hands, true, &taken), UC_END_OF_STREAM);
    check_accounts(pair);
    CHECK_EQUAL(pair->oracle.published,
                pair->oracle.consumed + pair->oracle.dropped_oldest + pair->oracle.lost);
}

static void ring_does_what_a_queue_does(uint64_t seed)
{
    static const uint32_t depths[] = {1, 2, 3, 7, 16, 33};
    static const uint32_t sizes[] = {1, 100, 1500, 8192, 65536};
    static pair_t pair;
    prng_t prng = {seed};
    for (uint32_t policy = 0; policy < UC_POLICY_COUNT; policy++)
        for (uint32_t d = 0; d < sizeof depths / sizeof depths[0]; d++)
            for (uint32_t variant = 0; variant < 6; variant++) {
                uint32_t depth = depths[d];
                uint64_t starts[] = {depth, NEAR_WRAP, 3 * NEAR_WRAP + 11, UINT64_MAX / 4};
                uint64_t start = starts[prng_below(&prng, 4)];
                uint32_t hands[] = {1, 2, 16};
                pair_make(&pair, sizes[prng_below(&prng, 5)], depth, policy,
                          start < depth ? depth : start, hands[variant % 3]);
                walk(&pair, &prng, 500);
                drain_to_end(&pair);
                rig_free(&pair.rig);
            }
}

static void exactly_queue_depth_records_wait(void)
{
    static pair_t pair;
    for (uint32_t depth = 1; depth <= 60; depth++) {
        pair_make(&pair, 64, depth, UC_BLOCK, depth + 3, 2);
        for (uint32_t i = 0; i < depth; i++)
            CHECK_EQUAL(publish_record(&pair.producer, i + 1, 64), UC_OK);
        CHECK_EQUAL(uc_producer_room(&pair.producer), UC_FULL);
        CHECK_EQUAL(publish_record(&pair.producer, 99, 64), UC_FULL);
        CHECK_EQUAL(count_at_rest(&pair.rig, &pair.producer).waiting, depth);
        rig_free(&pair.rig);
    }
}

static void what_does_not_fit_is_refused_and_changes_nothing(void)
{
    static pair_t pair;
    pair_make(&pair, 64, 3, UC_DROP_OLDEST, 3, 2);
    static uint8_t bytes[RECORD_BYTES_MAX + 1];
    uc_slot_header_t header = {.length = 129, .dtype_bits = 8, .ndim = 1, .shape = {129}};
    CHECK_EQUAL(uc_producer_publish(&pair.producer, &header, bytes), UC_NO_SLOT);
    header.length = RECORD_BYTES_MAX + 1;
    CHECK_EQUAL(uc_producer_publish(&pair.producer, &header, bytes), UC_TOO_LARGE);
    CHECK_EQUAL(count_at_rest(&pair.rig, &pair.producer).published, 0);
    uc_producer_refuse(&pair.producer, UC_REFUSED_TOO_LARGE);
    uc_producer_refuse(&pair.producer, UC_REFUSED_NO_MEMORY);
    uc_producer_refuse(&pair.producer, UC_REFUSED_UNSUPPORTED);
    uc_producer_refuse(&pair.producer, UC_REFUSED_BLOCK_TIMEOUT);
    uc_counts_t counts = count_at_rest(&pair.rig, &pair.producer);
    CHECK(counts.too_large == 1 && counts.no_memory == 1 && counts.unsupported == 1
          && counts.block_timeout == 1);
    rig_free(&pair.rig);
}

/* Rings that are begun together are filled together, and each is published by its own commit. */
static void records_begun_together_are_published_one_by_one(void)
{
    enum { RINGS = 3, LAPS = 5 };
    static pair_t pairs[RINGS];
    static uint8_t bytes[RINGS][RECORD_BYTES_MAX + 8];
    uc_slot_header_t headers[RINGS];
    uc_fill_t fills[RINGS];
    for (uint32_t i = 0; i < RINGS; i++)
        pair_make(&pairs[i], RECORD_BYTES_MAX, 2, i, 2, 2);
    for (uint64_t lap = 0; lap < LAPS; lap++) {
        for (uint32_t i = 0; i < RINGS; i++) {
            record_make(1 + lap * RINGS + i, RECORD_BYTES_MAX, &headers[i], bytes[i]);
            CHECK_EQUAL(uc_producer_begin(&pairs[i].producer, &headers[i], bytes[i], &fills[i]),
                        UC_OK);
        }
        uc_slots_fill(fills, RINGS);
        for (uint32_t i = 0; i < RINGS; i++) {
            CHECK_EQUAL(count_at_rest(&pairs[i].rig, &pairs[i].producer).published, lap);
            CHECK_EQUAL(uc_producer_commit(&pairs[i].producer, 0), UC_OK);
            CHECK_EQUAL(oracle_publish(&pairs[i].oracle, 1 + lap * RINGS + i, 2, i), UC_OK);
            take(&pairs[i]);
            check_accounts(&pairs[i]);
        }
    }
    for (uint32_t i = 0; i < RINGS; i++) {
        finish(&pairs[i]);
        CHECK_EQUAL(uc_producer_begin(&pairs[i].producer, &headers[i], bytes[i], &fills[i]), UC_OK);
        uc_producer_close(&pairs[i].producer);
        CHECK_EQUAL(uc_producer_commit(&pairs[i].producer, 0), UC_CLOSED);
        rig_free(&pairs[i].rig);
    }
    pair_make(&pairs[0], 64, 2, UC_BLOCK, 2, 2);
    CHECK_EQUAL(uc_producer_commit(&pairs[0].producer, 0), UC_CORRUPT); /* nothing was begun */
    rig_free(&pairs[0].rig);
}

/* Each word that no honest peer writes is answered by CORRUPT, which stays. */
static void nonsense_in_a_word_is_corrupt_for_both_sides(void)
{
    static pair_t pair;
    uint64_t none = uc_entry_pack(3, UC_ENTRY_FULL, UC_SLOT_NONE);
    uint64_t misaligned = uc_entry_pack(3, UC_ENTRY_FULL, 1);
    uint64_t wrong_lap = uc_entry_pack(4, UC_ENTRY_FULL, 0);
    uint64_t words[] = {none, misaligned, wrong_lap, UINT64_MAX};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        pair_make(&pair, 250, 3, UC_DROP_OLDEST, 3, 2);
        for (uint64_t id = 1; id <= 3; id++)
            CHECK_EQUAL(publish_record(&pair.producer, id, 250), UC_OK);
        uc_store_relaxed(uc_lane_entry(&pair.rig.producer, 0, 0), words[i]);
        uc_taken_t taken;
        CHECK_EQUAL(uc_consumer_take(&pair.consumer, &pair.hands, false, &taken), UC_CORRUPT);
        CHECK_EQUAL(uc_consumer_take(&pair.consumer, &pair.hands, false, &taken), UC_CORRUPT);
        CHECK_EQUAL(publish_record(&pair.producer, 4, 250), UC_CORRUPT);
        CHECK_EQUAL(publish_record(&pair.producer, 5, 250), UC_CORRUPT);
        rig_free(&pair.rig);
    }
}

static void a_wrong_ring_is_not_attached(void)
{
    static pair_t pair;
    uc_consumer_t consumer;
    pair_make(&pair, 64, 3, UC_BLOCK, 3, 2);
    const uc_lane_t *lane = &pair.rig.consumer;
    CHECK_EQUAL(uc_consumer_attach(lane, 0, 3, UC_BLOCK, 8, &consumer), UC_CORRUPT);
    CHECK_EQUAL(uc_consumer_attach(lane, 0, 4, UC_BLOCK, 7, &consumer), UC_CORRUPT);
    CHECK_EQUAL(uc_consumer_attach(lane, 0, 3, UC_DROP_OLDEST, 7, &consumer), UC_CORRUPT);
    CHECK_EQUAL(uc_consumer_attach(lane, 1, 3, UC_BLOCK, 7, &consumer), UC_CORRUPT);
    CHECK_EQUAL(uc_consumer_attach(lane, RIG_RINGS, 3, UC_BLOCK, 7, &consumer), UC_CORRUPT);
    uc_consumer_detach(&pair.consumer);
    uc_taken_t taken;
    CHECK_EQUAL(uc_consumer_take(&pair.consumer, &pair.hands, false, &taken), UC_CLOSED);
    rig_free(&pair.rig);
}

/* A larger slot in the producer's hand goes round the ring like any other. */
static void slots_of_two_classes_share_a_ring(void)
{
    static pair_t pair;
    pair_make(&pair, 200, 2, UC_DROP_OLDEST, 2, 2);
    uint32_t small;
    /* The lane has one class; the same slot put back is still a replacement. */
    uint32_t hand = pair.producer.hand;
    CHECK_EQUAL(uc_producer_replace_hand(&pair.producer, hand, &small), UC_OK);
    CHECK_EQUAL(small, hand);
    CHECK_EQUAL(uc_producer_replace_hand(&pair.producer, hand + 1, &small), UC_CORRUPT);
    CHECK_EQUAL(publish_record(&pair.producer, 1, 200), UC_OK);
    rig_free(&pair.rig);
}

static void a_hundred_dead_consumers_leave_the_ring_exact(uint64_t seed)
{
    static pair_t pair;
    prng_t prng = {seed + 1};
    pair_make(&pair, 500, 8, UC_DROP_OLDEST, 8, 16);
    for (int death = 0; death < 100; death++) {
        walk(&pair, &prng, 40);
        die_and_be_replaced(&pair);
        check_accounts(&pair);
    }
    for (uint64_t id = 1; id <= 20; id++) {
        (void)oracle_publish(&pair.oracle, pair.next_id + id, 8, UC_DROP_OLDEST);
        CHECK_EQUAL(publish_record(&pair.producer, pair.next_id + id, 500), UC_OK);
    }
    CHECK_EQUAL(count_at_rest(&pair.rig, &pair.producer).waiting, 8);
    drain_to_end(&pair);
    rig_free(&pair.rig);
}

int main(int count, char **arguments)
{
    uint64_t seed = choose_seed("plain", count > 1 ? arguments[1] : NULL);
    set_deadline(300);
    ring_does_what_a_queue_does(seed);
    exactly_queue_depth_records_wait();
    what_does_not_fit_is_refused_and_changes_nothing();
    records_begun_together_are_published_one_by_one();
    nonsense_in_a_word_is_corrupt_for_both_sides();
    a_wrong_ring_is_not_attached();
    slots_of_two_classes_share_a_ring();
    a_hundred_dead_consumers_leave_the_ring_exact(seed);
    puts("test_ring: ok");
    return 0;
}

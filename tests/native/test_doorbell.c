/* Ticks, marks, mail, sleeping and waking, room; in one thread, with deadlines that have passed. */
#include "harness.h"

#include <string.h>

static rig_t rig;

static void news_and_marks_are_collected_once(void)
{
    rig_sleeper_t own;
    rig_make(&rig, 64, 4, 1);
    sleeper_make(&own, RIG_RINGS);
    CHECK_EQUAL(uc_doorbell_collect(&rig.consumer, &own.sleeper, 0), 0);
    uc_doorbell_announce(&rig.producer, 5);
    uc_doorbell_announce(&rig.producer, 5);
    uc_doorbell_announce(&rig.producer, 63);
    CHECK_EQUAL(uc_doorbell_collect(&rig.consumer, &own.sleeper, 0), 1ull << 5 | 1ull << 63);
    CHECK_EQUAL(uc_doorbell_collect(&rig.consumer, &own.sleeper, 0), 0);
    uc_doorbell_mark(&own.sleeper, 9);
    CHECK_EQUAL(uc_doorbell_collect(&rig.consumer, &own.sleeper, 0), 1ull << 9);
    CHECK_EQUAL(uc_doorbell_collect(&rig.consumer, &own.sleeper, 1), 0);
    own.sleeper.ring_limit = 5;
    uc_doorbell_announce(&rig.producer, 5);
    CHECK_EQUAL(uc_doorbell_collect(&rig.consumer, &own.sleeper, 0), 0);
    own.sleeper.ring_limit = 6;
    CHECK_EQUAL(uc_doorbell_collect(&rig.consumer, &own.sleeper, 0), 1ull << 5);
    rig_free(&rig);
}

static void a_wait_names_what_ended_it(void)
{
    rig_sleeper_t own;
    uc_sleeper_t *sleeper = &own.sleeper;
    rig_make(&rig, 64, 4, 1);
    sleeper_make(&own, RIG_RINGS);
    CHECK_EQUAL(uc_doorbell_wait(&rig.consumer, sleeper, 0), UC_TIMEOUT);
    CHECK_EQUAL(uc_doorbell_wait(&rig.consumer, sleeper, uc_monotonic_ns() + 1000000), UC_TIMEOUT);
    uc_doorbell_announce(&rig.producer, 3);
    CHECK_EQUAL(uc_doorbell_wait(&rig.consumer, sleeper, 0), UC_OK);
    CHECK_EQUAL(uc_doorbell_collect(&rig.consumer, sleeper, 0), 1ull << 3);
    uc_doorbell_mark(sleeper, 4);
    CHECK_EQUAL(uc_doorbell_wait(&rig.consumer, sleeper, 0), UC_OK);
    CHECK_EQUAL(uc_doorbell_collect(&rig.consumer, sleeper, 0), 1ull << 4);
    uc_doorbell_mail(&rig.producer);
    CHECK_EQUAL(uc_doorbell_wait(&rig.consumer, sleeper, 0), UC_OK);
    CHECK_EQUAL(uc_doorbell_wait(&rig.consumer, sleeper, 0), UC_TIMEOUT);
    uc_doorbell_interrupt(&rig.consumer, sleeper);
    CHECK_EQUAL(uc_doorbell_wait(&rig.consumer, sleeper, 0), UC_INTERRUPTED);
    CHECK_EQUAL(uc_doorbell_wait(&rig.consumer, sleeper, 0), UC_TIMEOUT);
    rig_free(&rig);
}

static void only_a_parked_consumer_costs_a_system_call(void)
{
    rig_make(&rig, 64, 4, 1);
    uc_doorbell_t *doorbell = uc_lane_doorbell(&rig.producer);
    CHECK(!uc_doorbell_wake(&rig.producer));
    uc_store_relaxed(&doorbell->sleep, UC_NAPPING);
    CHECK(!uc_doorbell_wake(&rig.producer));
    uc_store_relaxed(&doorbell->sleep, UC_PARKED);
    CHECK(uc_doorbell_wake(&rig.producer));
    CHECK(!uc_doorbell_wake(&rig.producer));
    rig_free(&rig);
}

static void arrive(uc_sleeper_t *sleeper, uint64_t published_ns)
{
    sleeper->is_arrival_open = true;
    uc_doorbell_arrived(sleeper, 3, published_ns);
}

static void like_gaps_make_a_pace_and_others_end_it(void)
{
    rig_sleeper_t own;
    uc_sleeper_t *sleeper = &own.sleeper;
    sleeper_make(&own, RIG_RINGS);
    uint64_t at_ns = 1000000000ull;
    for (int i = 0; i < 6; i++)
        arrive(sleeper, at_ns += 10000000u);
    CHECK_EQUAL(sleeper->steady_count, 4); /* the first gap begins at zero, the second is new */
    CHECK_EQUAL(sleeper->gap_ns, 10000000u);
    CHECK(sleeper->lead_ns < sleeper->gap_ns / 10u);
    uc_doorbell_arrived(sleeper, 3, at_ns + 5000000u); /* no wait came before it */
    arrive(sleeper, at_ns + 100000u); /* of the same step */
    CHECK_EQUAL(sleeper->arrival_ns, at_ns);
    CHECK_EQUAL(sleeper->steady_count, 4);
    arrive(sleeper, at_ns += 20000000u);
    CHECK_EQUAL(sleeper->steady_count, 0);
    const uint64_t nonsense[] = {0, UINT64_MAX, 1, UINT64_MAX / 2, 0};
    for (size_t i = 0; i < sizeof nonsense / sizeof nonsense[0]; i++) {
        arrive(sleeper, nonsense[i]);
        CHECK_EQUAL(sleeper->steady_count, 0);
        CHECK(sleeper->gap_ns <= 500000000u);
    }
}

/* The lead is made so long that no load of the machine can make the consumer miss its begin. */
static void a_record_that_is_due_is_rehearsed_once(void)
{
    rig_sleeper_t own;
    uc_sleeper_t *sleeper = &own.sleeper;
    rig_make(&rig, 64, 4, 1);
    sleeper_make(&own, RIG_RINGS);
    const uint64_t hour_ns = 3600000000000ull;
    uint64_t deadline_ns = uc_monotonic_ns() + hour_ns;
    sleeper->arrival_ns = uc_monotonic_ns();
    sleeper->arrival_ring = 3;
    sleeper->gap_ns = hour_ns + 20000000u;
    sleeper->lead_ns = hour_ns;
    sleeper->steady_count = 8;
    CHECK_EQUAL(uc_doorbell_wait(&rig.consumer, sleeper, deadline_ns), UC_OK);
    CHECK_EQUAL(uc_doorbell_collect(&rig.consumer, sleeper, 0), 1ull << 3);
    CHECK(sleeper->is_arrival_open);
    CHECK_EQUAL(uc_load_relaxed(&uc_lane_doorbell(&rig.producer)->sleep), UC_AWAKE);
    CHECK_EQUAL(uc_doorbell_wait(&rig.consumer, sleeper, uc_monotonic_ns() + 1000000u), UC_TIMEOUT);
    uc_doorbell_announce(&rig.producer, 3);
    CHECK_EQUAL(uc_doorbell_wait(&rig.consumer, sleeper, 0), UC_OK);
    rig_free(&rig);
}

static void a_consumer_that_never_naps_expects_nothing(void)
{
    rig_sleeper_t own;
    uc_sleeper_t *sleeper = &own.sleeper;
    rig_make(&rig, 64, 4, 1);
    sleeper_make(&own, RIG_RINGS);
    sleeper->never_naps = true;
    sleeper->arrival_ns = uc_monotonic_ns();
    sleeper->gap_ns = 20000000u;
    sleeper->lead_ns = 20000000u;
    sleeper->steady_count = 8;
    CHECK_EQUAL(uc_doorbell_wait(&rig.consumer, sleeper, uc_monotonic_ns() + 5000000u), UC_TIMEOUT);
    CHECK_EQUAL(uc_doorbell_collect(&rig.consumer, sleeper, 0), 0);
    rig_free(&rig);
}

static void a_wait_for_room_names_what_ended_it(void)
{
    uc_producer_t producer;
    uc_consumer_t consumer;
    uc_hands_t hands;
    uc_taken_t taken;
    memset(&hands, 0, sizeof hands);
    rig_make(&rig, 64, 2 + 1, 1);
    rig_open(&rig, 1, UC_BLOCK, 1, &producer);
    CHECK_EQUAL(uc_consumer_attach(&rig.consumer, 0, 1, UC_BLOCK, 7, &consumer), UC_OK);
    CHECK_EQUAL(uc_room_wait(&producer, 1000), UC_OK);
    CHECK_EQUAL(publish_record(&producer, 1, 64), UC_OK);
    CHECK_EQUAL(uc_room_wait(&producer, 1000), UC_TIMEOUT);
    CHECK_EQUAL(uc_load_relaxed(&producer.block->producer_waiting), 1);
    CHECK_EQUAL(uc_consumer_take(&consumer, &hands, false, &taken), UC_OK);
    uint32_t room = uc_load_relaxed(&producer.block->room);
    uc_room_signal(&consumer);
    CHECK_EQUAL(uc_load_relaxed(&producer.block->room), room + 1);
    CHECK_EQUAL(uc_load_relaxed(&producer.block->producer_waiting), 0);
    uc_room_signal(&consumer);
    CHECK_EQUAL(uc_load_relaxed(&producer.block->room), room + 1);
    CHECK_EQUAL(uc_room_wait(&producer, 1000), UC_OK);
    uc_room_interrupt(&producer);
    uc_producer_close(&producer);
    CHECK_EQUAL(uc_room_wait(&producer, 1000), UC_CLOSED);
    rig_free(&rig);
}

int main(void)
{
    set_deadline(60);
    news_and_marks_are_collected_once();
    a_wait_names_what_ended_it();
    only_a_parked_consumer_costs_a_system_call();
    like_gaps_make_a_pace_and_others_end_it();
    a_record_that_is_due_is_rehearsed_once();
    a_consumer_that_never_naps_expects_nothing();
    a_wait_for_room_names_what_ended_it();
    puts("test_doorbell: ok");
    return 0;
}

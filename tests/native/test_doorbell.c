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
    a_wait_for_room_names_what_ended_it();
    puts("test_doorbell: ok");
    return 0;
}

/* Both sides at once, as two threads over one mapping, so that sanitizers see both.
 * usage: test_threads [seed] [records per run]            every policy, depth and size
 *        test_threads storm SECONDS                       parks and wakes only; exit 3 on a lost wake-up */
#include "harness.h"

#include <pthread.h>
#include <string.h>

#define WAIT_NS 100000000ull
#define LOST_NS 700000000ull /* a park lasts 1 s when nobody ends it */

typedef struct {
    rig_t rig;
    uc_producer_t producer;
    uint64_t records;
    prng_t producer_prng, consumer_prng;
    bool parks_at_once;
    _Atomic uint64_t seen; /* records taken */
    _Atomic bool is_over;
    uint64_t delivered, waits_too_long;
} run_t;

static void *produce(void *argument)
{
    run_t *run = argument;
    for (uint64_t id = 1; id <= run->records; id++) {
        uc_status_t status;
        while ((status = publish_record(&run->producer, id, run->rig.record_bytes)) == UC_FULL
               && run->producer.policy == UC_BLOCK) {
            status = uc_room_wait(&run->producer, WAIT_NS);
            CHECK(status == UC_OK || status == UC_TIMEOUT);
        }
        CHECK(status == UC_OK || status == UC_FULL);
        uc_doorbell_announce(&run->rig.producer, 0);
        (void)uc_doorbell_wake(&run->rig.producer);
        if (prng_below(&run->producer_prng, 64) == 0)
            uc_pause();
    }
    uc_producer_close(&run->producer);
    uc_doorbell_announce(&run->rig.producer, 0);
    (void)uc_doorbell_wake(&run->rig.producer);
    return NULL;
}

typedef struct {
    uc_consumer_t ring;
    uc_hands_t hands;
    uc_taken_t held[UC_HAND_COUNT];
    uint32_t held_count;
    uint64_t last_id;
    uint8_t copied[SLOT_BYTES_MAX];
} reader_t;

static void finish(run_t *run, reader_t *reader)
{
    for (uint32_t i = 0; i < reader->held_count; i++) {
        CHECK(taken_is_whole(&run->rig, &reader->held[i]));
        uc_hands_put(&reader->hands, reader->held[i].class_index, reader->held[i].slot);
    }
    if (reader->held_count > 0)
        uc_consumer_consume(&reader->ring, reader->held_count);
    reader->held_count = 0;
}

/* Takes until the ring is empty; true at its end. */
static bool drain(run_t *run, reader_t *reader)
{
    for (;;) {
        uc_taken_t taken;
        uc_status_t status = uc_consumer_take(&reader->ring, &reader->hands, false, &taken);
        bool is_copy = status == UC_NO_HAND && prng_below(&run->consumer_prng, 2) == 0;
        if (status == UC_NO_HAND && !is_copy) {
            finish(run, reader);
            continue;
        }
        if (is_copy)
            status = uc_consumer_take_copy(&reader->ring, false, reader->copied,
                                           sizeof reader->copied, &taken);
        if (status == UC_EMPTY || status == UC_END_OF_STREAM) {
            finish(run, reader);
            uc_room_signal(&reader->ring);
            return status == UC_END_OF_STREAM;
        }
        if (status == UC_TIMEOUT)
            continue;
        CHECK_EQUAL(status, UC_OK);
        CHECK((uint64_t)taken.header.token_pos > reader->last_id);
        reader->last_id = (uint64_t)taken.header.token_pos;
        run->delivered++;
        if (is_copy) {
            CHECK(record_is_whole(&taken.header, reader->copied));
            uc_consumer_consume(&reader->ring, 1);
        } else {
            CHECK(taken_is_whole(&run->rig, &taken));
            reader->held[reader->held_count++] = taken;
        }
        uc_room_signal(&reader->ring);
    }
}

static void *consume(void *argument)
{
    run_t *run = argument;
    static reader_t reader;
    memset(&reader, 0, sizeof reader);
    CHECK_EQUAL(uc_consumer_attach(&run->rig.consumer, 0, run->producer.queue_depth,
                                   run->producer.policy, 7, &reader.ring),
                UC_OK);
    rig_sleeper_t own;
    sleeper_make(&own, RIG_RINGS);
    bool is_over = drain(run, &reader);
    while (!is_over) {
        uint64_t begin_ns = uc_monotonic_ns();
        if (run->parks_at_once)
            own.sleeper.last_event_ns = 0;
        (void)uc_doorbell_wait(&run->rig.consumer, &own.sleeper, begin_ns + WAIT_NS);
        if (uc_doorbell_collect(&run->rig.consumer, &own.sleeper, 0) != 0)
            is_over = drain(run, &reader);
    }
    uc_consumer_detach(&reader.ring);
    return NULL;
}

static void start_both(run_t *run, void *(*producer)(void *), void *(*consumer)(void *))
{
    pthread_t threads[2];
    CHECK_EQUAL((uint64_t)pthread_create(&threads[0], NULL, consumer, run), 0);
    CHECK_EQUAL((uint64_t)pthread_create(&threads[1], NULL, producer, run), 0);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
}

static void both_sides_agree(prng_t *prng, uint32_t policy, uint32_t depth, uint32_t record_bytes,
                             uint64_t records)
{
    static run_t run;
    memset(&run, 0, sizeof run);
    uint32_t hand = 1 + prng_below(prng, 4);
    run.records = records;
    run.parks_at_once = prng_below(prng, 2) == 0;
    run.producer_prng.state = prng_next(prng);
    run.consumer_prng.state = prng_next(prng);
    rig_make(&run.rig, record_bytes, depth + 1 + hand, hand);
    if (prng_below(prng, 2) == 0)
        run.rig.producer.has_barrier = false; /* the other kind of fence */
    rig_open(&run.rig, depth, policy, depth, &run.producer);
    start_both(&run, produce, consume);
    uc_counts_t counts = count_at_rest(&run.rig, &run.producer);
    CHECK_EQUAL(counts.consumed, run.delivered);
    CHECK_EQUAL(counts.published + counts.dropped_newest, records);
    CHECK_EQUAL(counts.published, counts.consumed + counts.dropped_oldest);
    CHECK(policy != UC_BLOCK || counts.consumed == records);
    CHECK(counts.waiting == 0 && counts.in_hand == 0 && counts.lost == 0);
    rig_free(&run.rig);
}

/* ---- the storm: one record at a time, published just when the consumer goes to sleep ----------- */

static void *storm_producer(void *argument)
{
    run_t *run = argument;
    for (uint64_t id = 1; !atomic_load(&run->is_over); id++) {
        for (uint32_t i = prng_below(&run->producer_prng, 200); i > 0; i--)
            __asm__ volatile("" ::: "memory");
        CHECK_EQUAL(publish_record(&run->producer, id, 8), UC_OK);
        uc_doorbell_announce(&run->rig.producer, 0);
        (void)uc_doorbell_wake(&run->rig.producer);
        while (atomic_load(&run->seen) < id && !atomic_load(&run->is_over))
            uc_pause();
    }
    return NULL;
}

static void *storm_consumer(void *argument)
{
    run_t *run = argument;
    uc_consumer_t ring;
    static uc_hands_t hands;
    rig_sleeper_t own;
    sleeper_make(&own, 1);
    CHECK_EQUAL(uc_consumer_attach(&run->rig.consumer, 0, 1, UC_DROP_OLDEST, 7, &ring), UC_OK);
    uint64_t end_ns = uc_monotonic_ns() + run->records * 1000000000ull;
    for (uint64_t now_ns = 0; now_ns < end_ns && run->waits_too_long == 0;) {
        uint64_t begin_ns = uc_monotonic_ns();
        own.sleeper.last_event_ns = 0;
        CHECK_EQUAL(uc_doorbell_wait(&run->rig.consumer, &own.sleeper, begin_ns + 20 * LOST_NS),
                    UC_OK);
        now_ns = uc_monotonic_ns();
        run->waits_too_long += now_ns - begin_ns > LOST_NS;
        uc_taken_t taken;
        (void)uc_doorbell_collect(&run->rig.consumer, &own.sleeper, 0);
        if (uc_consumer_take(&ring, &hands, false, &taken) != UC_OK)
            continue;
        uc_hands_put(&hands, taken.class_index, taken.slot);
        uc_consumer_consume(&ring, 1);
        run->delivered++;
        atomic_store(&run->seen, (uint64_t)taken.header.token_pos);
    }
    atomic_store(&run->is_over, true);
    return NULL;
}

static int storm(uint64_t seconds)
{
    static run_t run;
    run.records = seconds;
    rig_make(&run.rig, 64, 3, 1);
    rig_open(&run.rig, 1, UC_DROP_OLDEST, 1, &run.producer);
    start_both(&run, storm_producer, storm_consumer);
    printf("storm: %llu records, %llu lost wake-ups\n", (unsigned long long)run.delivered,
           (unsigned long long)run.waits_too_long);
    rig_free(&run.rig);
    return run.waits_too_long == 0 ? 0 : 3;
}

int main(int count, char **arguments)
{
    if (count > 2 && strcmp(arguments[1], "storm") == 0)
        return storm(strtoull(arguments[2], NULL, 0));
    prng_t prng = {choose_seed("plain", count > 1 ? arguments[1] : NULL)};
    uint64_t records = count > 2 ? strtoull(arguments[2], NULL, 0) : 20000;
    set_deadline(300);
    static const uint32_t depths[] = {1, 2, 16};
    static const uint32_t sizes[] = {40, 3000};
    for (uint32_t policy = 0; policy < UC_POLICY_COUNT; policy++)
        for (uint32_t d = 0; d < 3; d++)
            for (uint32_t s = 0; s < 2; s++)
                both_sides_agree(&prng, policy, depths[d], sizes[s], records);
    puts("test_threads: ok");
    return 0;
}

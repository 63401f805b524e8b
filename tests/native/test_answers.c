/* Answers: one thread asks and waits, the other takes and answers; late, missing and nonsense ones.
 * usage: test_answers [seed [records]] */
#include "harness.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LATE_NS = 1000000 };

static rig_t rig;

static void open_pair(uc_producer_t *producer, uc_consumer_t *consumer)
{
    rig_make(&rig, 64, 2 + 1, 1);
    rig_open(&rig, 1, UC_DROP_OLDEST, 1, producer);
    CHECK_EQUAL(uc_consumer_attach(&rig.consumer, 0, 1, UC_DROP_OLDEST, 7, consumer), UC_OK);
}

static void an_answer_is_taken_by_its_own_record_only(void)
{
    uc_producer_t producer;
    uc_consumer_t consumer;
    uc_answer_t answer = {.kind = 99};
    open_pair(&producer, &consumer);
    CHECK_EQUAL(uc_answer_look(&producer, 1, &answer), UC_EMPTY);
    CHECK_EQUAL(uc_answer_put(&consumer, 1, 5, "early", 5), UC_OK);
    CHECK_EQUAL(uc_answer_look(&producer, 2, &answer), UC_EMPTY);
    CHECK_EQUAL(uc_answer_wait(&producer, 2, 0, LATE_NS, &answer), UC_TIMEOUT);
    CHECK_EQUAL(answer.kind, 99);
    CHECK_EQUAL(uc_answer_wait(&producer, 1, 0, 0, &answer), UC_OK);
    CHECK_EQUAL(answer.kind, 5);
    CHECK(answer.length == 5 && memcmp(answer.bytes, "early", 5) == 0);
    uc_consumer_t successor = consumer;
    successor.generation = 8; /* the next ring in this block begins at the same position */
    CHECK_EQUAL(uc_answer_put(&successor, 1, 6, "other", 5), UC_OK);
    CHECK_EQUAL(uc_answer_look(&producer, 1, &answer), UC_EMPTY);
    rig_free(&rig);
}

static void what_a_cell_cannot_hold_is_refused_and_nonsense_is_seen(void)
{
    uc_producer_t producer;
    uc_consumer_t consumer;
    uc_answer_t answer;
    static uint8_t bytes[UC_ANSWER_BYTES_MAX + 1];
    open_pair(&producer, &consumer);
    uc_answer_cell_t *cell = uc_lane_answer(&rig.consumer, 0);
    CHECK_EQUAL(uc_answer_put(&consumer, 1, 1, bytes, sizeof bytes), UC_TOO_LARGE);
    CHECK_EQUAL(uc_load_relaxed(&cell->sequence), 0);
    CHECK_EQUAL(uc_answer_put(&consumer, 1, 1, bytes, UC_ANSWER_BYTES_MAX), UC_OK);
    CHECK_EQUAL(uc_answer_look(&producer, 1, &answer), UC_OK);
    uc_store_relaxed(&cell->length, UC_ANSWER_BYTES_MAX + 1);
    CHECK_EQUAL(uc_answer_look(&producer, 1, &answer), UC_CORRUPT);
    CHECK_EQUAL(uc_answer_wait(&producer, 1, 0, LATE_NS, &answer), UC_CORRUPT);
    uc_consumer_detach(&consumer);
    CHECK_EQUAL(uc_answer_put(&consumer, 2, 1, bytes, 1), UC_CLOSED);
    rig_free(&rig);
}

static void a_waiter_is_woken_once_and_withdraws(void)
{
    uc_producer_t producer;
    uc_consumer_t consumer;
    uc_answer_t answer;
    open_pair(&producer, &consumer);
    uc_answer_cell_t *cell = uc_lane_answer(&rig.consumer, 0);
    CHECK_EQUAL(uc_answer_wait(&producer, 1, 0, LATE_NS, &answer), UC_TIMEOUT);
    CHECK_EQUAL(uc_load_relaxed(&cell->waiting), 0);
    uc_store_relaxed(&cell->waiting, 1u); /* as left by a producer that was killed */
    CHECK_EQUAL(uc_answer_put(&consumer, 1, 0, NULL, 0), UC_OK);
    CHECK_EQUAL(uc_load_relaxed(&cell->waiting), 0);
    CHECK_EQUAL(uc_load_relaxed(&cell->bell), 1);
    CHECK_EQUAL(uc_answer_put(&consumer, 2, 0, NULL, 0), UC_OK);
    CHECK_EQUAL(uc_load_relaxed(&cell->bell), 1);
    rig_free(&rig);
}

static void what_the_asker_says_of_itself_is_handed_on_as_it_is(void)
{
    uc_producer_t producer;
    uc_consumer_t consumer;
    open_pair(&producer, &consumer);
    CHECK_EQUAL(uc_answer_caller(&consumer), 0);
    uc_answer_say_caller(&producer, UINT32_MAX);
    CHECK_EQUAL(uc_answer_caller(&consumer), UINT32_MAX);
    uc_answer_say_caller(&producer, 0);
    CHECK_EQUAL(uc_answer_caller(&consumer), 0);
    rig_free(&rig);
}

/* ---- a consumer that is killed at each step ------------------------------------------------------ */

static uint64_t kill_at, steps; /* 0: nobody is killed */

void uc_step(const char *label)
{
    if (kill_at != 0 && ++steps == kill_at)
        kill(getpid(), SIGKILL);
    (void)label;
}

/* The number of steps of one answer to a waiter; each is a place to die at. */
enum { ANSWER_STEPS = 5, STEP_STORED = 3 };

static void a_kill_at_any_step_leaves_a_whole_answer_or_none(void)
{
    for (uint64_t step = 1; step <= ANSWER_STEPS; step++) {
        uc_producer_t producer;
        uc_consumer_t consumer;
        uc_answer_t answer;
        int status;
        open_pair(&producer, &consumer);
        uc_store_relaxed(&uc_lane_answer(&rig.consumer, 0)->waiting, 1u);
        pid_t child = fork_bound();
        if (child == 0) {
            kill_at = step;
            (void)uc_answer_put(&consumer, 1, 3, "whole", 5);
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
        bool stored_before_kill = step >= STEP_STORED;
        CHECK_EQUAL(uc_answer_look(&producer, 1, &answer), stored_before_kill ? UC_OK : UC_EMPTY);
        CHECK(!stored_before_kill || (answer.length == 5 && memcmp(answer.bytes, "whole", 5) == 0));
        CHECK_EQUAL(uc_answer_put(&consumer, 2, 4, "next", 4), UC_OK); /* its successor */
        CHECK_EQUAL(uc_answer_wait(&producer, 2, 0, LATE_NS, &answer), UC_OK);
        CHECK(answer.kind == 4 && answer.length == 4);
        rig_free(&rig);
    }
}

/* ---- the last word ------------------------------------------------------------------------------- */

static void a_last_word_is_asked_for_with_the_close(void)
{
    uc_producer_t producer;
    uc_consumer_t consumer;
    uc_answer_t answer;
    static uint8_t bytes[UC_ANSWER_BYTES_MAX + 1];
    uint64_t until_ns = 0;
    open_pair(&producer, &consumer);
    CHECK(!uc_consumer_is_asked(&consumer, &until_ns));
    CHECK(uc_producer_end(&producer, 77));
    CHECK(!uc_producer_end(&producer, 78));
    CHECK(uc_consumer_is_asked(&consumer, &until_ns) && until_ns == 77);
    uc_producer_waive_last_word(&producer);
    CHECK(!uc_consumer_is_asked(&consumer, &until_ns));
    CHECK_EQUAL(uc_answer_end(&consumer, 1, bytes, sizeof bytes), UC_TOO_LARGE);
    CHECK_EQUAL(uc_load_relaxed(&consumer.block->reader_state), UC_READER_ATTACHED);
    CHECK_EQUAL(uc_answer_end(&consumer, 2, "last", 4), UC_OK);
    CHECK_EQUAL(uc_load_relaxed(&consumer.block->reader_state), UC_READER_DETACHED);
    CHECK_EQUAL(uc_answer_end(&consumer, 3, "more", 4), UC_CLOSED);
    CHECK_EQUAL(uc_answer_look(&producer, UC_SEQUENCE_END, &answer), UC_OK);
    CHECK(answer.kind == 2 && answer.length == 4 && memcmp(answer.bytes, "last", 4) == 0);
    rig_open(&rig, 1, UC_DROP_OLDEST, 1, &producer); /* the next ring in this block */
    CHECK_EQUAL(uc_consumer_attach(&rig.consumer, 0, 1, UC_DROP_OLDEST, 7, &consumer), UC_OK);
    uc_producer_close(&producer);
    CHECK(!uc_consumer_is_asked(&consumer, &until_ns));
    rig_free(&rig);
}

/* Whoever sees the word may take the ring's memory back: its consumer has let go before. */
static void a_kill_at_any_step_leaves_a_last_word_of_a_detached_consumer_or_none(void)
{
    for (uint64_t step = 1; step <= ANSWER_STEPS; step++) {
        uc_producer_t producer;
        uc_consumer_t consumer;
        uc_answer_t answer;
        int status;
        uint64_t until_ns;
        open_pair(&producer, &consumer);
        CHECK(uc_producer_end(&producer, 1));
        uc_store_relaxed(&uc_lane_answer(&rig.consumer, 0)->waiting, 1u);
        pid_t child = fork_bound();
        if (child == 0) {
            kill_at = step;
            (void)uc_answer_end(&consumer, 3, "last", 4);
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
        bool stored_before_kill = step >= STEP_STORED;
        CHECK_EQUAL(uc_answer_look(&producer, UC_SEQUENCE_END, &answer),
                    stored_before_kill ? UC_OK : UC_EMPTY);
        uint32_t reader = uc_load_relaxed(&consumer.block->reader_state);
        CHECK(reader == (stored_before_kill ? UC_READER_DETACHED : UC_READER_ATTACHED));
        if (!stored_before_kill) {
            uc_producer_waive_last_word(&producer);
            CHECK_EQUAL(uc_producer_reap(&producer), UC_OK);
            CHECK_EQUAL(uc_consumer_attach(&rig.consumer, 0, 1, UC_DROP_OLDEST, 7, &consumer),
                        UC_OK);
            CHECK(!uc_consumer_is_asked(&consumer, &until_ns)); /* its successor is asked by mail */
        }
        rig_free(&rig);
    }
}

/* ---- both sides at once -------------------------------------------------------------------------- */

typedef struct {
    uc_producer_t producer;
    prng_t asker_prng, answerer_prng;
    uint64_t records;
    _Atomic bool is_over;
    uint64_t answered, given_up;
} run_t;

static uint32_t length_of(uint64_t id) { return (uint32_t)(mix64(id) % (UC_ANSWER_BYTES_MAX + 1)); }

static bool answer_is_whole(const uc_answer_t *answer, uint64_t id)
{
    if (answer->length != length_of(id) || answer->kind != (uint32_t)id)
        return false;
    for (uint32_t i = 0; i < answer->length; i++)
        if (answer->bytes[i] != (uint8_t)(id + i))
            return false;
    return true;
}

/* Waits for most answers; gives up on some at once, which then come late. */
static void *ask(void *argument)
{
    run_t *run = argument;
    for (uint64_t id = 1; id <= run->records; id++) {
        uc_answer_t answer;
        uint64_t sequence = run->producer.tail;
        CHECK_EQUAL(publish_record(&run->producer, id, 64), UC_OK);
        uc_doorbell_announce(&rig.producer, 0);
        (void)uc_doorbell_wake(&rig.producer);
        bool is_patient = prng_below(&run->asker_prng, 4) != 0;
        uint64_t spin_ns = prng_below(&run->asker_prng, 3) * 2000;
        uc_status_t status = UC_INTERRUPTED; /* the bell of a late answer */
        while (status == UC_INTERRUPTED)
            status = uc_answer_wait(&run->producer, sequence, spin_ns,
                                    is_patient ? 20000000000ull : 3000, &answer);
        CHECK(status == UC_OK || (status == UC_TIMEOUT && !is_patient));
        CHECK(status != UC_OK || answer_is_whole(&answer, id));
        run->answered += status == UC_OK;
        run->given_up += status != UC_OK;
    }
    atomic_store(&run->is_over, true);
    uc_doorbell_mail(&rig.producer);
    return NULL;
}

static void *answer_all(void *argument)
{
    run_t *run = argument;
    uc_consumer_t ring;
    static uc_hands_t hands;
    rig_sleeper_t own;
    sleeper_make(&own, 1);
    own.sleeper.never_naps = true;
    CHECK_EQUAL(uc_consumer_attach(&rig.consumer, 0, 1, UC_DROP_OLDEST, 7, &ring), UC_OK);
    while (!atomic_load(&run->is_over)) {
        uc_taken_t taken;
        uint8_t bytes[UC_ANSWER_BYTES_MAX];
        (void)uc_doorbell_wait(&rig.consumer, &own.sleeper, uc_monotonic_ns() + 1000000000ull);
        (void)uc_doorbell_collect(&rig.consumer, &own.sleeper, 0);
        if (uc_consumer_take(&ring, &hands, false, &taken) != UC_OK)
            continue;
        uint64_t id = (uint64_t)taken.header.token_pos;
        for (uint32_t i = 0; i < length_of(id); i++)
            bytes[i] = (uint8_t)(id + i);
        for (uint32_t i = prng_below(&run->answerer_prng, 300); i > 0; i--)
            __asm__ volatile("" ::: "memory");
        CHECK_EQUAL(uc_answer_put(&ring, taken.header.sequence, (uint32_t)id, bytes, length_of(id)),
                    UC_OK);
        uc_hands_put(&hands, taken.class_index, taken.slot);
        uc_consumer_consume(&ring, 1);
    }
    return NULL;
}

static void every_answer_is_whole_and_its_own(prng_t *prng, uint64_t records)
{
    static run_t run;
    pthread_t asker, answerer;
    run = (run_t){
        .records = records, .asker_prng = {prng_next(prng)}, .answerer_prng = {prng_next(prng)}};
    rig_make(&rig, 64, 2 + 1, 1);
    rig_open(&rig, 1, UC_DROP_OLDEST, 1, &run.producer);
    CHECK(pthread_create(&asker, NULL, ask, &run) == 0);
    CHECK(pthread_create(&answerer, NULL, answer_all, &run) == 0);
    CHECK(pthread_join(asker, NULL) == 0 && pthread_join(answerer, NULL) == 0);
    CHECK(run.answered >= records / 2);
    printf("test_answers: %llu answered, %llu given up\n", (unsigned long long)run.answered,
           (unsigned long long)run.given_up);
    rig_free(&rig);
}

int main(int count, char **arguments)
{
    prng_t prng = {choose_seed("plain", count > 1 ? arguments[1] : NULL)};
    set_deadline(300);
    an_answer_is_taken_by_its_own_record_only();
    what_a_cell_cannot_hold_is_refused_and_nonsense_is_seen();
    a_waiter_is_woken_once_and_withdraws();
    what_the_asker_says_of_itself_is_handed_on_as_it_is();
    a_kill_at_any_step_leaves_a_whole_answer_or_none();
    a_last_word_is_asked_for_with_the_close();
    a_kill_at_any_step_leaves_a_last_word_of_a_detached_consumer_or_none();
    every_answer_is_whole_and_its_own(&prng, count > 2 ? strtoull(arguments[2], NULL, 0) : 20000);
    puts("test_answers: ok");
    return 0;
}

/* One side stops at a labelled step while the other works, and goes on: every order that two
 * processes can come to, made by hand. usage: test_interleavings [seed]; built with -DUC_CRASH_POINTS */
#include "harness.h"
#include "oracle.h"

#include <string.h>

enum { RECORD_BYTES = 200, DEPTH_MAX = 5, WALKS = 400, STEPS = 120 };

static rig_t rig;
static uc_producer_t producer;
static uc_consumer_t consumer;
static uc_hands_t hands;
static uc_taken_t held[UC_HAND_COUNT];
static oracle_t oracle;
static uint64_t next_id;
static prng_t prng;

/* The pause: at `label`, after `effect` was told to the oracle, the other side does `count` things. */
static struct {
    const char *label;
    void (*effect)(void);
    void (*other_side)(void);
    uint32_t count;
} pause_at;

static const struct {
    const char *name;
    bool is_behind_swap; /* the operation's effect stands already */
} labels[] = {
    {"publish.begin", false},  {"publish.filled", false},  {"publish.looked", false},
    {"publish.swapped", true}, {"publish.progress", true}, {"take.begin", false},
    {"take.looked", false},    {"take.copied", false},     {"take.swapped", true},
};
enum { LABELS = sizeof labels / sizeof labels[0], PUBLISH_LABELS = 5 };
static uint64_t pauses[LABELS];

void uc_step(const char *label)
{
    if (pause_at.label == NULL || strcmp(label, pause_at.label) != 0)
        return;
    for (int i = 0; i < LABELS; i++)
        pauses[i] += strcmp(label, labels[i].name) == 0;
    pause_at.label = NULL; /* once */
    if (pause_at.effect != NULL)
        pause_at.effect();
    for (uint32_t i = 0; i < pause_at.count; i++)
        pause_at.other_side();
}

/* ---- the two sides ------------------------------------------------------------------------------- */

static void publish_effect(void)
{
    (void)oracle_publish(&oracle, next_id, producer.queue_depth, producer.policy);
}

static void take_effect(void) { oracle_take(&oracle); }

static void publish(void)
{
    uc_status_t expected =
        oracle.count == producer.queue_depth && producer.policy != UC_DROP_OLDEST ? UC_FULL : UC_OK;
    next_id++;
    CHECK_EQUAL(publish_record(&producer, next_id, RECORD_BYTES), expected);
    publish_effect();
}

static void finish(void)
{
    for (uint32_t i = 0; i < oracle.held_count; i++) {
        if (held[i].slot == UC_SLOT_NONE)
            continue;
        CHECK(taken_is_whole(&rig, &held[i]));
        uc_hands_put(&hands, held[i].class_index, held[i].slot);
    }
    uc_consumer_consume(&consumer, oracle.held_count);
    oracle_finish(&oracle);
}

static void attach(void)
{
    memset(&hands, 0, sizeof hands);
    CHECK_EQUAL(
        uc_consumer_attach(&rig.consumer, 0, producer.queue_depth, producer.policy, 7, &consumer),
        UC_OK);
}

/* The record that stands first when the swap happens is the one that is taken. */
static void take_and_tell(bool is_told)
{
    static uint8_t copied[SLOT_BYTES_MAX];
    uc_taken_t taken;
    if (oracle.held_count == UC_HAND_COUNT)
        finish();
    uint32_t held_before = oracle.held_count;
    uc_status_t status = uc_consumer_take(&consumer, &hands, false, &taken);
    bool is_copy = status == UC_NO_HAND;
    if (is_copy)
        status = uc_consumer_take_copy(&consumer, false, copied, sizeof copied, &taken);
    if (status != UC_OK) {
        CHECK(status == UC_EMPTY && oracle.count == 0);
        return;
    }
    if (!is_told || oracle.held_count == held_before) /* the pause never came */
        take_effect();
    CHECK_EQUAL((uint64_t)taken.header.token_pos, oracle.held[held_before]);
    CHECK(is_copy ? record_is_whole(&taken.header, copied) : taken_is_whole(&rig, &taken));
    held[held_before] = taken;
}

static void take(void) { take_and_tell(false); }

static void take_or_finish(void)
{
    if (prng_below(&prng, 4) == 0)
        finish();
    else
        take();
}

/* The record is out but not yet told of: takes, and counters as any process reads them. */
static void take_or_count(void)
{
    uint32_t choice = prng_below(&prng, 4);
    if (choice == 0) { /* attaches by a tail that may be one behind */
        finish();
        CHECK_EQUAL(uc_consumer_attach(&rig.consumer, 0, producer.queue_depth, producer.policy, 7,
                                       &consumer),
                    UC_OK);
    }
    if (choice < 3) {
        take();
        return;
    }
    uc_counts_t counts;
    CHECK_EQUAL(uc_ring_count(&rig.consumer, 0, &counts), UC_OK);
    CHECK(oracle_agrees(&oracle, &counts));
}

static void paused_publish(uint32_t label)
{
    uint64_t published = oracle.published;
    pause_at.label = labels[label].name;
    pause_at.effect = labels[label].is_behind_swap ? publish_effect : NULL;
    pause_at.other_side = labels[label].is_behind_swap ? take_or_count : take_or_finish;
    pause_at.count = prng_below(&prng, producer.queue_depth + 2);
    next_id++;
    uc_status_t status = publish_record(&producer, next_id, RECORD_BYTES);
    bool is_told = labels[label].is_behind_swap && oracle.published != published;
    if (!is_told)
        CHECK_EQUAL(status,
                    oracle_publish(&oracle, next_id, producer.queue_depth, producer.policy));
    pause_at.label = NULL;
}

static void paused_take(uint32_t label)
{
    pause_at.label = labels[label].name;
    pause_at.effect = labels[label].is_behind_swap ? take_effect : NULL;
    pause_at.other_side = publish;
    pause_at.count = prng_below(&prng, 2 * producer.queue_depth + 3);
    if (oracle.held_count == UC_HAND_COUNT)
        finish();
    take_and_tell(labels[label].is_behind_swap);
    pause_at.label = NULL;
}

/* ---- the walk ------------------------------------------------------------------------------------ */

static void check_accounts(void)
{
    uc_counts_t counts = count_at_rest(&rig, &producer);
    CHECK(oracle_agrees(&oracle, &counts));
}

static void walk(uint32_t depth, uint32_t policy, uint32_t hand_count)
{
    rig_make(&rig, RECORD_BYTES, depth + 1 + hand_count, hand_count);
    rig_open(&rig, depth, policy, depth, &producer);
    memset(&oracle, 0, sizeof oracle);
    attach();
    for (int step = 0; step < STEPS; step++) {
        uint32_t choice = prng_below(&prng, 100);
        if (choice < 40)
            paused_publish(prng_below(&prng, PUBLISH_LABELS));
        else if (choice < 80)
            paused_take(PUBLISH_LABELS + prng_below(&prng, LABELS - PUBLISH_LABELS));
        else if (choice < 97)
            finish();
        else {
            oracle_lose(&oracle);
            CHECK_EQUAL(uc_producer_reap(&producer), UC_OK);
            rig_deal_again(&rig, &producer);
            attach();
        }
        check_accounts();
    }
    rig_free(&rig);
}

static void publish_and_close(void)
{
    publish();
    uc_producer_close(&producer);
}

/* Published and closed between the look at the word and the look at the state. */
static void the_end_is_believed_only_after_a_second_look(void)
{
    for (uint32_t policy = 0; policy < UC_POLICY_COUNT; policy++) {
        rig_make(&rig, RECORD_BYTES, 2 + 1 + 1, 1);
        rig_open(&rig, 2, policy, 2, &producer);
        memset(&oracle, 0, sizeof oracle);
        attach();
        pause_at.label = "take.empty";
        pause_at.effect = NULL;
        pause_at.other_side = publish_and_close;
        pause_at.count = 1;
        take();
        CHECK_EQUAL(oracle.held_count, 1);
        finish();
        uc_taken_t taken;
        CHECK_EQUAL(uc_consumer_take(&consumer, &hands, false, &taken), UC_END_OF_STREAM);
        check_accounts();
        rig_free(&rig);
    }
}

int main(int count, char **arguments)
{
    prng.state = choose_seed("plain", count > 1 ? arguments[1] : NULL);
    set_deadline(300);
    the_end_is_believed_only_after_a_second_look();
    for (int i = 0; i < WALKS; i++)
        walk(1 + prng_below(&prng, DEPTH_MAX), prng_below(&prng, UC_POLICY_COUNT),
             1 + prng_below(&prng, 3));
    for (int i = 0; i < LABELS; i++) {
        if (pauses[i] == 0)
            fprintf(stderr, "nobody was stopped at %s\n", labels[i].name);
        CHECK(pauses[i] > 0);
    }
    puts("test_interleavings: ok");
    return 0;
}

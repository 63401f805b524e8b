/* Kills a side at each labelled step, one after the other, and looks at what is left.
 * usage: crash_points          built with -DUC_CRASH_POINTS
 *
 * A child plays a script with both sides in turn and is killed at the n-th step of one side; n
 * grows until the script ends alive. The handles live in shared memory, so that the parent goes
 * on as the side that survived. At every step the counters must be exact and the records whole. */
#include "harness.h"
#include "oracle.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOBODY, PRODUCER, CONSUMER, SPARED };
enum { SCRIPT_OPS = 90, RECOVERY_OP = 45, AFTER_OPS = 30, RECORD_BYTES = 300, LABELS_MAX = 64 };

typedef struct {
    /* the script's two sides */
    uc_producer_t producer;
    uc_consumer_t consumer;
    uc_hands_t hands;
    uc_taken_t held[UC_HAND_COUNT];
    rig_sleeper_t own;
    oracle_t oracle; /* without the operation under way */
    uint64_t next_id;
    bool is_attached, consumer_is_dead;
    /* the kill */
    int victim, actor;
    uint64_t kill_at, steps;
    char operation[16], label[32]; /* where the victim was */
} stage_t;

static stage_t *stage;
static rig_t rig;
static char labels_seen[LABELS_MAX][32];
static int label_count;

void uc_step(const char *label)
{
    if (stage == NULL || stage->actor != stage->victim || ++stage->steps != stage->kill_at)
        return;
    snprintf(stage->label, sizeof stage->label, "%s", label);
    kill(getpid(), SIGKILL);
}

static void begin(int actor, const char *operation)
{
    snprintf(stage->operation, sizeof stage->operation, "%s", operation);
    stage->actor = actor;
}

static void end(void)
{
    stage->actor = NOBODY;
    stage->operation[0] = '\0';
}

static bool died_at(const char *operation, const char *label)
{
    return strcmp(stage->operation, operation) == 0 && strcmp(stage->label, label) == 0;
}

/* ---- the script ---------------------------------------------------------------------------------- */

static void publish(void)
{
    uint64_t id = ++stage->next_id;
    begin(PRODUCER, "publish");
    uc_status_t status = publish_record(&stage->producer, id, RECORD_BYTES);
    uc_status_t expected =
        oracle_publish(&stage->oracle, id, stage->producer.queue_depth, stage->producer.policy);
    CHECK_EQUAL(status, expected);
    begin(PRODUCER, "ring");
    if (status == UC_FULL && stage->producer.policy == UC_BLOCK)
        CHECK_EQUAL(uc_room_wait(&stage->producer, 1000), UC_TIMEOUT);
    uc_doorbell_announce(&rig.producer, 0);
    (void)uc_doorbell_wake(&rig.producer);
    end();
}

static void finish(void)
{
    for (uint32_t i = 0; i < stage->oracle.held_count; i++) {
        if (stage->held[i].slot == UC_SLOT_NONE)
            continue;
        CHECK(taken_is_whole(&rig, &stage->held[i]));
        uc_hands_put(&stage->hands, stage->held[i].class_index, stage->held[i].slot);
    }
    begin(CONSUMER, "consume");
    uc_consumer_consume(&stage->consumer, stage->oracle.held_count);
    oracle_finish(&stage->oracle);
    end();
}

static uc_status_t take(bool producer_is_gone)
{
    static uint8_t copied[SLOT_BYTES_MAX];
    uc_taken_t taken;
    if (stage->oracle.held_count == UC_HAND_COUNT)
        finish();
    begin(CONSUMER, "take");
    uc_status_t status =
        uc_consumer_take(&stage->consumer, &stage->hands, producer_is_gone, &taken);
    if (status == UC_NO_HAND) {
        status = uc_consumer_take_copy(&stage->consumer, producer_is_gone, copied, sizeof copied,
                                       &taken);
        CHECK(status == UC_OK && record_is_whole(&taken.header, copied));
    }
    if (status == UC_OK) {
        CHECK(stage->oracle.count > 0);
        CHECK_EQUAL((uint64_t)taken.header.token_pos, stage->oracle.waiting[0]);
        stage->held[stage->oracle.held_count] = taken;
        oracle_take(&stage->oracle);
        begin(CONSUMER, "ring");
        uc_room_signal(&stage->consumer);
    } else {
        CHECK_EQUAL(stage->oracle.count, 0);
    }
    end();
    return status;
}

static void sleep_briefly(bool is_nap)
{
    uint64_t now_ns = uc_monotonic_ns();
    begin(CONSUMER, "ring");
    (void)uc_doorbell_collect(&rig.consumer, &stage->own.sleeper, 0);
    stage->own.sleeper.last_event_ns = is_nap ? now_ns : 0;
    (void)uc_doorbell_wait(&rig.consumer, &stage->own.sleeper, now_ns + (is_nap ? 30000 : 1000));
    /* What a consumer leaves that is killed asleep. */
    uc_store_relaxed(&uc_lane_doorbell(&rig.consumer)->sleep, is_nap ? UC_AWAKE : UC_PARKED);
    end();
}

static void attach(void)
{
    memset(&stage->hands, 0, sizeof stage->hands);
    CHECK_EQUAL(uc_consumer_attach(&rig.consumer, 0, stage->producer.queue_depth,
                                   stage->producer.policy, 7, &stage->consumer),
                UC_OK);
    stage->is_attached = true;
    stage->consumer_is_dead = false;
}

static void recover(void)
{
    stage->consumer_is_dead = true;
    begin(PRODUCER, "reap");
    CHECK_EQUAL(uc_producer_reap(&stage->producer), UC_OK);
    oracle_lose(&stage->oracle);
    begin(PRODUCER, "deal");
    rig_deal_again(&rig, &stage->producer);
    end();
    attach();
}

static void play(prng_t *prng, int ops, int recovery_op)
{
    for (int op = 0; op < ops; op++) {
        uint32_t choice = prng_below(prng, 100);
        if (op == recovery_op)
            recover();
        else if (choice < 45)
            publish();
        else if (choice < 80)
            (void)take(false);
        else if (choice < 92)
            finish();
        else
            sleep_briefly(choice < 94);
    }
}

static void play_whole_script(uint32_t depth, uint32_t policy)
{
    prng_t prng = {depth * 8 + policy};
    begin(PRODUCER, "open");
    rig_open(&rig, depth, policy, (1ull << UC_POSITION_BITS) - 6, &stage->producer);
    end();
    attach();
    sleeper_make(&stage->own, 1);
    play(&prng, SCRIPT_OPS, RECOVERY_OP);
    begin(PRODUCER, "close");
    uc_producer_close(&stage->producer);
    end();
}

/* ---- what is left -------------------------------------------------------------------------------- */

/* Brings the oracle up to what the interrupted operation had done. */
static void settle(void)
{
    oracle_t *oracle = &stage->oracle;
    if (died_at("publish", "publish.swapped") || died_at("publish", "publish.progress")
        || died_at("publish", "publish.tail") || died_at("publish", "publish.refused"))
        (void)oracle_publish(oracle, stage->next_id, stage->producer.queue_depth,
                             stage->producer.policy);
    if (died_at("take", "take.swapped") || died_at("take", "take.end"))
        oracle_take(oracle);
    if (died_at("consume", "consume.stored"))
        oracle_finish(oracle);
    if (died_at("reap", "reap.lost") || died_at("reap", "reap.state"))
        oracle_lose(oracle);
}

static void check_counts(void)
{
    uc_counts_t counts;
    CHECK_EQUAL(uc_ring_count(&rig.consumer, 0, &counts), UC_OK);
    CHECK(oracle_agrees(&stage->oracle, &counts));
}

static void drain_to_end(void)
{
    uc_status_t status;
    while ((status = take(true)) == UC_OK)
        finish();
    CHECK_EQUAL(status, UC_END_OF_STREAM);
    finish();
    check_counts();
}

/* The engine is gone: its ring is drained by its consumer, or by one that has no hand when the
 * engine died before it had dealt one. */
static void go_on_without_producer(void)
{
    if (died_at("open", "open.geometry") || died_at("open", "open.entries")) {
        CHECK_EQUAL(uc_consumer_attach(&rig.consumer, 0, rig.slot_count - 1 - rig.hand_count, 0, 7,
                                       &stage->consumer),
                    UC_CORRUPT);
        return;
    }
    uint32_t depth = rig.slot_count - 1 - rig.hand_count;
    uint32_t policy = uc_load_relaxed(&uc_lane_ring(&rig.consumer, 0)->policy);
    if (!stage->is_attached || stage->consumer_is_dead) {
        for (uint32_t i = 0; i < UC_CLASS_COUNT; i++)
            stage->hands.drawn[i] = 1; /* as if no row had been dealt */
        memset(stage->hands.count, 0, sizeof stage->hands.count);
        CHECK_EQUAL(uc_consumer_attach(&rig.consumer, 0, depth, policy, 7, &stage->consumer),
                    UC_OK);
    }
    check_counts();
    if (stage->consumer_is_dead) { /* never to be reaped: what it held stays in hand */
        uint32_t in_dead_hand = stage->oracle.held_count;
        stage->oracle.held_count = 0;
        uc_status_t status;
        while ((status = take(true)) == UC_OK)
            finish();
        CHECK_EQUAL(status, UC_END_OF_STREAM);
        stage->oracle.held_count = in_dead_hand;
        check_counts();
        return;
    }
    drain_to_end();
}

static void go_on_without_consumer(uint32_t seed)
{
    prng_t prng = {seed};
    check_counts();
    recover();
    check_counts();
    if (stage->producer.state == UC_RING_OPEN)
        play(&prng, AFTER_OPS, -1);
    uc_producer_close(&stage->producer);
    drain_to_end();
}

static void remember_label(void)
{
    for (int i = 0; i < label_count; i++)
        if (strcmp(labels_seen[i], stage->label) == 0)
            return;
    CHECK(label_count < LABELS_MAX);
    memcpy(labels_seen[label_count++], stage->label, sizeof stage->label);
}

/* True when the script ended before the n-th step of the victim. */
static bool kill_at_step(int victim, uint64_t kill_at, uint32_t depth, uint32_t policy)
{
    uint32_t hand_count = 1 + depth % 3;
    rig_make(&rig, RECORD_BYTES, depth + 1 + hand_count, hand_count);
    memset(stage, 0, sizeof *stage);
    stage->victim = victim;
    stage->kill_at = kill_at;
    snprintf(replay_hint, sizeof replay_hint, "crash_points: side %d step %llu depth %u policy %u",
             victim, (unsigned long long)kill_at, depth, policy);
    pid_t child = fork_bound();
    if (child == 0) {
        play_whole_script(depth, policy);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    bool is_over = WIFEXITED(status);
    CHECK(!is_over || WEXITSTATUS(status) == 0);
    if (!is_over) {
        CHECK_EQUAL((uint64_t)WTERMSIG(status), SIGKILL);
        remember_label();
        stage->victim = SPARED;
        settle();
        if (victim == PRODUCER)
            go_on_without_producer();
        else
            go_on_without_consumer((uint32_t)kill_at);
    }
    rig_free(&rig);
    return is_over;
}

/* ---- rings that are filled together -------------------------------------------------------------- */

enum { GROUP_RINGS = 3, GROUP_DEPTH = 2, GROUP_LAPS = 4, GROUP_BYTES = 3000 };
static rig_t group[GROUP_RINGS];

/* Each lap begins all rings, fills them together and commits one after the other. */
static void play_group(uc_producer_t *producers)
{
    static uint8_t bytes[GROUP_RINGS][GROUP_BYTES + 8];
    uc_slot_header_t headers[GROUP_RINGS];
    uc_fill_t fills[GROUP_RINGS];
    begin(PRODUCER, "group");
    for (uint64_t lap = 1; lap <= GROUP_LAPS; lap++) {
        for (int i = 0; i < GROUP_RINGS; i++) {
            record_make(lap, GROUP_BYTES, &headers[i], bytes[i]);
            CHECK_EQUAL(uc_producer_begin(&producers[i], &headers[i], bytes[i], &fills[i]), UC_OK);
        }
        uc_slots_fill(fills, GROUP_RINGS);
        for (int i = 0; i < GROUP_RINGS; i++) {
            CHECK_EQUAL(uc_producer_commit(&producers[i], 0), UC_OK);
            uc_doorbell_announce(&group[i].producer, 0);
        }
    }
    end();
}

/* Drains a ring whose producer is gone: what was published last is there, whole and in order.
 * Returns how many records were published. */
static uint64_t drain_of_group(const rig_t *of)
{
    uc_counts_t counts;
    uc_consumer_t consumer;
    uc_taken_t taken;
    uc_status_t status;
    CHECK_EQUAL(uc_ring_count(&of->consumer, 0, &counts), UC_OK);
    CHECK_EQUAL(counts.dropped_oldest + counts.waiting, counts.published);
    memset(&stage->hands, 0, sizeof stage->hands);
    CHECK_EQUAL(uc_consumer_attach(&of->consumer, 0, GROUP_DEPTH, UC_DROP_OLDEST, 7, &consumer),
                UC_OK);
    uint64_t id = counts.dropped_oldest;
    while ((status = uc_consumer_take(&consumer, &stage->hands, true, &taken)) == UC_OK) {
        CHECK(taken_is_whole(of, &taken));
        CHECK_EQUAL((uint64_t)taken.header.token_pos, ++id);
        uc_hands_put(&stage->hands, taken.class_index, taken.slot);
        uc_consumer_consume(&consumer, 1);
    }
    CHECK_EQUAL(status, UC_END_OF_STREAM);
    CHECK_EQUAL(id, counts.published);
    return counts.published;
}

/* True when the laps ended before the n-th step. */
static bool kill_group_at_step(uint64_t kill_at)
{
    uc_producer_t producers[GROUP_RINGS];
    memset(stage, 0, sizeof *stage);
    for (int i = 0; i < GROUP_RINGS; i++) {
        rig_make(&group[i], GROUP_BYTES, GROUP_DEPTH + 1 + 2, 2);
        rig_open(&group[i], GROUP_DEPTH, UC_DROP_OLDEST, GROUP_DEPTH, &producers[i]);
    }
    stage->victim = PRODUCER;
    stage->kill_at = kill_at;
    snprintf(replay_hint, sizeof replay_hint, "crash_points: group, step %llu",
             (unsigned long long)kill_at);
    pid_t child = fork_bound();
    if (child == 0) {
        play_group(producers);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    bool is_over = WIFEXITED(status);
    CHECK(is_over ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL);
    stage->victim = SPARED;
    uint64_t earlier = drain_of_group(&group[0]);
    for (int i = 1; i < GROUP_RINGS; i++) {
        uint64_t published = drain_of_group(&group[i]);
        CHECK(published == earlier || published + 1 == earlier);
        earlier = published;
    }
    for (int i = 0; i < GROUP_RINGS; i++)
        rig_free(&group[i]);
    return is_over;
}

static const char *const every_label[] = {
    "publish.begin", "publish.filled",  "publish.looked",  "publish.swapped", "publish.progress",
    "publish.tail",  "publish.refused", "take.begin",      "take.looked",     "take.swapped",
    "take.end",      "take.copied",     "consume.begin",   "consume.stored",  "close.begin",
    "close.stored",  "announce.begin",  "announce.ticked", "wake.begin",      "wake.exchanged",
    "wake.done",     "sleep.napping",   "sleep.parked",    "sleep.awake",     "room.waiting",
    "room.slept",    "room.begin",      "room.grown",      "room.woken",      "open.geometry",
    "open.entries",  "open.stored",     "install.entry",   "deal.slot",       "deal.stored",
    "reap.lost",     "reap.state",      "take.empty",
};

int main(void)
{
    uint64_t kills = 0;
    set_deadline(600);
    stage = shared_memory(sizeof *stage);
    for (uint32_t policy = 0; policy < UC_POLICY_COUNT; policy++)
        for (uint32_t depth = 1; depth <= 4; depth++)
            for (int victim = PRODUCER; victim <= CONSUMER; victim++)
                for (uint64_t n = 1; !kill_at_step(victim, n, depth, policy); n++)
                    kills++;
    for (uint64_t n = 1; !kill_group_at_step(n); n++)
        kills++;
    for (size_t i = 0; i < sizeof every_label / sizeof every_label[0]; i++) {
        bool is_seen = false;
        for (int j = 0; j < label_count; j++)
            is_seen |= strcmp(labels_seen[j], every_label[i]) == 0;
        if (!is_seen)
            fprintf(stderr, "nobody was killed at %s\n", every_label[i]);
        CHECK(is_seen);
    }
    printf("crash_points: ok, %llu kills at %d labels\n", (unsigned long long)kills, label_count);
    return 0;
}

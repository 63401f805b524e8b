/* Kills producer and consumer processes at random instants and checks all that is left.
 * usage: chaos [consumer kills] [producer kills] [seed]
 *
 * A round is one ring: its consumer is killed several times, each time reaped and replaced, then its
 * producer is killed (or closes the ring, or dies together with its consumer) and the ring is
 * drained. Every record delivered is compared to the byte. */
#define _GNU_SOURCE
#include "harness.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_NS 30000000000ull

typedef struct {
    /* parent to producer */
    _Atomic bool consumer_is_dead, has_to_close;
    /* parent to consumer */
    _Atomic bool producer_is_gone;
    /* producer */
    _Atomic uint64_t recovered; /* consumers reaped */
    _Atomic uint64_t offered, published, refused;
    /* consumer, over all its lives */
    _Atomic uint64_t delivered, last_id;
} shared_t;

static shared_t *shared;
static rig_t rig;
static uc_producer_t producer;

static void count_up(_Atomic uint64_t *word) { atomic_store(word, atomic_load(word) + 1); }

/* ---- producer ------------------------------------------------------------------------------------ */

static void recover_if_needed(void)
{
    if (!atomic_load(&shared->consumer_is_dead))
        return;
    CHECK_EQUAL(uc_producer_reap(&producer), UC_OK);
    rig_deal_again(&rig, &producer);
    atomic_store(&shared->consumer_is_dead, false);
    count_up(&shared->recovered);
}

static void offer(uint64_t id)
{
    uc_status_t status;
    atomic_store(&shared->offered, id);
    while ((status = publish_record(&producer, id, rig.record_bytes)) == UC_FULL
           && producer.policy == UC_BLOCK && !atomic_load(&shared->has_to_close)) {
        uc_status_t waited = uc_room_wait(&producer, 500000);
        CHECK(waited == UC_OK || waited == UC_TIMEOUT);
        recover_if_needed();
    }
    CHECK(status == UC_OK || status == UC_FULL);
    count_up(status == UC_OK ? &shared->published : &shared->refused);
    uc_doorbell_announce(&rig.producer, 0);
    (void)uc_doorbell_wake(&rig.producer);
}

static void produce(uint64_t seed)
{
    prng_t prng = {seed};
    rig.producer.has_barrier = uc_fence_register(); /* of this process */
    for (uint64_t id = 1; !atomic_load(&shared->has_to_close); id++) {
        offer(id);
        recover_if_needed();
        if (prng_below(&prng, 50) == 0)
            usleep(prng_below(&prng, 150));
    }
    uc_producer_close(&producer);
    uc_doorbell_announce(&rig.producer, 0);
    (void)uc_doorbell_wake(&rig.producer);
    _exit(0);
}

/* ---- consumer ------------------------------------------------------------------------------------ */

typedef struct {
    uc_consumer_t ring;
    uc_hands_t hands;
    uc_taken_t held[UC_HAND_COUNT];
    uint32_t held_count;
    uint8_t copied[SLOT_BYTES_MAX];
} reader_t;

static void finish(reader_t *reader)
{
    for (uint32_t i = 0; i < reader->held_count; i++) {
        CHECK(taken_is_whole(&rig, &reader->held[i])); /* nobody wrote while it was held */
        uc_hands_put(&reader->hands, reader->held[i].class_index, reader->held[i].slot);
    }
    if (reader->held_count > 0)
        uc_consumer_consume(&reader->ring, reader->held_count);
    reader->held_count = 0;
}

static void deliver(const uc_taken_t *taken)
{
    uint64_t id = (uint64_t)taken->header.token_pos;
    CHECK(id > atomic_load(&shared->last_id));
    atomic_store(&shared->last_id, id);
    count_up(&shared->delivered);
}

/* Takes until nothing waits. True at the end of the stream. */
static bool drain(reader_t *reader, bool has_hand)
{
    for (;;) {
        uc_taken_t taken;
        bool is_gone = atomic_load(&shared->producer_is_gone);
        uc_status_t status = UC_NO_HAND;
        if (has_hand)
            status = uc_consumer_take(&reader->ring, &reader->hands, is_gone, &taken);
        if (status == UC_NO_HAND && reader->held_count > 0) {
            finish(reader);
            uc_room_signal(&reader->ring);
        } else if (status == UC_NO_HAND) {
            status = uc_consumer_take_copy(&reader->ring, is_gone, reader->copied,
                                           sizeof reader->copied, &taken);
            if (status == UC_OK) {
                deliver(&taken);
                CHECK(record_is_whole(&taken.header, reader->copied));
                uc_consumer_consume(&reader->ring, 1);
            }
        } else if (status == UC_OK) {
            deliver(&taken);
            CHECK(taken_is_whole(&rig, &taken));
            reader->held[reader->held_count++] = taken;
        }
        if (status == UC_EMPTY || status == UC_END_OF_STREAM) {
            finish(reader);
            uc_room_signal(&reader->ring);
            return status == UC_END_OF_STREAM;
        }
        CHECK(status == UC_OK || status == UC_NO_HAND || status == UC_TIMEOUT);
    }
}

static void attach(reader_t *reader)
{
    CHECK_EQUAL(uc_consumer_attach(&rig.consumer, 0, producer.queue_depth, producer.policy, 7,
                                   &reader->ring),
                UC_OK);
}

static void consume(void)
{
    static reader_t reader;
    CHECK(mprotect(rig.payload, rig.geometry.payload_bytes, PROT_READ) == 0);
    attach(&reader);
    rig_sleeper_t own;
    sleeper_make(&own, 1);
    uc_doorbell_mark(&own.sleeper, 0); /* a predecessor may have seen the tick and died */
    for (;;) {
        (void)uc_doorbell_wait(&rig.consumer, &own.sleeper, uc_monotonic_ns() + 20000000);
        bool is_gone = atomic_load(&shared->producer_is_gone);
        if ((uc_doorbell_collect(&rig.consumer, &own.sleeper, 0) != 0 || is_gone)
            && drain(&reader, true))
            _exit(0);
    }
}

/* ---- parent -------------------------------------------------------------------------------------- */

static void end_by_kill(pid_t child)
{
    int status;
    kill(child, SIGKILL);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status)); /* else a check of its own failed before */
}

static void end_by_itself(pid_t child)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static pid_t start(bool is_producer, uint64_t seed)
{
    pid_t child = fork_bound();
    if (child == 0) {
        set_deadline(120);
        if (is_producer)
            produce(seed);
        consume();
    }
    return child;
}

static void wait_past(_Atomic uint64_t *word, uint64_t value, const char *what)
{
    for (uint64_t end_ns = uc_monotonic_ns() + PATIENCE_NS; atomic_load(word) <= value; usleep(20))
        if (uc_monotonic_ns() > end_ns) {
            fprintf(stderr, "a stall: nothing %s any more\n", what);
            fail();
        }
}

/* `unmarked`: takes that a killed consumer may have done without telling. */
static void check_what_is_left(uint64_t unmarked, bool has_unreaped)
{
    uc_counts_t counts;
    CHECK_EQUAL(uc_ring_count(&rig.consumer, 0, &counts), UC_OK);
    uint64_t published = atomic_load(&shared->published);
    uint64_t delivered = atomic_load(&shared->delivered);
    uint64_t taken = counts.published - counts.dropped_oldest;
    CHECK_EQUAL(counts.waiting, 0);
    CHECK(counts.published == published || counts.published == published + 1);
    CHECK(taken >= delivered && taken <= delivered + unmarked);
    CHECK_EQUAL(taken, counts.consumed + counts.lost + (uint64_t)counts.in_hand);
    CHECK(counts.in_hand == 0 || (has_unreaped && counts.in_hand > 0));
    CHECK(counts.in_hand <= (int64_t)rig.hand_count + 1);
    CHECK(counts.lost <= unmarked * (rig.hand_count + 1));
    CHECK(producer.policy == UC_DROP_OLDEST || counts.dropped_oldest == 0);
    CHECK(producer.policy == UC_DROP_NEWEST || counts.dropped_newest == 0);
    if (producer.policy == UC_DROP_NEWEST)
        CHECK(counts.dropped_newest - atomic_load(&shared->refused) <= 1);
}

typedef struct {
    uint64_t consumer_kills, producer_kills, published, delivered;
} totals_t;

static void play_round(prng_t *prng, uint32_t consumer_kills, totals_t *totals)
{
    static const uint32_t sizes[] = {40, 1000, 8000};
    static const uint32_t hands[] = {1, 2, 16};
    uint32_t depth = 1 + prng_below(prng, 16);
    uint32_t hand_count = hands[prng_below(prng, 3)];
    uint32_t deaths = consumer_kills;
    memset(shared, 0, sizeof *shared);
    rig_make(&rig, sizes[prng_below(prng, 3)], depth + 1 + hand_count, hand_count);
    rig_open(&rig, depth, prng_below(prng, UC_POLICY_COUNT), depth + prng_below(prng, 100),
             &producer);
    pid_t producing = start(true, prng_next(prng));
    pid_t consuming = start(false, 0);
    for (uint32_t i = 0; i < consumer_kills; i++) {
        usleep(prng_below(prng, 600));
        end_by_kill(consuming);
        atomic_store(&shared->consumer_is_dead, true);
        wait_past(&shared->recovered, i, "is recovered");
        consuming = start(false, 0);
    }
    if (prng_below(prng, 2) == 0)
        wait_past(&shared->delivered, atomic_load(&shared->delivered), "is delivered");
    uint32_t ending = prng_below(prng, 8);
    usleep(prng_below(prng, 400));
    if (ending == 0) {
        end_by_kill(consuming); /* first, so that the producer may die while it recovers */
        atomic_store(&shared->consumer_is_dead, true);
        usleep(prng_below(prng, 60));
        deaths++;
    }
    if (ending == 1)
        atomic_store(&shared->has_to_close, true);
    if (ending == 1)
        end_by_itself(producing);
    else
        end_by_kill(producing);
    atomic_store(&shared->producer_is_gone, ending != 1);
    if (ending == 0) {
        static reader_t reader;
        memset(&reader, 0, sizeof reader);
        attach(&reader);
        CHECK(drain(&reader, false));
    } else {
        end_by_itself(consuming);
    }
    check_what_is_left(deaths, ending == 0);
    totals->consumer_kills += deaths;
    totals->producer_kills += ending != 1;
    totals->published += atomic_load(&shared->published);
    totals->delivered += atomic_load(&shared->delivered);
    rig_free(&rig);
}

int main(int count, char **arguments)
{
    uint64_t consumer_kills = count > 1 ? strtoull(arguments[1], NULL, 0) : 2000;
    uint64_t producer_kills = count > 2 ? strtoull(arguments[2], NULL, 0) : 500;
    prng_t prng = {choose_seed("chaos", count > 3 ? arguments[3] : NULL)};
    totals_t totals = {0};
    shared = shared_memory(sizeof *shared);
    uint32_t per_round = producer_kills == 0
                             ? 8
                             : (uint32_t)((consumer_kills + producer_kills - 1) / producer_kills);
    while (totals.consumer_kills < consumer_kills || totals.producer_kills < producer_kills) {
        set_deadline(120);
        play_round(&prng, per_round, &totals);
    }
    printf("chaos: ok, %llu consumer kills, %llu producer kills, %llu published, %llu delivered, "
           "0 torn, 0 out of order, 0 stalls\n",
           (unsigned long long)totals.consumer_kills, (unsigned long long)totals.producer_kills,
           (unsigned long long)totals.published, (unsigned long long)totals.delivered);
    return 0;
}

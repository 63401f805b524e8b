/* Nonsense in shared memory: every answer must be a status or a record within bounds; no crash, no hang.
 * usage: fuzz [random bits] [seconds with a hostile peer] [seed] */
#include "harness.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEPTH = 4, HAND = 3, RECORD_BYTES = 300, REOPEN_AFTER = 24 };

static rig_t rig;
static uc_producer_t producer;
static uc_consumer_t consumer;
static uc_hands_t hands;
static bool is_attached;
static rig_sleeper_t own;
static volatile uint64_t sink;
static uint64_t answers[32]; /* how often each status came */

/* ---- what is flipped ----------------------------------------------------------------------------- */

typedef struct {
    uint8_t *bytes;
    size_t length;
    const char *name;
} region_t;

/* All that a peer can write of this ring and its lane. */
static int regions(region_t *ret_regions)
{
    const uc_lane_t *lane = &rig.producer;
    int count = 0;
    ret_regions[count++] =
        (region_t){(uint8_t *)uc_lane_ring(lane, 0), sizeof(uc_ring_block_t), "ring block"};
    ret_regions[count++] =
        (region_t){(uint8_t *)uc_lane_answer(lane, 0), sizeof(uc_answer_cell_t), "answer cell"};
    for (uint32_t i = 0; i < DEPTH; i++)
        ret_regions[count++] = (region_t){(uint8_t *)uc_lane_entry(lane, 0, i), 8, "entry"};
    ret_regions[count++] = (region_t){(uint8_t *)&uc_lane_hands(lane)[rig.class_index],
                                      sizeof(uc_hand_row_t), "hand row"};
    ret_regions[count++] =
        (region_t){(uint8_t *)uc_lane_blocks(lane), 4u * rig.geometry.block_count, "block table"};
    ret_regions[count++] =
        (region_t){(uint8_t *)uc_lane_doorbell(lane), sizeof(uc_doorbell_t), "doorbell"};
    ret_regions[count++] = (region_t){(uint8_t *)uc_lane_ticks(lane), RIG_RINGS * 4, "ticks"};
    for (uint32_t i = 0; i < rig.slot_count; i++)
        ret_regions[count++] =
            (region_t){uc_lane_slot(lane, rig.slots[i]), UC_SLOT_HEADER_BYTES, "slot header"};
    return count;
}

static void flip(uint8_t *bytes, uint64_t bit)
{
    uint8_t *byte = bytes + bit / 8;
    __atomic_fetch_xor(byte, (uint8_t)(1u << bit % 8), __ATOMIC_RELAXED);
}

/* ---- both sides at work --------------------------------------------------------------------------- */

static uc_status_t count_answer(uc_status_t status)
{
    CHECK(status < 32);
    answers[status]++;
    return status;
}

static void open_fresh(void)
{
    memset(uc_lane_ring(&rig.producer, 0), 0, sizeof(uc_ring_block_t));
    memset(uc_lane_doorbell(&rig.producer), 0, sizeof(uc_doorbell_t));
    CHECK_EQUAL(
        uc_lane_commit_run(&rig.producer, 0, uc_class_run_blocks(rig.class_index), rig.class_index),
        UC_OK);
    CHECK_EQUAL(uc_producer_open(&rig.producer, 0, 0, DEPTH, UC_DROP_OLDEST, 7, 1000, &producer),
                UC_OK);
    is_attached = false;
    if (uc_producer_install(&producer, rig.slots, DEPTH + 1) != UC_OK)
        return; /* a hostile peer was faster */
    CHECK_EQUAL(uc_lane_deal(&rig.producer, rig.class_index, rig.slots + DEPTH + 1, HAND), UC_OK);
}

static void use_record(const uc_slot_header_t *header, const uint8_t *bytes, uint64_t room)
{
    CHECK(header->length <= room && header->ndim <= UC_NDIM_MAX);
    for (uint32_t i = 0; i < header->length; i++)
        sink += bytes[i];
}

static void consume_some(int records)
{
    static uint8_t copied[SLOT_BYTES_MAX];
    if (!is_attached) {
        memset(&hands, 0, sizeof hands);
        sleeper_make(&own, RIG_RINGS);
        is_attached =
            count_answer(uc_consumer_attach(&rig.consumer, 0, DEPTH, UC_DROP_OLDEST, 7, &consumer))
            == UC_OK;
        if (!is_attached)
            return;
    }
    for (int i = 0; i < records; i++) {
        uc_taken_t taken;
        uc_status_t status = count_answer(uc_consumer_take(&consumer, &hands, i % 8 == 7, &taken));
        if (status == UC_OK) {
            use_record(&taken.header, uc_lane_slot(&rig.consumer, taken.slot) + 128,
                       uc_class_bytes(taken.class_index) - UC_SLOT_HEADER_BYTES);
            (void)uc_answer_caller(&consumer);
            (void)count_answer(
                uc_answer_put(&consumer, taken.header.sequence, 1, &taken.header, 40));
            uc_hands_put(&hands, taken.class_index, taken.slot);
            uc_consumer_consume(&consumer, 1);
        } else if (status == UC_NO_HAND) {
            status = count_answer(
                uc_consumer_take_copy(&consumer, false, copied, RECORD_BYTES * 2, &taken));
            if (status == UC_OK)
                use_record(&taken.header, copied, RECORD_BYTES * 2);
        }
    }
    (void)uc_doorbell_collect(&rig.consumer, &own.sleeper, 0);
    (void)count_answer(uc_doorbell_wait(&rig.consumer, &own.sleeper, 0));
    uc_room_signal(&consumer);
    uint64_t until_ns;
    (void)uc_consumer_is_asked(&consumer, &until_ns);
    if (consumer.state == UC_READER_CORRUPT)
        is_attached = false;
}

static void produce_some(int records, bool is_thorough)
{
    uc_counts_t counts;
    uint32_t slots[DEPTH + 1];
    uint32_t slot_count;
    for (int i = 0; i < records; i++)
        (void)count_answer(publish_record(&producer, (uint64_t)i + 1, RECORD_BYTES));
    uc_doorbell_announce(&rig.producer, 0);
    (void)uc_doorbell_wake(&rig.producer);
    (void)count_answer(uc_producer_room(&producer));
    (void)count_answer(uc_ring_count(&rig.consumer, 0, &counts));
    (void)count_answer(uc_producer_count(&producer, &counts));
    uc_answer_t answer;
    if (count_answer(uc_answer_look(&producer, producer.tail - 1, &answer)) == UC_OK)
        CHECK(answer.length <= UC_ANSWER_BYTES_MAX);
    (void)uc_answer_last(&producer);
    uc_answer_say_caller(&producer, 1);
    if (!is_thorough)
        return;
    (void)count_answer(uc_room_wait(&producer, 1));
    (void)count_answer(uc_answer_wait(&producer, producer.tail - 1, 0, 1000, &answer));
    uc_answer_interrupt(&producer);
    (void)count_answer(uc_producer_reap(&producer));
    (void)count_answer(uc_producer_slots(&producer, slots, &slot_count));
    CHECK(slot_count <= DEPTH + 1);
    for (uint32_t i = 0; i < slot_count; i++)
        CHECK(uc_lane_slot_class(&rig.producer, slots[i]) == rig.class_index);
}

/* ---- the flips ------------------------------------------------------------------------------------ */

static void every_bit_of_the_header_is_missed_when_flipped(void)
{
    static uint8_t header[UC_HEADER_BYTES];
    uc_geometry_t geometry;
    const uc_geometry_t *real = &rig.geometry;
    uint64_t accepted = 0;
    for (uint64_t bit = 0; bit < sizeof(uc_control_header_t) * 8; bit++) {
        memcpy(header, rig.control, sizeof header);
        flip(header, bit);
        CHECK_EQUAL(uc_geometry_check(header, real->control_bytes, real->payload_bytes, &geometry),
                    UC_CORRUPT);
        /* The same from somebody who knows the checksum: nothing out of bounds may be believed. */
        uint32_t crc = uc_crc32(header, offsetof(uc_control_header_t, crc32));
        memcpy(header + offsetof(uc_control_header_t, crc32), &crc, sizeof crc);
        if (uc_geometry_check(header, real->control_bytes, real->payload_bytes, &geometry) != UC_OK)
            continue;
        accepted++;
        CHECK(geometry.control_bytes == real->control_bytes
              && geometry.payload_bytes == real->payload_bytes
              && geometry.entries_offset + geometry.entry_count * UC_ENTRY_STRIDE
                     <= real->control_bytes
              && geometry.record_bytes_max <= UC_RECORD_BYTES_MAX);
    }
    for (uint64_t length = 0; length < UC_HEADER_BYTES; length += 160)
        CHECK_EQUAL(uc_geometry_check(rig.control, length, real->payload_bytes, &geometry),
                    UC_CORRUPT);
    printf("fuzz: header: every flipped bit refused; %llu harmless with the right checksum\n",
           (unsigned long long)accepted);
}

static bool is_checked_field(uint64_t byte)
{
    return byte < offsetof(uc_slot_header_t, kind)
           || (byte >= offsetof(uc_slot_header_t, dtype_bits)
               && byte < offsetof(uc_slot_header_t, token_pos));
}

static void every_bit_of_a_slot_header_is_judged(void)
{
    for (uint64_t bit = 0; bit < UC_SLOT_HEADER_BYTES * 8; bit++)
        for (int copying = 0; copying < 2; copying++) {
            static uint8_t copied[SLOT_BYTES_MAX];
            open_fresh();
            memset(&hands, 0, sizeof hands);
            hands.drawn[rig.class_index] = copying != 0;
            CHECK_EQUAL(uc_consumer_attach(&rig.consumer, 0, DEPTH, UC_DROP_OLDEST, 7, &consumer),
                        UC_OK);
            uint32_t slot = producer.hand;
            CHECK_EQUAL(publish_record(&producer, 1, RECORD_BYTES), UC_OK);
            flip(uc_lane_slot(&rig.producer, slot), bit);
            uc_taken_t taken;
            uc_status_t status = copying != 0 ? uc_consumer_take_copy(&consumer, false, copied,
                                                                      sizeof copied, &taken)
                                              : uc_consumer_take(&consumer, &hands, false, &taken);
            CHECK_EQUAL(status, is_checked_field(bit / 8) ? UC_CORRUPT : UC_OK);
        }
}

static void every_bit_of_control_flipped_once_harms_nobody(void)
{
    region_t all[32 + RIG_SLOTS_MAX];
    int count = regions(all);
    for (int region = 0; region < count; region++)
        for (uint64_t bit = 0; bit < all[region].length * 8; bit++)
            for (int order = 0; order < 2; order++) {
                open_fresh();
                produce_some(DEPTH + 2, false);
                consume_some(2);
                flip(all[region].bytes, bit);
                if (order == 0)
                    consume_some(DEPTH + 1);
                produce_some(DEPTH + 1, true);
                consume_some(DEPTH + 1);
            }
}

static void random_bits_harm_nobody(uint64_t bits, prng_t *prng)
{
    region_t all[32 + RIG_SLOTS_MAX];
    int count = regions(all);
    for (uint64_t i = 0; i < bits; i++) {
        if (i % REOPEN_AFTER == 0)
            open_fresh();
        const region_t *region = &all[prng_below(prng, (uint32_t)count)];
        flip(region->bytes, prng_below(prng, (uint32_t)region->length * 8));
        if (prng_below(prng, 3) == 0)
            consume_some(2);
        if (prng_below(prng, 3) == 0)
            produce_some(2, prng_below(prng, 8) == 0);
    }
}

/* ---- the hostile peer ----------------------------------------------------------------------------- */

static void scribble(uint64_t seed)
{
    region_t all[32 + RIG_SLOTS_MAX];
    int count = regions(all);
    prng_t prng = {seed};
    for (;;) {
        const region_t *region = &all[prng_below(&prng, (uint32_t)count)];
        if (prng_below(&prng, 2) == 0) {
            flip(region->bytes, prng_below(&prng, (uint32_t)region->length * 8));
            continue;
        }
        /* A word that looks right: a near position, any bits, a slot of the lane. */
        uint32_t index = prng_below(&prng, DEPTH);
        uint64_t position = uc_load_relaxed(&uc_lane_ring(&rig.producer, 0)->tail);
        position = position - position % DEPTH + index + prng_below(&prng, 5) * DEPTH - 2 * DEPTH;
        uint64_t bits = prng_next(&prng) & (UC_ENTRY_FULL | UC_ENTRY_EVICTED);
        uc_store_relaxed(uc_lane_entry(&rig.producer, 0, index),
                         uc_entry_pack(position, bits, rig.slots[prng_below(&prng, DEPTH)]));
        if (prng_below(&prng, 16) == 0)
            usleep(1);
    }
}

static void a_peer_that_scribbles_harms_nobody(uint64_t seconds, uint64_t seed)
{
    pid_t hostile = fork_bound();
    if (hostile == 0)
        scribble(seed);
    uint64_t end_ns = uc_monotonic_ns() + seconds * 1000000000ull;
    for (uint64_t lap = 0; uc_monotonic_ns() < end_ns; lap++) {
        open_fresh();
        for (int i = 0; i < 8; i++) {
            if (lap % 3 != 0)
                produce_some(3, i == 7);
            if (lap % 3 != 1)
                consume_some(4);
        }
    }
    kill(hostile, SIGKILL);
    CHECK(waitpid(hostile, NULL, 0) == hostile);
}

int main(int count, char **arguments)
{
    uint64_t bits = count > 1 ? strtoull(arguments[1], NULL, 0) : 1000000;
    uint64_t seconds = count > 2 ? strtoull(arguments[2], NULL, 0) : 2;
    prng_t prng = {choose_seed("fuzz", count > 3 ? arguments[3] : NULL)};
    set_deadline(600);
    rig_make(&rig, RECORD_BYTES, DEPTH + 1 + HAND, HAND);
    every_bit_of_the_header_is_missed_when_flipped();
    every_bit_of_a_slot_header_is_judged();
    every_bit_of_control_flipped_once_harms_nobody();
    random_bits_harm_nobody(bits, &prng);
    a_peer_that_scribbles_harms_nobody(seconds, prng_next(&prng));
    printf("fuzz: ok, %llu random bits; answers: %llu ok, %llu corrupt, %llu empty, %llu end\n",
           (unsigned long long)bits, (unsigned long long)answers[UC_OK],
           (unsigned long long)answers[UC_CORRUPT], (unsigned long long)answers[UC_EMPTY],
           (unsigned long long)answers[UC_END_OF_STREAM]);
    return 0;
}

#define _GNU_SOURCE
#include "harness.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

char replay_hint[256];

void fail(void)
{
    if (replay_hint[0] != '\0')
        fprintf(stderr, "see it again: %s\n", replay_hint);
    fflush(NULL);
    _exit(1);
}

void check_equal(uint64_t left, uint64_t right, const char *text, const char *file, int line)
{
    if (left == right)
        return;
    fprintf(stderr, "%s:%d: %s: %llu and %llu\n", file, line, text, (unsigned long long)left,
            (unsigned long long)right);
    fail();
}

/* ---- random numbers ----------------------------------------------------------------------------- */

uint64_t mix64(uint64_t value)
{
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

uint64_t prng_next(prng_t *prng) { return mix64(prng->state += 0x9e3779b97f4a7c15ull); }

uint32_t prng_below(prng_t *prng, uint32_t limit)
{
    return (uint32_t)((prng_next(prng) >> 32) * limit >> 32);
}

/* ---- the lane ----------------------------------------------------------------------------------- */

/* Guard pages stand on both sides: a read or write out of bounds ends the test. */
enum { GUARD_BYTES = 1 << 16 };

void *shared_memory(size_t size_bytes)
{
    size_t whole_bytes = (size_bytes + 4095) / 4096 * 4096;
    uint8_t *region = mmap(NULL, whole_bytes + 2 * GUARD_BYTES, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(region != MAP_FAILED);
    void *memory = mmap(region + GUARD_BYTES, whole_bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(memory == region + GUARD_BYTES);
    return memory;
}

static void free_shared_memory(void *memory, size_t size_bytes)
{
    size_t whole_bytes = (size_bytes + 4095) / 4096 * 4096;
    munmap((uint8_t *)memory - GUARD_BYTES, whole_bytes + 2 * GUARD_BYTES);
}

pid_t fork_bound(void)
{
    pid_t parent = getpid();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent))
        _exit(3);
    return child;
}

void rig_make(rig_t *rig, uint32_t record_bytes, uint32_t slot_count, uint32_t hand_count)
{
    static const uint8_t lane_id[16] = {1};
    CHECK(slot_count <= RIG_SLOTS_MAX && record_bytes <= RECORD_BYTES_MAX);
    memset(rig, 0, sizeof *rig);
    rig->class_index = uc_class_of((uint64_t)record_bytes + UC_SLOT_HEADER_BYTES);
    uint32_t slot_bytes = uc_class_bytes(rig->class_index);
    uint32_t run_blocks = uc_class_run_blocks(rig->class_index);
    uint32_t run_slots = (run_blocks << UC_BLOCK_SHIFT) / slot_bytes;
    uint32_t run_count = (slot_count + run_slots - 1) / run_slots;
    uint64_t payload_bytes = (uint64_t)run_count * run_blocks << UC_BLOCK_SHIFT;
    CHECK_EQUAL(uc_geometry_measure(RIG_RINGS, RIG_ENTRIES, payload_bytes, RECORD_BYTES_MAX,
                                    &rig->geometry),
                UC_OK);
    rig->control = shared_memory(rig->geometry.control_bytes);
    rig->payload = shared_memory(payload_bytes);
    rig->blocks = calloc(rig->geometry.block_count, sizeof rig->blocks[0]);
    CHECK(rig->blocks != NULL);
    rig->record_bytes = record_bytes;
    rig->hand_count = hand_count;
    uc_geometry_format(&rig->geometry, 1, 1, lane_id, rig->control);
    rig->producer = (uc_lane_t){
        .control = rig->control,
        .payload = rig->payload,
        .blocks = rig->blocks,
        .has_barrier = uc_fence_register(),
        .geometry = rig->geometry,
    };
    rig->consumer = (uc_lane_t){
        .control = rig->control,
        .payload = rig->payload,
        .geometry = rig->geometry,
    };
    for (uint32_t run = 0; run < run_count; run++) {
        uint32_t first_block = run * run_blocks;
        CHECK_EQUAL(uc_lane_commit_run(&rig->producer, first_block, run_blocks, rig->class_index),
                    UC_OK);
        for (uint32_t i = 0; i < run_slots && rig->slot_count < slot_count; i++)
            rig->slots[rig->slot_count++] =
                first_block * (UC_BLOCK_BYTES / UC_UNIT_BYTES) + i * (slot_bytes / UC_UNIT_BYTES);
    }
}

void rig_free(rig_t *rig)
{
    free_shared_memory(rig->control, rig->geometry.control_bytes);
    free_shared_memory(rig->payload, rig->geometry.payload_bytes);
    free(rig->blocks);
}

void rig_open(rig_t *rig, uint32_t queue_depth, uint32_t policy, uint64_t start,
              uc_producer_t *ret_ring)
{
    CHECK_EQUAL(rig->slot_count, queue_depth + 1 + rig->hand_count);
    CHECK_EQUAL(uc_producer_open(&rig->producer, 0, 0, queue_depth, policy, 7, start, ret_ring),
                UC_OK);
    CHECK_EQUAL(uc_producer_install(ret_ring, rig->slots, queue_depth + 1), UC_OK);
    CHECK_EQUAL(uc_lane_deal(&rig->producer, rig->class_index, rig->slots + queue_depth + 1,
                             rig->hand_count),
                UC_OK);
}

void rig_deal_again(rig_t *rig, uc_producer_t *ring)
{
    uint32_t owned[RIG_SLOTS_MAX];
    uint32_t owned_count;
    uint32_t hand[UC_HAND_COUNT];
    uint32_t hand_count = 0;
    CHECK_EQUAL(uc_producer_slots(ring, owned, &owned_count), UC_OK);
    CHECK_EQUAL(owned_count, ring->queue_depth + 1);
    for (uint32_t i = 0; i < rig->slot_count; i++) {
        uint32_t owners = 0;
        for (uint32_t j = 0; j < owned_count; j++)
            owners += owned[j] == rig->slots[i];
        CHECK(owners <= 1);
        if (owners == 0) {
            CHECK(hand_count < rig->hand_count);
            hand[hand_count++] = rig->slots[i];
        }
    }
    CHECK_EQUAL(hand_count, rig->hand_count);
    CHECK_EQUAL(uc_lane_deal(&rig->producer, rig->class_index, hand, hand_count), UC_OK);
}

void sleeper_make(rig_sleeper_t *ret_sleeper, uint32_t ring_limit)
{
    memset(ret_sleeper, 0, sizeof *ret_sleeper);
    ret_sleeper->sleeper.seen = ret_sleeper->seen;
    ret_sleeper->sleeper.pending = ret_sleeper->pending;
    ret_sleeper->sleeper.ring_limit = ring_limit;
}

/* ---- records ------------------------------------------------------------------------------------ */

static uint64_t word_of(uint64_t id, uint32_t index) { return mix64(id) + index * id; }

void record_make(uint64_t id, uint32_t length_max, uc_slot_header_t *ret_header, uint8_t *ret_bytes)
{
    uint32_t length = 1 + (uint32_t)(mix64(id ^ 0x5bd1e995u) % length_max);
    *ret_header = (uc_slot_header_t){
        .length = length,
        .kind = 3,
        .dtype_code = 1,
        .dtype_bits = 8,
        .ndim = 1,
        .shape = {length},
        .token_pos = (int64_t)id,
        .layer = (int32_t)(id & 63),
        .flags = UC_FLAG_IS_GENERATED,
        .timestamp = (double)(id & 0xffffff),
    };
    for (uint32_t offset = 0; offset < length; offset += 8) {
        uint64_t word = word_of(id, offset / 8);
        memcpy(ret_bytes + offset, &word, length - offset < 8 ? length - offset : 8);
    }
}

bool record_is_whole(const uc_slot_header_t *header, const uint8_t *bytes)
{
    uint64_t id = (uint64_t)header->token_pos;
    uint32_t length = header->length;
    if (header->kind != 3 || header->layer != (int32_t)(id & 63) || header->shape[0] != length
        || header->flags != UC_FLAG_IS_GENERATED)
        return false;
    for (uint32_t offset = 0; offset < length; offset += 8) {
        uint64_t word = word_of(id, offset / 8);
        if (memcmp(bytes + offset, &word, length - offset < 8 ? length - offset : 8) != 0)
            return false;
    }
    return true;
}

bool taken_is_whole(const rig_t *rig, const uc_taken_t *taken)
{
    const uint8_t *slot = uc_lane_slot(&rig->consumer, taken->slot);
    return memcmp(slot, &taken->header, sizeof taken->header) == 0
           && record_is_whole(&taken->header, slot + UC_SLOT_HEADER_BYTES);
}

uc_status_t publish_record(uc_producer_t *ring, uint64_t id, uint32_t length_max)
{
    uint8_t bytes[RECORD_BYTES_MAX + 8];
    uc_slot_header_t header;
    record_make(id, length_max, &header, bytes);
    return uc_producer_publish(ring, &header, bytes);
}

uc_counts_t count_at_rest(const rig_t *rig, uc_producer_t *ring)
{
    uc_counts_t seen;
    uc_counts_t known;
    CHECK_EQUAL(uc_ring_count(&rig->consumer, ring->ring_index, &seen), UC_OK);
    CHECK_EQUAL(uc_producer_count(ring, &known), UC_OK);
    CHECK(memcmp(&seen, &known, sizeof seen) == 0);
    return seen;
}

/* ---- processes ---------------------------------------------------------------------------------- */

static void on_deadline(int signal_number)
{
    (void)signal_number;
    static const char text[] = "deadline passed: a side hangs\n";
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    (void)!write(STDERR_FILENO, replay_hint, strlen(replay_hint));
    (void)!write(STDERR_FILENO, "\n", 1);
    _exit(2);
}

void set_deadline(unsigned seconds)
{
    signal(SIGALRM, on_deadline);
    alarm(seconds);
}

uint64_t choose_seed(const char *program, const char *argument)
{
    uint64_t seed = argument != NULL ? strtoull(argument, NULL, 0) : 0;
    if (seed == 0)
        seed = mix64((uint64_t)time(NULL) ^ (uint64_t)getpid() << 32) & 0xffffffffu;
    snprintf(replay_hint, sizeof replay_hint, "tests/native/run.py %s --seed %llu", program,
             (unsigned long long)seed);
    printf("%s: seed %llu\n", program, (unsigned long long)seed);
    fflush(stdout);
    return seed;
}

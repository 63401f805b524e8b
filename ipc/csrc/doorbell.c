/* Sleeping and waking. Linux: the futexes are shared (no FUTEX_PRIVATE_FLAG), the clock is
 * CLOCK_MONOTONIC. The shared state is the truth: each sleep is bounded, so a waker that is killed
 * between its mark and its wake delays the consumer, and never strands it. */
#ifndef __linux__
#error "the doorbell needs Linux futexes"
#endif
#include "ring.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define UC_SPIN_NS 20000ull
#define UC_NAP_NS 200000ull
#define UC_ACTIVE_NS 20000000ull /* naps instead of parking while something came this lately */
#define UC_PARK_NS 1000000000ull
#define UC_BARE_PARK_NS 10000000ull /* without membarrier a wake may be missed: look again soon */
#define UC_ROOM_SPIN_NS 40000ull /* about what a sleep costs, with its wake and cold caches */

/* The pace of records. A spin for an expected one begins at most UC_PACE_LEAD_NS_MAX, or a 16th of
 * the gap and a timer's lateness, before it is due, and ends as long after that. */
#define UC_PACE_GAP_NS_MIN 200000ull /* closer together, a spin or a nap finds them */
#define UC_PACE_GAP_NS_MAX 500000000ull
#define UC_PACE_STEADY_MIN 2u
#define UC_PACE_NAP_NS 500000ull /* fewer naps pay for the spins; off its pace a record waits */
#define UC_PACE_COLD_NS 2000000ull
#define UC_PACE_LEAD_NS_MIN 5000ull
#define UC_PACE_LEAD_NS_MAX 500000ull
#define UC_PACE_WAKE_NS 60000ull /* a timer is about this late, more after a long sleep */

uint64_t uc_monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

bool uc_futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t duration_ns)
{
    struct timespec duration = {
        .tv_sec = (time_t)(duration_ns / 1000000000ull),
        .tv_nsec = (long)(duration_ns % 1000000000ull),
    };
    return syscall(SYS_futex, word, FUTEX_WAIT, value, &duration, NULL, 0) == 0 || errno != EINTR;
}

void uc_futex_wake(_Atomic uint32_t *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* ---- producer ------------------------------------------------------------------------------- */

bool uc_fence_register(void)
{
    return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0u, 0) == 0;
}

/* Wait-free. Producer's thread. Each ring has a tick that only the producer's process writes and
 * nobody clears, so no handshake is needed: a consumer that saw the tick before sees it grow.
 * 2^32 publications between two looks would hide one until the next. */
void uc_doorbell_announce(const uc_lane_t *lane, uint32_t ring_index)
{
    _Atomic uint32_t *tick = &uc_lane_ticks(lane)[ring_index];
    UC_STEP("announce.begin");
    /* SYNC tick: entry and state come first; pairs with the acquire in collect. */
    uc_store_release(tick, uc_load_relaxed(tick) + 1u);
    UC_STEP("announce.ticked");
}

/* Wait-free but for one system call when the consumer is parked. Any thread of the producer's
 * process. */
bool uc_doorbell_wake(const uc_lane_t *lane)
{
    uc_doorbell_t *doorbell = uc_lane_doorbell(lane);
    UC_STEP("wake.begin");
    /* SYNC sleep: the tick is visible before sleep is looked at; pairs with the heavy fence in
     * sleep_once between storing UC_PARKED and the last look. */
    uc_fence_light(lane->has_barrier);
    if (uc_load_relaxed(&doorbell->sleep) != UC_PARKED)
        return false;
    if (uc_exchange_acq_rel(&doorbell->sleep, UC_AWAKE) != UC_PARKED)
        return false; /* another waker, or the consumer itself, was faster */
    UC_STEP("wake.exchanged");
    uc_futex_wake(&doorbell->sleep);
    UC_STEP("wake.done");
    return true;
}

/* Ends a nap or a park. The caller's fence came before. */
static void wake_sleeper(_Atomic uint32_t *sleep)
{
    if (uc_load_relaxed(sleep) != UC_AWAKE && uc_exchange_acq_rel(sleep, UC_AWAKE) != UC_AWAKE)
        uc_futex_wake(sleep);
}

void uc_doorbell_mail(const uc_lane_t *lane)
{
    uc_fetch_add_release(&uc_lane_doorbell(lane)->mail, 1u); /* SYNC mail */
    (void)uc_doorbell_wake(lane);
}

void uc_doorbell_rouse(const uc_lane_t *lane)
{
    /* SYNC sleep: also when the kernel has no barrier for the light fence. Somebody waits, so a nap
     * is ended too. */
    uc_fence_park();
    wake_sleeper(&uc_lane_doorbell(lane)->sleep);
}

/* ---- consumer ------------------------------------------------------------------------------- */

static uint32_t ring_limit(const uc_lane_t *lane, const uc_sleeper_t *sleeper)
{
    uint32_t capacity = lane->geometry.ring_capacity;
    return sleeper->ring_limit < capacity ? sleeper->ring_limit : capacity;
}

/* Wait-free, bounded by 64 rings. Worker's thread. */
uint64_t uc_doorbell_collect(const uc_lane_t *lane, uc_sleeper_t *sleeper, uint32_t word_index)
{
    uint32_t limit = ring_limit(lane, sleeper);
    uint32_t first = word_index * 64u;
    if (first >= limit)
        return 0;
    uint64_t ready = sleeper->pending[word_index];
    sleeper->pending[word_index] = 0;
    for (uint32_t i = first; i < limit && i < first + 64u; i++) {
        uint32_t tick = uc_load_acquire(&uc_lane_ticks(lane)[i]); /* SYNC tick */
        ready |= (uint64_t)(tick != sleeper->seen[i]) << (i - first);
        sleeper->seen[i] = tick;
    }
    return ready;
}

void uc_doorbell_mark(uc_sleeper_t *sleeper, uint32_t ring_index)
{
    sleeper->pending[ring_index / 64u] |= 1ull << ring_index % 64u;
}

static bool has_ready_ring(const uc_lane_t *lane, const uc_sleeper_t *sleeper)
{
    uint32_t limit = ring_limit(lane, sleeper);
    uint32_t difference = 0;
    for (uint32_t i = 0; i < limit; i++)
        difference |= uc_load_relaxed(&uc_lane_ticks(lane)[i]) ^ sleeper->seen[i];
    for (uint32_t word = 0; word * 64u < limit && difference == 0; word++)
        difference |= sleeper->pending[word] != 0;
    return difference != 0;
}

/* UC_OK, UC_INTERRUPTED, or UC_EMPTY. */
static uc_status_t look(const uc_lane_t *lane, uc_sleeper_t *sleeper)
{
    bool is_ready = has_ready_ring(lane, sleeper);
    uint32_t mail = uc_load_acquire(&uc_lane_doorbell(lane)->mail); /* SYNC mail */
    if (mail != sleeper->mail_seen) {
        sleeper->mail_seen = mail;
        is_ready = true;
    }
    if (is_ready)
        return UC_OK;
    if (uc_load_relaxed(&sleeper->is_interrupted) != 0
        && uc_exchange_acq_rel(&sleeper->is_interrupted, 0u) != 0) /* SYNC interrupt */
        return UC_INTERRUPTED;
    return UC_EMPTY;
}

/* The heavy side of the asymmetric fence: a full barrier on every processor that runs a thread of a
 * registered process, then one here. An interrupt to the engine's processor, so only before
 * parking. Whether every producer saw it; if not, the sleep must be short. */
static bool fence_heavy(void)
{
#ifdef UC_PLANT_NO_PARK_FENCE
    return true;
#else
    bool is_done = syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0u, 0) == 0;
    uc_fence_seq_cst();
    return is_done;
#endif
}

/* Announces the sleep, looks a last time, sleeps. The answer is that of the last look. A nap ends
 * by its timer, so no producer looks for it, and only the interrupter's fence is answered. */
static uc_status_t sleep_once(const uc_lane_t *lane, uc_sleeper_t *sleeper, uint32_t depth,
                              uint64_t duration_ns)
{
    _Atomic uint32_t *sleep = &uc_lane_doorbell(lane)->sleep;
    uc_store_relaxed(sleep, depth);
    UC_STEP(depth == UC_PARKED ? "sleep.parked" : "sleep.napping");
    if (depth != UC_PARKED)
        uc_fence_park(); /* SYNC sleep */
    else if (!fence_heavy() && duration_ns > UC_BARE_PARK_NS) /* SYNC sleep */
        duration_ns = UC_BARE_PARK_NS;
    uc_status_t status = look(lane, sleeper);
    if (status == UC_EMPTY && !uc_futex_wait(sleep, depth, duration_ns))
        status = UC_SIGNALLED;
    uc_store_relaxed(sleep, UC_AWAKE);
    UC_STEP("sleep.awake");
    return status;
}

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* ---- the pace of records -------------------------------------------------------------------- */

static uint64_t lead_max(const uc_sleeper_t *sleeper)
{
    return smaller(sleeper->gap_ns / 16u + UC_PACE_WAKE_NS, UC_PACE_LEAD_NS_MAX);
}

void uc_doorbell_arrived(uc_sleeper_t *sleeper, uint32_t ring_index, uint64_t published_ns)
{
    uint64_t gap_ns = published_ns - sleeper->arrival_ns;
    if (!sleeper->is_arrival_open || gap_ns < UC_PACE_GAP_NS_MIN)
        return; /* of the same step as the one before */
    sleeper->is_arrival_open = false;
    sleeper->arrival_ns = published_ns;
    sleeper->arrival_ring = ring_index;
    uint64_t change_ns =
        gap_ns > sleeper->gap_ns ? gap_ns - sleeper->gap_ns : sleeper->gap_ns - gap_ns;
    if (gap_ns <= UC_PACE_GAP_NS_MAX && change_ns <= sleeper->gap_ns / 16u) {
        sleeper->steady_count++;
        sleeper->gap_ns = (7u * sleeper->gap_ns + gap_ns) / 8u;
    } else {
        sleeper->steady_count = 0;
        sleeper->gap_ns = smaller(gap_ns, UC_PACE_GAP_NS_MAX);
        sleeper->lead_ns = lead_max(sleeper) / 2u;
    }
}

/* When to be awake for the next record, and until when; both 0 where no pace is known. */
typedef struct {
    uint64_t begin_ns;
    uint64_t end_ns;
} uc_window_t;

static uc_window_t expect(const uc_sleeper_t *sleeper)
{
    uc_window_t window = {0, 0};
    if (sleeper->steady_count >= UC_PACE_STEADY_MIN && !sleeper->never_naps && !sleeper->is_idle) {
        uint64_t due_ns = sleeper->arrival_ns + sleeper->gap_ns;
        window.begin_ns = due_ns - sleeper->lead_ns;
        window.end_ns = due_ns + sleeper->lead_ns;
    }
    return window;
}

static bool is_within(const uc_window_t *window, uint64_t now_ns)
{
    return now_ns >= window->begin_ns && now_ns < window->end_ns;
}

/* The lead is a quantile of what it has to cover, the timer's lateness and the unevenness of the
 * pace: one record met after a sleep adds as much as sixteen met in a spin take away. */
static void learn(uc_sleeper_t *sleeper, bool was_asleep)
{
    uint64_t most_ns = lead_max(sleeper);
    if (was_asleep)
        sleeper->lead_ns = smaller(sleeper->lead_ns + most_ns / 16u, most_ns);
    else if (sleeper->lead_ns > UC_PACE_LEAD_NS_MIN + most_ns / 256u)
        sleeper->lead_ns -= most_ns / 256u;
}

/* A record is due: once before it, the ring of the last one is called ready, so that its consumer
 * looks at it in vain and has its code in the caches. After a short pause it has that anyhow. */
static bool rehearses(uc_sleeper_t *sleeper)
{
    if (sleeper->gap_ns < UC_PACE_COLD_NS || sleeper->rehearsed_ns == sleeper->arrival_ns)
        return false;
    sleeper->rehearsed_ns = sleeper->arrival_ns;
    sleeper->is_arrival_open = true; /* the record may come before the next wait */
    uc_doorbell_mark(sleeper, sleeper->arrival_ring);
    return true;
}

/* ---- waiting -------------------------------------------------------------------------------- */

/* Nothing is there: spins a moment, or sleeps once. The answer is that of the last look. */
static uc_status_t rest(const uc_lane_t *lane, uc_sleeper_t *sleeper, const uc_window_t *window,
                        uint64_t spin_end_ns, uint64_t now_ns, uint64_t left_ns)
{
    bool is_early = now_ns < window->begin_ns;
    uint64_t early_ns = is_early ? smaller(window->begin_ns - now_ns, UC_PARK_NS) : UC_PARK_NS;
    bool is_active = now_ns - sleeper->last_event_ns < UC_ACTIVE_NS && !sleeper->never_naps;
    if ((is_active && now_ns < spin_end_ns) || is_within(window, now_ns)) {
        uc_pause();
        return UC_EMPTY;
    }
    if (is_early ? early_ns < UC_ACTIVE_NS : is_active) {
        uint64_t nap_ns = is_early ? smaller(early_ns, UC_PACE_NAP_NS) : UC_NAP_NS;
        return sleep_once(lane, sleeper, UC_NAPPING, smaller(nap_ns, left_ns));
    }
    return sleep_once(lane, sleeper, UC_PARKED, smaller(early_ns, left_ns));
}

/* Blocks. Worker's thread, one at a time. */
uc_status_t uc_doorbell_wait(const uc_lane_t *lane, uc_sleeper_t *sleeper, uint64_t deadline_ns)
{
    uint64_t now_ns = uc_monotonic_ns();
    uint64_t spin_end_ns = sleeper->is_idle ? now_ns : now_ns + UC_SPIN_NS;
    uc_window_t window = expect(sleeper);
    bool was_asleep = false;
    for (;;) {
        uc_status_t status = look(lane, sleeper);
        if (status == UC_EMPTY && now_ns >= deadline_ns)
            return UC_TIMEOUT;
        if (status == UC_EMPTY) {
            uint64_t before_ns = now_ns;
            status = rest(lane, sleeper, &window, spin_end_ns, now_ns, deadline_ns - now_ns);
            now_ns = uc_monotonic_ns();
            was_asleep = now_ns - before_ns > UC_PACE_LEAD_NS_MIN;
            if (status == UC_EMPTY && was_asleep && is_within(&window, now_ns)
                && rehearses(sleeper))
                return UC_OK;
            if (status == UC_EMPTY)
                continue;
        }
        if (status == UC_OK) {
            if (is_within(&window, now_ns))
                learn(sleeper, was_asleep);
            sleeper->last_event_ns = now_ns;
            sleeper->is_arrival_open = true;
        }
        return status;
    }
}

void uc_doorbell_set_activity(const uc_lane_t *lane, uint64_t generation)
{
    uc_doorbell_t *doorbell = uc_lane_doorbell(lane);
    uc_store_relaxed(&doorbell->activity_ns, generation == 0 ? 0 : uc_monotonic_ns());
    uc_store_release(&doorbell->activity, generation); /* SYNC activity: its time comes first */
}

void uc_doorbell_activity(const uc_lane_t *lane, uint64_t *ret_generation, uint64_t *ret_since_ns)
{
    const uc_doorbell_t *doorbell = uc_lane_doorbell(lane);
    *ret_generation = uc_load_acquire(&doorbell->activity); /* SYNC activity */
    *ret_since_ns = uc_load_relaxed(&doorbell->activity_ns);
}

void uc_doorbell_interrupt(const uc_lane_t *lane, uc_sleeper_t *sleeper)
{
    uc_doorbell_t *doorbell = uc_lane_doorbell(lane);
    uc_store_release(&sleeper->is_interrupted, 1u); /* SYNC interrupt */
    uc_fence_park();                                /* SYNC sleep */
    wake_sleeper(&doorbell->sleep);
}

/* ---- room ----------------------------------------------------------------------------------- */

/* `ring` is the waiter's own copy: another thread may use the handle meanwhile, and whatever moved
 * counts as room, because the caller tries again. */
static uc_status_t look_for_room(const uc_producer_t *ring)
{
    uc_ring_block_t *block = ring->block;
    if (uc_load_acquire(&block->state) != UC_RING_OPEN) /* SYNC state */
        return UC_CLOSED;
    if (uc_load_relaxed(&block->reader_state) == UC_READER_CORRUPT)
        return UC_CORRUPT;
    uint64_t word = uc_load_acquire(uc_lane_entry(ring->lane, ring->first_entry, ring->index));
    if (uc_entry_distance(word, ring->tail) != -(int64_t)ring->queue_depth) /* SYNC entry */
        return UC_OK;
    return (word & UC_ENTRY_FULL) != 0 ? UC_FULL : UC_OK;
}

/* Blocks, at most slice_ns and a spin. Engine's thread, without the interpreter's lock. */
uc_status_t uc_room_wait(const uc_producer_t *ring, uint64_t slice_ns)
{
    uc_ring_block_t *block = ring->block;
    uint64_t spin_end_ns = uc_monotonic_ns() + smaller(UC_ROOM_SPIN_NS, slice_ns);
    uc_status_t status;
    while ((status = look_for_room(ring)) == UC_FULL && uc_monotonic_ns() < spin_end_ns)
        uc_pause();
    if (status != UC_FULL)
        return status;
    uint32_t room = uc_load_acquire(&block->room); /* SYNC room */
    uc_store_relaxed(&block->producer_waiting, 1u);
    UC_STEP("room.waiting");
    uc_fence_park(); /* SYNC waiting: pairs with the fence in uc_room_signal */
    status = look_for_room(ring);
    if (status == UC_FULL) {
        (void)uc_futex_wait(&block->room, room, slice_ns);
        UC_STEP("room.slept");
        status = look_for_room(ring);
    }
    return status == UC_FULL ? UC_TIMEOUT : status;
}

/* Wait-free but for one system call when a producer waits. Worker's thread. */
void uc_room_signal(const uc_consumer_t *ring)
{
    uc_ring_block_t *block = ring->block;
    UC_STEP("room.begin");
    uc_fence_park(); /* SYNC waiting: the freed entry is visible before the flag is looked at */
    if (uc_load_relaxed(&block->producer_waiting) == 0
        || uc_exchange_acq_rel(&block->producer_waiting, 0u) == 0)
        return;
    uc_fetch_add_release(&block->room, 1u); /* SYNC room */
    UC_STEP("room.grown");
    uc_futex_wake(&block->room);
    UC_STEP("room.woken");
}

void uc_room_interrupt(const uc_producer_t *ring)
{
    uc_fetch_add_release(&ring->block->room, 1u); /* SYNC room */
    uc_futex_wake(&ring->block->room);
}

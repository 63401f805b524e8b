/* Every atomic access of the ring, by name and order. No other file calls <stdatomic.h>.
 *
 * A comment `SYNC label` at each use says what it orders; every label stands on both sides.
 *
 * Three stores can be weakened at compile time. They are planted errors: a check that does not
 * fail with them compiled in has no teeth.
 *   UC_PLANT_PUBLISH_RELAXED  the store or swap that publishes a record is relaxed
 *   UC_PLANT_TAKE_RELAXED     the swap that takes a record is relaxed
 *   UC_PLANT_NO_PARK_FENCE    the fences between "I sleep" and the last look are gone
 */
#ifndef UC_ATOMICS_H
#define UC_ATOMICS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "64-bit atomics take a lock here: no shared memory");
_Static_assert(sizeof(_Atomic uint64_t) == 8 && sizeof(_Atomic uint32_t) == 4, "plain words");

/* A labelled step: a point between two effects on shared memory. Test builds call a hook there,
 * which kills the process at the n-th step. */
#ifdef UC_CRASH_POINTS
extern void uc_step(const char *label);
#define UC_STEP(label) uc_step(label)
#else
#define UC_STEP(label) ((void)0)
#endif

#define uc_load_relaxed(word) atomic_load_explicit((word), memory_order_relaxed)
#define uc_load_acquire(word) atomic_load_explicit((word), memory_order_acquire)
#define uc_store_relaxed(word, value) atomic_store_explicit((word), (value), memory_order_relaxed)
#define uc_store_release(word, value) atomic_store_explicit((word), (value), memory_order_release)
#define uc_exchange_acq_rel(word, value) \
    atomic_exchange_explicit((word), (value), memory_order_acq_rel)
#define uc_fetch_add_release(word, value) \
    atomic_fetch_add_explicit((word), (value), memory_order_release)

#ifdef UC_PLANT_PUBLISH_RELAXED
#define UC_ORDER_PUBLISH memory_order_relaxed
#define UC_ORDER_PUBLISH_FAILED memory_order_relaxed
#define UC_ORDER_PUBLISH_STORE memory_order_relaxed
#else
#define UC_ORDER_PUBLISH memory_order_acq_rel
#define UC_ORDER_PUBLISH_FAILED memory_order_acquire
#define UC_ORDER_PUBLISH_STORE memory_order_release
#endif
#ifdef UC_PLANT_TAKE_RELAXED
#define UC_ORDER_TAKE memory_order_relaxed
#else
#define UC_ORDER_TAKE memory_order_acq_rel
#endif

/* The producer's swap. Release: the bytes of the slot come first. Acquire: the slot it receives
 * was read, or emptied, before it is written again. */
static inline bool uc_cas_publish(_Atomic uint64_t *word, uint64_t *expected, uint64_t desired)
{
    return atomic_compare_exchange_strong_explicit(word, expected, desired, UC_ORDER_PUBLISH,
                                                   UC_ORDER_PUBLISH_FAILED);
}

/* The producer's store into a free word, which nobody else writes. A locked operation there would
 * wait until the streaming stores before it have drained, four times as long as the copy. */
static inline void uc_store_publish(_Atomic uint64_t *word, uint64_t value)
{
    atomic_store_explicit(word, value, UC_ORDER_PUBLISH_STORE);
}

/* The consumer's swap. Acquire: the bytes of the slot it takes are whole. Release: its reads of
 * the slot it leaves are over. */
static inline bool uc_cas_take(_Atomic uint64_t *word, uint64_t *expected, uint64_t desired)
{
    return atomic_compare_exchange_strong_explicit(word, expected, desired, UC_ORDER_TAKE,
                                                   memory_order_relaxed);
}

/* Sequentially consistent fence between a store and a load of two different words. ThreadSanitizer
 * knows no fences; a locked operation on the stack is one for the processor, and silent there. */
static inline void uc_fence_seq_cst(void)
{
#ifdef __SANITIZE_THREAD__
    _Atomic uint32_t word = 0;
    (void)atomic_fetch_add_explicit(&word, 1u, memory_order_seq_cst);
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* The symmetric fences of a sleep handshake (mail, interruption, room): one on each side. */
static inline void uc_fence_park(void)
{
#ifndef UC_PLANT_NO_PARK_FENCE
    uc_fence_seq_cst();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* The asymmetric fence of the doorbell, light side: a store of ours, then a load of `sleep`. Where
 * the process is registered, the consumer's membarrier(2) makes every processor that runs one of
 * its threads execute a full barrier, so that none is needed here but the compiler's. */
static inline void uc_fence_light(bool is_registered)
{
    if (is_registered)
        atomic_signal_fence(memory_order_seq_cst);
    else
        uc_fence_seq_cst();
}

/* Orders what was read before against a later swap (copying take), and the producer's earlier
 * swap against the bytes it writes next. Free on x86-64. */
static inline void uc_fence_acquire(void)
{
#ifndef __SANITIZE_THREAD__
    atomic_thread_fence(memory_order_acquire);
#endif
}

static inline void uc_fence_release(void)
{
#ifndef __SANITIZE_THREAD__
    atomic_thread_fence(memory_order_release);
#endif
}

/* Fetches a line for writing. A word that the other side wrote last costs one transfer then, which
 * goes on beside the copy, and not one to read it and another to own it. The compiler's builtin
 * means prefetchw only where that is enabled; every x86-64 executes it, or skips it. */
static inline void uc_prefetch_write(const volatile void *line)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" ::"m"(*(const volatile char *)line));
#else
    __builtin_prefetch((const void *)line, 1);
#endif
}

static inline void uc_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

#endif

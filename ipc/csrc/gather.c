/* Copying payloads out of slots. They were written past the caches, so the reader waits for memory,
 * and a core asks for more of it at once when it reads several records in turn: eight together take
 * two thirds of the time that eight take one behind the other. */
#include "ring.h"

#include <string.h>

#define UC_COPY_BYTES 64u
#define UC_TOGETHER 8u
#define UC_TOGETHER_MIN \
    4u /* and of longer records: eight of them are more than the caches follow */
#define UC_TOGETHER_BYTES (24u << 10)
#define UC_AHEAD_BYTES 1024u

/* A line is asked for ahead of its turn; an address behind the slot, or behind the mapping, is asked
 * for in vain and harms nothing. All loads of a line come before its stores: a store to an address
 * that is equal in its last twelve bits holds up a load behind it. */
#if defined(__x86_64__)
#include <immintrin.h>

#define UC_WIDE __attribute__((target("avx2")))

static inline UC_WIDE void copy_line(uint8_t *target, const uint8_t *source)
{
    __builtin_prefetch(source + UC_AHEAD_BYTES, 0, 1);
    __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)source);
    __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(source + 32));
    _mm256_storeu_si256((__m256i *)(void *)target, low);
    _mm256_storeu_si256((__m256i *)(void *)(target + 32), high);
}

static inline bool is_wide(void) { return __builtin_cpu_supports("avx2") != 0; }

#else

#define UC_WIDE

static inline void copy_line(uint8_t *target, const uint8_t *source)
{
    __builtin_prefetch(source + UC_AHEAD_BYTES, 0, 1);
    memcpy(target, source, UC_COPY_BYTES);
}

static inline bool is_wide(void) { return true; }

#endif

static UC_WIDE void copy_together(uint8_t *target, const uint8_t *const *sources, size_t count,
                                  size_t length)
{
    size_t done = length / UC_COPY_BYTES * UC_COPY_BYTES;
    for (size_t at = 0; at < done; at += UC_COPY_BYTES)
        for (size_t i = 0; i < count; i++)
            copy_line(target + i * length + at, sources[i] + at);
    for (size_t i = 0; i < count; i++)
        memcpy(target + i * length + done, sources[i] + done, length - done);
}

void uc_gather(uint8_t *target, const uint8_t *const *sources, size_t count, size_t length)
{
    size_t left = count;
    if (length >= UC_STREAM_BYTES_MIN && is_wide()) {
        size_t most = length <= UC_TOGETHER_BYTES ? UC_TOGETHER : UC_TOGETHER_MIN;
        while (left >= UC_TOGETHER_MIN) {
            size_t step = left < most ? left : most;
            copy_together(target + (count - left) * length, sources + (count - left), step, length);
            left -= step;
        }
    }
    for (size_t i = count - left; i < count; i++)
        memcpy(target + i * length, sources[i], length);
}

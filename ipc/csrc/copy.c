/* Filling a slot. Its first byte stands on a 256 B boundary and its size is a multiple of 256 B, so
 * whole cache lines may be written up to the payload's end rounded up. */
#include "ring.h"

#include <string.h>

static inline bool is_streamed(const uc_fill_t *fill)
{
    return fill->header->length >= UC_STREAM_BYTES_MIN && !fill->is_cached;
}

static inline void fill_plain(const uc_fill_t *fill)
{
    memcpy(fill->slot, fill->header, UC_SLOT_HEADER_BYTES);
    memcpy(fill->slot + UC_SLOT_HEADER_BYTES, fill->source, fill->header->length);
}

#if defined(__x86_64__) && !defined(UC_NO_STREAMING)
#include <immintrin.h>

static inline __attribute__((target("avx2"), always_inline)) void
stream_lines(uint8_t *target, const uint8_t *source, size_t line_count)
{
    for (size_t i = 0; i < line_count; i++, source += 64, target += 64) {
        __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)source);
        __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(source + 32));
        _mm256_stream_si256((__m256i *)(void *)target, low);
        _mm256_stream_si256((__m256i *)(void *)(target + 32), high);
    }
}

static inline __attribute__((target("avx2"), always_inline)) void
stream_slot(uint8_t *slot, const uc_slot_header_t *header, const uint8_t *source)
{
    size_t length = header->length;
    size_t line_count = length / 64;
    uint8_t rest[64] = {0};
    stream_lines(slot, (const uint8_t *)header, UC_SLOT_HEADER_BYTES / 64);
    slot += UC_SLOT_HEADER_BYTES;
    stream_lines(slot, source, line_count);
    if (length % 64 != 0) {
        memcpy(rest, source + line_count * 64, length % 64);
        stream_lines(slot + line_count * 64, rest, 1);
    }
}

/* SYNC stream: sfence orders the streaming stores before the stores and swaps in
 * uc_producer_commit that make them visible; the consumer's acquire in uc_consumer_take relies on
 * it. It stands in this function, behind its last store; tests/ipc/test_disassembly.py holds it
 * there. One for all slots: it waits until the stores have drained, which those of the next slot
 * need not. */
static __attribute__((target("avx2"), noinline)) void fill_streaming(const uc_fill_t *fills,
                                                                     uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (is_streamed(&fills[i]))
            stream_slot(fills[i].slot, fills[i].header, fills[i].source);
        else
            fill_plain(&fills[i]);
    }
    _mm_sfence();
}

static inline bool has_streaming(void) { return __builtin_cpu_supports("avx2") != 0; }

#else

static inline bool has_streaming(void) { return false; }

static void fill_streaming(const uc_fill_t *fills, uint32_t count) { (void)fills, (void)count; }

#endif

void uc_slots_fill(const uc_fill_t *fills, uint32_t count)
{
    bool streams = false;
    for (uint32_t i = 0; i < count; i++)
        streams |= is_streamed(&fills[i]);
    if (streams && has_streaming()) {
        fill_streaming(fills, count);
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        fill_plain(&fills[i]);
}

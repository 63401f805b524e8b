/* Filling a slot. Its first byte stands on a 256 B boundary and its size is a multiple of 256 B, so
 * whole cache lines may be written up to the payload's end rounded up. */
#include "ring.h"

#include <string.h>

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

/* SYNC stream: sfence orders the streaming stores before the swap in uc_producer_publish that
 * makes them visible; the consumer's acquire in uc_consumer_take relies on it. It stands in this
 * function, behind its last store; tests/ipc/test_disassembly.py holds it there. */
static __attribute__((target("avx2"), noinline)) void
fill_streaming(uint8_t *slot, const uc_slot_header_t *header, const uint8_t *source)
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
    _mm_sfence();
}

static inline bool has_streaming(void) { return __builtin_cpu_supports("avx2") != 0; }

#else

static inline bool has_streaming(void) { return false; }

static void fill_streaming(uint8_t *slot, const uc_slot_header_t *header, const uint8_t *source)
{
    (void)slot, (void)header, (void)source;
}

#endif

void uc_slot_fill(uint8_t *slot, const uc_slot_header_t *header, const void *source, bool is_cached)
{
    if (header->length >= UC_STREAM_BYTES_MIN && !is_cached && has_streaming()) {
        fill_streaming(slot, header, source);
        return;
    }
    memcpy(slot, header, UC_SLOT_HEADER_BYTES);
    memcpy(slot + UC_SLOT_HEADER_BYTES, source, header->length);
}

/* The bytes two processes share, and the arithmetic on them: layout format 2.0.
 *
 * ../README.md describes the same format in words; tests/ipc/test_layout.py holds the two
 * together. Everything here is little-endian (see UC_BYTE_ORDER); every offset is from the start
 * of its memfd. A lane has two memfds:
 *
 *   control   header | doorbell | ticks | hand table | block table | ring blocks | entries |
 *             answer cells
 *   payload   blocks of 1 MiB, cut into slots; written by the producer, read-only for the consumer
 *
 * Nothing in this file touches shared memory except through values its caller loaded.
 */
#ifndef UC_LAYOUT_H
#define UC_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "atomics.h"

/* ---- constants of the format ---------------------------------------------------------------- */

#define UC_MAGIC 0x0031454e414c4355ull /* "UCLANE1\0" read as a little-endian u64 */
#define UC_BYTE_ORDER 0x01020304u
#define UC_VERSION_MAJOR 2u
#define UC_VERSION_MINOR 1u

#define UC_HEADER_BYTES 4096u
#define UC_LINE_BYTES 128u     /* two cache lines: adjacent-line prefetch would couple them */
#define UC_ENTRY_STRIDE 64u    /* entry words stand one cache line apart */
#define UC_UNIT_BYTES 256u     /* granularity of slot sizes and of slot references */
#define UC_BLOCK_SHIFT 20u
#define UC_BLOCK_BYTES (1u << UC_BLOCK_SHIFT)
#define UC_SLOT_HEADER_BYTES 128u
#define UC_NDIM_MAX 4u
#define UC_HAND_COUNT 16u      /* K: slots of one class in the consumer's hand, at most */
#define UC_HAND_BYTES (4u << 20) /* of large slots fewer are dealt: 4 MiB, but at least 2 */
#define UC_CLASS_COUNT 160u    /* 64 linear classes to 16 KiB, then 8 per octave to 64 MiB */
#define UC_LINEAR_CLASSES 64u
#define UC_RING_CAPACITY_MAX 65536u
#define UC_QUEUE_DEPTH_MAX (1u << 20)
#define UC_RECORD_BYTES_MAX ((64u << 20) - UC_SLOT_HEADER_BYTES)
#define UC_PAYLOAD_BYTES_MAX (1ull << 34) /* 16 GiB: 26 bits of 256 B units */
#define UC_ANSWER_BYTES_MAX 768u /* a longer answer goes another way */

/* ---- the entry word ------------------------------------------------------------------------- *
 *
 *   63                    28   27       26     25            0
 *   | position mod 2^36     | EVICTED | FULL | slot reference |
 *
 * position  the number of the record that stands here (FULL), stood here (taken), or, before the
 *           first lap, `start - depth + i`. It only grows, by depth per lap.
 * EVICTED   this record's publication dropped the unread record of the lap before. Kept by a
 *           take, so that a reader can account for a producer killed right after the swap.
 * FULL      a record waits. Without it the slot is free and belongs to the ring.
 * slot      offset in payload / 256; UC_SLOT_NONE before the ring's slots are reserved.
 */
#define UC_SLOT_BITS 26u
#define UC_SLOT_MASK ((1ull << UC_SLOT_BITS) - 1)
#define UC_SLOT_NONE ((uint32_t)UC_SLOT_MASK)
#define UC_ENTRY_FULL (1ull << 26)
#define UC_ENTRY_EVICTED (1ull << 27)
#define UC_POSITION_SHIFT 28u
#define UC_POSITION_BITS 36u
#define UC_POSITION_MASK ((1ull << UC_POSITION_BITS) - 1)

static inline uint64_t uc_entry_pack(uint64_t position, uint64_t bits, uint32_t slot)
{
    return (position & UC_POSITION_MASK) << UC_POSITION_SHIFT | bits | (slot & UC_SLOT_MASK);
}

static inline uint64_t uc_entry_position(uint64_t word) { return word >> UC_POSITION_SHIFT; }

static inline uint32_t uc_entry_slot(uint64_t word) { return (uint32_t)(word & UC_SLOT_MASK); }

/* Signed distance of the entry's position from a 64-bit position, modulo 2^36. */
static inline int64_t uc_entry_distance(uint64_t word, uint64_t position)
{
    uint64_t difference = (uc_entry_position(word) - position) & UC_POSITION_MASK;
    return (int64_t)(difference << (64u - UC_POSITION_BITS)) >> (64u - UC_POSITION_BITS);
}

/* ---- the progress word ---------------------------------------------------------------------- *
 *
 *   63                24   23                0
 *   | dropped_oldest    | tail mod 2^24       |    one store per publication, after the swap
 */
#define UC_PROGRESS_TAIL_BITS 24u
#define UC_PROGRESS_TAIL_MASK ((1ull << UC_PROGRESS_TAIL_BITS) - 1)
#define UC_DROPPED_OLDEST_MASK ((1ull << 40) - 1)

static inline uint64_t uc_progress_pack(uint64_t dropped_oldest, uint64_t tail)
{
    return dropped_oldest << UC_PROGRESS_TAIL_BITS | (tail & UC_PROGRESS_TAIL_MASK);
}

/* ---- size classes --------------------------------------------------------------------------- *
 * A slot is its 128 B header and its payload. Class i < 64 is (i + 1) * 256 B; above 16 KiB each
 * octave has 8 steps, so at most 12.5 % of a slot is slack. */
static inline uint32_t uc_class_bytes(uint32_t class_index)
{
    if (class_index < UC_LINEAR_CLASSES)
        return (class_index + 1u) * UC_UNIT_BYTES;
    uint32_t step = class_index - UC_LINEAR_CLASSES;
    return (2048u << (step / 8u)) * (9u + step % 8u);
}

/* The smallest class whose slots hold `slot_bytes` (header included); UC_CLASS_COUNT if none. */
static inline uint32_t uc_class_of(uint64_t slot_bytes)
{
    if (slot_bytes <= UC_LINEAR_CLASSES * UC_UNIT_BYTES)
        return slot_bytes == 0 ? 0u : (uint32_t)((slot_bytes - 1u) / UC_UNIT_BYTES);
    uint32_t class_index = UC_LINEAR_CLASSES;
    while (class_index < UC_CLASS_COUNT && uc_class_bytes(class_index) < slot_bytes)
        class_index++;
    return class_index;
}

/* Blocks in one run of a class: the fewest that waste at most 12.5 % at the run's end. */
static inline uint32_t uc_class_run_blocks(uint32_t class_index)
{
    uint64_t slot_bytes = uc_class_bytes(class_index);
    uint64_t blocks = (slot_bytes + UC_BLOCK_BYTES - 1u) / UC_BLOCK_BYTES;
    while (((blocks << UC_BLOCK_SHIFT) % slot_bytes) * 8u > (blocks << UC_BLOCK_SHIFT))
        blocks++; /* ends: at 8 * slot_bytes the remainder cannot exceed an eighth */
    return (uint32_t)blocks;
}

static inline uint32_t uc_class_hand_count(uint32_t class_index)
{
    uint32_t count = UC_HAND_BYTES / uc_class_bytes(class_index);
    return count > UC_HAND_COUNT ? UC_HAND_COUNT : count < 2u ? 2u : count;
}

/* ---- the block word ------------------------------------------------------------------------- *
 *
 *   31      24   23            16   15             8   7            0
 *   | 0        | blocks of the run | index in the run | class + 1    |     0: not committed
 *
 * A run is the blocks that a class's slots are cut from; slots lie end to end from the run's
 * first byte and may cross a block's edge inside the run. */
static inline uint32_t uc_block_pack(uint32_t class_index, uint32_t run_index, uint32_t run_blocks)
{
    return run_blocks << 16 | run_index << 8 | (class_index + 1u);
}

/* The class of a slot reference, judged by the block word of the block its first byte lies in.
 * Returns UC_CLASS_COUNT when the reference is not the start of a whole slot of that run. */
static inline uint32_t uc_slot_class(uint32_t slot, uint32_t block_word, uint32_t block_count)
{
    uint32_t class_index = (block_word & 0xffu) - 1u;
    uint32_t run_index = block_word >> 8 & 0xffu;
    uint32_t run_blocks = block_word >> 16 & 0xffu;
    uint32_t block = slot >> (UC_BLOCK_SHIFT - 8u);
    if (class_index >= UC_CLASS_COUNT || run_index >= run_blocks || run_index > block)
        return UC_CLASS_COUNT;
    uint32_t first_block = block - run_index;
    if (first_block + run_blocks > block_count)
        return UC_CLASS_COUNT;
    uint32_t slot_units = uc_class_bytes(class_index) / UC_UNIT_BYTES;
    uint32_t offset_units = slot - (first_block << (UC_BLOCK_SHIFT - 8u));
    if (offset_units % slot_units != 0
        || offset_units + slot_units > run_blocks << (UC_BLOCK_SHIFT - 8u))
        return UC_CLASS_COUNT;
    return class_index;
}

/* ---- control: the header, offset 0, written once before the fds leave their maker ----------- */
typedef struct {
    uint64_t magic;            /*   0 UC_MAGIC */
    uint32_t byte_order;       /*   8 UC_BYTE_ORDER as stored by the maker */
    uint16_t version_major;    /*  12 differs: refuse */
    uint16_t version_minor;    /*  14 larger: accept, reserved bytes got a meaning */
    uint32_t header_bytes;     /*  16 UC_HEADER_BYTES */
    uint32_t ring_capacity;    /*  20 ring blocks, a multiple of 64 */
    uint64_t control_bytes;    /*  24 size of the control memfd, a multiple of 4096 */
    uint64_t payload_bytes;    /*  32 size of the payload memfd, a multiple of UC_BLOCK_BYTES */
    uint32_t block_bytes;      /*  40 UC_BLOCK_BYTES */
    uint32_t unit_bytes;       /*  44 UC_UNIT_BYTES */
    uint32_t block_count;      /*  48 payload_bytes / block_bytes */
    uint32_t class_count;      /*  52 UC_CLASS_COUNT */
    uint64_t doorbell_offset;  /*  56 uc_doorbell_t */
    uint64_t ticks_offset;     /*  64 u32[ring_capacity]: see doorbell.c */
    uint64_t hands_offset;     /*  72 uc_hand_row_t[class_count] */
    uint64_t blocks_offset;    /*  80 u32[block_count] */
    uint64_t rings_offset;     /*  88 uc_ring_block_t[ring_capacity] */
    uint64_t entries_offset;   /*  96 entry words, UC_ENTRY_STRIDE apart */
    uint64_t entry_count;      /* 104 entry words in the arena, shared out to the rings */
    uint64_t record_bytes_max; /* 112 no record's payload is longer */
    uint64_t answers_offset;   /* 120 uc_answer_cell_t[ring_capacity] */
    uint64_t creator_pid;      /* 128 for people; nothing is decided by it */
    uint64_t creator_start;    /* 136 the same: start time in clock ticks since boot */
    uint8_t lane_id[16];       /* 144 random */
    uint32_t reserved;         /* 160 0 */
    uint32_t crc32;            /* 164 CRC-32 (IEEE 802.3) of bytes 0..163 */
} uc_control_header_t;
_Static_assert(sizeof(uc_control_header_t) == 168, "header");
_Static_assert(offsetof(uc_control_header_t, entries_offset) == 96, "header");
_Static_assert(offsetof(uc_control_header_t, crc32) == 164, "header");

/* ---- control: the doorbell ------------------------------------------------------------------ */
enum { UC_AWAKE = 0, UC_NAPPING = 1, UC_PARKED = 2 };

typedef struct {
    _Atomic uint32_t sleep; /*   0 futex; consumer stores, wakers exchange it to UC_AWAKE */
    uint8_t pad0[124];
    _Atomic uint32_t mail;   /* 128 count of socket frames sent; producer's process */
    _Atomic uint32_t closed; /* 132 1 when the producer closed the lane */
    _Atomic uint32_t epoch;  /* 136 number of the consumer generation; producer's */
    uint8_t pad1[116];
    /* Apart from sleep, which the producer reads at every publication. */
    _Atomic uint64_t activity;    /* 256 generation whose user code runs, 0: none; consumer */
    _Atomic uint64_t activity_ns; /* 264 CLOCK_MONOTONIC of its begin; stored before */
    uint8_t pad2[112];
} uc_doorbell_t;
_Static_assert(sizeof(uc_doorbell_t) == 384, "doorbell");

/* ---- control: the hand table ------------------------------------------------------------------
 * One row per class; the producer deals the slots, then stores count with release. The consumer
 * of the current epoch owns them from then on and never writes the row. */
typedef struct {
    _Atomic uint32_t count;
    uint32_t reserved[15];
    _Atomic uint32_t slots[UC_HAND_COUNT];
} uc_hand_row_t;
_Static_assert(sizeof(uc_hand_row_t) == 128, "hand row");

/* ---- control: one ring ---------------------------------------------------------------------- */
enum { UC_DROP_OLDEST = 0, UC_DROP_NEWEST = 1, UC_BLOCK = 2, UC_POLICY_COUNT = 3 };
enum { UC_RING_FREE = 0, UC_RING_OPEN = 1, UC_RING_CLOSED = 2, UC_RING_CORRUPT = 3 };
enum { UC_READER_NONE = 0, UC_READER_ATTACHED = 1, UC_READER_DETACHED = 2, UC_READER_CORRUPT = 3 };

typedef struct {
    /* line 0: geometry; producer, before state becomes UC_RING_OPEN */
    _Atomic uint64_t generation;  /*   0 names this use of the ring block */
    _Atomic uint64_t start;       /*   8 position of the first record, >= queue_depth */
    _Atomic uint32_t first_entry; /*  16 index of the ring's first word in the entry arena */
    _Atomic uint32_t queue_depth; /*  20 words in the ring, any number from 1 */
    _Atomic uint32_t policy;      /*  24 UC_DROP_OLDEST, UC_DROP_NEWEST or UC_BLOCK */
    uint8_t pad0[100];
    /* line 1: the producer's, one writer */
    _Atomic uint64_t progress;       /* 128 dropped_oldest and tail in one store */
    _Atomic uint64_t tail;           /* 136 position of the next record; a hint, never an end */
    _Atomic uint64_t dropped_newest; /* 144 refused: the ring was full */
    _Atomic uint64_t no_memory;      /* 152 refused: no slot within memory_max */
    _Atomic uint64_t unsupported;    /* 160 refused: no bytes to be had from the payload */
    _Atomic uint64_t too_large;      /* 168 refused: longer than record_bytes_max */
    _Atomic uint64_t block_timeout;  /* 176 refused: waited for room as long as was allowed */
    _Atomic uint64_t lost;           /* 184 taken by a consumer that died before it was done */
    uint8_t pad1[64];
    /* line 2: the producer's, rarely written, read by the consumer */
    _Atomic uint32_t state;            /* 256 UC_RING_… */
    _Atomic uint32_t producer_waiting; /* 260 the producer sleeps, or is about to, on room */
    _Atomic uint64_t drain_until_ns; /* 264 CLOCK_MONOTONIC after which waiting records are left */
    _Atomic uint32_t last_word_asked; /* 272 1: the end is answered in the ring's answer cell */
    uint8_t pad2[108];
    /* line 3: the consumer's */
    _Atomic uint64_t consumed; /* 384 records whose handling has ended */
    _Atomic uint32_t room; /* 392 futex; grows when room was made for a waiter */
    _Atomic uint32_t reader_state; /* 396 UC_READER_… */
    _Atomic uint64_t user[4]; /* 400 counters of the consumer's own meaning; opaque here */
    uint8_t pad3[80];
} uc_ring_block_t;
_Static_assert(sizeof(uc_ring_block_t) == 512, "ring block");
_Static_assert(offsetof(uc_ring_block_t, progress) == 128, "ring block");
_Static_assert(offsetof(uc_ring_block_t, state) == 256, "ring block");
_Static_assert(offsetof(uc_ring_block_t, consumed) == 384, "ring block");

/* ---- control: one answer -----------------------------------------------------------------------
 * What the consumer says about the record it took last, or about the whole stream at its end, for a
 * producer that waits. One cell per ring. `sequence` and `generation` together name what is
 * answered, so that a late answer is nobody else's. */
#define UC_SEQUENCE_END \
    UINT64_MAX /* the end of the stream, where a record's position would stand */

typedef struct {
    /* line 0: the consumer's; the bytes and line 0 come first, then sequence */
    _Atomic uint64_t sequence; /*   0 position of the record that is answered, 0: none yet */
    _Atomic uint64_t generation; /*   8 of the record's ring */
    _Atomic uint32_t length; /*  16 bytes of the answer, at most UC_ANSWER_BYTES_MAX */
    _Atomic uint32_t kind; /*  20 how to read them; opaque here */
    _Atomic uint32_t bell; /*  24 futex; grows when an answer came for a waiter */
    uint8_t pad0[100];
    /* line 1: the producer's */
    _Atomic uint32_t waiting; /* 128 the producer sleeps, or is about to, on bell */
    _Atomic uint32_t caller; /* 132 the processor it waits on, plus 1; 0: it does not say */
    uint8_t pad1[120];
    uint8_t bytes[UC_ANSWER_BYTES_MAX]; /* 256 */
} uc_answer_cell_t;
_Static_assert(sizeof(uc_answer_cell_t) == 1024, "answer cell");
_Static_assert(offsetof(uc_answer_cell_t, waiting) == 128, "answer cell");
_Static_assert(offsetof(uc_answer_cell_t, bytes) == 256, "answer cell");

/* ---- payload: the header of a slot ---------------------------------------------------------- */
enum { UC_FLAG_IS_GENERATED = 1 };
enum { UC_DTYPE_OPAQUE = 255 }; /* dtype_code of bytes without a type; dtype_bits is 8 */

typedef struct {
    uint64_t sequence; /*   0 the record's 64-bit position */
    uint64_t generation; /*   8 the ring's generation */
    uint32_t length; /*  16 payload bytes */
    uint8_t kind; /*  20 what to rebuild; opaque here */
    uint8_t dtype_code; /*  21 DLPack's code: 0 int 1 uint 2 float 4 bfloat 5 complex 6 bool */
    uint8_t dtype_bits; /*  22 bits of one element */
    uint8_t ndim; /*  23 0..4; opaque bytes have 1 */
    uint32_t shape[4]; /*  24 unused dimensions are 0 */
    int64_t token_pos; /*  40 */
    int32_t layer; /*  48 */
    uint32_t flags; /*  52 bit 0: is_generated */
    double timestamp; /*  56 wall clock, seconds */
    uint64_t monotonic_ns; /*  64 CLOCK_MONOTONIC at publication */
    uint8_t trace[16]; /*  72 */
    uint8_t reserved[40]; /*  88 0 */
} uc_slot_header_t;
_Static_assert(sizeof(uc_slot_header_t) == UC_SLOT_HEADER_BYTES, "slot header");
_Static_assert(offsetof(uc_slot_header_t, timestamp) == 56, "slot header");

/* ---- answers -------------------------------------------------------------------------------- */
typedef enum {
    UC_OK = 0,
    UC_FULL = 1, /* no room now */
    UC_EMPTY = 2, /* nothing to take now */
    UC_TIMEOUT = 3, /* the deadline passed, or the bounded number of looks was used up */
    UC_CLOSED = 4, /* you closed it, or this process is a fork of the one that did not */
    UC_PEER_CLOSED = 5, /* the other side closed it */
    UC_PEER_DIED = 6, /* the other side is gone */
    UC_END_OF_STREAM = 7, /* closed or dead, and drained */
    UC_CORRUPT = 8, /* shared memory says what no honest peer can have written */
    UC_INTERRUPTED = 9, /* a waiter was asked to return */
    UC_SIGNALLED = 10, /* a signal came: handle it, then wait again */
    UC_NO_SLOT = 16, /* the slot in hand is missing or too small: reserve, then try again */
    UC_TOO_LARGE = 17, /* longer than record_bytes_max */
    UC_UNSUPPORTED = 18, /* no contiguous bytes of a known type to be had */
    UC_NO_HAND = 19, /* the consumer has no free slot of the class to leave in exchange */
} uc_status_t;

/* ---- geometry: the checked private copy of a header ----------------------------------------- */
typedef struct {
    uint64_t control_bytes;
    uint64_t payload_bytes;
    uint64_t doorbell_offset;
    uint64_t ticks_offset;
    uint64_t hands_offset;
    uint64_t blocks_offset;
    uint64_t rings_offset;
    uint64_t entries_offset;
    uint64_t answers_offset;
    uint64_t entry_count;
    uint64_t record_bytes_max;
    uint32_t ring_capacity;
    uint32_t block_count;
} uc_geometry_t;

/* Computes offsets and sizes from the four free numbers. UC_CORRUPT when one is out of range.
 * Pure; caller: whoever makes a lane. */
uc_status_t uc_geometry_measure(uint32_t ring_capacity, uint64_t entry_count,
                                uint64_t payload_bytes, uint64_t record_bytes_max,
                                uc_geometry_t *ret_geometry);

/* Writes header and doorbell into zeroed control memory of geometry->control_bytes bytes. */
void uc_geometry_format(const uc_geometry_t *geometry, uint64_t creator_pid, uint64_t creator_start,
                        const uint8_t lane_id[16], void *control);

/* Copies the header once, checks magic, order, version, CRC and every number against the sizes of
 * the two mappings. UC_CORRUPT on any mismatch. Wait-free; caller: a consumer that attaches. */
uc_status_t uc_geometry_check(const void *control, uint64_t control_bytes, uint64_t payload_bytes,
                              uc_geometry_t *ret_geometry);

uint32_t uc_crc32(const void *bytes, size_t length);

#endif

/* Geometry of a lane: measured by its maker, checked by whoever attaches. */
#include "layout.h"

#include <string.h>

#define UC_PAGE_BYTES 4096u

uint32_t uc_crc32(const void *bytes, size_t length)
{
    const uint8_t *cursor = bytes;
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < length; i++) {
        crc ^= cursor[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1u)));
    }
    return ~crc;
}

static uint64_t round_up(uint64_t value, uint64_t step) { return (value + step - 1) / step * step; }

uc_status_t uc_geometry_measure(uint32_t ring_capacity, uint64_t entry_count,
                                uint64_t payload_bytes, uint64_t record_bytes_max,
                                uc_geometry_t *ret_geometry)
{
    if (ring_capacity == 0 || ring_capacity > UC_RING_CAPACITY_MAX || ring_capacity % 64 != 0)
        return UC_CORRUPT;
    if (entry_count == 0 || entry_count > UINT32_MAX)
        return UC_CORRUPT;
    if (payload_bytes == 0 || payload_bytes > UC_PAYLOAD_BYTES_MAX
        || payload_bytes % UC_BLOCK_BYTES != 0)
        return UC_CORRUPT;
    if (record_bytes_max == 0 || record_bytes_max > UC_RECORD_BYTES_MAX)
        return UC_CORRUPT;
    uc_geometry_t geometry = {
        .payload_bytes = payload_bytes,
        .entry_count = entry_count,
        .record_bytes_max = record_bytes_max,
        .ring_capacity = ring_capacity,
        .block_count = (uint32_t)(payload_bytes / UC_BLOCK_BYTES),
        .doorbell_offset = UC_HEADER_BYTES,
        .ticks_offset = UC_HEADER_BYTES + sizeof(uc_doorbell_t),
    };
    uint64_t end = geometry.ticks_offset + (uint64_t)ring_capacity * 4u;
    geometry.hands_offset = round_up(end, UC_LINE_BYTES);
    end = geometry.hands_offset + UC_CLASS_COUNT * sizeof(uc_hand_row_t);
    geometry.blocks_offset = round_up(end, UC_LINE_BYTES);
    end = geometry.blocks_offset + (uint64_t)geometry.block_count * 4u;
    geometry.rings_offset = round_up(end, UC_PAGE_BYTES);
    end = geometry.rings_offset + (uint64_t)ring_capacity * sizeof(uc_ring_block_t);
    geometry.entries_offset = round_up(end, UC_PAGE_BYTES);
    end = geometry.entries_offset + entry_count * UC_ENTRY_STRIDE;
    geometry.answers_offset = round_up(end, UC_PAGE_BYTES);
    end = geometry.answers_offset + (uint64_t)ring_capacity * sizeof(uc_answer_cell_t);
    geometry.control_bytes = round_up(end, UC_PAGE_BYTES);
    *ret_geometry = geometry;
    return UC_OK;
}

void uc_geometry_format(const uc_geometry_t *geometry, uint64_t creator_pid, uint64_t creator_start,
                        const uint8_t lane_id[16], void *control)
{
    uc_control_header_t header = {
        .magic = UC_MAGIC,
        .byte_order = UC_BYTE_ORDER,
        .version_major = UC_VERSION_MAJOR,
        .version_minor = UC_VERSION_MINOR,
        .header_bytes = UC_HEADER_BYTES,
        .ring_capacity = geometry->ring_capacity,
        .control_bytes = geometry->control_bytes,
        .payload_bytes = geometry->payload_bytes,
        .block_bytes = UC_BLOCK_BYTES,
        .unit_bytes = UC_UNIT_BYTES,
        .block_count = geometry->block_count,
        .class_count = UC_CLASS_COUNT,
        .doorbell_offset = geometry->doorbell_offset,
        .ticks_offset = geometry->ticks_offset,
        .hands_offset = geometry->hands_offset,
        .blocks_offset = geometry->blocks_offset,
        .rings_offset = geometry->rings_offset,
        .entries_offset = geometry->entries_offset,
        .entry_count = geometry->entry_count,
        .record_bytes_max = geometry->record_bytes_max,
        .answers_offset = geometry->answers_offset,
        .creator_pid = creator_pid,
        .creator_start = creator_start,
    };
    memcpy(header.lane_id, lane_id, sizeof header.lane_id);
    header.crc32 = uc_crc32(&header, offsetof(uc_control_header_t, crc32));
    memcpy(control, &header, sizeof header);
}

static bool geometry_equals_header(const uc_geometry_t *geometry, const uc_control_header_t *header)
{
    return header->control_bytes == geometry->control_bytes
           && header->block_count == geometry->block_count
           && header->doorbell_offset == geometry->doorbell_offset
           && header->ticks_offset == geometry->ticks_offset
           && header->hands_offset == geometry->hands_offset
           && header->blocks_offset == geometry->blocks_offset
           && header->rings_offset == geometry->rings_offset
           && header->entries_offset == geometry->entries_offset
           && header->answers_offset == geometry->answers_offset;
}

uc_status_t uc_geometry_check(const void *control, uint64_t control_bytes, uint64_t payload_bytes,
                              uc_geometry_t *ret_geometry)
{
    uc_control_header_t header;
    if (control_bytes < UC_HEADER_BYTES)
        return UC_CORRUPT;
    memcpy(&header, control, sizeof header);
    if (header.magic != UC_MAGIC || header.byte_order != UC_BYTE_ORDER
        || header.version_major != UC_VERSION_MAJOR || header.header_bytes != UC_HEADER_BYTES
        || header.crc32 != uc_crc32(&header, offsetof(uc_control_header_t, crc32)))
        return UC_CORRUPT;
    if (header.block_bytes != UC_BLOCK_BYTES || header.unit_bytes != UC_UNIT_BYTES
        || header.class_count != UC_CLASS_COUNT)
        return UC_CORRUPT;
    if (header.control_bytes != control_bytes || header.payload_bytes != payload_bytes)
        return UC_CORRUPT;
    /* The offsets follow from four numbers; a header that says otherwise is refused, so that no
     * offset is ever taken from it. */
    uc_geometry_t geometry;
    if (uc_geometry_measure(header.ring_capacity, header.entry_count, header.payload_bytes,
                            header.record_bytes_max, &geometry)
            != UC_OK
        || !geometry_equals_header(&geometry, &header))
        return UC_CORRUPT;
    *ret_geometry = geometry;
    return UC_OK;
}

/* Bytes of the disk tier's files, little endian; see kv_disk_internal.h. Decoding takes any bytes. */
#include "kv_disk_internal.h"

#include <xxhash.h>

#define RECORD_MAGIC   0x52564B48U /* "HKVR" */
#define LINEAGE_MAGIC  0x4C564B48U /* "HKVL" */
#define RECORD_BLOCK   1U
#define RECORD_SUMMED  656 /* bytes of a record header that its checksum covers */
#define FILE_SUMMED    112
#define LINEAGE_SUMMED 112

static const char magics[2][9] = {"HearthKV", "HearthKE"};
static const char index_magic[] = "HearthKX";

void disk_checksum(const void *data, size_t bytes, uint8_t out[DISK_CHECKSUM_BYTES]) {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, bytes));
    memcpy(out, canonical.digest, DISK_CHECKSUM_BYTES);
}

static bool checksum_holds(struct view bytes, size_t summed) {
    uint8_t sum[DISK_CHECKSUM_BYTES];
    if (bytes.length < summed + sizeof sum) {
        return false;
    }
    disk_checksum(bytes.data, summed, sum);
    return memcmp(sum, bytes.data + summed, sizeof sum) == 0;
}

static void put_u32(uint8_t *out, uint32_t value) {
    for (unsigned i = 0; i < 4; i++) {
        out[i] = (uint8_t)(value >> (8 * i));
    }
}

static void put_u64(uint8_t *out, uint64_t value) {
    put_u32(out, (uint32_t)value);
    put_u32(out + 4, (uint32_t)(value >> 32));
}

static uint32_t get_u32(const uint8_t *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

static uint64_t get_u64(const uint8_t *bytes) {
    return get_u32(bytes) | (uint64_t)get_u32(bytes + 4) << 32;
}

/* ---- files ---------------------------------------------------------------------------------- */

void disk_file_header_encode(const struct disk_file_header *header, uint8_t *bytes) {
    memset(bytes, 0, FILE_SUMMED + DISK_CHECKSUM_BYTES);
    memcpy(bytes, magics[header->kind], 8);
    put_u32(bytes + 8, DISK_FORMAT);
    put_u32(bytes + 12, header->number);
    memcpy(bytes + 16, header->root.bytes, 32);
    put_u64(bytes + 48, header->block_bytes);
    put_u64(bytes + 56, header->stride);
    put_u64(bytes + 64, (uint64_t)header->created_ms);
    put_u64(bytes + 72, header->nonce);
    put_u32(bytes + 80, header->lineages);
    put_u32(bytes + 84, header->records);
    disk_checksum(bytes, FILE_SUMMED, bytes + FILE_SUMMED);
}

bool disk_file_header_decode(struct view bytes, struct disk_file_header *out) {
    struct disk_file_header header = {0};
    if (!checksum_holds(bytes, FILE_SUMMED)) {
        return false;
    }
    if (memcmp(bytes.data, magics[DISK_FILE_EXPORT], 8) == 0) {
        header.kind = DISK_FILE_EXPORT;
    } else if (memcmp(bytes.data, magics[DISK_FILE_SEGMENT], 8) != 0) {
        return false;
    }
    header.version = get_u32(bytes.data + 8);
    if (header.version == DISK_FORMAT) {
        header.number = get_u32(bytes.data + 12);
        memcpy(header.root.bytes, bytes.data + 16, 32);
        header.block_bytes = get_u64(bytes.data + 48);
        header.stride = get_u64(bytes.data + 56);
        header.created_ms = (int64_t)get_u64(bytes.data + 64);
        header.nonce = get_u64(bytes.data + 72);
        header.lineages = get_u32(bytes.data + 80);
        header.records = get_u32(bytes.data + 84);
        if (header.block_bytes == 0 || header.block_bytes > KV_DISK_BLOCK_BYTES_MAX ||
            header.stride != kv_disk_stride((size_t)header.block_bytes)) {
            return false;
        }
    }
    memcpy(header.stamp, bytes.data + FILE_SUMMED, sizeof header.stamp);
    *out = header;
    return true;
}

/* ---- records -------------------------------------------------------------------------------- */

void disk_record_encode(const struct disk_record_header *header, uint8_t *bytes) {
    memset(bytes, 0, KV_DISK_HEADER_BYTES);
    put_u32(bytes, RECORD_MAGIC);
    put_u32(bytes + 4, RECORD_BLOCK);
    put_u64(bytes + 8, header->block_bytes);
    put_u64(bytes + 16, (uint64_t)header->created_ms);
    memcpy(bytes + 32, header->key.bytes, 32);
    memcpy(bytes + 64, header->parent.bytes, 32);
    memcpy(bytes + 96, header->lineage.bytes, 32);
    for (size_t i = 0; i < KV_BLOCK_TOKENS; i++) {
        put_u32(bytes + 128 + 4 * i, (uint32_t)header->tokens[i]);
    }
    memcpy(bytes + 640, header->checksum, DISK_CHECKSUM_BYTES);
    disk_checksum(bytes, RECORD_SUMMED, bytes + RECORD_SUMMED);
}

static bool is_zero(const uint8_t *bytes, size_t count) {
    return count == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0);
}

enum disk_slot
disk_record_decode(struct view bytes, uint64_t block_bytes, struct disk_record_header *out) {
    struct disk_record_header header = {0};
    if (bytes.length < KV_DISK_HEADER_BYTES || !checksum_holds(bytes, RECORD_SUMMED) ||
        get_u32(bytes.data) != RECORD_MAGIC || get_u32(bytes.data + 4) != RECORD_BLOCK ||
        get_u64(bytes.data + 8) != block_bytes) {
        return is_zero(bytes.data, bytes.length) ? DISK_SLOT_HOLE : DISK_SLOT_DAMAGED;
    }
    header.block_bytes = block_bytes;
    header.created_ms = (int64_t)get_u64(bytes.data + 16);
    memcpy(header.key.bytes, bytes.data + 32, 32);
    memcpy(header.parent.bytes, bytes.data + 64, 32);
    memcpy(header.lineage.bytes, bytes.data + 96, 32);
    for (size_t i = 0; i < KV_BLOCK_TOKENS; i++) {
        header.tokens[i] = (int32_t)get_u32(bytes.data + 128 + 4 * i);
    }
    memcpy(header.checksum, bytes.data + 640, DISK_CHECKSUM_BYTES);
    *out = header;
    return DISK_SLOT_RECORD;
}

bool disk_record_key_holds(const struct disk_record_header *header) {
    struct kv_key key;
    kv_key_make(&header->parent, &header->lineage, header->tokens, &key);
    return kv_key_equals(&key, &header->key);
}

/* ---- lineages ------------------------------------------------------------------------------- */

void disk_lineage_encode(const struct disk_lineage *lineage, uint8_t bytes[DISK_LINEAGE_BYTES]) {
    memset(bytes, 0, DISK_LINEAGE_BYTES);
    put_u32(bytes, LINEAGE_MAGIC);
    put_u32(bytes + 4, (uint32_t)lineage->position);
    memcpy(bytes + 16, lineage->child.bytes, 32);
    memcpy(bytes + 48, lineage->parent.bytes, 32);
    disk_checksum(bytes, LINEAGE_SUMMED, bytes + LINEAGE_SUMMED);
}

bool disk_lineage_decode(struct view bytes, struct disk_lineage *out) {
    struct disk_lineage lineage = {0};
    if (bytes.length < DISK_LINEAGE_BYTES || !checksum_holds(bytes, LINEAGE_SUMMED) ||
        get_u32(bytes.data) != LINEAGE_MAGIC || get_u32(bytes.data + 4) > INT32_MAX) {
        return false;
    }
    lineage.position = (int32_t)get_u32(bytes.data + 4);
    memcpy(lineage.child.bytes, bytes.data + 16, 32);
    memcpy(lineage.parent.bytes, bytes.data + 48, 32);
    struct kv_lineage derived;
    kv_lineage_replay(&lineage.parent, lineage.position, &derived);
    if (!kv_lineage_equals(&derived, &lineage.child)) {
        return false;
    }
    *out = lineage;
    return true;
}

/* ---- index files ---------------------------------------------------------------------------- */

void disk_index_header_encode(const struct disk_index_header *header, uint8_t *bytes) {
    memset(bytes, 0, DISK_INDEX_HEADER);
    memcpy(bytes, index_magic, 8);
    put_u32(bytes + 8, DISK_FORMAT);
    put_u32(bytes + 12, header->slots);
    put_u32(bytes + 16, header->count);
    memcpy(bytes + 32, header->stamp, DISK_CHECKSUM_BYTES);
}

void disk_index_entry_encode(const struct disk_index_entry *entry, uint8_t *bytes) {
    memset(bytes, 0, DISK_INDEX_ENTRY);
    memcpy(bytes, entry->key.bytes, 32);
    memcpy(bytes + 32, entry->parent.bytes, 32);
    memcpy(bytes + 64, entry->lineage.bytes, 32);
    put_u32(bytes + 96, entry->slot);
    put_u64(bytes + 104, (uint64_t)entry->created_ms);
    put_u64(bytes + 112, (uint64_t)entry->used_ms);
}

void disk_index_entry_get(struct view file, uint32_t at, struct disk_index_entry *out) {
    size_t offset = DISK_INDEX_HEADER + (size_t)DISK_INDEX_ENTRY * at;
    ASSERT(file.length >= DISK_INDEX_ENTRY && offset <= file.length - DISK_INDEX_ENTRY);
    const uint8_t *bytes = file.data + offset;
    memcpy(out->key.bytes, bytes, 32);
    memcpy(out->parent.bytes, bytes + 32, 32);
    memcpy(out->lineage.bytes, bytes + 64, 32);
    out->slot = get_u32(bytes + 96);
    out->created_ms = (int64_t)get_u64(bytes + 104);
    out->used_ms = (int64_t)get_u64(bytes + 112);
}

bool disk_index_check(struct view file, struct disk_index_header *out) {
    struct disk_index_header header = {0};
    if (file.length < DISK_INDEX_HEADER + DISK_CHECKSUM_BYTES ||
        memcmp(file.data, index_magic, 8) != 0 || get_u32(file.data + 8) != DISK_FORMAT) {
        return false;
    }
    header.slots = get_u32(file.data + 12);
    header.count = get_u32(file.data + 16);
    memcpy(header.stamp, file.data + 32, DISK_CHECKSUM_BYTES);
    size_t summed = DISK_INDEX_HEADER + (size_t)DISK_INDEX_ENTRY * header.count;
    if (header.slots > DISK_SEGMENT_SLOTS_MAX || header.count > header.slots ||
        file.length != summed + DISK_CHECKSUM_BYTES || !checksum_holds(file, summed)) {
        return false;
    }
    for (uint32_t i = 0; i < header.count; i++) {
        uint32_t slot = get_u32(file.data + DISK_INDEX_HEADER + (size_t)DISK_INDEX_ENTRY * i + 96);
        uint32_t before =
            i == 0
                ? 0
                : get_u32(file.data + DISK_INDEX_HEADER + (size_t)DISK_INDEX_ENTRY * (i - 1) + 96);
        if (slot >= header.slots || (i > 0 && slot <= before)) {
            return false;
        }
    }
    *out = header;
    return true;
}

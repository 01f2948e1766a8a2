/* The op table of one instruction set. */
#include "lanes.h"

#include "cpu.h"

void LANES(cpu_fill_table)(struct backend *backend) {
    backend->embed = LANES(cpu_embed);
    backend->stream_mix = LANES(cpu_stream_mix);
    backend->stream_collapse = LANES(cpu_stream_collapse);
    backend->stream_update = LANES(cpu_stream_update);
    backend->norm = LANES(cpu_norm);
    backend->quantize = LANES(cpu_quantize);
    backend->linear = LANES(cpu_linear);
    backend->rope_table = LANES(cpu_rope_table);
    backend->rotate = LANES(cpu_rotate);
    backend->window_pack = LANES(cpu_window_pack);
    backend->window_commit = LANES(cpu_window_commit);
    backend->compress_pool = LANES(cpu_compress_pool);
    backend->entry_store = LANES(cpu_entry_store);
    backend->index_quantize = LANES(cpu_index_quantize);
    backend->index_select = LANES(cpu_index_select);
    backend->attention = LANES(cpu_attention);
    backend->route = LANES(cpu_route);
    backend->experts = LANES(cpu_experts);
    backend->engram_gather = LANES(cpu_engram_gather);
    backend->engram_gate = LANES(cpu_engram_gate);
    backend->keep_rows = LANES(cpu_keep_rows);
}

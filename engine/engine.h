/* The engine as the rest of Hearth sees it: tokens in, tokens out.
 *
 * One engine thread owns the backend, the caches and the scheduler. Callers post commands into a
 * bounded queue and take events from another; `wake` is called (from the engine thread) when the
 * event queue becomes non-empty, and must only signal. The engine knows no loop, no network and no
 * files but the model's.
 *
 * A sequence is a context that stays warm: it grows by the ids a caller appends and by the ids the
 * engine samples. Thread: every function may be called from any one caller thread unless it says
 * otherwise.
 */
#ifndef HEARTH_ENGINE_ENGINE_H
#define HEARTH_ENGINE_ENGINE_H

#include "base/bytes.h"
#include "base/clock.h"
#include "guard.h"
#include "sampling.h"
#include "stop.h"

struct constraint;
struct engine;
struct grammar_vocabulary;
struct tokenizer;
struct chat_wording;

enum window_mode {
    WINDOW_EXACT, /* decoder layers run need(l) trailing rows: the last row is exact (default) */
    WINDOW_REPLAY /* decoder layers run the last W prompt rows only: approximate, and said so */
};

/* Content that depends on windows which were not exact. A replay of the encoder at H restarted its rows
 * at H - W with empty windows; one of the decoder at N ran decoder rows from N - W on only. */
enum window_replay_kind { WINDOW_REPLAY_ENCODER, WINDOW_REPLAY_DECODER };
struct window_replay {
    enum window_replay_kind kind;
    int32_t position;
};
/* A sequence with as many replays reuses exact content only. */
#define ENGINE_REPLAYS_MAX 64
/* Text of a list, as records keep it: "encoder@256 decoder@1800"; "" for none. Any thread.
 * Expected errors of parse: CORRUPT (naming what is wrong), LIMIT (more than capacity). */
MUST_CHECK result window_replays_format(
    const struct window_replay *replays, int32_t count, struct buffer *out, struct error *error
);
MUST_CHECK result window_replays_parse(
    struct view text,
    struct window_replay *out,
    int32_t capacity,
    int32_t *count,
    struct error *error
);

/* The device that the backend "cuda" would use. */
struct engine_device {
    char description[64]; /* "NVIDIA H200, sm_90, driver 13.0" */
    uint64_t memory_total, memory_free;
};

/* Looks for it without opening it. Expected errors: NOT_FOUND (nothing to use here: not built, its
 * library not beside the program, no driver, no device), UNSUPPORTED (what is here cannot be used). */
MUST_CHECK result engine_device_find(struct engine_device *out, struct error *error);

struct engine_options {
    const char *model_directory;
    /* Null: "cpu"; "cuda"; "auto": cuda when there is a device that can be used and the plan fits it,
     * else cpu. */
    const char *backend;
    const char *isa;       /* null: best of this machine; "plain", "avx2", "avx512" */
    int32_t threads;       /* 0: one per available core */
    int32_t context_max;   /* tokens per sequence; 0: the model's max_position_embeddings */
    int32_t sequences_max; /* live sequences; 0: 4 */
    /* Of these, how many can run at a time: each takes window_bytes_per_sequence. Others wait, or are
     * parked in the snapshot pool when a more urgent one comes. 0: sequences_max. */
    int32_t windows_max;
    /* Blocks of live sequences, in tokens. 0: sequences_max contexts of context_max. With fewer, a
     * generation starts once its prompt and tokens_max are promised blocks; until then it waits for
     * others to end. Sequences that do not run give their blocks back to one that waits, the least
     * valuable first: what they hold is cached, and found or computed again when they go on. */
    int64_t kv_tokens_max;
    int32_t step_rows_max; /* largest token budget of one step; 0: chosen by the backend */
    uint64_t
        memory_max; /* host memory beside the mapped weights; 0: 80 % of what is available now */
    uint64_t
        device_memory_max; /* of a device: weights and all; 0: what is free now, less a reserve */
    /* The KV store. Content that is cached is found by every sequence, and after a restart. */
    const char *cache_directory;     /* of the disk tier; null: none */
    uint64_t cache_disk_bytes;       /* 0: 16 GiB, at most a quarter of the free space */
    uint64_t cache_write_bytes_hour; /* written per hour at most; 0: 8 GiB */
    int64_t cache_lifetime_ms;       /* on disk; 0: 72 hours */
    uint64_t cache_memory_bytes;     /* blocks beside those that live sequences need; 0: default */
    uint64_t cache_host_bytes;       /* pool of evicted blocks in host memory; 0: none */
    uint64_t snapshot_bytes;         /* pool of window snapshots; 0: default */
    bool has_no_prefix_cache;        /* for measurements: every sequence starts cold */
    bool has_no_speculation;         /* no request drafts, whatever it asks for */
    struct clock clock;              /* zero: the machine's; tests may set it */
    void (*wake)(void *context);     /* null: the caller polls */
    void *wake_context;
};

/* What would be allocated and mapped, from headers alone: printed before loading. */
struct engine_plan {
    const char *backend; /* static: "cpu", "cuda" */
    char
        backend_note[256]; /* asked for "auto": why the device that is there is not used; else "" */
    /* With a backend that has memory of its own; else 0. */
    bool has_device;
    bool has_host_tables;         /* Engram tables do not fit and lie in host memory */
    uint64_t device_weight_bytes; /* without tables in host memory */
    uint64_t device_bytes;        /* weights, blocks, windows, scratch: all that lies there */
    uint64_t device_memory_max;
    uint64_t host_table_bytes;
    uint64_t weights_mapped; /* bytes of mapped files; with a device, only while they are copied */
    uint64_t kv_bytes_per_token; /* as allocated: block bytes / 128 */
    uint64_t kv_pool_bytes;
    uint64_t window_bytes_per_sequence;
    uint64_t cache_pool_bytes; /* of kv_pool_bytes: blocks beside those of live sequences */
    uint64_t snapshot_bytes;
    uint64_t prefix_bytes; /* tree of cached blocks */
    uint64_t other_bytes;  /* windows of live sequences, tables of blocks */
    uint64_t host_bytes;   /* pool in host memory */
    uint64_t tier_bytes;   /* buffers of the tiers: queue to disk, batches that are read */
    uint64_t scratch_bytes;
    uint64_t total_beside_weights; /* kv_pool, snapshot, prefix, other, host, tier, scratch */
    uint64_t memory_max;           /* for what of it lies in host memory, and host tables */
    /* What one decoded token reads of the weights and multiplies with them (routed experts by their
     * share, no embedding and Engram tables), and the head's part of the multiplications. */
    uint64_t token_weight_bytes, token_multiplies, head_multiplies;
    int32_t context_max, sequences_max, step_rows_max, threads;
    int32_t windows_max;
    int64_t kv_tokens_max; /* that live sequences may hold together, whole blocks */
    bool
        has_draft_stages; /* makes drafts with the model's stages: windows and scratch hold theirs */
    int32_t drafted_rows_max; /* rows of sequences with drafts in one step; 0: no speculation */
};

/* Expected errors: those of opening a model; LIMIT when it does not fit, naming the shortfall. */
MUST_CHECK result engine_plan_make(
    const struct engine_options *options, struct engine_plan *out, struct error *error
);

/* Loads the model and starts the engine thread. Expected errors: NOT_FOUND, CORRUPT, UNSUPPORTED,
 * INVALID_INPUT, LIMIT, MEMORY. */
MUST_CHECK result
engine_open(const struct engine_options *options, struct engine **out, struct error *error);
/* Cancels everything, joins the thread. */
void engine_close(struct engine *engine);

struct engine_info {
    char model_name[128];  /* last part of the directory's path */
    char model_digest[65]; /* hex */
    char backend[64];      /* "cpu avx512, 2 threads" */
    char
        backend_note[256]; /* asked for "auto": why the device that is there is not used; else "" */
    char transfer_note[256]; /* why logits come by way of memory that is not pinned; else "" */
    char root_lineage[65];   /* hash(model digest, backend, numerics version, block layout) */
    uint32_t numerics;
    int32_t vocabulary, context_max, eos_id;
    uint64_t kv_bytes_per_token;
};
void engine_get_info(const struct engine *engine, struct engine_info *out);
const struct tokenizer *engine_tokenizer(const struct engine *engine); /* borrowed */
/* Borrowed; null when the model's directory has no wording: it then runs on token ids only. */
const struct chat_wording *engine_wording(const struct engine *engine);

/* For constraint_create; made when it is first asked for, which takes a moment. Borrowed. Expected
 * errors: MEMORY, those of grammar_vocabulary_create. */
MUST_CHECK result engine_vocabulary(
    struct engine *engine, const struct grammar_vocabulary **out, struct error *error
);

/* generation_config.json of the model, else temperature 1.0 and top_p 0.95. */
void engine_default_sampling(const struct engine *engine, struct sampling *out);

/* An empty context. What is cached of its first prompt is found when that is generated from.
 * Expected errors: LIMIT (all sequences_max in use, with the number). */
MUST_CHECK result engine_sequence_create(struct engine *engine, uint64_t *out, struct error *error);
/* A sequence that goes on from the last finished generation as the parent would: same tokens, caches
 * and kept logits, so that its next generation reuses all that the parent had evaluated (window
 * source "live"); of a parent that gave its blocks back while it did not run, both begin with what the
 * cache has. Shares the parent's blocks and copies the window state: constant time beside a table
 * of 8 bytes per 128 tokens; memory of its own for tokens comes with what either side writes. Its
 * seed is derived from the parent's and the number of forks before it. Blocks for the step at hand when a
 * sequence destroyed while it ran has not given its place back. Expected errors: NOT_FOUND, LIMIT (all
 * sequences_max in use, with the number), INVALID_INPUT (the parent is busy or lost), MEMORY (a copy of
 * the tokens of a parent without blocks). */
MUST_CHECK result
engine_sequence_fork(struct engine *engine, uint64_t parent, uint64_t *out, struct error *error);
/* Where the noise of a sequence comes from. */
struct sequence_seed {
    uint64_t seed; /* first 8 bytes of a hash of the parent's and the index, 53 bits of them */
    uint64_t parent_seed; /* 0 without a parent */
    int32_t fork_index;   /* forks of the parent before this one; -1: not from a parent's seed */
    bool has_seed; /* false before the first generation, but of a fork whose parent had a seed */
};
/* The seed is that of the first generation that gave one, or the fork's. Expected errors: NOT_FOUND. */
MUST_CHECK result engine_sequence_seed(
    struct engine *engine, uint64_t sequence, struct sequence_seed *out, struct error *error
);
/* Cancels what runs on it and frees its memory; no further event of it arrives afterwards. */
void engine_sequence_destroy(struct engine *engine, uint64_t sequence);
/* Tokens in its context (appended and sampled) as of the last finished generation. */
int32_t engine_sequence_length(const struct engine *engine, uint64_t sequence);

/* What its owner knows of a sequence; the cache keeps and drops by it. FINISHED and ABANDONED say what
 * becomes of its content once it is destroyed; a generation that follows takes them back. */
enum sequence_event {
    SEQUENCE_WAITING,  /* for a tool, about estimate_ms long; 0: unknown */
    SEQUENCE_FINISHED, /* the work is done, a follow-up is possible */
    SEQUENCE_ABANDONED /* nobody comes back: nothing of it is kept for long or written to disk */
};
/* Ignored for a sequence that is not there. */
void engine_sequence_tell(
    struct engine *engine, uint64_t sequence, enum sequence_event event, int64_t estimate_ms
);

enum speculate {
    SPECULATE_AUTO, /* whatever is there and pays */
    SPECULATE_OFF,
    SPECULATE_LOOKUP, /* drafts from the sequence's own tokens */
    SPECULATE_DRAFT   /* drafts of the model's draft stages */
};
#define ENGINE_DRAFT_MAX 16

struct generation_request {
    uint64_t sequence;
    const int32_t *append; /* copied */
    size_t append_count;   /* at least 1 when the sequence is empty */
    struct sampling sampling;
    int32_t tokens_max; /* sampled tokens at most, >= 0; 0 only evaluates the prompt */
    enum window_mode window;
    /* Of the first generation of a sequence: computes it as a recorded one was, whose facts had these
     * replays, whatever is cached now; `window` is ignored. An empty list asks for exact content. */
    bool has_contract;
    const struct window_replay *contract; /* copied */
    int32_t contract_count;               /* at most ENGINE_REPLAYS_MAX */
    bool uses_sequence_seed;              /* instead of sampling.seed, of a sequence that has one */
    /* Ends with FINISH_STOP; the token that completes a stop stays in the context. Copied. */
    const struct view *stops; /* at most STOP_STRINGS_MAX of 1 to STOP_STRING_BYTES_MAX bytes */
    size_t stop_count;
    const int32_t *stop_ids; /* at most STOP_IDS_MAX */
    size_t stop_id_count;
    /* Of the engine's clock; 0: none. Orders requests; when it passes, FINISH_DEADLINE. */
    int64_t deadline_ms;
    uint64_t agent; /* requests of one agent share its turn; 0: the sequence is its own */
    /* Bounds of a generation that runs away (FINISH_LOOP, _THINKING, _OPEN_CALL); zeroed: none. The
     * same tokens meet them at the same place, so that a replay does. */
    struct guard_limits guard;
    bool starts_in_thinking; /* for the guard: the prompt ends with the opening marker */
    /* What the tokens may be; null: anything. A reference is taken. Of this engine's vocabulary. Its mask
     * alone decides what may be drawn: a stop id that it does not allow never is. */
    struct constraint *constraint;
    enum speculate speculation;
    int32_t draft_max; /* tokens of one draft; 0: the engine's choice; at most ENGINE_DRAFT_MAX */
};

/* Appends and samples until the end-of-sequence id (which becomes part of the context), a stop, a
 * guard, tokens_max, the context limit, the deadline or a cancel. One generation per sequence at a time. Expected errors:
 * INVALID_INPUT (id out of range, busy sequence, a field outside its limits, a deadline that passed),
 * NOT_FOUND, LIMIT (context exceeded, or prompt and tokens_max more than all blocks, with the
 * numbers), UNSUPPORTED (what this model or build cannot do, by name). */
MUST_CHECK result engine_generate(
    struct engine *engine, const struct generation_request *request, struct error *error
);
/* Stops at the next step boundary; the finished event says CANCELLED. What was sampled stays; a request
 * that ends before it began (by a deadline too) leaves the sequence as it was, and its facts say that
 * nothing was reused or evaluated: prompt_tokens 0. */
void engine_cancel(struct engine *engine, uint64_t sequence);

enum finish_reason {
    FINISH_EOS,
    FINISH_LENGTH,  /* tokens_max */
    FINISH_CONTEXT, /* context_max */
    FINISH_CANCELLED,
    FINISH_ERROR, /* event.error says what */
    FINISH_STOP,  /* facts.stop_index says which */
    FINISH_DEADLINE,
    FINISH_LOOP,     /* guard: a span repeats */
    FINISH_THINKING, /* guard: thinking did not end */
    FINISH_OPEN_CALL /* guard: a block of calls did not end */
};
/* "end", "length", "context", "cancelled", "error", "stop", "deadline", "loop", "thinking",
 * "open_call"; static. Any thread. */
const char *finish_reason_name(enum finish_reason reason);

/* Facts of one generation; evaluated + reused = prompt tokens (promise P8), rebuilt apart. Saved rows:
 * reused - rebuilt. */
struct generation_facts {
    /* Whole context before the first sampled token; when that was never reached (a cancel, a deadline,
     * an error), the part that was reused or evaluated: 0 of a request that did not begin. */
    int32_t prompt_tokens;
    int32_t reused; /* of these, global KV that was there: H, the hit position */
    int32_t evaluated;
    int32_t
        rebuilt; /* rows that ran for their windows only: H - rebuilt_from, W per replay of a contract */
    int32_t sampled;
    int32_t hit_position; /* = reused */
    int32_t rebuilt_from; /* first row that ran; = reused when nothing was rebuilt */
    /* Static. "cold": nothing was reused; "live": the sequence's own; "snapshot"; "rebuilt": exactly,
     * from rebuilt_from; "replay": approximately, see replays. */
    const char *window_source;
    /* Why not more was reused, static: "none" (all that can be is), "never_computed", "evicted",
     * "expired", "damaged", "other_lineage", "divergent", "not_read"; and the first position that was not. */
    const char *miss;
    int32_t miss_token;
    int32_t restored_host,
        restored_disk;        /* of the reused tokens, those that came from these tiers */
    char lineage[65];         /* root lineage */
    char block_lineage[65];   /* = lineage when exact, else hash(parent, H) per replay */
    char decoder_lineage[65]; /* "0" when exact, else hash(parent, N) per replay */
    /* With the tokens all that re-creates the computation on a cold cache; none: exact. */
    struct window_replay replays[ENGINE_REPLAYS_MAX];
    int32_t replay_count;
    int64_t queued_us, prefill_us, decode_us;
    int32_t drafted, accepted; /* tokens proposed; those that were the target's own draw */
    int32_t preempted;         /* times it gave its window slot to a more urgent one */
    int32_t
        preempted_rebuilt; /* of `rebuilt`: rows run again because a parked window was dropped */
    int64_t parked_us;     /* of prefill and decode: without a slot */
    uint64_t seed;         /* of the noise */
    uint64_t parent_seed;  /* as sequence_seed */
    int32_t fork_index;    /* -1: not a fork */
    int32_t stop_index;    /* FINISH_STOP: in stops, or stop_count + index in stop_ids; else -1 */
    int32_t stop_bytes;    /* last bytes of the text that are the stop or lie behind it */
};

enum engine_event_type { ENGINE_PROGRESS, ENGINE_TOKEN, ENGINE_FINISHED };

struct engine_event {
    enum engine_event_type type;
    uint64_t sequence;
    int32_t done, total;       /* PROGRESS: rows of the prompt that ran, of those to run */
    int32_t token;             /* TOKEN */
    float logprob;             /* TOKEN: log-softmax of the raw logits at the token, FP32 */
    int32_t alternative_count; /* TOKEN: as many as sampling.alternatives asked for */
    struct token_alternative alternatives[SAMPLING_ALTERNATIVES_MAX]; /* most likely first */
    enum finish_reason reason;                                        /* FINISHED */
    struct generation_facts facts;                                    /* FINISHED */
    struct error error; /* FINISHED with FINISH_ERROR */
};

/* Takes the oldest event; false when there is none. Drain all on each wake. Loop thread. */
bool engine_next_event(struct engine *engine, struct engine_event *out);

/* ---- progress ---- */

/* What a request waits for. */
enum engine_wait {
    ENGINE_WAIT_NONE,   /* rows of it run */
    ENGINE_WAIT_TURN,   /* others come first */
    ENGINE_WAIT_MEMORY, /* blocks */
    ENGINE_WAIT_SLOT,   /* a window slot; pre-empted ones too */
    ENGINE_WAIT_DISK,   /* blocks of its prompt are read */
    ENGINE_WAIT_EVENTS  /* for the caller to take events */
};
/* "none", "turn", "memory", "slot", "disk", "events"; static. Any thread. */
const char *engine_wait_name(enum engine_wait wait);
enum engine_request_state { ENGINE_QUEUED, ENGINE_PREFILL, ENGINE_DECODE };

struct engine_request_status {
    uint64_t sequence, agent;
    enum engine_request_state state;
    enum engine_wait wait;
    int64_t age_ms;                     /* since engine_generate */
    int64_t progress_ms;                /* since rows of it ran, or it came */
    int32_t prompt_tokens, prompt_left; /* of the context; rows that are still to run */
    int32_t reused, evaluated, rebuilt, sampled, drafted, accepted, preempted;
    int32_t blocks, blocks_promised; /* held; that it may still take */
};

/* Counts since the engine was opened, or of one second. */
struct engine_counts {
    uint64_t queued, finished; /* requests */
    uint64_t prefill_rows, decode_rows, reused, rebuilt, sampled, drafted, accepted;
    uint64_t preempted, resumed, steps, step_us;
    uint64_t demoted; /* sequences that gave their blocks back while they did not run */
};
#define ENGINE_SECONDS         8 /* that are remembered */
#define ENGINE_STATUS_REQUESTS 64
#define ENGINE_STEP_BUCKETS    12 /* step times below 1, 2, 4 .. 1024 ms, and longer */
struct engine_statistics {
    int32_t request_count; /* queued and running; the first ENGINE_STATUS_REQUESTS are told */
    struct engine_request_status requests[ENGINE_STATUS_REQUESTS];
    int32_t queued, prefilling, decoding, parked, restoring, waiting_for_memory;
    int32_t windows_used, windows_max;
    int32_t demoted; /* live sequences whose content is a matter of the cache just now */
    int32_t blocks_used, blocks_promised, blocks_total;
    struct engine_counts total;
    struct engine_counts seconds[ENGINE_SECONDS]; /* whole seconds before now, the latest first */
    uint64_t step_histogram[ENGINE_STEP_BUCKETS];
    int64_t step_us_max, decision_us_max;
    uint64_t decision_us;    /* sum over total.steps */
    int64_t step_running_ms; /* of the step at hand; 0: none */
};
void engine_statistics(struct engine *engine, struct engine_statistics *out);

struct engine_stuck {
    uint64_t sequence;
    enum engine_wait wait;
    int64_t stuck_ms;
    char why[200]; /* a sentence with the numbers */
};
/* The request that is without progress for longest, when that is stuck_ms or more, and why. Never
 * waits for a step. */
bool engine_watch(struct engine *engine, int64_t stuck_ms, struct engine_stuck *out);

/* ---- the cache ---- */

#define ENGINE_MISSES 8
struct engine_cache_status {
    int32_t blocks_total, blocks_free; /* of the device pool */
    int32_t blocks_live;               /* that live sequences refer to */
    int32_t nodes, nodes_evictable;    /* of the prefix tree: full blocks found by content */
    int32_t leases, leases_lapsed;
    int32_t snapshots, snapshots_max;
    uint64_t block_bytes, snapshot_bytes; /* of one */
    uint64_t pool_bytes, snapshot_pool_bytes, prefix_bytes, host_bytes;
    /* Since the engine was opened. */
    uint64_t lookups, prompt_tokens, reused_tokens, rebuilt_tokens; /* of first generations */
    uint64_t misses[ENGINE_MISSES];                                 /* by engine_miss_name */
    uint64_t blocks_inserted, blocks_deduplicated, blocks_evicted, blocks_expired;
    uint64_t snapshots_captured, snapshots_used, snapshots_expired, snapshots_evicted;
    uint64_t restored_host_blocks, restored_disk_blocks;
    /* Tiers. */
    int32_t host_blocks, disk_blocks;
    uint64_t disk_bytes, disk_bytes_max;
    uint64_t written_bytes, read_bytes, writes_refused;
    uint64_t disk_expired; /* blocks */
    int64_t clock_jump_ms; /* the wall clock's largest jump forwards; what it made old is gone */
    /* Folders of other models in the cache directory: blocks that they lost to lifetime and budget
     * and how many had nothing left and were removed; the names of these, as far as they fit. */
    int64_t others_blocks;
    int32_t others_folders;
    char others_names[160];
    bool has_disk;
    char trouble[560]; /* a sentence: there is no disk tier though one was asked for, it is not */
                       /* written any more, or its disk hung; "" else */
};
void engine_cache_status(struct engine *engine, struct engine_cache_status *out);
/* The words of generation_facts.miss by number, static; null beyond ENGINE_MISSES. Any thread. */
const char *engine_miss_name(int32_t miss);

enum cache_tier { CACHE_TIER_TREE, CACHE_TIER_SNAPSHOTS, CACHE_TIER_HOST, CACHE_TIER_DISK };
/* Drops content as pressure would: for tests. `blocks` of the least valuable, 0 for all, below 0 for none. */
void engine_cache_drop(struct engine *engine, enum cache_tier tier, int32_t blocks);
/* Returns when all blocks that wait to be written are on disk, or given up. */
void engine_cache_flush(struct engine *engine);

/* ---- the forward pass from the command line and in tests ---- */

/* Per layer, what a forward pass did; summed over the call. */
struct layer_counters {
    uint64_t rows_full;        /* rows through attention and FFN */
    uint64_t rows_window_only; /* rows that only produced window KV */
    uint64_t index_rows;       /* entries scored */
    uint64_t index_rows_max;   /* largest of one row */
    uint64_t topk_runs;
};

struct logits_request {
    const int32_t *ids;
    size_t count;
    int32_t chunk;  /* rows per step; 0: one shot (as many as a step holds), 1: step by step */
    bool last_only; /* logits of the last position only: decoder layers narrow */
    enum window_mode window;
};

/* Calls `row` with position and [V] FP32 logits, in order, on the engine thread's behalf; blocks. With
 * WINDOW_REPLAY only the last W positions have logits. `counters` [layers] may be null. Expected errors as engine_generate. Not while generations run. */
MUST_CHECK result engine_logits(
    struct engine *engine,
    const struct logits_request *request,
    struct layer_counters *counters,
    void (*row)(void *context, int32_t position, const float *logits, int32_t vocabulary),
    void *context,
    struct error *error
);
int32_t engine_layer_count(const struct engine *engine);

#endif

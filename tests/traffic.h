/* A simulated day of agent traffic: who asks for what, when, and what the agent knows at the end.
 *
 * Pure: the same options give the same day on the same C library. A session belongs to a user and
 * a project; its main agent loops over model requests ("turns"), waits for tools, sub-agents and
 * people, retries, goes back, compacts and sometimes is cancelled. Texts are pieces: a prompt is a
 * path of pieces, equal pieces give equal token ids and different ones differ from their first
 * tokens on, so forks, rewinds and divergence inside a block come by themselves. The day runs from
 * noon to noon, so that people come back after the night. Nothing depends on any cache.
 */
#ifndef HEARTH_TESTS_TRAFFIC_H
#define HEARTH_TESTS_TRAFFIC_H

#include "base/result.h"

#define TRAFFIC_DAY_MS (24LL * 3600 * 1000)
/* Distinct harness prompts with their tools, and projects: what sessions share. */
#define TRAFFIC_HARNESSES 4
#define TRAFFIC_PROJECTS  40
#define TRAFFIC_USERS     60

struct traffic_options {
    uint64_t seed;
    int32_t sessions;
    int32_t token_divisor; /* 1: full sizes; more: all texts shorter by it, for quick tests */
};

/* What the agent knows of its branch when a generation ends. */
enum traffic_after {
    TRAFFIC_TOOL,     /* a tool runs: back after about estimate_ms */
    TRAFFIC_CHILDREN, /* sub-agents run */
    TRAFFIC_ANSWERED, /* a person has the answer and may follow up */
    TRAFFIC_JOINED,   /* a sub-agent gave its result; nobody continues it */
    TRAFFIC_DROPPED   /* this text is not continued: retried, taken back, compacted, cancelled */
};
#define TRAFFIC_AFTERS 5

/* The end of a path of texts; piece 0 is the empty path. */
struct traffic_piece {
    uint64_t text;
    int32_t before; /* piece that it continues */
    int32_t end;    /* tokens up to its end */
};

/* One model request: its prompt is piece `prompt`, prompt and output together piece `output`. */
struct traffic_request {
    int64_t start_ms, end_ms;
    int64_t gap_ms;      /* from its end to the agent's next request; -1: there is none */
    int64_t estimate_ms; /* what the agent expects of that gap; 0 unknown */
    int32_t session, agent;
    int32_t prompt, output;
    enum traffic_after after;
    bool is_main; /* not of a sub-agent */
};

struct traffic {
    struct traffic_options options;
    struct traffic_request *requests; /* [request_count] by start_ms */
    struct traffic_piece *pieces;     /* [piece_count] */
    int32_t request_count, piece_count;
    int32_t agent_count;
    int32_t forked, spawned; /* sub-agents that continue their parent's context, or start fresh */
    int32_t retries, rewinds, compactions, cancelled;
    int32_t sessions_with_children;
    int32_t tokens_max; /* of a prompt with its output */
    /* requests_max, pieces_max: allocated */
    int32_t requests_max, pieces_max;
};

/* Expected errors: MEMORY. */
MUST_CHECK result
traffic_make(const struct traffic_options *options, struct traffic *out, struct error *error);
void traffic_free(struct traffic *traffic);

/* Tokens of the path up to the piece's end. */
int32_t traffic_count(const struct traffic *traffic, int32_t piece);
/* Writes those from position `from` on to tokens[from], ...; some before it may be written too. */
void traffic_fill(const struct traffic *traffic, int32_t piece, int32_t from, int32_t *tokens);

/* Keys of the path's blocks first to last - 1, from the key of the block before (0 at the root):
 * 64-bit hashes of all tokens up to a block's end, into keys[first], ... */
void traffic_keys(const int32_t *tokens, int32_t first, int32_t last, uint64_t *keys);

/* What the day is like; medians over requests unless said otherwise. */
struct traffic_summary {
    int32_t turns_median;  /* requests of a main agent, over sessions */
    int32_t prompt_median; /* of main agents */
    int32_t prompt_median_all, output_median;
    int32_t prompt_p90, prompt_max;
    double returns_1s, returns_10s, returns_1h; /* share of gaps at most that long */
    int64_t gap_max_ms;
    double with_children;   /* share of sessions */
    int32_t concurrent_max; /* requests that run at a time */
    int64_t prompt_tokens, output_tokens;
};
/* Expected errors: MEMORY. */
MUST_CHECK result
traffic_summarize(const struct traffic *traffic, struct traffic_summary *out, struct error *error);

#endif

/* What the tests of the cache share: engines with options, whole generations with their facts, prompts
 * that branch off one text. Failures abort the test through cmocka. */
#ifndef HEARTH_TESTS_ENGINE_CACHE_SUPPORT_H
#define HEARTH_TESTS_ENGINE_CACHE_SUPPORT_H

#include "engine_support.h"

#define TEXT    900 /* tokens of the longest prompt */
#define SAMPLED 12
#define CONTEXT 1024

extern int32_t text[TEXT];
void make_text(void);

struct answer {
    int32_t tokens[64];
    float logprobs[64];
    int32_t count;
    struct generation_facts facts;
    enum finish_reason reason;
    struct error error;
};

struct ask {
    const int32_t *ids;
    int32_t count;
    int32_t sampled;
    enum window_mode window;
    const struct generation_facts *contract; /* whose replays to repeat; null: none */
};

/* Time that stands still until a test moves it. */
struct simulated {
    _Atomic int64_t now_ms;
};
struct clock simulated_clock(struct simulated *simulated);

/* tiny-a; a context of CONTEXT and four sequences unless the options say otherwise. */
void open_with(struct fixture *fixture, const struct engine_options *more);
void open_warm(struct fixture *fixture);
void open_cold(struct fixture *fixture);
void send(struct fixture *fixture, uint64_t sequence, const struct ask *ask);
void take(struct fixture *fixture, uint64_t sequence, struct answer *out);
/* One generation of a sequence that goes on; its facts reconcile. */
void turn(struct fixture *fixture, uint64_t sequence, const struct ask *ask, struct answer *out);
/* The same of a new sequence, destroyed afterwards. */
void once(struct fixture *fixture, const struct ask *ask, struct answer *out);
void assert_same(const struct answer *a, const struct answer *b);
void assert_exact(const struct answer *answer);
/* A prompt that shares `shared` tokens with the text and goes on differently. */
void branch(int32_t *out, int32_t shared, int32_t count, uint32_t seed);

#endif

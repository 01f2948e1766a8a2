/* The generator of a day's agent traffic. See traffic.h; docs/cache.md names the sources of the
 * figures. "About" below: chosen, not measured by anybody. */
#include "traffic.h"

#include <math.h>

#include "kernels/formats.h"

/* Sizes in tokens before the divisor, times in ms. Log-normal: median and sigma. */
#define TURNS_MEDIAN       47.0
#define TURNS_SIGMA        1.1
#define TURNS_MAX          1200
#define CHILD_TURNS_MEDIAN 12.0
#define CHILD_TURNS_SIGMA  0.8
#define OUTPUT_MEDIAN      444.0
#define OUTPUT_SIGMA       1.0
#define OUTPUT_MAX         5000
#define RESULT_MEDIAN      1480.0 /* of a tool; fitted to the median prompt of 142K */
#define RESULT_SIGMA       1.3
#define RESULT_MAX         40000
#define MS_PER_TOKEN       10 /* of a generation: 100 tokens a second */
#define CHILDREN_SHARE     0.44
#define SPAWNS_MAX         3 /* calls of a session that start sub-agents */
#define CHILDREN_MAX       5 /* of one call */
#define FORK_SHARE         0.5
#define RETRY_SHARE        0.01
#define HUMAN_SHARE        0.032 /* of requests: a person answers */
#define REWIND_SHARE       0.15  /* of those: back to one of the last prompts */
#define REWIND_TURNS       8
#define OVERNIGHT_SHARE    0.35 /* of answers after 18:00 */
#define CANCEL_SHARE       0.06 /* of sessions: ended by cancelling */
/* Tools: read, search, edit; shell commands; builds and test runs. */
#define COMMAND_SHARE 0.093
#define LONG_SHARE    0.022
#define HOUR_MS       3600000LL

/* Pieces and requests of the day at most: a bound on memory, 60 times what 600 sessions take. */
#define PIECES_MAX 50000000

struct source {
    uint64_t state;
};

static uint64_t scramble(uint64_t x) {
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9U;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBU;
    return x ^ x >> 31;
}

static uint64_t draw(struct source *source) {
    source->state += 0x9E3779B97F4A7C15U;
    return scramble(source->state);
}

/* In [0, 1). */
static double draw_unit(struct source *source) {
    return (double)(draw(source) >> 11) * 0x1p-53;
}

static bool draw_chance(struct source *source, double share) {
    return draw_unit(source) < share;
}

static int32_t draw_below(struct source *source, int32_t count) {
    return (int32_t)(draw_unit(source) * count);
}

static double draw_normal(struct source *source) {
    double radius = sqrt(-2.0 * log(1.0 - draw_unit(source)));
    return radius * cos(6.283185307179586 * draw_unit(source));
}

static double draw_lognormal(struct source *source, double median, double sigma) {
    return median * exp(sigma * draw_normal(source));
}

/* Uniform in the logarithm. */
static double draw_between(struct source *source, double low, double high) {
    return low * exp(draw_unit(source) * log(high / low));
}

static int32_t draw_count(struct source *source, double median, double sigma, int32_t most) {
    double value = draw_lognormal(source, median, sigma);
    return value < 1 ? 1 : value > most ? most : (int32_t)value;
}

/* The smaller the index, the more often: 1 / (1 + index). */
static int32_t draw_popular(struct source *source, int32_t count) {
    double most = log(1.0 + count);
    return (int32_t)(exp(draw_unit(source) * most) - 1.0);
}

/* ---- texts ---- */

struct session {
    struct traffic *traffic;
    struct source source;
    uint64_t text; /* of its next private piece */
    int32_t number;
    int32_t harness;
    int32_t project;
    int32_t agent;
    int32_t context_max; /* compaction beyond it */
    bool is_full;        /* out of room: nothing more is added */
};

static int32_t scaled(const struct traffic *traffic, int32_t tokens) {
    int32_t less = tokens / traffic->options.token_divisor;
    return less > 0 ? less : 1;
}

static int32_t add_piece(struct session *session, int32_t before, uint64_t text, int32_t tokens) {
    struct traffic *traffic = session->traffic;
    if (traffic->piece_count == traffic->pieces_max) {
        int32_t more = traffic->pieces_max * 2;
        struct traffic_piece *grown =
            more > PIECES_MAX ? NULL : realloc(traffic->pieces, (size_t)more * sizeof *grown);
        if (grown == NULL) {
            session->is_full = true;
            return before;
        }
        traffic->pieces = grown;
        traffic->pieces_max = more;
    }
    int32_t end = traffic->pieces[before].end + scaled(traffic, tokens);
    traffic->pieces[traffic->piece_count] =
        (struct traffic_piece){.text = text, .before = before, .end = end};
    traffic->tokens_max = end > traffic->tokens_max ? end : traffic->tokens_max;
    return traffic->piece_count++;
}

/* A text that occurs nowhere else. */
static int32_t add_own(struct session *session, int32_t before, int32_t tokens) {
    return add_piece(session, before, draw(&session->source), tokens);
}

static int32_t context_end(const struct session *session, int32_t piece) {
    return session->traffic->pieces[piece].end;
}

/* System prompt and tools of the harness, then the project's notes: what sessions share. */
static int32_t add_trunk(struct session *session) {
    static const int32_t harness_tokens[TRAFFIC_HARNESSES] = {17000, 11000, 23000, 6000};
    uint64_t seed = session->traffic->options.seed;
    uint64_t harness = scramble(seed ^ (uint64_t)(1000 + session->harness));
    uint64_t project = scramble(harness ^ (uint64_t)(2000 + session->project));
    int32_t trunk = add_piece(session, 0, harness, harness_tokens[session->harness]);
    return add_piece(session, trunk, project, 800 + (int32_t)(project % 7000));
}

/* ---- one agent ---- */

struct agent {
    int32_t number;
    int32_t context; /* prompt of its next request */
    int64_t at_ms;   /* when that starts */
    bool is_main;
    int32_t prompts[REWIND_TURNS]; /* of its last requests, a ring */
    int32_t turn;
};

/* Adds a request for the agent's context; what comes after is the caller's. Null when the day or
 * the room ends. */
static struct traffic_request *
add_request(struct session *session, struct agent *agent, int32_t output_tokens) {
    struct traffic *traffic = session->traffic;
    if (agent->at_ms >= TRAFFIC_DAY_MS || session->is_full) {
        return NULL;
    }
    if (traffic->request_count == traffic->requests_max) {
        size_t more = (size_t)traffic->requests_max * 2;
        struct traffic_request *grown = realloc(traffic->requests, more * sizeof *grown);
        if (grown == NULL) {
            session->is_full = true;
            return NULL;
        }
        traffic->requests = grown;
        traffic->requests_max = (int32_t)more;
    }
    agent->prompts[agent->turn++ % REWIND_TURNS] = agent->context;
    int32_t output = add_own(session, agent->context, output_tokens);
    struct traffic_request *request = &traffic->requests[traffic->request_count++];
    *request = (struct traffic_request){
        .start_ms = agent->at_ms,
        .end_ms = agent->at_ms + 200 + (int64_t)output_tokens * MS_PER_TOKEN,
        .gap_ms = -1,
        .session = session->number,
        .agent = agent->number,
        .prompt = agent->context,
        .output = output,
        .after = TRAFFIC_DROPPED,
        .is_main = agent->is_main,
    };
    agent->at_ms = request->end_ms;
    return request;
}

static int32_t output_tokens(struct session *session) {
    return draw_count(&session->source, OUTPUT_MEDIAN, OUTPUT_SIGMA, OUTPUT_MAX);
}

static void come_back(struct agent *agent, struct traffic_request *request, double gap_ms) {
    request->gap_ms = (int64_t)gap_ms;
    agent->at_ms = request->end_ms + request->gap_ms;
}

/* The agent knows what kind of tool it called and how long that kind takes, not this call. */
static void call_tool(struct session *session, struct agent *agent, struct traffic_request *done) {
    struct source *source = &session->source;
    double kind = draw_unit(source);
    done->after = TRAFFIC_TOOL;
    agent->context = done->output;
    if (kind < LONG_SHARE) {
        bool is_known = draw_chance(source, 0.6); /* the rest look like any command */
        done->estimate_ms = is_known ? 90000 : 3000;
        come_back(agent, done, 10000 + draw_lognormal(source, 60000, 1.2));
    } else if (kind < LONG_SHARE + COMMAND_SHARE) {
        done->estimate_ms = 3000;
        come_back(agent, done, draw_between(source, 1001, 10000));
    } else {
        double gap = draw_lognormal(source, 120, 0.8);
        done->estimate_ms = 150;
        come_back(agent, done, gap > 1000 ? 1000 : gap);
    }
    int32_t tokens = draw_count(source, RESULT_MEDIAN, RESULT_SIGMA, RESULT_MAX);
    agent->context = add_own(session, agent->context, tokens);
}

/* The same prompt once more: a refused or damaged answer. */
static void retry(struct session *session, struct agent *agent, struct traffic_request *done) {
    session->traffic->retries++;
    done->after = TRAFFIC_DROPPED;
    agent->context = done->prompt;
    come_back(agent, done, draw_between(&session->source, 100, 3000));
}

/* Runs a sub-agent to its end. Returns when it gives its result. */
static int64_t run_child(struct session *session, int32_t context, int64_t at_ms) {
    struct source *source = &session->source;
    struct agent child = {
        .number = session->traffic->agent_count++,
        .context = context,
        .at_ms = at_ms,
    };
    int32_t turns = draw_count(source, CHILD_TURNS_MEDIAN, CHILD_TURNS_SIGMA, 100);
    for (int32_t turn = 0; turn < turns; turn++) {
        struct traffic_request *done = add_request(session, &child, output_tokens(session));
        if (done == NULL) {
            break;
        }
        done->after = TRAFFIC_JOINED;
        if (turn + 1 < turns) {
            call_tool(session, &child, done);
        }
    }
    return child.at_ms;
}

/* Sub-agents fork the context or start fresh on the shared trunk; the parent waits for all. */
static void spawn(struct session *session, struct agent *agent, struct traffic_request *done) {
    struct traffic *traffic = session->traffic;
    struct source *source = &session->source;
    int64_t end_ms = done->end_ms;
    int32_t output = done->output;
    ptrdiff_t index = done - traffic->requests;
    int32_t children = 1 + draw_below(source, CHILDREN_MAX);
    bool forks = draw_chance(source, FORK_SHARE);
    int64_t joined_ms = end_ms;
    for (int32_t i = 0; i < children; i++) {
        int32_t context = forks ? output : add_own(session, add_trunk(session), 60);
        context = add_own(session, context, 400); /* its brief */
        traffic->forked += forks;
        traffic->spawned += !forks;
        int64_t ended_ms = run_child(session, context, end_ms + 20 + 5 * i);
        joined_ms = ended_ms > joined_ms ? ended_ms : joined_ms;
    }
    done = &traffic->requests[index]; /* it may have moved */
    done->after = TRAFFIC_CHILDREN;
    come_back(agent, done, (double)(joined_ms - end_ms + 10));
    agent->context = add_own(session, output, 500 * children);
}

/* People: minutes mostly, sometimes a meeting or a meal, after 18:00 often the next morning. */
static double human_gap(struct source *source, int64_t at_ms) {
    int64_t clock_ms = (at_ms + 12 * HOUR_MS) % TRAFFIC_DAY_MS; /* the day starts at noon */
    if (clock_ms > 18 * HOUR_MS && draw_chance(source, OVERNIGHT_SHARE)) {
        int64_t morning_ms = 20 * HOUR_MS + draw_below(source, 3 * (int32_t)HOUR_MS);
        return (double)(morning_ms - at_ms);
    }
    if (draw_chance(source, 0.12)) {
        return draw_between(source, 45 * 60000.0, 150 * 60000.0);
    }
    return 5000 + draw_lognormal(source, 150000, 1.2);
}

static void answer(struct session *session, struct agent *agent, struct traffic_request *done) {
    struct source *source = &session->source;
    done->after = TRAFFIC_ANSWERED;
    agent->context = done->output;
    come_back(agent, done, human_gap(source, done->end_ms));
    if (draw_chance(source, REWIND_SHARE) && agent->turn >= REWIND_TURNS) {
        session->traffic->rewinds++;
        int32_t back = 1 + draw_below(source, REWIND_TURNS - 1);
        agent->context = agent->prompts[(agent->turn - back) % REWIND_TURNS];
    }
    agent->context = add_own(session, agent->context, draw_count(source, 120, 1.2, 8000));
}

/* A request for a summary; then the trunk with it replaces the context. False: the day ended. */
static bool compact(struct session *session, struct agent *agent) {
    int32_t before = agent->context;
    agent->context = add_own(session, before, 300);
    int32_t summary = 1500 + draw_below(&session->source, 2500);
    struct traffic_request *done = add_request(session, agent, summary);
    if (done == NULL) {
        return false;
    }
    session->traffic->compactions++;
    done->after = TRAFFIC_DROPPED;
    come_back(agent, done, 200);
    int32_t fresh = add_own(session, add_trunk(session), 200);
    agent->context = add_own(session, fresh, summary + 6000);
    return true;
}

/* ---- sessions ---- */

static void run_main(struct session *session, struct agent *agent, int32_t turns) {
    struct source *source = &session->source;
    bool has_children = draw_chance(source, CHILDREN_SHARE);
    int32_t spawns = has_children ? 1 + draw_below(source, SPAWNS_MAX) : 0;
    int32_t spawned = 0;
    for (int32_t turn = 0; turn < turns; turn++) {
        if (context_end(session, agent->context) > session->context_max &&
            !compact(session, agent)) {
            return;
        }
        struct traffic_request *done = add_request(session, agent, output_tokens(session));
        if (done == NULL) {
            return;
        }
        if (spawned < spawns && draw_below(source, turns) <= spawned + spawns * (1 + turn)) {
            session->traffic->sessions_with_children += spawned == 0;
            spawned++;
            spawn(session, agent, done);
        } else if (turn + 1 == turns) {
            bool is_cancelled = draw_chance(source, CANCEL_SHARE);
            session->traffic->cancelled += is_cancelled;
            done->after = is_cancelled ? TRAFFIC_DROPPED : TRAFFIC_ANSWERED;
        } else if (draw_chance(source, RETRY_SHARE)) {
            retry(session, agent, done);
        } else if (draw_chance(source, HUMAN_SHARE)) {
            answer(session, agent, done);
        } else {
            call_tool(session, agent, done);
        }
    }
}

/* Starts follow office hours: shares of the day by hour, from noon on. */
static int64_t draw_start(struct source *source) {
    static const double weights[24] = {6, 8, 9,   9,   9,   8, 6, 4, 4, 4,  3,  2,
                                       1, 1, 0.5, 0.5, 0.5, 1, 2, 4, 8, 10, 10, 9};
    double total = 0;
    for (int32_t hour = 0; hour < 24; hour++) {
        total += weights[hour];
    }
    double at = draw_unit(source) * total;
    int32_t hour = 0;
    while (hour < 23 && at >= weights[hour]) {
        at -= weights[hour];
        hour++;
    }
    return hour * HOUR_MS + draw_below(source, (int32_t)HOUR_MS);
}

static void run_session(struct traffic *traffic, int32_t number) {
    static const int32_t context_max[] = {200000, 400000, 600000, 900000};
    struct session session = {
        .traffic = traffic,
        .source.state = scramble(traffic->options.seed + 77) ^ scramble((uint64_t)number + 1),
        .number = number,
    };
    struct source *source = &session.source;
    int32_t user = draw_below(source, TRAFFIC_USERS);
    session.harness = user % 10 < 5 ? 0 : user % 10 < 8 ? 1 : user % 10 < 9 ? 2 : 3;
    session.project = (user * 7 + draw_popular(source, 4)) % TRAFFIC_PROJECTS;
    session.context_max = scaled(traffic, context_max[draw_below(source, 4)]);
    struct agent agent = {
        .number = traffic->agent_count++,
        .at_ms = draw_start(source),
        .is_main = true,
    };
    agent.context = add_own(&session, add_trunk(&session), 250); /* date, folder, state */
    agent.context = add_own(&session, agent.context, draw_count(source, 300, 1.5, 30000));
    run_main(&session, &agent, draw_count(source, TURNS_MEDIAN, TURNS_SIGMA, TURNS_MAX));
}

static int compare_requests(const void *a, const void *b) {
    const struct traffic_request *first = a;
    const struct traffic_request *second = b;
    if (first->start_ms != second->start_ms) {
        return first->start_ms < second->start_ms ? -1 : 1;
    }
    return (first->output > second->output) - (first->output < second->output);
}

result
traffic_make(const struct traffic_options *options, struct traffic *out, struct error *error) {
    ASSERT(options->sessions > 0);
    ASSERT(options->token_divisor > 0);
    struct traffic traffic = {
        .options = *options,
        .requests_max = 65536,
        .pieces_max = 65536,
        .piece_count = 1,
    };
    traffic.requests = calloc((size_t)traffic.requests_max, sizeof *traffic.requests);
    traffic.pieces = calloc((size_t)traffic.pieces_max, sizeof *traffic.pieces);
    bool is_full = traffic.requests == NULL || traffic.pieces == NULL;
    for (int32_t i = 0; i < options->sessions && !is_full; i++) {
        int32_t before = traffic.piece_count;
        run_session(&traffic, i);
        is_full = traffic.piece_count == before;
    }
    if (is_full) {
        traffic_free(&traffic);
        FAIL(error, MEMORY, "no memory for a day of %d sessions", options->sessions);
    }
    qsort(
        traffic.requests, (size_t)traffic.request_count, sizeof *traffic.requests, compare_requests
    );
    *out = traffic;
    return OK;
}

void traffic_free(struct traffic *traffic) {
    free(traffic->requests);
    free(traffic->pieces);
    *traffic = (struct traffic){0};
}

int32_t traffic_count(const struct traffic *traffic, int32_t piece) {
    return traffic->pieces[piece].end;
}

void traffic_fill(const struct traffic *traffic, int32_t piece, int32_t from, int32_t *tokens) {
    int32_t at = piece;
    while (at != 0 && traffic->pieces[at].end > from) {
        const struct traffic_piece *part = &traffic->pieces[at];
        int32_t start = traffic->pieces[part->before].end;
        for (int32_t i = start; i < part->end; i++) {
            uint64_t x =
                (part->text ^ (uint64_t)(i - start) * 0x9E3779B97F4A7C15U) * 0xD6E8FEB86659FD93U;
            tokens[i] = (int32_t)(((x >> 32) * 129280U) >> 32);
        }
        at = part->before;
    }
}

void traffic_keys(const int32_t *tokens, int32_t first, int32_t last, uint64_t *keys) {
    uint64_t key = first > 0 ? keys[first - 1] : 0;
    for (int32_t block = first; block < last; block++) {
        const int32_t *from = tokens + (size_t)block * KV_BLOCK_TOKENS;
        for (int32_t i = 0; i < KV_BLOCK_TOKENS; i += 2) {
            uint64_t word;
            memcpy(&word, from + i, sizeof word);
            key = (key ^ word) * 0x9FB21C651E98DF25U;
            key ^= key >> 32;
        }
        keys[block] = scramble(key);
        key = keys[block];
    }
}

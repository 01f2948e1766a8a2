/* A swarm as a host would drive it, for tests of its record: a real root, store and loop, the scripted crowd engine, and
 * members whose tools ask the test on the loop thread. */
#ifndef HEARTH_TESTS_NODES_SUPPORT_H
#define HEARTH_TESTS_NODES_SUPPORT_H

#include "crowd_engine.h"
#include "runtime/host.h"
#include "runtime/swarm_root.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define NODES_MAX 80
#define CALL(name, parameter, value)                                                               \
    "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"" name "\">\n<｜DSML｜ parameter name=\"" parameter \
    "\" string=\"true\">" value "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"
#define ONE_CALL "Hm.</think>" CALL("read", "path", "a")

struct stage;

/* A node and what belongs to it alone. */
struct node {
    struct stage *stage;
    int number;
    struct run_channel *channel;
    struct run *run; /* null: not started, or over */
    uint64_t sequence;
    char answer[64];
    struct fake_turn turns[4];
    struct run_node node;
    struct run_prefix prefix;
    struct run_options options;
    struct run_call_hook hook;

    /* A call: asks the test, on the loop thread, and waits until node_answer or a cancel. Null: does not wait. */
    void (*asks)(struct node *node);
    struct loop_job ask;
    char reply[64];                 /* the result of calls */
    bool is_answered, is_cancelled; /* guarded by the stage's lock */
    const char *long_reply;         /* instead of `reply`; null: none */
    int calls, milliseconds;
    bool creates;                      /* a sequence for a compaction */
    void (*writes)(struct node *node); /* on the worker, while a call runs */

    /* Mail that its next recorded call sends. */
    struct session_id mail_to; /* "": none */
    const char *mail_text;
    int64_t mail; /* key; 0: not sent */
    result mailed;
    int mails_recorded;

    /* what the listener heard */
    int ended, turned;
    size_t given;
    enum agent_stop stop;
    struct run_ended end;
    char commit[64], last_text[64], detail[AGENT_DETAIL_BYTES];
    int64_t sampled;
    void (*turned_to)(struct node *node); /* after each turn; null: nothing */
    void (*ended_to)(struct node *node);  /* null: nothing */
};

struct stage {
    char directory[64];
    struct text_model model;
    struct tool_declarations declarations;
    struct session_store *store;
    struct loop *loop;
    struct crowd_engine *engine;
    struct engine *real; /* takes its place; null: none */
    struct swarm_root_options root_options;
    struct swarm_root *root;
    struct node *nodes; /* [count] */
    int count, live;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void (*opened)(struct stage *stage); /* starts nodes */
    result opened_result, finished_result;
    struct error error;
    bool is_open, is_finished;
    struct fake_turn root_turn;
    uint32_t random;
    int pokes;
    struct session_tree *tree; /* of stage_load */
};

/* `directory` null: one is made; removed at the end. */
void stage_set(struct stage *stage, int count, const char *directory);
/* With an engine that runs the bundled model, of so many sequences. */
void stage_set_real(struct stage *stage, int count, int32_t sequences);
void stage_clear(struct stage *stage);
/* Opens the root, starts what `opened` starts, ends the swarm when no node is live, and loads the record. */
void stage_play(struct stage *stage, void (*opened)(struct stage *stage));
void stage_load(struct stage *stage);

/* A fork of the root, one call and an answer; to be started. */
void node_open(struct node *node);
/* The same behind the open call of another one. */
void node_open_behind(struct node *node, const struct node *parent);
void node_start(struct node *node);
void node_start_all(struct stage *stage);
void node_answer(struct node *node);
/* Mail that waits, into the next turn of its receiver. */
void node_deliver(struct node *node, int64_t mail, const char *text);

/* In the loaded record. */
const struct session_run *turn_run(const struct session_turn *turn, enum session_run_kind kind);
const struct session_agent *node_record(const struct node *node);
int64_t node_now_ms(void);

#endif

/* What the tests of the session store share: a state directory that goes away, a ticking clock, and
 * records to write. */
#ifndef HEARTH_TESTS_SESSIONS_SUPPORT_H
#define HEARTH_TESTS_SESSIONS_SUPPORT_H

#include "base/json.h"
#include "sessions/session.h"
#include "sessions/session_internal.h"
#include "sessions/session_swarm.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define PATH_BYTES 512

struct folder {
    char path[PATH_BYTES];  /* removed at the end */
    char state[PATH_BYTES]; /* path/state */
    char database[PATH_BYTES];
    char lock[PATH_BYTES];
};

/* Where MUST's calls report. */
extern struct error must_error;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        result must_ = (call);                                                                     \
        if (is_failed(must_)) {                                                                    \
            fail_msg("%s: %s", #call, must_error.message);                                         \
        }                                                                                          \
    } while (0)

#define STORE_TEST(name) cmocka_unit_test_setup_teardown(name, folder_setup, folder_teardown)

extern const struct session_sampler sampler;
extern const unsigned char raw_output[];
extern const size_t raw_output_bytes;
extern const int32_t token_ids[];
extern const float token_log_probabilities[];
#define TOKEN_COUNT ((size_t)4)

void join(char *out, const char *folder, const char *name);
int folder_setup(void **state);
int folder_teardown(void **state);
result open_store(
    const struct folder *folder,
    enum session_mode mode,
    struct session_store **out,
    struct error *error
);
struct session_store *open_or_fail(const struct folder *folder, enum session_mode mode);
struct session_id make_session(struct session_store *store, const char *task);
struct session_id make_agent(struct session_store *store, const struct session_id *session);
int64_t make_turn(struct session_store *store, const struct session_id *agent);
struct session_turn_end turn_end(int64_t prompt, int64_t evaluated, int64_t reused);
void append_message(struct session_store *store, int64_t turn, const char *role, int64_t call);
int64_t start_call(struct session_store *store, int64_t turn);
struct session_call_end call_end(void);
struct session_id record_session(struct session_store *store, const char *task);
/* A running session with a swarm: a root, whose one turn asks for a fork, and below it a fork and a spawn;
 * a and b. */
struct swarm_fixture {
    struct session_id session, root, a, b;
    int64_t swarm, root_turn, root_call;
};
struct swarm_fixture start_swarm(struct session_store *store);
struct session_node_end node_end(void);
int64_t send_mail(
    struct session_store *store,
    const struct session_id *from,
    const struct session_id *to,
    const char *text
);
/* A turn that begins with the mail, in one batch. */
int64_t deliver_mail(struct session_store *store, const struct session_id *to, int64_t mail);
/* Ends it: a merged into the root, b with conflicts, mail delivered, bounced and waiting. */
struct session_id record_swarm(struct session_store *store);
void assert_text(struct view value, const char *text);
void assert_refused(result status, const struct error *error, const char *part);
int64_t count_rows(struct session_store *store, const char *sql);
void write_file(const char *path, const void *data, size_t length);
void read_whole(const char *path, struct buffer *out);

#endif

/* Mail between nodes: sent in the batch of the call that says so, delivered in the batch of the turn that holds it, or of
 * the compaction that does, and bounced with the end of its receiver. */
#include "nodes_support.h"

static const struct session_mail *mail_of(const struct stage *stage, int64_t number) {
    const struct session_mail *mail = NULL;
    for (size_t i = 0; i < stage->tree->mail_count; i++) {
        mail = stage->tree->mail[i].number == number ? &stage->tree->mail[i] : mail;
    }
    ASSERT(mail != NULL);
    return mail;
}

/* How many messages of an agent, and which turn, hold the text. */
static size_t turns_with(const struct session_agent *agent, const char *text, int64_t *turn) {
    size_t count = 0;
    for (size_t i = 0; i < agent->turn_count; i++) {
        for (size_t k = 0; k < agent->turns[i].message_count; k++) {
            if (view_find(agent->turns[i].messages[k].text, view_of_text(text), 0) != SIZE_MAX) {
                *turn = agent->turns[i].number;
                count++;
            }
        }
    }
    return count;
}

/* ---- delivered ------------------------------------------------------------------------------ */

/* The sender's call is to be recorded before anybody delivers: the receiver waits in its own call. */
static void sends_to_second(struct node *node) {
    struct node *other = &node->stage->nodes[1];
    node->mail_to = *run_agent(other->run);
    node_answer(node);
}

static void delivers_after_turn(struct node *node) {
    struct node *other = &node->stage->nodes[1];
    if (node->turned != 1) {
        return;
    }
    assert_int_equal(node->mails_recorded, 1);
    assert_true(is_ok(node->mailed));
    assert_true(node->mail > 0);
    assert_true(run_remark(other->run, &(struct run_remark){view_of_text("A word."), 0, 0}));
    node_deliver(other, node->mail, "From another: come here.");
    assert_true(run_remark(other->run, &(struct run_remark){view_of_text("A last word."), 0, 0}));
    node_answer(other);
}

/* The sender begins when the receiver is in its call, and has its place in the record. */
static void starts_sender(struct node *node) {
    struct node *sender = &node->stage->nodes[0];
    node_open(sender);
    node_start(sender);
}

static void start_receiver(struct stage *stage) {
    stage->nodes[1].asks = starts_sender;
    node_open(&stage->nodes[1]);
    node_start(&stage->nodes[1]);
}

static void mail_is_delivered_with_the_turn_that_holds_it(void **state) {
    (void)state;
    struct stage stage;
    stage_set(&stage, 2, NULL);
    stage.nodes[0].mail_text = "come here";
    stage.nodes[0].asks = sends_to_second;
    stage.nodes[0].turned_to = delivers_after_turn;
    stage_play(&stage, start_receiver);
    assert_int_equal(stage.tree->mail_count, 1);
    const struct session_mail *mail = mail_of(&stage, stage.nodes[0].mail);
    int64_t turn = 0;
    assert_int_equal(mail->state, SESSION_MAIL_DELIVERED);
    assert_true(view_equals_text(mail->text, "come here"));
    assert_string_equal(mail->to.text, stage.nodes[1].end.agent.text);
    assert_int_equal(turns_with(node_record(&stage.nodes[1]), "From another", &turn), 1);
    assert_int_equal(mail->turn, turn);
    assert_int_equal(stage.nodes[1].given, 3);
    stage_clear(&stage);
}

/* In the order of the sends, some in one turn, and with remarks that hold none between them. */
static void delivers_two(struct node *node) {
    struct node *other = &node->stage->nodes[1];
    if (node->turned == 1 || node->turned == 2) {
        char text[40];
        (void)snprintf(text, sizeof text, "letter %d", node->turned);
        node_deliver(other, node->mail, text);
        assert_true(run_remark(other->run, &(struct run_remark){view_of_text("And so."), 0, 0}));
    }
    if (node->turned == 2) {
        node->mail_to = (struct session_id){""};
        node_answer(other);
    }
}

static void mail_keeps_its_order(void **state) {
    (void)state;
    struct stage stage;
    stage_set(&stage, 2, NULL);
    stage.nodes[0].mail_text = "a letter";
    stage.nodes[0].asks = sends_to_second;
    stage.nodes[0].turned_to = delivers_two;
    stage.nodes[0].turns[1].text = ONE_CALL;
    stage_play(&stage, start_receiver);
    assert_int_equal(stage.tree->mail_count, 2);
    const struct session_agent *receiver = node_record(&stage.nodes[1]);
    const struct session_turn *turn = &receiver->turns[1];
    assert_int_equal(stage.tree->mail[0].turn, turn->number);
    assert_int_equal(stage.tree->mail[1].turn, turn->number);
    assert_true(view_equals_text(turn->messages[0].text, "letter 1"));
    assert_true(view_equals_text(turn->messages[2].text, "letter 2"));
    stage_clear(&stage);
}

/* What a turn was not recorded for is settled by nothing else, and a wrong key stops the run and not the record. */
static void delivers_nonsense(struct node *node) {
    node_deliver(node, 12345, "From nobody.");
    node_answer(node);
}

static void start_first(struct stage *stage) {
    node_open(&stage->nodes[0]);
    node_start(&stage->nodes[0]);
}

static void mail_that_is_not_there_stops_its_receiver(void **state) {
    (void)state;
    struct stage stage;
    stage_set(&stage, 1, NULL);
    stage.nodes[0].asks = delivers_nonsense;
    stage_play(&stage, start_first);
    int64_t turn = 0;
    assert_int_equal(stage.nodes[0].stop, AGENT_STOP_RECORD);
    assert_int_equal(stage.nodes[0].given, 0);
    assert_int_equal(turns_with(node_record(&stage.nodes[0]), "From nobody", &turn), 0);
    assert_true(view_equals_text(node_record(&stage.nodes[0])->node->end.ending, "fault"));
    assert_true(is_ok(stage.finished_result));
    stage_clear(&stage);
}

/* ---- bounced -------------------------------------------------------------------------------- */

static void cuts_receiver(struct node *node) {
    if (node->turned == 1) {
        assert_true(node->mail > 0);
        node_deliver(&node->stage->nodes[1], node->mail, "never read");
        run_cancel(node->stage->nodes[1].run, "by the test");
    }
}

/* The sender is in its second call, and is told before its next turn. */
static void tells_sender(struct node *node) {
    struct node *sender = &node->stage->nodes[0];
    const struct run_remark back = {
        .text = view_of_text("It was not delivered."), .returns = sender->mail};
    assert_true(run_remark(sender->run, &back));
    node_answer(sender);
}

static void sends_once(struct node *node) {
    if (node->calls == 1) {
        sends_to_second(node);
    } else {
        node->mail_to = (struct session_id){""};
        if (node->stage->nodes[1].ended > 0) {
            node_answer(node);
        }
    }
}

static void mail_bounces_with_the_end_of_its_receiver(void **state) {
    (void)state;
    struct stage stage;
    stage_set(&stage, 2, NULL);
    stage.nodes[0].mail_text = "come here";
    stage.nodes[0].asks = sends_once;
    stage.nodes[0].turned_to = cuts_receiver;
    stage.nodes[0].turns[1].text = ONE_CALL;
    stage.nodes[1].ended_to = tells_sender;
    stage_play(&stage, start_receiver);
    const struct session_mail *mail = mail_of(&stage, stage.nodes[0].mail);
    int64_t turn = 0;
    assert_int_equal(mail->state, SESSION_MAIL_BOUNCED);
    assert_int_equal(turns_with(node_record(&stage.nodes[1]), "never read", &turn), 0);
    assert_int_equal(turns_with(node_record(&stage.nodes[0]), "not delivered", &turn), 1);
    assert_int_equal(mail->turn, turn);
    assert_int_equal(stage.nodes[1].given, 0);
    stage_clear(&stage);
}

/* ---- refused -------------------------------------------------------------------------------- */

static struct session_id ended_agent;

static void remember(struct node *node) {
    ended_agent = node->end.agent;
    node_open(&node->stage->nodes[0]);
    node_start(&node->stage->nodes[0]);
}

static void sends_to_ended(struct node *node) {
    node->mail_to = ended_agent;
    node_answer(node);
}

static void start_second(struct stage *stage) {
    node_open(&stage->nodes[1]);
    node_start(&stage->nodes[1]);
}

/* As when its receiver ends in the record between the answer and the record of the call. */
static void call_is_recorded_without_mail_that_cannot_be_sent(void **state) {
    (void)state;
    struct stage stage;
    stage_set(&stage, 2, NULL);
    stage.nodes[0].mail_text = "too late";
    stage.nodes[0].asks = sends_to_ended;
    stage.nodes[1].ended_to = remember;
    stage_play(&stage, start_second);
    assert_int_equal(stage.nodes[0].mailed.code, RESULT_INVALID_INPUT);
    assert_int_equal(stage.nodes[0].mails_recorded, 1);
    assert_int_equal(stage.nodes[0].stop, AGENT_STOP_ANSWER);
    assert_int_equal(stage.tree->mail_count, 0);
    const struct session_turn *turn = &node_record(&stage.nodes[0])->turns[0];
    assert_int_equal(turn->calls[0].status, SESSION_CALL_OK);
    assert_int_equal(turn->message_count, 3);
    stage_clear(&stage);
}

static result fails_to_append(void *context, const struct run_called *called, struct error *error) {
    (void)context;
    (void)called;
    FAIL(error, IO, "the disk is full");
}

static void failure_of_the_disk_is_one_of_the_record(void **state) {
    (void)state;
    struct stage stage;
    stage_set(&stage, 1, NULL);
    stage.nodes[0].hook.append = fails_to_append;
    stage_play(&stage, start_first);
    assert_int_equal(stage.nodes[0].stop, AGENT_STOP_RECORD);
    assert_string_equal(stage.nodes[0].detail, "the disk is full");
    assert_int_equal(stage.nodes[0].mails_recorded, 0);
    const struct session_turn *turn = &node_record(&stage.nodes[0])->turns[0];
    assert_int_not_equal(turn->calls[0].status, SESSION_CALL_OK);
    stage_clear(&stage);
}

/* ---- compacted ------------------------------------------------------------------------------ */

static void tells_before_compaction(struct node *node) {
    struct node *other = &node->stage->nodes[1];
    if (node->turned == 1) {
        assert_true(run_remark(other->run, &(struct run_remark){view_of_text("A word."), 0, 0}));
        node_deliver(other, node->mail, "From another: come here.");
        node_answer(other);
    }
}

/* The first output has become old when the mail comes. */
static void starts_sender_in_its_second_call(struct node *node) {
    if (node->calls == 1) {
        node_answer(node);
    } else {
        starts_sender(node);
    }
}

static void start_receiver_of_two_calls(struct stage *stage) {
    start_receiver(stage);
    stage->nodes[1].asks = starts_sender_in_its_second_call;
}

/* The prompt that holds the mail does not fit: a compaction takes it into the new context, where it is delivered. */
static void mail_is_delivered_with_the_compaction_that_holds_it(void **state) {
    (void)state;
    struct stage stage;
    stage_set(&stage, 2, NULL);
    struct node *receiver = &stage.nodes[1];
    static char long_reply[6001];
    for (size_t i = 0; i + 1 < sizeof long_reply; i += 2) {
        (void)memcpy(long_reply + i, "a ", 2);
    }
    stage.nodes[0].mail_text = "come here";
    stage.nodes[0].asks = sends_to_second;
    stage.nodes[0].turned_to = tells_before_compaction;
    receiver->long_reply = long_reply;
    receiver->turns[1].text = ONE_CALL;
    receiver->options.agent.context_max = 8192;
    receiver->options.agent.compact_at_percent = 80;
    receiver->options.agent.compact_keep_turns = 1;
    receiver->creates = true;
    stage_play(&stage, start_receiver_of_two_calls);
    const struct session_agent *agent = node_record(receiver);
    const struct session_mail *mail = mail_of(&stage, stage.nodes[0].mail);
    int64_t turn = 0;
    size_t compactions = 0;
    for (size_t i = 0; i < agent->turn_count; i++) {
        compactions += agent->turns[i].compaction != NULL ? 1 : 0;
    }
    assert_int_equal(compactions, 1);
    assert_int_equal(receiver->given, 2);
    assert_int_equal(mail->state, SESSION_MAIL_DELIVERED);
    assert_int_equal(turns_with(agent, "From another", &turn), 1);
    assert_int_equal(mail->turn, turn);
    stage_clear(&stage);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mail_is_delivered_with_the_turn_that_holds_it),
        cmocka_unit_test(mail_keeps_its_order),
        cmocka_unit_test(mail_that_is_not_there_stops_its_receiver),
        cmocka_unit_test(mail_bounces_with_the_end_of_its_receiver),
        cmocka_unit_test(call_is_recorded_without_mail_that_cannot_be_sent),
        cmocka_unit_test(failure_of_the_disk_is_one_of_the_record),
        cmocka_unit_test(mail_is_delivered_with_the_compaction_that_holds_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Which effect of the swarm is done where; docs/swarm.md has the same as a table. */
#include "swarm_host_internal.h"

static void time_came(void *context);

static void wait_until(struct swarm_host *host, int64_t wake_ms) {
    host->wake_ms = wake_ms;
    loop_wait(host->loop, wake_ms - swarm_host_now_ms(host), time_came, host);
}

static void time_came(void *context) {
    struct swarm_host *host = context;
    if (swarm_host_now_ms(host) < host->wake_ms) {
        wait_until(host, host->wake_ms); /* the loop's clock is coarse; the swarm asks once */
        return;
    }
    host_event(host, &(struct swarm_event){.type = SWARM_TIME});
}

static void set_share(struct host_node *node, const struct swarm_effect *effect) {
    node->share.tokens_max = effect->tokens_max;
    node->share.calls_max = effect->calls_max;
    node->share.deadline_ms = swarm_node(node->host->swarm, node->index)->deadline_ms;
    node->processes_max = effect->processes_max;
    node->memory_bytes_max = effect->memory_bytes_max;
    node->limits_are_new = true;
    host_agent_tell_share(node);
}

static void set_effort(struct host_node *node, int32_t effort) {
    node->effort = effort;
    node->share_is_new = true;
    if (node->run != NULL) {
        run_set_effort(node->run, effort);
    }
}

static void node_effect(struct host_node *node, const struct swarm_effect *effect) {
    if (effect->type == SWARM_DO_START) {
        host_node_start(node, effect);
    } else if (effect->type == SWARM_DO_CANCEL) {
        host_node_cancel(node);
    } else if (effect->type == SWARM_DO_VERIFY) {
        host_verify(node, effect);
    } else if (effect->type == SWARM_DO_CANCEL_VERIFY) {
        host_verify_cancel(node);
    } else if (effect->type == SWARM_DO_MERGE) {
        host_merge(node, effect);
    } else if (effect->type == SWARM_DO_ANSWER) {
        host_answer(node, effect);
    } else if (effect->type == SWARM_DO_DELIVER) {
        host_deliver(node, effect);
    } else if (effect->type == SWARM_DO_TELL) {
        host_tell(node, effect);
    } else if (effect->type == SWARM_DO_SET_SHARE) {
        set_share(node, effect);
    } else {
        ASSERT(effect->type == SWARM_DO_SET_EFFORT); /* FINISH is the pump's */
        set_effort(node, effect->effort);
    }
}

void host_effect(struct swarm_host *host, const struct swarm_effect *effect) {
    if (effect->type == SWARM_DO_WAIT) {
        wait_until(host, effect->wake_ms);
    } else if (effect->type == SWARM_DO_RANK) {
        host_rank(host, effect);
    } else if (effect->type == SWARM_DO_CANCEL_RANK) {
        host_rank_cancel(host);
    } else {
        ASSERT(effect->node < host->node_count);
        node_effect(&host->nodes[effect->node], effect);
    }
}

/* Threads for work that takes as long as it likes: calls, hooks, servers that start. See loop_internal.h.
 *
 * libuv's pool has four threads, which also write records and output. A call may wait for minutes, and one that
 * waits for another agent ends only after that agent's records are written: four of them would stop every run for
 * good. How many the pool has is decided by the environment before its first use, and no number is right. So this
 * work has threads of its own: one is made when none is idle, so that there are as many as there were jobs at one
 * time, which is what the runs ask for. They live as long as the loop, since what the sandbox starts ends with the
 * thread that started it.
 */
#include "loop_internal.h"

struct loop_worker {
    struct loop_worker *next;
    struct loop_workers *workers;
    uv_thread_t thread;
};

static void list_push(struct loop_jobs *list, struct loop_job *job) {
    job->next = NULL;
    *(list->first == NULL ? &list->first : &list->last->next) = job;
    list->last = job;
}

static struct loop_job *list_pop(struct loop_jobs *list) {
    struct loop_job *job = list->first;
    if (job != NULL) {
        list->first = job->next;
    }
    return job;
}

void loop_workers_init(struct loop_workers *workers, struct loop *loop) {
    *workers = (struct loop_workers){.loop = loop};
    int status = uv_mutex_init(&workers->lock);
    status |= uv_cond_init(&workers->changed);
    ASSERT(status == 0); /* they take no resource */
}

void loop_workers_deinit(struct loop_workers *workers) {
    uv_mutex_lock(&workers->lock);
    ASSERT(workers->waiting.first == NULL && workers->ended.first == NULL);
    workers->is_closing = true;
    uv_cond_broadcast(&workers->changed);
    uv_mutex_unlock(&workers->lock);
    while (workers->all != NULL) {
        struct loop_worker *worker = workers->all;
        workers->all = worker->next;
        int status = uv_thread_join(&worker->thread);
        ASSERT(status == 0);
        free(worker);
    }
    uv_cond_destroy(&workers->changed);
    uv_mutex_destroy(&workers->lock);
}

static void worker_main(void *context) {
    const struct loop_worker *worker = context;
    struct loop_workers *workers = worker->workers;
    uv_mutex_lock(&workers->lock);
    while (!workers->is_closing) {
        struct loop_job *job = list_pop(&workers->waiting);
        if (job == NULL) {
            workers->idle++;
            uv_cond_wait(&workers->changed, &workers->lock);
            workers->idle--;
            continue;
        }
        workers->waiting_count--;
        uv_mutex_unlock(&workers->lock);
        job->work(job->context);
        uv_mutex_lock(&workers->lock);
        list_push(&workers->ended, job); /* and is not ours any more */
        uv_mutex_unlock(&workers->lock);
        loop_wake(workers->loop);
        uv_mutex_lock(&workers->lock);
    }
    uv_mutex_unlock(&workers->lock);
}

/* Lock held. */
static bool worker_add(struct loop_workers *workers) {
    struct loop_worker *worker = calloc(1, sizeof *worker);
    if (worker == NULL) {
        return false;
    }
    worker->workers = workers;
    if (uv_thread_create(&worker->thread, worker_main, worker) != 0) {
        free(worker);
        return false;
    }
    worker->next = workers->all;
    workers->all = worker;
    return true;
}

static void pooled_work(uv_work_t *request) {
    const struct loop_job *job = request->data;
    job->work(job->context);
}

static void pooled_done(uv_work_t *request, int status) {
    const struct loop_job *job = request->data;
    ASSERT(status == 0); /* never cancelled in the pool's queue */
    job->done(job->context);
}

void loop_job_start(
    struct loop *loop,
    struct loop_job *job,
    void (*work)(void *context),
    void (*done)(void *context),
    void *context
) {
    struct loop_workers *workers = &loop->workers;
    *job = (struct loop_job){.work = work, .done = done, .context = context};
    uv_mutex_lock(&workers->lock);
    bool is_taken = workers->idle > workers->waiting_count || worker_add(workers);
    if (is_taken) {
        list_push(&workers->waiting, job);
        workers->waiting_count++;
        uv_cond_signal(&workers->changed);
    }
    uv_mutex_unlock(&workers->lock);
    if (!is_taken) { /* no thread to be had: the pool has some */
        job->pooled.data = job;
        int status = uv_queue_work(&loop->uv, &job->pooled, pooled_work, pooled_done);
        ASSERT(status == 0); /* fails only without a work function */
    }
}

void loop_jobs_came(struct loop *loop) {
    struct loop_workers *workers = &loop->workers;
    for (;;) {
        uv_mutex_lock(&workers->lock);
        struct loop_job *job = list_pop(&workers->ended);
        uv_mutex_unlock(&workers->lock);
        if (job == NULL) {
            return;
        }
        job->done(job->context);
    }
}

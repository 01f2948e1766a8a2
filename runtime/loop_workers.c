/* Threads for work that takes as long as it likes: calls, hooks, servers that start. See loop_internal.h.
 *
 * libuv's pool has four threads, which also write records and output. A call may wait for minutes, and one that
 * waits for another agent ends only after that agent's records are written: four of them would stop every run for
 * good. How many the pool has is decided by the environment before its first use, and no number is right. So this
 * work has threads of its own: one from the start, and one more when none is idle, so that there are as many as there
 * were jobs at one time, which is what the runs ask for. Where no more can be had, a job waits for one. They live as
 * long as the loop, since what the sandbox starts ends with the thread that started it.
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

void loop_workers_deinit(struct loop_workers *workers) {
    uv_mutex_lock(&workers->lock);
    ASSERT(workers->waiting.first == NULL && workers->ended.first == NULL);
    ASSERT(workers->posted.first == NULL && workers->open_count == 0);
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

result loop_workers_init(struct loop_workers *workers, struct loop *loop, struct error *error) {
    *workers = (struct loop_workers){.loop = loop};
    int status = uv_mutex_init(&workers->lock);
    status |= uv_cond_init(&workers->changed);
    ASSERT(status == 0); /* they take no resource */
    if (!worker_add(workers)) {
        uv_cond_destroy(&workers->changed);
        uv_mutex_destroy(&workers->lock);
        FAIL(error, IO, "cannot make a thread for calls");
    }
    return OK;
}

void loop_job_start(struct loop *loop, struct loop_job *job) {
    struct loop_workers *workers = &loop->workers;
    workers->open_count++;
    loop_keep(loop);
    uv_mutex_lock(&workers->lock);
    bool is_enough = workers->idle > workers->waiting_count || worker_add(workers);
    (void)is_enough; /* else it waits for one that ends */
    list_push(&workers->waiting, job);
    workers->waiting_count++;
    uv_cond_signal(&workers->changed);
    uv_mutex_unlock(&workers->lock);
}

void loop_job_post(struct loop *loop, struct loop_job *job) {
    struct loop_workers *workers = &loop->workers;
    uv_mutex_lock(&workers->lock);
    list_push(&workers->posted, job);
    uv_mutex_unlock(&workers->lock);
    loop_wake(loop);
}

static struct loop_job *take(struct loop_workers *workers, struct loop_jobs *list) {
    uv_mutex_lock(&workers->lock);
    struct loop_job *job = list_pop(list);
    uv_mutex_unlock(&workers->lock);
    return job;
}

void loop_jobs_came(struct loop *loop) {
    struct loop_workers *workers = &loop->workers;
    struct loop_job *job;
    while ((job = take(workers, &workers->ended)) != NULL) {
        job->done(job->context);
        workers->open_count--;
    }
    while ((job = take(workers, &workers->posted)) != NULL) {
        job->done(job->context);
    }
    loop_keep(loop);
}

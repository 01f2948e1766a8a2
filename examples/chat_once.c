/* One question, one answer: opens a model, renders a conversation, streams what the model writes.
 *
 *   chat_once [MODEL_DIRECTORY] QUESTION
 *
 * The caller's thread polls here; a program with an event loop gives the engine a wake function. */
#include "engine/chat.h"
#include "engine/engine.h"
#include "engine/tokenizer.h"

#include <time.h>

#define TOKENS_MAX 512

static void encoder_cleanup(struct chat_encoder **encoder) {
    chat_encoder_destroy(*encoder);
}

static void engine_cleanup(struct engine **engine) {
    engine_close(*engine);
}

/* Prints tokens as they arrive until the generation is finished. */
static result print_answer(struct engine *engine, struct error *error) {
    struct tokenizer_stream stream = {.held_count = 0};
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    for (;;) {
        struct engine_event event;
        if (!engine_next_event(engine, &event)) {
            struct timespec pause = {.tv_nsec = 1000000};
            (void)nanosleep(&pause, NULL);
            continue;
        }
        if (event.type == ENGINE_TOKEN) {
            buffer_clear(&text);
            const struct tokenizer *tokenizer = engine_tokenizer(engine);
            TRY(tokenizer_stream_push(&stream, tokenizer, event.token, &text, error));
            (void)fwrite(text.data, 1, text.length, stdout);
            (void)fflush(stdout);
        } else if (event.type == ENGINE_FINISHED) {
            if (event.reason == FINISH_ERROR) {
                FAIL(error, DEVICE, "%s", event.error.message);
            }
            printf(
                "\n[%d prompt tokens in %.0f ms, %d sampled in %.0f ms]\n",
                event.facts.prompt_tokens,
                (double)event.facts.prefill_us / 1000,
                event.facts.sampled,
                (double)event.facts.decode_us / 1000
            );
            return OK;
        }
    }
}

static result chat_once(const char *directory, const char *question, struct error *error) {
    CLEANUP(engine_cleanup) struct engine *engine = NULL;
    CLEANUP(encoder_cleanup) struct chat_encoder *encoder = NULL;
    CLEANUP(token_list_deinit) struct token_list prompt = {NULL, 0, 0, 0};
    struct engine_options options = {.model_directory = directory, .sequences_max = 1};
    TRY(engine_open(&options, &engine, error));
    if (engine_wording(engine) == NULL) {
        FAIL(error, NOT_FOUND, "'%s' has no wording for conversations", directory);
    }
    TRY(chat_encoder_create(&encoder, engine_tokenizer(engine), engine_wording(engine), error));
    struct chat_message message = {.role = CHAT_USER, .content = view_of_text(question)};
    struct chat_request render = {
        .messages = &message, .message_count = 1, .options = chat_options_default()};
    token_list_init(&prompt, TOKEN_LIST_CEILING_DEFAULT);
    TRY(chat_encode(&prompt, encoder, &render, error));
    struct generation_request request = {
        .append = prompt.ids, .append_count = prompt.count, .tokens_max = TOKENS_MAX};
    engine_default_sampling(engine, &request.sampling);
    TRY(engine_sequence_create(engine, &request.sequence, error));
    TRY(engine_generate(engine, &request, error));
    return print_answer(engine, error);
}

int main(int count, char **arguments) {
    struct error error = {0};
    if (count < 2 || count > 3) {
        (void)fprintf(stderr, "usage: chat_once [MODEL_DIRECTORY] QUESTION\n");
        return 2;
    }
    const char *directory = count == 3 ? arguments[1] : EXAMPLES_MINI_MODEL;
    if (is_failed(chat_once(directory, arguments[count - 1], &error))) {
        (void)fprintf(stderr, "chat_once: %s\n", error.message);
        return 1;
    }
    return 0;
}

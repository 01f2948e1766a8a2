/* Runs a fuzz entry without libFuzzer: each corpus file as it is, then seeded mutations of it.
 * Deterministic, so that it can be a test; the real fuzzing is done by the fuzz preset. */
#include "base/bytes.h"

#include <dirent.h>

#define MUTATIONS_PER_FILE 400
#define INPUT_BYTES_MAX    ((size_t)1 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t random_state = 0x9E3779B97F4A7C15U;

static uint64_t next_random(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static void mutate(unsigned char *data, size_t *length) {
    size_t edits = 1 + next_random() % 4;
    for (size_t i = 0; i<edits && * length> 0; i++) {
        size_t at = next_random() % *length;
        switch (next_random() % 5) {
        case 0:
            data[at] ^= (unsigned char)(1U << (next_random() % 8));
            break;
        case 1:
            data[at] = (unsigned char)next_random();
            break;
        case 2:
            *length = at; // truncation
            break;
        case 3: { // drop a run
            size_t run = 1 + next_random() % 16;
            run = run > *length - at ? *length - at : run;
            memmove(data + at, data + at + run, *length - at - run);
            *length -= run;
            break;
        }
        default: { // copy a run over another place
            size_t run = 1 + next_random() % 16;
            size_t from = next_random() % *length;
            run = run > *length - at ? *length - at : run;
            run = run > *length - from ? *length - from : run;
            memmove(data + at, data + from, run);
            break;
        }
        }
    }
}

static size_t run_file(const char *path) {
    CLEANUP(buffer_deinit) struct buffer file = {NULL, 0, 0, 0};
    buffer_init(&file, INPUT_BYTES_MAX);
    struct error error;
    if (is_failed(file_read(path, &file, &error))) {
        (void)fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
    (void)LLVMFuzzerTestOneInput(buffer_view(&file).data, file.length);
    for (int i = 0; i < MUTATIONS_PER_FILE; i++) {
        size_t length = file.length;
        CLEANUP(free_cleanup) unsigned char *copy = malloc(length + 1);
        ASSERT(copy != NULL);
        memcpy(copy, buffer_view(&file).data, length);
        mutate(copy, &length);
        CLEANUP(free_cleanup) unsigned char *exact = malloc(length + 1);
        ASSERT(exact != NULL);
        memcpy(exact, copy, length);
        (void)LLVMFuzzerTestOneInput(exact, length);
    }
    return MUTATIONS_PER_FILE + 1;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        (void)fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
        return 2;
    }
    DIR *folder = opendir(argv[1]);
    if (folder == NULL) {
        (void)fprintf(stderr, "%s: no such corpus folder\n", argv[1]);
        return 1;
    }
    size_t runs = 0;
    size_t files = 0;
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        if (entry->d_name[0] == '.') {
            continue;
        }
        char path[4096];
        int length = snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
        ASSERT(length > 0 && (size_t)length < sizeof path);
        runs += run_file(path);
        files += 1;
    }
    closedir(folder);
    printf("%zu inputs from %zu corpus files\n", runs, files);
    return files == 0 ? 1 : 0;
}

/* Any bytes as a planner's last text: a list without circles, or an error with a text. */
#include "base/bytes.h"
#include "runtime/task_list.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct task_list list = {0};
    struct error error = {0};
    if (is_failed(task_list_parse(view_of(data, size), &list, &error))) {
        ASSERT(error.message[0] != '\0' && list.count == 0);
        return 0;
    }
    ASSERT(list.count >= 1 && list.count <= TASK_LIST_MAX);
    for (size_t i = 0; i < list.count; i++) {
        size_t chain = task_list_chain(&list, i);
        ASSERT(chain >= 1 && chain <= list.count);
        for (size_t j = 0; j < list.tasks[i].need_count; j++) {
            ASSERT(list.tasks[i].needs[j] != i && list.tasks[i].needs[j] < list.count);
        }
    }
    task_list_deinit(&list);
    return 0;
}

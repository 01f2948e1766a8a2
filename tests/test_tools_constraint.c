/* Whatever tools a dialect declares, a turn can be held to their schemas. */
#include "engine/chat.h"
#include "engine/chat_grammar.h"
#include "grammar_support.h"
#include "tools/tool.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void tools_of_each_dialect_are_a_grammar(void **state) {
    (void)state;
    for (size_t dialect = 0; dialect < TOOL_DIALECT_COUNT; dialect++) {
        struct chat_tool tools[TOOL_COUNT_MAX] = {0};
        size_t count = 0;
        for (size_t i = 0; i < tool_count(); i++) {
            const struct tool_descriptor *tool =
                tool_form(i, (enum tool_dialect)dialect, tool_set_all());
            if (tool != NULL) {
                tools[count].name = view_of_text(tool->name);
                tools[count].parameters = view_of_text(tool->schema);
                count++;
            }
        }
        assert_true(count > 10);
        const struct constraint_options options = {
            .tools = tools, .tool_count = count, .choice = CONSTRAINT_TOOLS_AUTO, .thinking = true};
        struct grammar *grammar = NULL;
        struct error error = {0};
        if (is_failed(chat_grammar_create(&grammar, grammar_test_vocabulary(), &options, &error))) {
            fail_msg("%s: %s", tool_dialect_name((enum tool_dialect)dialect), error.message);
        }
        grammar_destroy(grammar);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tools_of_each_dialect_are_a_grammar)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Instructions and skills: what is read, in which order, and files that are no instructions. */
#include "failing_memory.h"
#include "runtime/instructions.h"
#include "shell_support.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

/* `base` holds user/ and repo/ws/sub, the workspace; each test begins with empty ones. */
static char workspace[128];
static char user_directory[128];

static int set_up(void **state) {
    (void)state;
    base_make("instructions");
    (void)snprintf(workspace, sizeof workspace, "%s/repo/ws/sub", base);
    (void)snprintf(user_directory, sizeof user_directory, "%s/user", base);
    shell("mkdir -p user repo/.git repo/ws/sub");
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    base_remove();
    return 0;
}

static const char *const names[] = {"AGENTS.md", "CLAUDE.md"};

static void load_from(const char *directory, size_t bytes_max, struct instructions *out) {
    char inside[192];
    char outside[192];
    (void)snprintf(inside, sizeof inside, "%s/.hearth/skills", directory);
    (void)snprintf(outside, sizeof outside, "%s/skills", user_directory);
    const char *const skills[] = {inside, outside};
    const struct instructions_options options = {
        .workspace = directory,
        .user_directory = user_directory,
        .file_names = names,
        .file_name_count = COUNT_OF(names),
        .bytes_max = bytes_max,
        .skill_directories = skills,
        .skill_directory_count = COUNT_OF(skills),
    };
    struct error error = {0};
    if (is_failed(instructions_load(&options, out, &error))) {
        fail_msg("%s", error.message);
    }
    assert_true(utf8_is_valid(buffer_view(&out->text)));
}

static void load(struct instructions *out) {
    load_from(workspace, 64 << 10, out);
}

#define INTRODUCTION                                                                               \
    "Instructions for work in this project follow. Where two of them differ the later one "        \
    "counts; "                                                                                     \
    "what the user asks for counts more than any of them.\n"

static void nothing_gives_no_text(void **state) {
    (void)state;
    CLEANUP(instructions_deinit) struct instructions found;
    load(&found);
    assert_int_equal(found.text.length, 0);
    assert_int_equal(found.note_count, 0);
    assert_int_equal(found.file_count, 0);
}

static void the_nearest_comes_last(void **state) {
    (void)state;
    CLEANUP(instructions_deinit) struct instructions found;
    shell("echo root >repo/AGENTS.md; echo middle >repo/ws/CLAUDE.md; echo near "
          ">repo/ws/sub/AGENTS.md");
    shell("printf claude >repo/ws/sub/CLAUDE.md; echo mine >user/AGENTS.md; echo no >AGENTS.md");
    load(&found);
    assert_string_equal(
        buffer_text(&found.text),
        INTRODUCTION "\n<the user's AGENTS.md>\nmine\n</the user's AGENTS.md>\n"
                     "\n<../../AGENTS.md>\nroot\n</../../AGENTS.md>\n"
                     "\n<../CLAUDE.md>\nmiddle\n</../CLAUDE.md>\n"
                     "\n<AGENTS.md>\nnear\n</AGENTS.md>\n"
                     "\n<CLAUDE.md>\nclaude\n</CLAUDE.md>\n"
    );
    assert_int_equal(found.file_count, 5);
    assert_string_equal(found.files[1].name, "../../AGENTS.md");
    assert_int_equal(found.files[1].bytes, 5);
    assert_int_equal(found.note_count, 0);
}

/* Prompts that begin alike are found in the cache. */
static void the_same_files_give_the_same_bytes_elsewhere_and_later(void **state) {
    (void)state;
    CLEANUP(instructions_deinit) struct instructions first;
    CLEANUP(instructions_deinit) struct instructions second;
    char other[160];
    shell("echo a >repo/AGENTS.md; echo b >repo/ws/sub/AGENTS.md; mkdir -p "
          "repo/ws/sub/.hearth/skills/x");
    shell("printf -- '---\\ndescription: d\\n---\\n' >repo/ws/sub/.hearth/skills/x/SKILL.md");
    load(&first);
    shell("mkdir other; cp -r repo other/; touch -d 2001-01-01 other/repo/AGENTS.md; chmod 600 "
          "other/repo/AGENTS.md");
    (void)snprintf(other, sizeof other, "%s/other/repo/ws/sub", base);
    load_from(other, 64 << 10, &second);
    assert_true(view_equals(buffer_view(&first.text), buffer_view(&second.text)));
    assert_true(first.text.length > sizeof INTRODUCTION);
}

static void without_a_repository_only_the_workspace_counts(void **state) {
    (void)state;
    CLEANUP(instructions_deinit) struct instructions found;
    shell("rmdir repo/.git; echo no >repo/AGENTS.md; echo no >repo/ws/AGENTS.md; echo yes "
          ">repo/ws/sub/AGENTS.md");
    load(&found);
    assert_int_equal(found.file_count, 1);
    assert_string_equal(
        buffer_text(&found.text), INTRODUCTION "\n<AGENTS.md>\nyes\n</AGENTS.md>\n"
    );
}

static void a_worktree_is_a_root(void **state) {
    (void)state;
    CLEANUP(instructions_deinit) struct instructions found;
    shell("echo gitdir: x >repo/ws/.git; echo no >repo/AGENTS.md; echo yes >repo/ws/AGENTS.md");
    load(&found);
    assert_int_equal(found.file_count, 1);
    assert_string_equal(found.files[0].name, "../AGENTS.md");
}

/* Each of these stands in the place of AGENTS.md; CLAUDE.md beside it is read all the same. */
static void what_is_no_text_is_a_note(void **state) {
    (void)state;
    static const struct {
        const char *make; /* in the workspace */
        const char *note;
    } rows[] = {
        {"printf 'a\\000b' >AGENTS.md", "AGENTS.md is not read: it is not text"},
        {"printf '\\001\\002' >AGENTS.md", "it is not text"},
        {"head -c 20000 /dev/zero >AGENTS.md", "it is not text"},
        {"mkdir AGENTS.md", "it is a directory"},
        {"mkfifo AGENTS.md", "it is no regular file"},
        {"ln -s AGENTS.md AGENTS.md", "a link"},
        {"ln -s b AGENTS.md; ln -s AGENTS.md b", "a link"},
        {"ln -s /etc/passwd AGENTS.md", "a link that leads elsewhere"},
        {"ln -s ../../outside AGENTS.md; echo x >../../outside", "a link that leads elsewhere"},
        {"ln -s /dev/zero AGENTS.md", "a link that leads elsewhere"},
        {"ln -s fifo AGENTS.md; mkfifo fifo", "it is no regular file"},
        {"echo x >AGENTS.md; chmod 000 AGENTS.md", "AGENTS.md"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        CLEANUP(instructions_deinit) struct instructions found;
        bool is_readable_anyway = geteuid() == 0 && i + 1 == COUNT_OF(rows);
        shell("rm -rf repo/ws/sub && mkdir repo/ws/sub && cd repo/ws/sub && %s", rows[i].make);
        shell("echo good >repo/ws/sub/CLAUDE.md");
        load(&found);
        if (is_readable_anyway) {
            continue;
        }
        if (found.note_count != 1 || strstr(found.notes[0], rows[i].note) == NULL) {
            fail_msg(
                "row %zu: %zu notes: %s",
                i,
                found.note_count,
                found.note_count > 0 ? found.notes[0] : ""
            );
        }
        assert_null(strchr(found.notes[0], '\n'));
        assert_string_equal(
            buffer_text(&found.text), INTRODUCTION "\n<CLAUDE.md>\ngood\n</CLAUDE.md>\n"
        );
    }
}

static void links_and_copies_of_the_other_file_say_nothing_new(void **state) {
    (void)state;
    static const char *const rows[] = {
        "ln -s AGENTS.md CLAUDE.md", "cp AGENTS.md CLAUDE.md", "ln AGENTS.md CLAUDE.md"};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        CLEANUP(instructions_deinit) struct instructions found;
        shell("cd repo/ws/sub && rm -f *.md && echo one >AGENTS.md && %s", rows[i]);
        load(&found);
        assert_string_equal(
            buffer_text(&found.text), INTRODUCTION "\n<AGENTS.md>\none\n</AGENTS.md>\n"
        );
        assert_int_equal(found.note_count, 0);
    }
    CLEANUP(instructions_deinit) struct instructions found;
    shell("cd repo/ws/sub && rm -f *.md && echo one >notes && ln -s notes CLAUDE.md");
    load(&found); /* a link to a neighbour is followed */
    assert_string_equal(
        buffer_text(&found.text), INTRODUCTION "\n<CLAUDE.md>\none\n</CLAUDE.md>\n"
    );
    shell("echo mine >user/real && ln -s real user/AGENTS.md");
    instructions_deinit(&found);
    load(&found);
    assert_non_null(strstr(buffer_text(&found.text), "<the user's AGENTS.md>\nmine"));
}

static void text_is_made_plain(void **state) {
    (void)state;
    static const struct {
        const char *written, *read;
        size_t notes;
    } rows[] = {
        {"a\\r\\nb\\r\\n", "a\nb\n", 0},
        {"\\357\\273\\277a\\n", "a\n", 0},
        {"\\344b\\n",
         "\xef\xbf\xbd"
         "b\n",
         1},
        {"a\\342\\202\\n", "a\xef\xbf\xbd\n", 1},
        {"a\\033[31mb\\n", "a\\x1b[31mb\n", 0},
        {"a\\342\\200\\256b\\n", "a\\u202eb\n", 0},
        {"a", "a\n", 0},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        CLEANUP(instructions_deinit) struct instructions found;
        char want[512];
        shell("printf '%s' >repo/ws/sub/AGENTS.md", rows[i].written);
        load(&found);
        (void)snprintf(
            want, sizeof want, "%s\n<AGENTS.md>\n%s</AGENTS.md>\n", INTRODUCTION, rows[i].read
        );
        assert_string_equal(buffer_text(&found.text), want);
        assert_int_equal(found.note_count, rows[i].notes);
    }
    CLEANUP(instructions_deinit) struct instructions found;
    shell(": >repo/ws/sub/AGENTS.md");
    load(&found);
    assert_int_equal(found.text.length, 0);
}

static void huge_files_are_cut_and_the_nearest_has_the_room(void **state) {
    (void)state;
    CLEANUP(instructions_deinit) struct instructions found;
    shell("yes 'a line of thirty-one characters' | head -c 10485760 >repo/ws/sub/AGENTS.md");
    load(&found);
    assert_int_equal(found.file_count, 1);
    assert_true(found.files[0].is_cut);
    assert_true(found.files[0].bytes <= INSTRUCTIONS_FILE_BYTES_MAX);
    assert_true(found.files[0].bytes > INSTRUCTIONS_FILE_BYTES_MAX - 64);
    assert_non_null(strstr(buffer_text(&found.text), "characters\n[the file goes on]\n</AGENTS.md>")
    );
    assert_int_equal(found.note_count, 1);
    instructions_deinit(&found);
    shell("cd repo; cp ws/sub/AGENTS.md ws/; cp ws/sub/AGENTS.md .; cp ws/sub/AGENTS.md ../user/");
    load(&found); /* two fill the room of all */
    assert_true(found.text.length < (64 << 10) + 1024);
    assert_string_equal(found.files[found.file_count - 1].name, "AGENTS.md");
    assert_string_equal(found.files[found.file_count - 2].name, "../AGENTS.md");
    assert_true(found.note_count >= 3);
    instructions_deinit(&found);
    load_from(workspace, 40, &found);
    assert_int_equal(found.file_count, 1);
    assert_int_equal(found.files[0].bytes, 32);
    instructions_deinit(&found);
    load_from(workspace, 0, &found);
    assert_int_equal(found.text.length, 0);
    assert_int_equal(found.note_count, 0);
    instructions_deinit(&found);
    shell("head -c 40000 /dev/zero | tr '\\000' '\\344' >repo/ws/sub/AGENTS.md"
    ); /* no line's end */
    load(&found);
    assert_true(found.text.length > 0);
}

static atomic_bool is_growing;

static void *grow(void *context) {
    const int *fd = context;
    const char line[] = "it grows and grows\n";
    while (atomic_load(&is_growing)) {
        if (write(*fd, line, sizeof line - 1) < 0 || lseek(*fd, 0, SEEK_CUR) > 4 << 20) {
            assert_true(ftruncate(*fd, 0) == 0 && lseek(*fd, 0, SEEK_SET) == 0);
        }
    }
    return NULL;
}

static void a_file_that_grows_meanwhile_ends(void **state) {
    (void)state;
    char path[160];
    pthread_t thread;
    (void)snprintf(path, sizeof path, "%s/AGENTS.md", workspace);
    CLEANUP(fd_cleanup) int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    atomic_store(&is_growing, true);
    assert_int_equal(pthread_create(&thread, NULL, grow, &fd), 0);
    for (int i = 0; i < 200; i++) {
        CLEANUP(instructions_deinit) struct instructions found;
        load(&found);
        assert_true(found.text.length < INSTRUCTIONS_FILE_BYTES_MAX + 1024);
    }
    atomic_store(&is_growing, false);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static void a_workspace_that_is_gone_is_a_note(void **state) {
    (void)state;
    CLEANUP(instructions_deinit) struct instructions found;
    shell("rm -rf repo; echo mine >user/AGENTS.md");
    load(&found);
    assert_int_equal(found.file_count, 1);
    CLEANUP(instructions_deinit) struct instructions other;
    shell("echo x >repo; ");
    load_from(base, 100, &other); /* no directory of instructions, but one */
    assert_int_equal(other.file_count, 1);
}

static void skills_are_listed_by_name_and_description(void **state) {
    (void)state;
    CLEANUP(instructions_deinit) struct instructions found;
    char want[1024];
    shell("mkdir -p repo/ws/sub/.hearth/skills/b repo/ws/sub/.hearth/skills/a user/skills/c "
          "user/skills/a");
    shell("cd repo/ws/sub/.hearth/skills; printf -- '---\\nname: pdf\\ndescription: \"Reads: "
          "PDF\"\\nx: "
          "y\\n---\\ntext\\n' >a/SKILL.md; printf -- '---\\r\\ndescription: >-\\r\\n  two\\r\\n  "
          "lines\\r\\n---\\r\\n' "
          ">b/SKILL.md");
    shell("cd user/skills; printf -- '---\\nname: mine\\ndescription: own\\n---\\n' >c/SKILL.md; "
          "printf "
          "-- '---\\nname: pdf\\ndescription: again\\n---\\n' >a/SKILL.md");
    load(&found);
    (void)snprintf(
        want,
        sizeof want,
        "Skills are files with instructions for tasks of one kind. Read the file before such a "
        "task, "
        "one outside of the workspace with the shell:\n"
        "- pdf (.hearth/skills/a/SKILL.md): Reads: PDF\n"
        "- b (.hearth/skills/b/SKILL.md): two lines\n"
        "- mine (%s/skills/c/SKILL.md): own\n",
        user_directory
    );
    assert_string_equal(buffer_text(&found.text), want);
    assert_int_equal(found.skill_count, 3);
    assert_false(found.skills[0].is_outside);
    assert_true(found.skills[2].is_outside);
    assert_int_equal(found.skill_root_count, 1);
    (void)snprintf(want, sizeof want, "%s/skills", user_directory);
    assert_string_equal(found.skill_roots[0], want);
    assert_int_equal(found.note_count, 1); /* the second pdf */
    assert_non_null(strstr(found.notes[0], "'pdf' is listed already"));
}

static void skills_that_are_none_are_notes(void **state) {
    (void)state;
    static const struct {
        const char *make; /* in .hearth/skills/x */
        const char *note; /* null: none */
    } rows[] = {
        {":", NULL},
        {"echo text >SKILL.md", "no front matter"},
        {"printf -- '---\\nname: x\\n' >SKILL.md", "no front matter"},
        {"printf -- '---\\nname: x\\n---\\n' >SKILL.md", "no description"},
        {"printf -- '---\\nname: x\\ndescription:\\n---\\n' >SKILL.md", "no description"},
        {"mkfifo SKILL.md", "no regular file"},
        {"mkdir SKILL.md", "a directory"},
        {"ln -s /etc/passwd SKILL.md", "a link"},
        {"printf '\\000' >SKILL.md", "not text"},
        {"yes -- '---' | head -c 10485760 >SKILL.md", "no description"},
        {"yes 'a: b' | head -c 10485760 >SKILL.md", "no front matter"},
        {"cd .. && rmdir x && ln -s . x", "it is a link"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        CLEANUP(instructions_deinit) struct instructions found;
        shell(
            "cd repo/ws/sub && rm -rf .hearth && mkdir -p .hearth/skills/x && cd .hearth/skills/x "
            "&& %s",
            rows[i].make
        );
        load(&found);
        assert_int_equal(found.skill_count, 0);
        assert_int_equal(found.text.length, 0);
        if (found.note_count != (rows[i].note != NULL ? 1U : 0U) ||
            (rows[i].note != NULL && strstr(found.notes[0], rows[i].note) == NULL)) {
            fail_msg("row %zu: %s", i, found.note_count > 0 ? found.notes[0] : "no note");
        }
    }
}

static void many_skills_and_long_texts_are_bounded(void **state) {
    (void)state;
    CLEANUP(instructions_deinit) struct instructions found;
    shell("cd repo/ws/sub && mkdir -p .hearth/skills && cd .hearth/skills && for i in $(seq 100 "
          "180); do mkdir $i; "
          "(printf -- '---\\ndescription: '; head -c 9000 /dev/zero | tr '\\000' x; printf "
          "'\\n---\\n') >$i/SKILL.md; done");
    load(&found);
    assert_int_equal(found.skill_count, SKILLS_MAX);
    assert_string_equal(found.skills[0].name, "100");
    assert_int_equal(strlen(found.skills[0].description), SKILL_DESCRIPTION_BYTES);
    assert_int_equal(found.note_count, INSTRUCTIONS_NOTES_MAX);
}

/* It is an error, or the text lacks what a note says. */
static void a_failed_allocation_is_never_a_crash(void **state) {
    (void)state;
    const char *const skills[] = {user_directory};
    const struct instructions_options options = {
        .workspace = workspace,
        .user_directory = user_directory,
        .file_names = names,
        .file_name_count = COUNT_OF(names),
        .bytes_max = 65536,
        .skill_directories = skills,
        .skill_directory_count = 1,
    };
    shell("echo a >repo/AGENTS.md; ln -s x repo/ws/sub/AGENTS.md; printf '\\344' >repo/ws/AGENTS.md"
    );
    shell("mkdir user/x; printf -- '---\\ndescription: d\\n---\\n' >user/x/SKILL.md; mkdir user/y; "
          "echo >user/y/SKILL.md");
    bool fired = true;
    size_t nth = 1;
    for (; fired; nth++) {
        CLEANUP(instructions_deinit) struct instructions found;
        struct error error = {0};
        failing_memory_arm(nth);
        result done = instructions_load(&options, &found, &error);
        fired = failing_memory_fired();
        failing_memory_arm(0);
        assert_true(is_ok(done) || done.code == RESULT_MEMORY);
        assert_true(fired || (is_ok(done) && found.file_count == 2 && found.skill_count == 1));
    }
    assert_true(nth > 20);
}

int main(void) {
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(nothing_gives_no_text),
        TEST(the_nearest_comes_last),
        TEST(the_same_files_give_the_same_bytes_elsewhere_and_later),
        TEST(without_a_repository_only_the_workspace_counts),
        TEST(a_worktree_is_a_root),
        TEST(what_is_no_text_is_a_note),
        TEST(links_and_copies_of_the_other_file_say_nothing_new),
        TEST(text_is_made_plain),
        TEST(huge_files_are_cut_and_the_nearest_has_the_room),
        TEST(a_file_that_grows_meanwhile_ends),
        TEST(a_workspace_that_is_gone_is_a_note),
        TEST(skills_are_listed_by_name_and_description),
        TEST(skills_that_are_none_are_notes),
        TEST(a_failed_allocation_is_never_a_crash),
        TEST(many_skills_and_long_texts_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#!/usr/bin/env python3
"""The terminal that a person works in: test_terminal.py HEARTH_SCRIPTED [NAME-PART]...

The whole program with a scripted engine, driven by keys. tmux is the terminal where the screen counts;
a pseudo terminal of the test's own where bytes, modes and times count. Every wait is for something
that is to be seen, and has a limit. Output is that of cli_support.py.
"""
import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unicodedata

import cli_support

PROGRAM = os.path.abspath(sys.argv[1])
WAIT = 60  # seconds for something to be seen; a busy machine is slow
ENDLESS = {"thinking": "hm", "text": "again", "repeat": True, "delay_us": 5000}
SLOW_LIMITS = ["--max-repeats", "off", "--max-thinking", "off", "--max-turn-tokens", "16000"]


def say(text, **more):
    return dict({"thinking": "hm", "text": text}, **more)


def call(command, **more):
    return dict({"thinking": "hm", "text": "", "calls": [
        {"name": "shell", "arguments": {"command": command}}]}, **more)


class Place:
    """A workspace, a state directory and a script."""

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="hearth-terminal-"))
        self.state = self.folder / "state"
        self.work = self.folder / "work"
        self.work.mkdir()
        return self

    def __exit__(self, *unused):
        shutil.rmtree(self.folder, ignore_errors=True)

    def environment(self, turns, **more):
        (self.folder / "script.json").write_text(json.dumps({"turns": turns}))
        kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        return dict(kept, HEARTH_SCRIPT=str(self.folder / "script.json"), HOME=str(self.folder),
                    XDG_CONFIG_HOME=str(self.folder / "config"), **more)

    def configure(self, **settings):
        folder = self.folder / "config" / "hearth"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(settings))

    def command(self, *arguments):
        return [PROGRAM, "run", "-C", str(self.work), "--state", str(self.state), *SLOW_LIMITS,
                *arguments]

    def session(self):
        shown = subprocess.run([PROGRAM, "sessions", "show", "last", "--json", "--state", str(self.state)],
                               env=self.environment([]), cwd=self.work, stdout=subprocess.PIPE, check=True)
        return json.loads(shown.stdout)


# ---- tmux ----------------------------------------------------------------------------------------


class Screen:
    """A tmux of its own that runs a shell command, then says its status and the terminal's modes."""
    count = 0

    def __init__(self, place, command, turns, width=80, height=40, **environment):
        if shutil.which("tmux") is None:
            raise cli_support.Skipped("tmux is not installed")
        Screen.count += 1
        self.tmux = ["tmux", "-L", f"hearth-terminal-{os.getpid()}-{Screen.count}", "-f", "/dev/null"]
        quoted = command if isinstance(command, str) else " ".join(f"'{word}'" for word in command)
        shell = f"{quoted}; s=$?; echo; echo status $s; stty -a | tr ' ' '\\n' | grep -x -e '-*icanon' -e '-*echo'; exec sleep 600"
        started = subprocess.run(
            [*self.tmux, "new-session", "-d", "-x", str(width), "-y", str(height), "sh", "-c", shell],
            env=place.environment(turns, LC_ALL="C.UTF-8", **environment), stderr=subprocess.PIPE)
        if started.returncode != 0:
            raise cli_support.Skipped("tmux does not start: " + started.stderr.decode().strip())

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        subprocess.run([*self.tmux, "kill-server"], stderr=subprocess.DEVNULL)

    def text(self, *options):
        return subprocess.run([*self.tmux, "capture-pane", "-p", "-S", "-500", *options],
                              stdout=subprocess.PIPE).stdout.decode()

    def wait(self, *wanted, without=None, once=None):
        """The screen, once it shows all of `wanted`, `once` a single time, and not `without`."""
        deadline = time.monotonic() + WAIT
        while True:
            text = self.text()
            if all(part in text for part in wanted) and (without is None or without not in text) and \
                    (once is None or text.count(once) == 1):
                return text
            assert time.monotonic() < deadline, f"{wanted} not {without}, once {once} in:\n{text}"
            time.sleep(0.02)

    def has_style(self, code, text):
        """Whether the text begins with that style; what tmux says of it beside that does not count."""
        return re.search(rf"\x1b\[[0-9;]*{code}m(\x1b\[[0-9;]*m)*" + re.escape(text), self.text("-e")) is not None

    def type(self, text):
        subprocess.run([*self.tmux, "send-keys", "-l", text], check=True)

    def keys(self, *names):
        subprocess.run([*self.tmux, "send-keys", *names], check=True)

    def enter(self, text):
        self.type(text)
        self.keys("Enter")

    def idle(self):
        return self.wait("waiting | ")

    def ended(self, status=0):
        """The screen after the end; fails unless the terminal is as a shell wants it."""
        return self.wait(f"\nstatus {status}\nicanon\necho\n")


def test_an_answer_is_formatted_and_the_session_goes_on():
    with Place() as place:
        turns = [say("# Title\n\nSome **bold** text\n\n- one\n- two\n\n```c\nint x;\n```\nend", delay_us=3000),
                 say("second answer")]
        with Screen(place, place.command(), turns) as screen:
            screen.idle()
            screen.enter("first message")
            text = screen.wait("end", "waiting | ")
            assert "\nTitle\n\nSome bold text\n\n- one\n- two\n\n  int x;\nend\n" in text, text
            assert screen.has_style(1, "Title"), screen.text("-e")
            assert text.count("first message") == 1, text
            screen.enter("and more")
            text = screen.wait("second answer", "you: and more")
            screen.keys("C-d")
            text = screen.ended()
            assert text.count("Some bold text") == 1 and text.count("second answer") == 1, text
            assert "> " not in text.split("second answer")[1], text  # the prompt went


def test_lines_are_edited_remembered_and_found_again():
    with Place() as place:
        with Screen(place, place.command(), [say("one"), say("two")]) as screen:
            screen.idle()
            screen.type("world")
            screen.keys("C-a")
            screen.type("hello ")
            screen.keys("C-e", "BSpace", "Left", "Delete", "Left", "Left")
            screen.type("\u00e9\u4f60")
            screen.wait("> hello w\u00e9\u4f60or")
            screen.keys("Enter")
            screen.wait("one", "task: hello w\u00e9\u4f60or")
            screen.type("lost")
            screen.keys("C-c")
            screen.wait("waiting | ", without="lost")
            screen.keys("Up")
            screen.wait("> hello w\u00e9\u4f60or")
            screen.keys("C-u", "C-d")
            screen.ended()
        history = place.state / "history"
        assert history.read_text() == "hello w\u00e9\u4f60or\n"
        assert history.stat().st_mode & 0o777 == 0o600
        history.write_text("older line\n" * 3 + "hello there\n")
        with Screen(place, place.command(), [say("one")]) as screen:
            screen.idle()
            screen.type("older")
            screen.keys("C-r")
            screen.wait("> older line")
            screen.keys("C-c", "Up")
            screen.wait("> hello there")
            screen.keys("C-u", "C-d")
            screen.ended()


def test_tab_completes_commands_and_files_of_the_workspace():
    with Place() as place:
        (place.work / "alpha.txt").write_text("x")
        (place.work / "alpine.md").write_text("x")
        (place.work / "sub").mkdir()
        (place.work / "sub" / "deep.c").write_text("x")
        (place.work / "link").symlink_to("/etc")
        with Screen(place, place.command(), [say("one")]) as screen:
            screen.idle()
            screen.type("/ef")
            screen.keys("Tab")
            screen.type("42")
            screen.wait("> /effort 42")
            screen.keys("Enter")
            screen.wait("effort 42 from the next turn on")
            screen.type("see al")
            screen.keys("Tab")
            screen.wait("> see alp")
            screen.keys("Tab")
            screen.wait("alpha.txt\n", "alpine.md\n")
            screen.type("h")
            screen.keys("Tab")
            screen.wait("> see alpha.txt")
            screen.type("and su")
            screen.keys("Tab")
            screen.wait("and sub/")
            screen.keys("Tab")
            screen.wait("and sub/deep.c")
            screen.type("link/pass")  # leads outside: nothing is found there
            screen.keys("Tab")
            screen.type("!")
            screen.wait("link/pass!")
            screen.keys("C-u")
            screen.enter("go")
            screen.wait("one", "| effort 42")


def test_a_wrong_command_is_not_sent_and_the_nearest_is_named():
    with Place() as place:
        with Screen(place, place.command(), [say("one")], width=200) as screen:
            screen.idle()
            screen.enter("/hepl")
            screen.wait("there is no command /hepl; did you mean /help? (/help lists them)")
            screen.enter("/")
            screen.wait("there is no command / (/help lists them)")
            screen.enter("/help")
            screen.wait("/effort N", "/quit", "Ctrl-D: end")
            screen.enter("/etc/passwd is what?")  # a path, so a message
            screen.wait("one", "task: /etc/passwd is what?")
            screen.enter("/model")
            screen.wait("scripted; another one: /model DIR")
            screen.enter("/quit")
            screen.ended()


def test_output_of_a_tool_is_live_and_messages_typed_meanwhile_wait():
    cli_support.needs_sandbox()
    with Place() as place:
        command = "for i in 1 2 3 4 5 6 7 8 9; do echo line $i; done; while ! test -e go; do sleep 0.02; done; echo done"
        with Screen(place, place.command(), [call(command), say("read it")]) as screen:
            screen.idle()
            screen.enter("start")
            text = screen.wait("  | line 9", "tool | ")
            assert "  | line 4" not in text, text  # the last five lines
            screen.enter("by the way")
            screen.wait("queued: by the way")
            screen.type("half a li")
            screen.wait("> half a li")
            (place.work / "go").write_text("")
            text = screen.wait("read it", "> half a li", "waiting | ", without="queued: ")
            assert "  | ... 3 more lines ...\n  | line 8\n  | line 9\n  | done\n  | [exit 0]\n" in text, text
            assert text.index("  | done") < text.index("you: by the way") < text.index("read it"), text


def test_thinking_is_folded_and_can_be_unfolded():
    thought = "First I think about this at some length. " * 4 + "\nSecond line of it."
    with Place() as place:
        with Screen(place, place.command(), [say("a", thinking=thought), say("b", thinking=thought)]) as screen:
            screen.idle()
            screen.enter("go")
            text = screen.wait("~ First I think", f"... ({len(thought)} bytes)", "waiting | ")
            assert "Second line" not in text, text
            screen.keys("C-t")
            screen.wait("~ Second line of it.")
            screen.enter("more")
            text = screen.wait("\nb\n", "waiting | ")
            assert text.count("~ Second line of it.") == 2, text
            screen.enter("/thinking")
            screen.wait("thinking is folded")


def test_an_edit_is_shown_as_a_difference():
    with Place() as place:
        (place.work / "a.c").write_text("one\ntwo\nthree\n")
        turns = [{"thinking": "hm", "text": "", "calls": [{"name": "edit", "arguments": {
            "path": "a.c", "old": "one\ntwo\nthree\n", "new": "one\n2\nthree\n"}}]}, say("done it")]
        with Screen(place, place.command(), turns) as screen:
            screen.idle()
            screen.enter("go")
            text = screen.wait("done it")
            assert "> edit a.c\n    one\n  - two\n  + 2\n    three\n" in text, text
            assert screen.has_style(31, "  - two") and screen.has_style(32, "  + 2"), screen.text("-e")


def test_a_file_that_is_written_over_is_shown_as_a_difference():
    cli_support.needs_sandbox()
    numbers = [f"line {number}\n" for number in range(300)]
    changed = ["first\n", *numbers[1:150], "middle\n", *numbers[151:]]
    new = "".join(f"new {number}\n" for number in range(90))

    def write(path, content):
        return {"thinking": "hm", "text": "", "calls": [
            {"name": "write", "arguments": {"path": path, "content": content}}]}
    with Place() as place:
        place.configure(policy="ask")
        (place.work / "a").write_text("".join(numbers))
        (place.work / "b").write_bytes(b"a\0b")
        turns = [write("a", "".join(changed)), write("a", "".join(changed)), write("a", new), write("b", "text"),
                 say("over")]
        with Screen(place, place.command(), turns, height=50) as screen:
            screen.idle()
            screen.enter("go")
            text = screen.wait("? may write run?", "allow? y once")
            shown = "> write a\n  @@ -1,3 +1,3 @@\n  -line 0\n  +first\n   line 1\n   line 2\n  @@ -149,5 +149,5 @@"
            assert shown in text and text.count("-line 150") == 1 and "line 3\n" not in text, text
            assert screen.has_style(31, "  -line 0") and screen.has_style(32, "  +first"), screen.text("-e")
            screen.enter("y")
            screen.wait("ok: wrote a", "the file stays as it is", "allow? y once")
            screen.enter("y")
            text = screen.wait("not all of it is shown: v shows it", "allow? y once", without="+new 89")
            screen.enter("v")
            screen.wait("  +new 89\n", "allow? y once")
            screen.enter("n")
            screen.wait("over a file of 3 bytes, no difference:\n  content text\n", "allow? y once")
            screen.enter("y")
            screen.wait("over", "waiting | ")
        assert (place.work / "a").read_text() == "".join(changed) and (place.work / "b").read_text() == "text"


def test_an_interrupt_gives_the_prompt_back_and_two_end():
    with Place() as place:
        with Screen(place, place.command(), [ENDLESS, ENDLESS, say("x")]) as screen:
            screen.idle()
            screen.enter("go")
            screen.wait("againain")
            screen.keys("C-c")
            screen.idle()
            screen.enter("again, please")
            screen.wait("you: again, please", "writing | ")
            screen.keys("C-c", "C-c")
            screen.ended(130)
        assert place.session()["status"] == "stopped"


def test_escape_twice_steers():
    with Place() as place:
        with Screen(place, place.command(), [ENDLESS, say("turned"), ENDLESS]) as screen:
            screen.idle()
            screen.enter("go")
            screen.wait("againain")
            screen.type("turn left")
            screen.wait("> turn left")
            screen.keys("Escape", "Escape")
            screen.wait("you: turn left", "turned", "waiting | ")
            assert "ended it itself" not in screen.text()
            screen.enter("on")
            screen.wait("you: on", "writing | ")
            screen.keys("Escape", "Escape")
            screen.idle()
            screen.keys("C-c")  # is the first one
            screen.wait("once more to leave", "waiting | ")
            screen.keys("C-c")
            text = screen.ended()
            assert "# go on: hearth run --resume " in text and "# next: hearth sessions show " in text, text


def test_questions_are_answered_with_a_word_and_enter():
    cli_support.needs_sandbox()
    with Place() as place:
        place.configure(policy="ask")
        turns = [call("echo first"), call("echo second"), call("echo third"), say("over")]
        with Screen(place, place.command(), turns) as screen:
            screen.idle()
            screen.enter("go")
            screen.wait("? may shell run?", "allow? y once, a always, n no and why, v view:")
            screen.enter("yes, and then look at it")  # said of something else
            screen.wait("y: once, a: always, n: no")
            screen.enter("y")
            screen.wait("| first")
            text = screen.wait("> shell echo second", "allow? y once")
            assert "| second" not in text
            screen.enter("n not this one")
            text = screen.wait("denied by you", "> shell echo third", "allow? y once")
            assert "not this one" in text and "| second" not in text, text
            screen.type("y")
            screen.keys("Enter")
            screen.wait("| third", "over", "waiting | ")


def test_a_person_sees_all_of_what_they_allow():
    cli_support.needs_sandbox()
    long_line = "echo " + "x" * 900 + " ; echo the very end"
    many = "\n".join(f"echo line {number}" for number in range(60))
    huge = "\n".join(f"echo huge {number}" for number in range(400))
    with Place() as place:
        place.configure(policy="ask")
        (place.work / "a").write_text("one\n" * 90)
        edit = {"name": "edit", "arguments": {"path": "a", "edits": [
            {"old": "one\n" * 90, "new": "".join(f"new {number}\n" for number in range(90))}]}}
        turns = [call(long_line), call(many), call(huge), {"thinking": "hm", "text": "", "calls": [edit]},
                 say("over")]
        with Screen(place, place.command(), turns, height=50) as screen:
            screen.idle()
            screen.enter("go")
            text = screen.wait("? may shell run?", "allow? y once").replace("\n", "")
            assert text.count("x" * 70) > 900 // 80 and text.count("the very end") == 2, text
            assert "v shows" not in text
            screen.enter("n")
            text = screen.wait("line 59", "allow? y once")
            assert all(f"echo line {number}\n" in text for number in range(60)), text
            screen.enter("n")
            text = screen.wait("not all of it is shown: v shows it", "huge 399", "allow? y once")
            assert "echo huge 149\n" in text and "echo huge 150\n" not in text and "... 200 more lines" in text, text
            screen.enter("v")
            text = screen.wait("echo huge 150\n", "echo huge 349\n")
            screen.enter("n")
            text = screen.wait("> edit a\n  1.\n", "  + new 89\n", "allow? y once")
            screen.enter("/help")  # a command is one while it asks, too
            screen.wait("/rewind N")
            screen.enter("y")
            screen.wait("over", "waiting | ")


def test_always_is_not_asked_again():
    cli_support.needs_sandbox()
    with Place() as place:
        place.configure(policy="ask")
        turns = [call("echo same"), call("echo same"), say("over")]
        with Screen(place, place.command(), turns) as screen:
            screen.idle()
            screen.type("a draft")  # is there again after the question
            screen.wait("> a draft")
            screen.keys("Enter")
            screen.type("next dra")
            screen.wait("allow? y once, a always")
            screen.enter("a")
            text = screen.wait("over", "> next dra", "waiting | ")
            assert text.count("? may shell run?") == 1, text


def test_what_changed_is_shown_and_taken_back():
    cli_support.needs_sandbox()
    with Place() as place:
        (place.work / "a.txt").write_text("old line\n")
        with Screen(place, place.command(), [call("echo new line > a.txt"), say("over")]) as screen:
            screen.idle()
            screen.enter("go")
            screen.wait("over", "waiting | ")
            screen.enter("/diff")
            screen.wait("1 file changed", "-old line\n+new line\n")
            assert screen.has_style(31, "-old line") and screen.has_style(32, "+new line"), screen.text("-e")
            screen.enter("/undo")
            screen.wait("1 file put back")
            assert (place.work / "a.txt").read_text() == "old line\n"
            screen.enter("/budget")
            screen.wait("# context ")
            screen.keys("C-d")
            text = screen.ended()
            assert text.count("+new line\n") == 1, text  # not again at the end


def test_commands_of_the_session_work_from_the_keyboard():
    with Place() as place:
        with Screen(place, place.command(), [say("one"), say("two"), say("a summary"), say("three")], height=60) as screen:
            screen.idle()
            screen.enter("first")
            screen.wait("one", "waiting | ")
            screen.enter("second")
            screen.wait("two", "waiting | ")
            screen.enter("/status")
            screen.wait("session ", f"workspace {place.work}", "policy")
            screen.enter("/permissions")
            screen.wait("workspace-write")
            screen.enter("/fork")
            screen.wait("begins where this one stands")
            screen.enter("/sessions")
            screen.wait("2 turns  first")
            screen.enter("/rewind 1")
            screen.wait("back behind turn 1:")
            screen.enter("/compact")
            screen.wait("the context stays as it is")  # it is short
            screen.enter("again")
            screen.wait("you: again", "three", "waiting | ")
            screen.enter("/quit")
            screen.ended()


def test_clear_begins_a_new_session_on_the_same_terminal():
    with Place() as place:
        with Screen(place, place.command(), [say("first answer"), say("second answer")], height=60) as screen:
            screen.idle()
            screen.enter("go")
            screen.wait("first answer", "waiting | ")
            screen.enter("/clear")
            screen.wait("go on: hearth run --resume ", "waiting | ")
            screen.keys("Up", "Up")  # lines are remembered
            screen.wait("> go")
            screen.keys("Enter")
            text = screen.wait("second answer", "waiting | ")
            assert text.index("first answer") < text.index("--resume") < text.index("second answer"), text
            screen.keys("C-c", "C-c")
            screen.ended()
        assert place.session()["agents"][0]["turns"][0]["messages"][1]["text"] == "go"


def test_colour_and_markdown_are_switched_off_by_the_configuration():
    with Place() as place:
        place.configure(terminal={"colour": "never", "markdown": False})
        with Screen(place, place.command(), [say("# T\n**b**  `c`\n\n- x\n\n```\ny\n```\nend")]) as screen:
            screen.idle()
            screen.enter("go")
            text = screen.wait("end", "waiting | ")
            assert "# T\n**b**  `c`\n\n- x\n\n```\ny\n```\nend\n" in text, text
            assert "\x1b[" not in screen.text("-e")


def test_several_lines_are_typed_and_pasted():
    with Place() as place:
        with Screen(place, place.command(), [say("one"), say("two")]) as screen:
            screen.idle()
            screen.enter("first\\")
            screen.type("second")
            screen.keys("C-j")
            screen.type("third")
            screen.wait("> first\n  second\n  third\n")
            screen.keys("Enter")
            screen.wait("task: first\ntask: second\ntask: third", "one")
            subprocess.run([*screen.tmux, "set-buffer", "pasted 1\n\x1b[31mpasted 2\npasted 3"], check=True)
            subprocess.run([*screen.tmux, "paste-buffer", "-p"], check=True)
            screen.wait("> pasted 1\n  [31mpasted 2\n  pasted 3\n")
            screen.keys("Enter")
            screen.wait("you: pasted 1", "two")
        assert "first\\nsecond\\nthird\n" in (place.state / "history").read_text()


def test_twenty_columns_are_enough():
    with Place() as place:
        turns = [say("A paragraph of **some** length.\n\n|a|b|\n|---|---|\n|long cell here|another cell|\n", delay_us=2000)]
        with Screen(place, place.command(), turns, width=20, height=12) as screen:
            screen.wait("waiting")
            screen.enter("a message that is longer than a row")
            text = screen.wait("another", "waiting", "\n>")
            for line in text.splitlines():
                assert len(line) <= 20, line
            assert "A paragraph of\nsome length." in text, text
            screen.keys("C-d")
            screen.ended()


def test_without_colour_there_is_no_escape_and_no_mark_is_lost():
    with Place() as place:
        with Screen(place, place.command(), [say("# T\n**b** `c`")], NO_COLOR="1") as screen:
            screen.idle()
            screen.enter("go")
            screen.wait("# T\n**b** `c`\n")
            assert "\x1b[" not in screen.text("-e"), screen.text("-e")


def test_a_dumb_terminal_takes_lines():
    with Place() as place:
        with Screen(place, ["env", "TERM=dumb", *place.command()], [say("# T\n**b**"), say("two")]) as screen:
            screen.enter("go")
            screen.wait("# T\n**b**\n")
            screen.enter("more")
            text = screen.wait("two")
            assert "\x1b" not in screen.text("-e"), text
            screen.keys("C-d")
            screen.ended()


def test_another_size_draws_all_again():
    with Place() as place:
        with Screen(place, place.command(), [dict(ENDLESS, delay_us=200000)]) as screen:
            screen.idle()
            screen.enter("go")
            screen.wait("againain")
            screen.type("some text that is typed " * 3)
            screen.wait("that is typed")
            for width, height in [(50, 20), (100, 30), (30, 12), (80, 40)]:
                subprocess.run([*screen.tmux, "resize-window", "-x", str(width), "-y", str(height)], check=True)
                shown = ("> " + "some text that is typed " * 3)[:width - 5].rstrip()
                screen.wait(shown, once="writing | ")  # tmux may show what was written before it was told
            screen.keys("C-c")
            screen.idle()


def test_suspend_gives_the_terminal_back_and_go_on_takes_it_again():
    with Place() as place:
        with Screen(place, "env PS1='shell$ ' bash --norc -i", [ENDLESS]) as screen:
            screen.wait("shell$")
            screen.enter(" ".join(f"'{word}'" for word in place.command()))
            screen.idle()
            screen.enter("go")
            screen.wait("againain")
            screen.type("kept")
            screen.wait("> kept")
            screen.keys("C-z")
            screen.wait("Stopped", without="writing | ")
            screen.enter("stty -a | grep -o -e '-*icanon' -e '-*isig'")
            screen.wait("\nisig\nicanon")
            screen.enter("fg")
            screen.wait("> kept", "writing | ")
            screen.keys("C-c")
            screen.idle()
            screen.keys("C-c")
            screen.wait("waiting | ", without="> kept")
            screen.keys("C-d")
            screen.wait("the user left")
            screen.enter("exit")
            screen.ended()


def test_a_stop_from_outside_is_as_good_as_a_key():
    with Place() as place:
        with Screen(place, "env PS1='shell$ ' bash --norc -i", [ENDLESS]) as screen:
            screen.wait("shell$")
            screen.enter(" ".join(f"'{word}'" for word in place.command()))
            screen.idle()
            pid = subprocess.run(["pgrep", "-f", f"^{PROGRAM} run -C {place.work}"], stdout=subprocess.PIPE,
                                 check=True).stdout.split()[0]
            os.kill(int(pid), signal.SIGTSTP)
            screen.wait("Stopped", without="waiting | ")
            screen.enter("fg")
            screen.idle()
            screen.type("a line")
            screen.wait("> a line")
            os.kill(int(pid), signal.SIGSTOP)  # no chance to put anything right
            screen.wait("Stopped")
            screen.enter("stty sane; fg")
            screen.wait("> a line")
            screen.type(" goes on")
            screen.wait("> a line goes on")


def rows_of(place, *arguments, width=80):
    """What a command writes on a terminal of that width."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    process = subprocess.Popen([PROGRAM, *arguments, "--state", str(place.state)], stdin=slave, stdout=slave,
                               stderr=subprocess.STDOUT, env=place.environment([], TERM="xterm-256color"))
    os.close(slave)
    seen = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while piece := os.read(master, 65536):
            seen += piece
    os.close(master)
    assert process.wait() == 0, seen
    return seen.decode().replace("\r\n", "\n").rstrip("\n").split("\n")


def test_what_is_listed_and_shown_fits_the_terminal():
    with Place() as place:
        task = "a task of so many words that they do not fit into one row of the terminal \u4e2d\u6587 " * 3
        subprocess.run([*place.command("--json"), task], env=place.environment([say("word " * 60)]), check=True,
                       stdout=subprocess.PIPE)
        piped = subprocess.run([PROGRAM, "sessions", "list", "--state", str(place.state)], check=True,
                               env=place.environment([]), stdout=subprocess.PIPE).stdout.decode()
        session = piped.split()[0]
        for width in (80, 60, 120):
            rows = rows_of(place, "sessions", "list", width=width)
            assert len(rows) == 1 and width - 4 < columns(rows[0]) <= width, rows
            assert piped.startswith(rows[0][:18]) and "done" in rows[0] and ("a task" in rows[0]) == (width > 60), rows
            shown = rows_of(place, "sessions", "show", session, width=width)
            wide = [row for row in shown if columns(row) > width and " " in row.strip()]
            assert not wide, wide
            plain = subprocess.run([PROGRAM, "sessions", "show", session, "--state", str(place.state)], check=True,
                                   env=place.environment([]), stdout=subprocess.PIPE).stdout.decode()
            assert plain.split() == " ".join(shown).split()  # nothing is lost
            assert any(row.startswith("          ") for row in shown), shown
            doctor = rows_of(place, "doctor", width=width)
            wide = [row for row in doctor if columns(row) > width and " " in row.strip()]
            assert not wide, wide


def columns(text):
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def test_hearth_alone_is_an_interactive_run():
    with Place() as place:
        command = f"cd '{place.work}' && XDG_STATE_HOME='{place.state}' '{PROGRAM}'"
        with Screen(place, command, [say("alone")]) as screen:
            screen.idle()
            screen.enter("go")
            screen.wait("alone", "waiting | ")
            screen.keys("C-d")
            screen.ended()


# ---- a pseudo terminal ---------------------------------------------------------------------------


class Terminal:
    """The program on a pseudo terminal; the test holds both ends, to look at the modes."""

    def __init__(self, place, command, turns, width=80, height=24):
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        self.seen = b""

        def take_terminal():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            command, stdin=self.slave, stdout=self.slave, stderr=self.slave,
            env=place.environment(turns, TERM="xterm-256color"), preexec_fn=take_terminal)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for end in (self.master, self.slave):
            with contextlib.suppress(OSError):
                os.close(end)

    def read(self, seconds):
        """What comes within that time, or nothing."""
        if select.select([self.master], [], [], seconds)[0]:
            self.seen += os.read(self.master, 65536)
            return True
        return False

    def wait(self, wanted):
        deadline = time.monotonic() + WAIT
        while wanted not in self.seen:
            self.read(0.1)
            assert time.monotonic() < deadline, (wanted, self.seen[-2000:])

    def send(self, text):
        os.write(self.master, text)

    def ended(self):
        """The status; what is written meanwhile is read, so that nothing waits for it."""
        deadline = time.monotonic() + WAIT
        while self.process.poll() is None:
            self.read(0.05)
            assert time.monotonic() < deadline, self.seen[-2000:]
        while self.read(0):
            pass
        return self.process.returncode

    def modes_are_restored(self):
        assert termios.tcgetattr(self.slave) == self.before, "the modes are not as they were"
        assert self.seen.rfind(b"\x1b[?2004l") > self.seen.rfind(b"\x1b[?2004h"), self.seen[-500:]


def test_modes_are_restored_on_every_way_out():
    ways = {
        "end": lambda terminal: terminal.send(b"\x04"),
        "twice": lambda terminal: terminal.send(b"\x03\x03"),
        "many": lambda terminal: terminal.send(b"\x03" * 8),
        "SIGTERM": lambda terminal: terminal.process.send_signal(signal.SIGTERM),
        "SIGHUP": lambda terminal: terminal.process.send_signal(signal.SIGHUP),
        "SIGINT": lambda terminal: [terminal.process.send_signal(signal.SIGINT), terminal.wait(b"once more to leave"),
                                    terminal.process.send_signal(signal.SIGINT)],
        "SIGABRT": lambda terminal: terminal.process.send_signal(signal.SIGABRT),
        "SIGSEGV": lambda terminal: terminal.process.send_signal(signal.SIGSEGV),
        "SIGQUIT": lambda terminal: terminal.process.send_signal(signal.SIGQUIT),
    }
    for name, way in ways.items():
        with Place() as place, Terminal(place, place.command(), [say("x")]) as terminal:
            terminal.wait(b"waiting | ")
            assert termios.tcgetattr(terminal.slave) != terminal.before
            way(terminal)
            terminal.ended()
            try:
                terminal.modes_are_restored()
            except AssertionError as problem:
                raise AssertionError(f"{name}: {problem}") from problem


def test_a_terminal_that_vanishes_ends_the_run_and_nothing_is_lost():
    cli_support.needs_sandbox()
    for turns, working in [([ENDLESS], b"againain"), ([call("echo begun; sleep 300")], b"  | begun"), ([], b"waiting | ")]:
        with Place() as place, Terminal(place, place.command(), [say("first"), *turns]) as terminal:
            terminal.wait(b"waiting | ")
            terminal.send(b"hello\r")
            terminal.wait(b"first")
            if turns:
                terminal.send(b"go\r")
                terminal.wait(working)
            os.close(terminal.slave)
            os.close(terminal.master)
            terminal.process.wait(timeout=WAIT)
            tree = place.session()
            assert tree["status"] in ("stopped", "done"), tree["status"]
            assert any("first" in message["text"] for turn in tree["agents"][0]["turns"]
                       for message in turn["messages"])
            left = subprocess.run(["pgrep", "-f", str(place.work)], stdout=subprocess.PIPE).stdout
            assert not left, left


def test_a_key_is_echoed_while_the_model_writes():
    with Place() as place, Terminal(place, place.command(), [dict(ENDLESS, delay_us=2000)]) as terminal:
        terminal.wait(b"waiting | ")
        terminal.send(b"go\r")
        terminal.wait(b"againain")
        times = []
        for i in range(60):
            mark = bytes([97 + i % 26])
            terminal.seen = b""
            begin = time.monotonic()
            terminal.send(mark)
            while not re.search(rb"> [a-z]*" + mark + rb"\x1b\[K", terminal.seen):
                terminal.read(0.01)
                assert time.monotonic() < begin + WAIT, terminal.seen
            times.append((time.monotonic() - begin) * 1000)
        times.sort()
        print(f"key to echo: median {times[30]:.1f} ms, 95 of 100 {times[57]:.1f} ms, longest {times[-1]:.1f} ms")
        # The promise is 10 ms; on a busy machine the kernel alone may take longer now and then.
        assert times[30] <= (100 if cli_support.is_slow_build() else 10), times


def test_a_slow_reader_gets_what_is_new_and_no_queue():
    cli_support.needs_sandbox()
    with Place() as place:
        flood = "i=0; while test $i -lt 3000; do echo $i aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; i=$((i+1)); done; sleep 1"
        with Terminal(place, place.command(), [call(flood), say("over")]) as terminal:
            terminal.wait(b"waiting | ")
            terminal.send(b"go\r")
            terminal.seen = b""
            deadline = time.monotonic() + WAIT
            while not b"over" in terminal.seen:  # 2 kB/s, and none of it in time
                time.sleep(0.05)
                if select.select([terminal.master], [], [], 0)[0]:
                    terminal.seen += os.read(terminal.master, 100)
                assert time.monotonic() < deadline, terminal.seen[-500:]
            assert len(terminal.seen) < 40000, len(terminal.seen)
            terminal.send(b"\x04")
            terminal.ended()
            terminal.modes_are_restored()


# What the program may write: text, newlines, and these.
HARMLESS = re.compile(rb"\x1b\[(\d+(;\d+)*)?[mACGKJ]|\x1b\[[JKm]|\x1b\[\?2004[hl]|[\r\n]|[^\x00-\x1f\x7f]")


def test_no_text_of_model_or_tool_reaches_the_terminal_as_it_is():
    cli_support.needs_sandbox()
    hostile = "\x1b]0;title\x07 \x1b[2J \x9b31m \u202e rtl \x1bP1$r\x1b\\ \x08\x08 \x1b[?1049h"
    with Place() as place:
        (place.work / "bytes").write_bytes(hostile.encode() + bytes(range(256)))
        turns = [{"thinking": hostile, "text": hostile, "calls": [
            {"name": "shell", "arguments": {"command": "cat bytes; sleep 0.3 # " + hostile}}]},
            say("```\n" + hostile + "\n```\n# " + hostile + "\n- " + hostile + "\nover", thinking=hostile)]
        with Terminal(place, place.command(), turns) as terminal:
            terminal.wait(b"waiting | ")
            terminal.send(b"\x1b[200~" + hostile.replace("\x1b", "").encode() + b"\x1b[201~\r")
            terminal.wait(b"over")
            terminal.wait(b"waiting | ")
            terminal.send(b"\x14\x0f\x1b[99;99~\x1b[M!!!\x00\x01\x04\x0b\x04")
            terminal.ended()
            rest = HARMLESS.sub(b"", terminal.seen)
            assert not rest, rest
            for bad in ("\x9b", "\u202e"):
                assert bad.encode() not in terminal.seen, bad
            terminal.modes_are_restored()


def test_a_long_paste_is_bounded_and_the_line_stays_usable():
    with Place() as place, Terminal(place, place.command(), [say("taken")]) as terminal:
        terminal.wait(b"waiting | ")
        paste = b"\x1b[200~" + b"0123456789abcdef " * 40000 + b"\x1b[201~"
        for at in range(0, len(paste), 1000):
            while not select.select([], [terminal.master], [], 0)[1]:
                terminal.read(0.01)
            os.write(terminal.master, paste[at:at + 1000])
            terminal.read(0)
        terminal.wait(b"its end is missing")
        terminal.send(b"\x15short\r")
        terminal.wait(b"task: short")
        terminal.wait(b"taken")


if __name__ == "__main__":
    parts = sys.argv[2:]
    sys.exit(cli_support.run_tests([
        (name, test) for name, test in list(globals().items()) if name.startswith("test_")
        and callable(test) and (not parts or any(part in name for part in parts))]))

#!/usr/bin/env python3
"""hearth model: test_cli_model.py HEARTH [NAME-PART]...

Every stage of the engine alone: tokens, prompts, parses, logits, plans, random models.
"""
import json
import sys

from cli_support import GREEDY, MINI, ROOT, Scratch, check, hearth, is_slow_build, main, needs_sandbox


def test_tokens_go_there_and_back():
    text = "def f(x):\n\treturn x ** 2  # h\u00e9 \u4f60\u597d \U0001f600\n"
    ids = check(hearth("model", "tokens", text=text), 0).stdout.decode()
    back = check(hearth("model", "tokens", "--decode", text=ids), 0)
    assert back.stdout.decode() == text
    value = json.loads(hearth("model", "tokens", "--json", text).stdout)
    assert value == {"text": text, "ids": [int(word) for word in ids.split()]}
    assert hearth("model", "tokens", "<think>").stdout == b"6\n"
    assert len(hearth("model", "tokens", "--no-markers", "<think>").stdout.split()) > 1
    check(hearth("model", "tokens", "-d", "1 x"), 5, err="'x' at byte 2 is no token id")
    check(hearth("model", "tokens", "-d", "99999999"), 5, err="^hearth: ")


def test_render_gives_the_prompt_of_the_model():
    known = json.loads((MINI / "default-prompt.json").read_text())
    tools = [{"type": "function", "function": tool} for tool in known["tools"]]
    messages = [{"role": "system", "content": known["system"], "tools": tools},
                {"role": "user", "content": known["example_user"]}]
    for effort, name in [("50", "rendered_prompt_effort_50"), ("off", "rendered_prompt_chat_mode")]:
        done = check(hearth("model", "render", "--effort", effort, text=json.dumps(messages)), 0)
        assert done.stdout.decode() == known[name]
    bare = [{"role": "system", "content": known["system"]}, messages[1]]
    done = hearth("model", "render", "--effort", "50", "--json",
                  text=json.dumps({"messages": bare, "tools": tools}))
    value = json.loads(done.stdout)
    assert value["text"] == known["rendered_prompt_effort_50"]
    check(hearth("model", "render", text=json.dumps({"messages": messages[1:], "tools": tools})), 0,
          out="### Available Tool Schemas")
    encoded = hearth("model", "tokens", text=value["text"]).stdout.split()
    assert value["ids"] == [int(word) for word in encoded]
    check(hearth("model", "render", text="{}"), 5, err="messages")
    check(hearth("model", "render", "/no/such/file"), 5, err="/no/such/file")


def test_run_uses_that_prompt():
    needs_sandbox()
    with Scratch() as scratch:
        known = json.loads((MINI / "default-prompt.json").read_text())
        scratch.run(known["example_user"], *GREEDY, "--max-tokens", "1")
        runs = scratch.tree("--tokens")["agents"][0]["turns"][0]["token_runs"]
        ids = " ".join(str(i) for i in runs[0]["ids"])
        text = hearth("model", "tokens", "--decode", text=ids).stdout.decode()
        assert text == known["rendered_prompt_effort_50"]


def test_parse_says_what_was_wrong():
    good = ("why</think>text\n\n<\uff5cDSML\uff5c calls>\n<\uff5cDSML\uff5c invoke name=\"read\">\n"
            "<\uff5cDSML\uff5c parameter name=\"path\" string=\"true\">a</\uff5cDSML\uff5c parameter>\n"
            "</\uff5cDSML\uff5c invoke>\n</\uff5cDSML\uff5c calls><\uff5cend\u2581of\u2581sentence\uff5c>")
    value = json.loads(check(hearth("model", "parse", text=good), 0).stdout)
    assert value["ended"] and value["problems"] == [], value
    assert value["message"]["reasoning_content"] == "why"
    assert value["message"]["tool_calls"][0]["function"]["name"] == "read"
    ids = hearth("model", "tokens", text=good).stdout.decode()
    assert json.loads(hearth("model", "parse", "--ids", text=ids).stdout) == value
    torn = json.loads(hearth("model", "parse", text=good[:90]).stdout)
    assert torn["problems"], torn
    check(hearth("model", "parse", "--strict", text=good), 0, out="read")
    check(hearth("model", "parse", "--strict", text=good[:90]), 5, err="^hearth: ")


def test_logits_are_the_same_bits_by_any_chunk():
    ids = hearth("model", "tokens", text="def add(a, b):\n    return a - b\n" * 3).stdout.decode()
    count = len(ids.split())
    whole = check(hearth("model", "logits", "--binary", text=ids), 0).stdout
    assert len(whole) == count * 4096 * 4, len(whole)
    for chunk in ["1", "7"]:
        assert hearth("model", "logits", "--binary", "--chunk", chunk, text=ids).stdout == whole
    last = hearth("model", "logits", "--binary", "--last", text=ids).stdout
    assert last == whole[-4096 * 4:]
    rows = [json.loads(line) for line in
            hearth("model", "logits", "--json", "--stats", text=ids).stdout.splitlines()]
    assert [row["position"] for row in rows[:-1]] == list(range(count))
    assert len(rows[-1]["stats"]) == 10
    check(hearth("model", "logits", text=""), 5, err="no token ids")
    check(hearth("model", "logits", text="5000"), 5, err="^hearth: .*5000")
    check(hearth("model", "logits", "--isa", "abacus", text="1"), 2, err="abacus")


def wanted_counters(config, count, replay):
    """What section 3.13 of the specification says runs for a prompt of `count` tokens: per layer the
    rows, and of those that choose entries the number and the index rows (None: at most the pool)."""
    layers = config["num_hidden_layers"]
    encoder = config["kv_source_layer_ids"][-1]
    pool = config["candidate_topk_blocks"] * config["candidate_block_size"]
    wanted = []
    for layer in range(layers):
        rows = count
        if layer >= encoder:
            window = config["sliding_window"]
            rows = window if replay else 1 + (layers - 1 - layer) * (window - 1)
        scores = []
        if layer in config["index_source_layer_ids"]:
            ratio = config["compress_ratios"][layer]
            visible = [(p + 1) // ratio for p in range(count - rows, count)]
            scores = [n for n in visible if n > config["index_topk"]]
        is_full = layer in config["kv_source_layer_ids"]
        wanted.append((rows, len(scores), sum(scores) if is_full or not scores else None, pool))
    return wanted


def test_counters_of_a_long_prompt_are_exactly_what_it_needs():
    model = ROOT / "build" / "test-data" / "golden" / "tiny-a"
    config = json.loads((model / "config.json").read_text())["text_config"]
    count = 1000 if is_slow_build() else 4000
    ids = " ".join(str(3 + i * 7919 % 1200) for i in range(count))
    for window in ["exact", "replay"]:
        done = check(hearth("model", "logits", "--model", str(model), "--last", "--stats", "--json",
                            "--window", window, text=ids), 0)
        stats = json.loads(done.stdout.splitlines()[-1])["stats"]
        wanted = wanted_counters(config, count, window == "replay")
        assert [layer["rows_full"] for layer in stats] == [rows for rows, _, _, _ in wanted], stats
        assert [layer["topk_runs"] for layer in stats] == [runs for _, runs, _, _ in wanted], stats
        for layer, (_, runs, index_rows, pool) in zip(stats, wanted):
            if index_rows is None:
                assert 0 < layer["index_rows"] <= runs * pool, layer
                assert layer["index_rows_max"] <= pool, layer
            else:
                assert layer["index_rows"] == index_rows, layer
        if window == "exact" and count == 4000:
            assert [layer["rows_full"] for layer in stats] == 5 * [4000] + [61, 46, 31, 16, 1]


def test_inspect_reports_the_model():
    check(hearth("model", "inspect"), 0, out="10")
    value = json.loads(hearth("model", "inspect", "--json").stdout)
    assert isinstance(value, dict)
    check(hearth("model", "inspect", "/no/such/model"), 5, err="/no/such/model")


def test_synthetic_model_is_written_inspected_and_benched():
    with Scratch() as scratch:
        model = str(scratch.path / "model")
        config = str(MINI / "model" / "config.json")
        check(hearth("model", "synth", model), 2, err="--config")
        made = hearth("model", "synth", model, "--config", config, "--layers", "6", "--experts", "8",
                      "--positions", "2048", "--json")
        check(made, 0)
        report = json.loads(made.stdout)
        assert (report["layers"], report["experts"]) == (6, 8), report
        shown = json.loads(hearth("model", "inspect", model, "--json").stdout)
        assert isinstance(shown, dict)
        check(hearth("model", "synth", model, "--config", config), 5, err="not empty")
        done = hearth("model", "bench", "--model", model, "--backend", "cpu", "--threads", "1",
                      "--batch", "1,2", "--context", "200,1000000", "--prefill", "16", "--repeats",
                      "2", "--json", "-")
        check(done, 0)
        table = json.loads(done.stdout)
        steps = [row for row in table["rows"] if row["kind"] == "step"]
        assert [(row["phase"], row["batch"], row["rows"]) for row in steps] == [
            ("decode", 1, 1), ("decode", 2, 2), ("prefill", 1, 16)], steps
        assert len(table["left_out"]) == 3, table["left_out"]  # 1,000,000 tokens: positions 2,048
        for step in steps:
            parts = [row for row in table["rows"] if row["kind"] == "kernel" and
                     (row["phase"], row["batch"]) == (step["phase"], step["batch"])]
            assert step["bytes"] == sum(row["bytes"] for row in parts) > 0
            assert 0 < step["device_seconds"] <= step["seconds_max"]
            assert any(row["label"].startswith("experts fp4") for row in parts)
        assert table["launch_seconds"] == table["stamp_seconds"] == 0  # of a device alone
        assert all("positions, the model has 2048" in why for why in table["left_out"]), table["left_out"]
        check(hearth("model", "bench", "--model", model, "--context", "1000000"), 3, err="none of the cases fits")
        check(hearth("model", "bench", "--batch", "x"), 2, err="--batch")
        check(hearth("model", "bench", "--backend", "x"), 2, err="auto, cpu or cuda")
        check(hearth("model", "bench", "--batch", ",".join("1" * 33)), 2, err="--batch")
        check(hearth("model", "bench", "--batch", ",".join("1" * 31)), 2, err="66 cases")


if __name__ == "__main__":
    sys.exit(main(globals()))

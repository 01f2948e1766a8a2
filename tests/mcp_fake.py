#!/usr/bin/env python3
"""An MCP server for tests: mcp_fake.py [MODE]. Without a mode it behaves; each mode misbehaves in one
way, and its tool "misbehave" does the same by its argument once it runs."""
import json
import os
import sys
import threading
import time

MODE = sys.argv[1] if len(sys.argv) > 1 else ""
lock = threading.Lock()
cancelled = []
answers = {}


def send(message):
    with lock:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def raw(text):
    with lock:
        sys.stdout.write(text)
        sys.stdout.flush()


def tool(name, properties=None, description="does " + "it"):
    return {"name": name, "description": description,
            "inputSchema": {"type": "object", "properties": properties or {}}}


def tools():
    names = ["echo", "fail", "image", "structured", "slow", "cancels", "crash", "misbehave", "ask", "env",
             "write", "raw_error", "nothing", "pid"]
    made = [tool(name, {"text": {"type": "string"}}) for name in names]
    if MODE == "many":
        made = [tool("t%d" % i) for i in range(1500)]
    if MODE in ("odd", "deep"):
        made = [tool("good"), tool("bad name"), tool("bad\nname"), tool(""), tool("x" * 300), tool("good"),
                {"name": "noschema"}, {"name": "list", "inputSchema": []}, 7, None,
                {"name": "type", "inputSchema": {"type": "string"}},
                tool("esc", description="a\x1b[31mred\u202e" + "y" * 9000)]
        deep = {"type": "object"}
        for _ in range(12 if MODE == "odd" else 40):
            deep = {"type": "object", "properties": {"p": deep}}
        made.append({"name": "deep", "inputSchema": deep})
        made.append({"name": "huge", "inputSchema": {"type": "object", "description": "z" * 100000}})
    return made


def misbehave(how):
    if how == "garbage":
        raw("this is no JSON\n{\n[]\n\"text\"\n{\"jsonrpc\":\"1.0\"}\n\xff\x00\n")
    elif how == "garbage_forever":
        while True:
            raw("no JSON\n" * 100)
    elif how == "flood":
        while True:
            raw('{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"x"}}\n' * 100)
    elif how == "long_line":
        raw("x" * (10 << 20) + "\n")
    elif how == "long_answer":
        return "x" * (5 << 20)
    elif how == "deep_answer":
        return "deep"
    elif how == "no_newline":
        for _ in range(300):
            raw("x" * (1 << 20))
        time.sleep(1000)
    elif how == "late":
        time.sleep(3)
    elif how == "hang":
        time.sleep(1000)
    elif how == "stop":
        os.kill(os.getpid(), 19)
        time.sleep(1000)
    elif how == "stderr":
        for i in range(20000):
            sys.stderr.write("line %d of a very long log\n" % i)
    elif how == "close":
        os.close(1)
        time.sleep(1000)


def call(ident, name, arguments):
    text = arguments.get("text", "")
    content, extra = [{"type": "text", "text": "?"}], {}
    if name == "echo":
        content = [{"type": "text", "text": "echo: " + text}]
    elif name == "fail":
        content, extra = [{"type": "text", "text": "no such thing"}], {"isError": True}
    elif name == "image":
        content = [{"type": "image", "mimeType": "image/png", "data": "QUJD" * 100},
                   {"type": "resource", "resource": {"uri": "file:///a", "mimeType": "text/plain", "text": "inside"}},
                   {"type": "resource_link", "uri": "file:///b", "name": "b"}]
    elif name == "structured":
        content, extra = [], {"structuredContent": {"answer": 42}}
    elif name == "slow":
        if "FAKE" in os.environ:
            open("slow-begun", "w").close()
        time.sleep(float(text))
    elif name == "cancels":
        content = [{"type": "text", "text": json.dumps(cancelled)}]
    elif name == "crash":
        sys.stderr.write("first\nfatal: \x1b[1mout of cheese\n")
        sys.stderr.flush()
        os._exit(3)
    elif name == "misbehave":
        content = [{"type": "text", "text": misbehave(text) or "survived"}]
        if text == "deep_answer":
            raw('{"jsonrpc":"2.0","id":%d,"result":%s1%s}\n' % (ident, '{"a":' * 99, '}' * 99))
            return
    elif name == "ask":
        for i, method in enumerate(["ping", "roots/list", "sampling/createMessage", "elicitation/create", "x/y"]):
            send({"jsonrpc": "2.0", "id": "q%d" % i, "method": method, "params": {}})
        until = time.time() + 10
        while len(answers) < 5 and time.time() < until:
            time.sleep(0.01)
        shown = [answers.get("q%d" % i) for i in range(5)]
        content = [{"type": "text", "text": json.dumps(
            [a.get("result", a.get("error", {}).get("code")) if a else None for a in shown])}]
    elif name == "env":
        content = [{"type": "text", "text": "%s %s %s" % (os.getcwd(), os.environ.get("FAKE"), os.getuid())}]
    elif name == "write":
        try:
            with open(text, "w") as file:
                file.write("written")
            content = [{"type": "text", "text": "ok"}]
        except OSError as error:
            content, extra = [{"type": "text", "text": error.strerror}], {"isError": True}
    elif name == "nothing":
        content = []
    elif name == "pid":
        content = [{"type": "text", "text": " ".join(sys.argv[1:])}]
    elif name == "raw_error":
        send({"jsonrpc": "2.0", "id": ident, "error": {"code": -32000, "message": "bad\x1b luck"}})
        return
    else:
        content, extra = [{"type": "text", "text": "Unknown tool: " + name}], {"isError": True}
    send({"jsonrpc": "2.0", "id": ident, "result": dict(content=content, **extra)})


def answer(message):
    method, ident = message.get("method"), message.get("id")
    if method == "initialize":
        if MODE == "mute":
            return
        if MODE == "early_exit":
            sys.stderr.write("cannot open my data\n")
            os._exit(7)
        if MODE in ("garbage_forever", "flood", "no_newline"):
            misbehave(MODE)
        if MODE == "chatty":
            raw("Welcome!\n\n  \nlistening\n")
        version = "1999-01-01" if MODE == "old" else message["params"]["protocolVersion"]
        send({"jsonrpc": "2.0", "id": ident, "result": {
            "protocolVersion": version, "capabilities": {} if MODE == "no_tools" else {"tools": {}},
            "serverInfo": {"name": "fake\x1b", "version": "1"}}})
    elif method == "tools/list":
        params = message.get("params") or {}
        at, step = int(params.get("cursor", "0")), 3
        if MODE == "many":
            step = 100
        result = {"tools": tools()[at:at + step]}
        if at + step < len(tools()) or MODE == "endless":
            result["nextCursor"] = str(at + step)
        if MODE == "list_error":
            send({"jsonrpc": "2.0", "id": ident, "error": {"code": -32601, "message": "none"}})
            return
        send({"jsonrpc": "2.0", "id": ident, "result": result})
    elif method == "tools/call":
        call(ident, message["params"]["name"], message["params"].get("arguments") or {})
    elif method == "ping":
        send({"jsonrpc": "2.0", "id": ident, "result": {}})


def main():
    for line in sys.stdin:
        message = json.loads(line)
        if "method" not in message:
            answers[message.get("id")] = message
        elif message["method"] == "notifications/cancelled":
            cancelled.append(message["params"]["reason"])
        elif message["method"] == "tools/call":
            threading.Thread(target=answer, args=(message,), daemon=True).start()
        else:
            answer(message)


main()

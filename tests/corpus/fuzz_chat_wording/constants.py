#!/usr/bin/env python3
"""A module text.
TOOLS = "not this one"
"""
import json  # EFFORT = "nor this"
other: str = 'it''s "quoted" \'' r"\" ("
SETTINGS = {
EFFORT: 1, 'b': [
TOOLS],
}
EFFORT_2 = "longer name"
if other == TOOLS_2:
    EFFORT = "indented"
EFFORT = (
    "E {budget}"  # the number
    ' e\n'
)
TOOLS: str = """## T
<{dsml_token}{tc_block_name}> {thinking_start_token} {{\"x\"}}
{schemas}
\x65\u006e\144
"""
FORMAT = u'R:' "\n" \
    '''{schema}'''
def f(TOOLS="default"):
    return rb'\'' + f"{EFFORT}"

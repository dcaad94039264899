#!/usr/bin/env python3
"""Renders the templates of tests/data/chat/templates (written in the style of published models' chat templates) with the jinja2 package,
set up as transformers sets it up, for conversations with tools and without, into test data.

Usage: make_chat_templates.py tests/data/chat/templates OUT.json          (needs: pip install jinja2)

OUT: contexts: name to context; templates: name to renderings: for each context's name a text, or null where jinja2 fails (where the
template refuses, or takes another kind of message for granted).
"""
import json
import pathlib
import sys

from make_chat_cases import make_environment

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather of a place.", "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "name of the city"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"}, "days": {"type": "array", "items": {"type": "integer"}}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "add", "description": "Adds \"numbers\" <fast> & s\u00fcre.", "parameters": {"type": "object", "properties": {
        "a": {"type": "number"}, "b": {"type": ["number", "null"]}, "options": {"type": "object", "properties": {"exact": {"type": "boolean"}}}}, "required": ["a", "b"]}}},
    {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}},
]
USER = {"role": "user", "content": " What is the weather in K\u00f6ln? \U0001F327\ufe0f\n"}
SYSTEM = {"role": "system", "content": "Be brief & kind. "}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "abc123DEF", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "K\u00f6ln", "unit": "celsius", "days": [1, 2]}}}]}
ANSWER = {"role": "tool", "tool_call_id": "abc123DEF", "name": "get_weather", "content": "{\"temperature\": 7.5}"}
FINAL = {"role": "assistant", "content": "It is 7.5 degrees."}
CALLS = {"role": "assistant", "content": "Let me see.", "tool_calls": [
    {"id": "aaaaaaaa1", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2.5}}}, {"id": "aaaaaaaa2", "type": "function", "function": {"name": "now", "arguments": {}}}]}
THOUGHT = {"role": "assistant", "content": "<think>\nWhat\nnow?\n</think>\n\nYes."}
REASONED = dict(FINAL, reasoning_content="\nSeven and a half.\n")
PARTS = {"role": "user", "content": [{"type": "text", "text": "Look: "}, {"type": "image"}, {"type": "text", "text": "what is it?"}]}
PLAIN = {"add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>", "tools": None, "documents": None}

CONTEXTS = {
    "question": {"messages": [USER]},
    "question with system": {"messages": [SYSTEM, USER]},
    "conversation": {"messages": [SYSTEM, USER, FINAL, {"role": "user", "content": "And tomorrow?"}]},
    "finished": {"messages": [USER, FINAL], "add_generation_prompt": False},
    "thoughts": {"messages": [USER, THOUGHT, USER]},
    "last thoughts": {"messages": [SYSTEM, USER, REASONED], "add_generation_prompt": False},
    "no thinking": {"messages": [{"role": "system", "content": "Short. /no_think"}, USER], "enable_thinking": False, "thinking": True, "effort": "low"},
    "tools": {"messages": [USER], "tools": TOOLS},
    "tools with system": {"messages": [SYSTEM, USER], "tools": TOOLS[:2]},
    "call": {"messages": [USER, CALL, ANSWER], "tools": TOOLS[:1]},
    "call and answer": {"messages": [SYSTEM, USER, CALL, ANSWER, FINAL, USER], "tools": TOOLS[:1]},
    "two calls": {"messages": [USER, CALLS, dict(ANSWER, content="3.5"), dict(ANSWER, content="noon")], "tools": TOOLS[1:]},
    "calls as texts": {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [{"id": "abc123DEF", "type": "function", "function": {"name": "now", "arguments": "{\"x\": 1}"}}]}, ANSWER], "tools": TOOLS[2:]},
    "parts": {"messages": [PARTS]},
    "out of turn": {"messages": [USER, USER]},
    "unknown role": {"messages": [{"role": "critic", "content": "No."}]},
}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    env = make_environment()
    contexts = {name: dict(PLAIN, **context) for name, context in CONTEXTS.items()}
    out = {"contexts": contexts, "templates": {}}
    failed = 0
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.jinja")):
        template = env.from_string(path.read_text(encoding="utf-8"))
        renderings = {}
        for name, context in contexts.items():
            try:
                renderings[name] = template.render(**json.loads(json.dumps(context)))
            except Exception:
                renderings[name] = None
                failed += 1
        out["templates"][path.stem] = renderings
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(out, file, ensure_ascii=False, indent=0)
        file.write("\n")
    print(len(out["templates"]), "templates,", len(contexts), "contexts,", failed, "renderings fail")
    for name, renderings in out["templates"].items():
        print(f"  {name}: {sum(t is not None for t in renderings.values())} of {len(renderings)}")


if __name__ == "__main__":
    main()

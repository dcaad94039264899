#!/usr/bin/env python3
"""Runs the commands that README.md and docs/ show, each in its order, and holds the lines of `lg` blocks to the shipped pages.
test_examples.py LIGATURE ROOT [GGUF]

Names that stand for a reader's own files: MODEL (a folder), model.gguf, DIR, DIR_A, DIR_B and path/to/adapter (adapters of that model),
requests.jsonl, my.lg. `console` blocks are a command and what it prints, with … for what is left out; in docs/models.md they and the `diff`
blocks, which change my.lg step by step, are one story: it begins with a copy of qwen3.lg and ends with olmo2.lg. A command that starts with anything but the program must be in ELSEWHERE, with the test that runs it."""
import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

EXE, ROOT = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
GGUF = os.path.abspath(sys.argv[3]) if len(sys.argv) > 3 and os.path.exists(sys.argv[3]) else None
DATA = os.path.join(ROOT, "tests/data/tiny")
ELSEWHERE = ("scripts/", "cc docs/embed.c", "LD_LIBRARY_PATH=build/release ./embed")  # the scripts by CI, docs/embed.c by docs.embed
CHAT = "Hello.\n"


def pages():
    return [os.path.join(ROOT, "README.md"), *sorted(glob.glob(os.path.join(ROOT, "docs/*.md")))]


def text(path):
    with open(path) as f:
        return f.read()


def blocks(page, tag):
    return re.findall(r"^```" + tag + r"\n(.*?)^```", text(page), re.M | re.S)


def lay_out(folder):
    """The files that the examples name."""
    os.symlink(os.path.join(DATA, "models/tiny-llama"), os.path.join(folder, "MODEL"))
    os.symlink(GGUF or os.path.join(DATA, "models/tiny-llama"), os.path.join(folder, "model.gguf"))
    os.symlink(os.path.join(ROOT, "examples/smollm2/adapters/sql"), os.path.join(folder, "OF_GGUF"))
    for name, adapter in (("DIR", "en-r8-all"), ("DIR_A", "en-r8-all"), ("DIR_B", "cpp-r16"), ("path/to/adapter", "en-r8-all")):
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        os.symlink(os.path.join(DATA, "adapters/tiny-llama", adapter), os.path.join(folder, name))
    for name in ("models", "examples"):
        os.symlink(os.path.join(ROOT, name), os.path.join(folder, name))
    shutil.copy(os.path.join(ROOT, "models/llama.lg"), os.path.join(folder, "my.lg"))
    with open(os.path.join(folder, "requests.jsonl"), "w") as f:
        f.write(json.dumps(dict(prompt="def f(", n=4)) + "\n")


class Examples(unittest.TestCase):
    def test_every_command_is_described(self):
        listed = subprocess.run([EXE, "--help"], capture_output=True, text=True).stdout.split("Commands\n")[1].split("\n\n")[0]
        commands = [line.split()[0] for line in listed.splitlines()]
        self.assertGreater(len(commands), 8)
        page = text(os.path.join(ROOT, "docs/cli.md"))
        for command in commands:
            self.assertIn(f"| `{command}` |", page)
            shown = subprocess.run([EXE, command, "--help"], capture_output=True, text=True).stdout
            self.assertIn(f"  ligature {command}", shown.split("Examples\n")[1].replace("source <(", "  ").replace("| ", "  "), command)

    def test_every_command_runs(self):
        ran = 0
        with tempfile.TemporaryDirectory() as folder:
            lay_out(folder)
            env = dict(os.environ, LIGATURE_CACHE=os.path.join(folder, "cache"))
            for page in pages():
                for line in "".join(blocks(page, "sh")).splitlines():
                    command = line.split(" #")[0].strip()
                    if not command or command.startswith(ELSEWHERE):
                        continue
                    with self.subTest(page=os.path.basename(page), command=command):
                        words = shlex.split(command)
                        self.assertEqual(os.path.basename(words[0]), "ligature", "neither the program nor run elsewhere")
                        if GGUF and "model.gguf" in words:  # its own adapters
                            words = [re.sub(r"^((\w+=)?)(DIR\w*|path/to/adapter)$", r"\1OF_GGUF", w) for w in words]
                        r = subprocess.run([EXE, *words[1:]], cwd=folder, env=env, input=CHAT, capture_output=True, text=True, timeout=300)
                        if "cuda" in words and r.returncode == 1 and "no driver on this machine" in r.stderr:
                            ran += 1  # what a machine without a GPU says
                            continue
                        self.assertEqual(r.returncode, 0, r.stderr[-1000:])
                        self.assertTrue(r.stdout.strip() or "-o" in words, "nothing on standard output")
                        ran += 1
        self.assertGreater(ran, 10)

    def test_lines_of_pages_are_the_shipped_pages(self):
        def plain(line):
            return " ".join(line.split("#")[0].split())
        shipped = {plain(line) for page in glob.glob(os.path.join(ROOT, "models/*.lg")) for line in text(page).splitlines()}
        checked = 0
        for page in pages():
            for line in "".join(blocks(page, "lg")).splitlines():
                if plain(line):
                    self.assertIn(plain(line), shipped, os.path.basename(page))
                    checked += 1
        self.assertGreater(checked, 3)


    def test_the_guide_makes_a_page(self):
        made = os.path.join(ROOT, "tests/data/made")
        steps = re.findall(r"^```(diff|console)\n(.*?)^```", text(os.path.join(ROOT, "docs/models.md")), re.M | re.S)
        self.assertGreater(len([kind for kind, _ in steps if kind == "console"]), 6)
        with tempfile.TemporaryDirectory() as folder:
            page = os.path.join(folder, "my.lg")
            shutil.copy(os.path.join(ROOT, "models/qwen3.lg"), page)
            os.symlink(os.path.join(made, "models/olmo2"), os.path.join(folder, "OLMO2"))
            os.symlink(os.path.join(made, "adapters/olmo2/r4-all"), os.path.join(folder, "OLMO2_ADAPTER"))
            env = dict(os.environ, LIGATURE_CACHE=os.path.join(folder, "cache"))
            for kind, block in steps:
                lines = block.splitlines()
                if kind == "diff":
                    old = "".join(line[1:] + "\n" for line in lines if line[0] in " -")
                    new = "".join(line[1:] + "\n" for line in lines if line[0] in " +")
                    was = text(page)
                    self.assertEqual(was.count(old), 1, block)
                    with open(page, "w") as f:
                        f.write(was.replace(old, new))
                    continue
                with self.subTest(command=lines[0]):
                    words = shlex.split(lines[0].removeprefix("$ "))
                    r = subprocess.run([EXE, *words[1:]], cwd=folder, env=env, capture_output=True, text=True, timeout=300)
                    shown = "\n".join(lines[1:])
                    self.assertRegex(r.stdout + r.stderr, "(?s)" + ".*".join(re.escape(part.strip("\n")) for part in shown.split("…")))
            self.assertEqual(text(page), text(os.path.join(ROOT, "models/olmo2.lg")))


unittest.main(argv=sys.argv[:1])

#!/usr/bin/env python3
"""`ligature bench`, small: its table, its JSON and its page say the same, of the same conditions. test_bench.py LIGATURE DATA"""
import html.parser
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

EXE, DATA = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
QWEN, MOE = (os.path.join(DATA, "tiny/models", m) for m in ("tiny-qwen3", "tiny-qwen3-moe"))
ADAPTERS = os.path.join(DATA, "tiny/adapters/tiny-qwen3")
WORK = tempfile.mkdtemp()
SMALL = ("--sequences", "1,3", "--adapters", "0,2", "--ranks", "4,6", "--prompts", "5,20", "--contexts", "30", "-n", 3, "--repeats", 3)


def ligature(*args, code=0):
    env = dict(os.environ, LIGATURE_CACHE=os.path.join(WORK, "cache"), TMPDIR=WORK)
    r = subprocess.run([EXE, *map(str, args)], capture_output=True, text=True, env=env, timeout=240)
    if r.returncode != code:
        raise AssertionError(f"{args}: exit {r.returncode}, wanted {code}\nstdout: {r.stdout[-1500:]}\nstderr: {r.stderr[-1500:]}")
    return r


def bench(*args, model=QWEN):
    return json.loads(ligature("bench", model, *args, "--json").stdout)


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.rows, self.links, self.words = {}, [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.links += [v for k, v in attrs if k in ("src", "href", "xlink:href")]
        if tag == "tr":
            self.rows.append([])

    def handle_data(self, data):
        self.words.append(data.strip())
        if self.rows and data.strip():
            self.rows[-1].append(data.strip())


class Bench(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.page_path = os.path.join(WORK, "bench.html")
        cls.out = bench(*SMALL, "--html", cls.page_path)
        with open(cls.page_path) as f:
            cls.text = f.read()

    def test_the_points_are_those_that_were_asked_for(self):
        points = [(p["series"], p["sequences"], p["adapters"], p["rank"], p["prompt"]) for p in self.out["points"]]
        self.assertEqual(points, [
            ("sequences", 1, 0, 0, 5), ("sequences", 1, 1, 4, 5), ("sequences", 3, 0, 0, 5), ("sequences", 3, 2, 4, 5),
            ("adapters", 3, 0, 0, 5), ("adapters", 3, 2, 4, 5),
            ("ranks", 3, 2, 4, 5), ("ranks", 3, 2, 6, 5),
            ("prompts", 1, 0, 0, 5), ("prompts", 1, 1, 4, 5), ("prompts", 1, 0, 0, 20), ("prompts", 1, 1, 4, 20),
            ("contexts", 1, 0, 0, 30), ("contexts", 1, 1, 4, 30)])

    def test_the_numbers_are_of_time_that_passed(self):
        for p in self.out["points"]:
            for key in ("prefill_tokens_per_s", "first_token_ms", "decode_tokens_per_s", "step_ms"):
                v = p[key]
                self.assertTrue(0 < v["low"] <= v["median"] <= v["high"], (p, key))
            first = p["first_token_ms"]  # the same measurement, twice told
            self.assertAlmostEqual(p["prefill_tokens_per_s"]["high"] * first["low"] / 1e3, p["sequences"] * p["prompt"], delta=1e-3 * p["prompt"])
            if p["sequences"] > 1:  # as many ids a step as sequences: the least rate is that of the slowest steps
                self.assertGreater(p["decode_tokens_per_s"]["high"] * p["step_ms"]["high"] / 1e3, 0.9)

    def test_conditions(self):
        c = self.out["conditions"]
        self.assertEqual((c["model"], c["repeats"], c["new_tokens"]), (QWEN, 3, 3))
        self.assertGreater(c["threads"], 0)
        self.assertTrue(c["cpu"] and c["date"] and c["version"])
        run = json.loads(ligature("run", QWEN, "--ids", "1", "-n", 1, "--json").stdout)
        self.assertEqual(self.out["program"], run["program"])

    def test_the_page_says_the_same(self):
        page = Page(self.text)
        rows = [r for r in page.rows if r and r[0] in ("sequences", "adapters", "ranks", "prompts", "contexts")]
        self.assertEqual(len(rows), len([r for r in rows if len(r) == 17]))
        for row, p in zip(rows, self.out["points"], strict=True):
            self.assertEqual(row[:5], [str(p[k]) for k in ("series", "sequences", "adapters", "rank", "prompt")])
            self.assertAlmostEqual(float(row[5]), p["prefill_tokens_per_s"]["median"], delta=1e-3 * float(row[5]))
            self.assertAlmostEqual(float(row[11]), p["decode_tokens_per_s"]["median"], delta=1e-3 * float(row[11]))
        for word in (self.out["program"]["digest"], self.out["program"]["level"], self.out["conditions"]["cpu"]):
            self.assertIn(word, page.words)

    def test_the_page_needs_nothing_else(self):
        page = Page(self.text)
        self.assertEqual(page.links, [])
        self.assertNotIn("script", page.tags)
        self.assertNotIn("url(", self.text)
        self.assertEqual(page.tags["svg"], 7)
        for svg in re.findall(r"<svg.*?</svg>", self.text, re.S):
            self.assertEqual(svg.count("<circle"), sum(len(x.split()) for x in re.findall(r'points="([^"]*)"', svg)))
            for number in re.findall(r'c[xy]="([^"]*)"', svg):
                self.assertTrue(0 <= float(number) <= 440)
        import xml.etree.ElementTree as tree
        self.assertTrue(all(tree.fromstring(svg) is not None for svg in re.findall(r"<svg.*?</svg>", self.text, re.S)))

    def test_nothing_is_left_behind(self):
        bench(*SMALL)
        self.assertEqual([n for n in os.listdir(WORK) if n.startswith("ligature-bench")], [])

    def test_adapters_that_are_given(self):
        out = bench("--sequences", "2", "--adapters", "1,2", "--prompts", "4", "--contexts", "4", "-n", 2, "--repeats", 1,
                    "--adapter", f"en={ADAPTERS}/en-r8-all", "--adapter", f"dora={ADAPTERS}/dora-r8")
        self.assertEqual([(p["series"], p["adapters"], p["rank"]) for p in out["points"]],
                         [("sequences", 0, 0), ("sequences", 2, 0), ("adapters", 1, 0), ("adapters", 2, 0),
                          ("prompts", 0, 0), ("prompts", 1, 0), ("contexts", 0, 0), ("contexts", 1, 0)])

    def test_the_table(self):
        r = ligature("bench", QWEN, *SMALL)
        self.assertEqual(len(re.findall(r"^(?:sequences|adapters|ranks|prompts|contexts) +\d", r.stdout, re.M)), 14)
        self.assertIn("medians of 3", r.stdout)
        self.assertIn("Compiled program qwen3", r.stderr)

    def test_experts_have_projections_too(self):
        out = bench("--sequences", "1", "--adapters", "1", "--ranks", "2", "--prompts", "4", "--contexts", "4", "-n", 1, "--repeats", 1, model=MOE)
        self.assertEqual({p["adapters"] for p in out["points"]}, {0, 1})

    def test_what_does_not_fit_is_refused_or_told(self):
        few = ("--sequences", "1", "--adapters", "0", "--prompts", "4", "-n", 1, "--repeats", 1)
        self.assertIn("the context has", ligature("bench", QWEN, *few, "--contexts", 5000, code=2).stderr)
        r = ligature("bench", QWEN, *few, "--context", 100, "--json")
        out = json.loads(r.stdout)
        self.assertEqual([p["prompt"] for p in out["left_out"]], [256, 1024])
        self.assertIn("left out of contexts", r.stderr)
        for args, word in ((("--sequences", "1,x"), "--sequences"), (("--repeats", 0), "--repeats"), (("-n", 0), "-n"), (("--adapters", "1,"), "--adapters"),
                           (("--sequences", 2, "--adapters", 3), "there are 2 sequences"), (("--ranks", 4, "--adapter", f"a={ADAPTERS}/r1"), "one of the two")):
            self.assertIn(word, ligature("bench", QWEN, *args, code=2).stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])

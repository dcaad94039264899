#!/usr/bin/env python3
"""The command line's fixed forms, on the small models: what other programs rely on. test_cli.py LIGATURE DATA"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

EXE, DATA = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
QWEN = os.path.join(DATA, "tiny/models/tiny-qwen3")
LLAMA = os.path.join(DATA, "tiny/models/tiny-llama")
MOE = os.path.join(DATA, "tiny/models/tiny-qwen3-moe")
ADAPTERS = os.path.join(DATA, "tiny/adapters/tiny-qwen3")
CACHE = tempfile.mkdtemp()


def ligature(*args, stdin=None, code=0, cache=CACHE):
    env = dict(os.environ, LIGATURE_CACHE=cache)
    r = subprocess.run([EXE, *map(str, args)], input=stdin, capture_output=True, text=True, env=env, timeout=120)
    if r.returncode != code:
        raise AssertionError(f"{args}: exit {r.returncode}, wanted {code}\nstdout: {r.stdout[-1500:]}\nstderr: {r.stderr[-1500:]}")
    return r


def run_json(*args, **kw):
    return json.loads(ligature("run", *args, "--json", "--greedy", **kw).stdout)


def read(path):
    with open(path) as f:
        return f.read()


LEVELS = [level for level, needs in (("generic", "processor"), ("avx2", "avx2"), ("avx512", "avx512dq"),
                                ("avx512bf16", "avx512_bf16"), ("amx", "amx_bf16")) if needs in read("/proc/cpuinfo")]


def golden(model, case, prompt):
    g = json.loads(read(os.path.join(DATA, f"tiny/goldens/{model}/{case}.json")))
    p = json.loads(read(os.path.join(DATA, "tiny/goldens/prompts.json")))
    return p[prompt]["ids"], g["prompts"][prompt]


def ids_text(ids):
    return ",".join(map(str, ids))


def batch_file(lines):
    f = tempfile.NamedTemporaryFile("w", suffix=".jsonl", delete=False)
    for line in lines:
        f.write(json.dumps(line) + "\n")
    f.close()
    return f.name


class Run(unittest.TestCase):
    def test_ids_in_ids_out_are_the_references(self):
        ids, g = golden("tiny-qwen3", "base", "p5")
        out = run_json(QWEN, "--ids", ids_text(ids), "-n", 48, "--store", "f32")
        s = out["sequences"][0]
        self.assertEqual(s["ids"], g["greedy"]["ids"])
        self.assertEqual(s["prompt_ids"], ids)
        self.assertEqual(s["text"], g["greedy"]["text"])
        self.assertEqual((s["adapters"], s["finish"]), ([], "length"))
        self.assertEqual((out["program"]["provenance"], out["program"]["model"], out["program"]["backend"]), ("Compiled", "qwen3", "cpu"))
        self.assertTrue({"load_s", "compile_s", "prefill_s", "decode_s", "prefill_tokens", "decode_tokens"} <= set(out["timing"]))
        self.assertEqual(out["timing"]["prefill_tokens"], len(ids))

    def test_an_adapter_changes_the_answer_to_the_references(self):
        ids, g = golden("tiny-qwen3", "en-r8-all", "p64")
        s = run_json(QWEN, "--ids", ids_text(ids), "-n", 48, "--store", "f32", "--adapter", f"en={ADAPTERS}/en-r8-all")["sequences"][0]
        self.assertEqual(s["ids"], g["greedy"]["ids"])
        self.assertEqual(s["adapters"], [{"name": "en", "scale": 1.0}])

    def test_scale_zero_is_the_base(self):
        ids, g = golden("tiny-qwen3", "base", "p5")
        s = run_json(QWEN, "--ids", ids_text(ids), "-n", 16, "--store", "f32", "--adapter", f"en={ADAPTERS}/en-r8-all", "--use", "en:0")["sequences"][0]
        self.assertEqual(s["ids"], g["greedy"]["ids"][:16])

    def hold_bits(self, model, folder, names, sets):
        load = [x for n in names for x in ("--adapter", f"{n}={folder}/{n}")]
        prompts = [golden("tiny-qwen3", "base", p)[0] for p in ("p5", "p64", "p255", "p1", "pchat", "p64")]
        lines = [dict(ids=p, n=12, adapters=[dict(name=n, scale=s) for n, s in u]) for p, u in zip(prompts, sets)]

        def digests(order, *args):
            out = run_json(model, "--batch", batch_file([lines[i] for i in order]), "--digest", *load, *args)
            return {i: s["logits_sha256"] for i, s in zip(order, out["sequences"])}
        of_level = {}
        for level in LEVELS:
            whole = of_level[level] = digests(range(6), "--level", level)
            self.assertEqual(len(set(whole.values())), 6)
            for order, more in (([5, 2, 4, 0, 1, 3], []), (range(6), ["--threads", 1]), (range(6), ["--threads", 3]), (range(6), ["--rows", 1]), (range(6), ["--rows", 7])):
                self.assertEqual(digests(list(order), "--level", level, *more), whole, f"{level} {list(order)} {more}")
            for i in range(6):
                self.assertEqual(digests([i], "--level", level)[i], whole[i], f"request {i} alone at {level}")
        if "avx512" in of_level:
            self.assertEqual(of_level["avx512"], of_level["avx2"])  # an output has its own lane at either width

    def test_bits_do_not_depend_on_company_threads_or_chunks(self):
        self.hold_bits(QWEN, ADAPTERS, ("en-r8-all", "dora-r8", "json-r4-qv", "r1"),
                       [[], [("en-r8-all", 1)], [("dora-r8", 1)], [("json-r4-qv", 0.5), ("en-r8-all", 1.5)], [("r1", 1)], []])

    def test_bits_of_experts_and_their_adapters_do_not_either(self):
        experts, attn, router = "experts-perexpert-r4", "attn-r8", "router-r4"
        self.hold_bits(MOE, os.path.join(DATA, "tiny/adapters/tiny-qwen3-moe"), (experts, attn, router),
                       [[(experts, 1)], [(experts, 0.5), (attn, 1)], [], [(router, 1)], [(attn, 1)], [(router, 1), (experts, -1)]])

    def test_explain_counts_the_chosen_experts_alone(self):
        for rows, experts in ((1, 2), (2, 4), (100, 8)):  # of 8, 2 for each row
            plan = json.loads(ligature("explain", MOE, "--rows", rows, "--json").stdout)
            down = [x for x in plan["launches"] if x["kernel"] == "moe" and len(x["statements"]) == 1][0]
            self.assertEqual(down["weight_bytes"], experts * 128 * 128 * 2)
            self.assertEqual(down["adapters"], ["wd"])

    def test_an_adapter_of_experts_answers_as_the_references(self):
        ids, g = golden("tiny-qwen3-moe", "experts-perexpert-r4", "p64")
        load = f"x={DATA}/tiny/adapters/tiny-qwen3-moe/experts-perexpert-r4"
        out = run_json(MOE, "--ids", ids_text(ids), "-n", 48, "--store", "f32", "--adapter", load)
        self.assertEqual(out["sequences"][0]["ids"], g["greedy"]["ids"])

    def test_text_goes_to_stdout_and_provenance_to_stderr(self):
        r = ligature("run", QWEN, "-p", "def main(", "-n", 8, "--greedy")
        self.assertTrue(len(r.stdout.strip()) > 0)
        self.assertIn("Compiled program qwen3 on cpu", r.stderr)
        self.assertEqual(len(r.stderr.strip().splitlines()), 1)

    def test_sampling_depends_on_the_seed_alone(self):
        args = (QWEN, "--ids", "5,6,7", "-n", 24, "--temperature", "1.0", "--json")
        one = json.loads(ligature("run", *args, "--seed", 1).stdout)["sequences"][0]["ids"]
        again = json.loads(ligature("run", *args, "--seed", 1, "--threads", 1).stdout)["sequences"][0]["ids"]
        other = json.loads(ligature("run", *args, "--seed", 2).stdout)["sequences"][0]["ids"]
        self.assertEqual(one, again)
        self.assertNotEqual(one, other)

    def test_the_interpreter_says_the_same(self):
        ids, g = golden("tiny-llama", "base", "p5")
        out = run_json(LLAMA, "--ids", ids_text(ids), "-n", 8, "--store", "f32", "--backend", "interp")
        self.assertEqual(out["sequences"][0]["ids"], g["greedy"]["ids"][:8])
        self.assertEqual(out["program"]["backend"], "interp")

    def test_messages_go_through_the_chat_template(self):
        path = batch_file([dict(messages=[dict(role="user", content="hello")], n=4)])
        s = run_json(QWEN, "--batch", path)["sequences"][0]
        self.assertGreater(len(s["prompt_ids"]), 4)


class Refusals(unittest.TestCase):
    def refused(self, fragment, *args, code=2, **kw):
        r = ligature(*args, code=code, **kw)
        self.assertIn(fragment, r.stderr)
        self.assertEqual(r.stdout, "")

    def test_adapters_by_name(self):
        en = f"en={ADAPTERS}/en-r8-all"
        self.refused("none is chosen", "run", QWEN, "--ids", "1", "--adapter", en, "--adapter", f"b={ADAPTERS}/r1")
        self.refused("no adapter is named \"fr\"", "run", QWEN, "--ids", "1", "--adapter", en, "--use", "fr")
        self.refused("", "run", QWEN, "--ids", "1", "--adapter", f"a/b={ADAPTERS}/r1")
        self.refused("the name is taken", "run", QWEN, "--ids", "1", "--adapter", en, "--adapter", en)
        self.refused("NAME=DIR", "run", QWEN, "--ids", "1", "--adapter", "en")
        self.refused("no adapter is named \"x\"", "run", QWEN, "--batch", batch_file([dict(ids=[1], adapter="x")]))

    def test_numbers(self):
        self.refused("ids 0 to", "run", QWEN, "--ids", "99999999", "-n", 1)
        self.refused("no token id", "run", QWEN, "--ids", "1,x", "-n", 1)
        self.refused("the context has", "run", QWEN, "--ids", "1", "-n", 100000)
        self.refused("--threads", "run", QWEN, "--ids", "1", "--threads", "many")
        self.refused("no option", "run", QWEN, "--ids", "1", "--fast")

    def test_batch_lines(self):
        for line, fragment in ((dict(ids=[1], prompt="x"), "exactly one"), (dict(ids=[1], nn=3), "unknown key \"nn\""), (dict(ids="1"), "lists"),
                               (dict(ids=[1], n=-1), "\"n\""), (dict(ids=[1], adapters={}), "\"adapters\"")):
            self.refused(fragment, "run", QWEN, "--batch", batch_file([line]))
        bad = tempfile.NamedTemporaryFile("w", suffix=".jsonl", delete=False)
        bad.write('{"ids":[1]}\n{"ids":[1}\n')
        bad.close()
        self.refused("line 2", "run", QWEN, "--batch", bad.name)

    def test_files(self):
        self.refused("nowhere", "run", "/nowhere/at/all", "--ids", "1")
        self.refused("no program serves", "run", self.changed_config(architectures=["MambaForCausalLM"]), "--ids", "1")
        self.refused("hidden_act", "run", self.changed_config(hidden_act="relu"), "--ids", "1")
        self.refused("brand_new_key", "run", self.changed_config(brand_new_key=3), "--ids", "1")

    def changed_config(self, **changes):
        folder = tempfile.mkdtemp()
        config = json.load(open(os.path.join(QWEN, "config.json")))
        config.update(changes)
        json.dump(config, open(os.path.join(folder, "config.json"), "w"))
        shutil.copy(os.path.join(QWEN, "model.safetensors"), folder)
        return folder

    def test_require_cache_names_what_differs(self):
        cache = tempfile.mkdtemp()
        self.refused("cache", "run", QWEN, "--ids", "1", "-n", 1, "--require-cache", cache=cache)
        ligature("run", QWEN, "--ids", "1", "-n", 1, cache=cache)
        ligature("run", QWEN, "--ids", "1", "-n", 1, "--require-cache", cache=cache)
        self.refused("store", "run", QWEN, "--ids", "1", "-n", 1, "--require-cache", "--store", "f32", cache=cache)


class Looking(unittest.TestCase):
    def test_kernels_of_a_gpu_or_of_the_processor_and_why(self):
        out = ligature("kernels", "--cache", CACHE).stdout
        self.assertRegex(out, r"(?m)^(CUDA: .*|.*: sm_\d+a?, \d+ multiprocessors.*)$")
        for handle, module, kernel in (("gemv_k", "gemv", "dense_gemv_bf16"), ("bgmv_expand_fold_k", "lora_bgmv", "lora_bgmv_expand_fold"),
                                       ("moe_gather_shrink_k", "moe_lora_gather_bgmv", "moe_lora_gather_shrink")):
            self.assertIn(f"{handle}: module {module}, kernel {kernel}: found", out)

    def test_eval(self):
        ids, g = golden("tiny-qwen3", "base", "p64")
        out = json.loads(ligature("eval", QWEN, "--ids", ids_text(ids), "--json", "--store", "f32").stdout)
        self.assertEqual(len(out["positions"]), 64)
        self.assertEqual([p["top1"] for p in out["positions"]], g["top1"])
        for p, margin, lse in zip(out["positions"], g["margin"], g["lse"]):
            self.assertAlmostEqual(p["margin"], margin, delta=4e-3)
            self.assertAlmostEqual(p["logsumexp"], lse, delta=4e-3)
        self.assertEqual(len(out["logits"]), 2048)

    def test_tokenize(self):
        lines = [dict(text="def f(x):\n    return x"), dict(text="<|im_start|>", plain=True), dict(text="<|im_start|>"), dict(ids=[1, 2, 3]),
                 dict(messages=[dict(role="user", content="hi")], add_generation_prompt=True)]
        out = [json.loads(x) for x in ligature("tokenize", QWEN, "--jsonl", "-", stdin="\n".join(map(json.dumps, lines))).stdout.splitlines()]
        self.assertEqual(len(out), 5)
        back = json.loads(ligature("tokenize", QWEN, "--jsonl", "-", stdin=json.dumps(dict(ids=out[0]["ids"]))).stdout)
        self.assertEqual(back["text"], lines[0]["text"])
        self.assertGreater(len(out[1]["ids"]), 1)
        self.assertEqual(len(out[2]["ids"]), 1)
        self.assertIn("hi", out[4]["text"])

    def test_compile(self):
        page = os.path.join(os.path.dirname(__file__), "../../models/qwen3.lg")
        config = tempfile.mkdtemp()
        json.dump(json.load(open(os.path.join(QWEN, "config.json"))), open(os.path.join(config, "config.json"), "w"))
        self.assertIn("ATTEND", ligature("compile", page, "--config", config).stdout)
        code = ligature("compile", page, "--config", config, "--emit", "c").stdout
        self.assertIn("void lgp_step(", code)
        best = run_json(QWEN, "--ids", "1", "-n", 1)["program"]["level"]
        self.assertEqual(code, ligature("compile", page, "--config", config, "--emit", "c", "--level", best).stdout)
        self.assertNotEqual(code, ligature("compile", page, "--config", config, "--emit", "c", "--level", "generic").stdout)
        bad = os.path.join(config, "bad.lg")
        text = open(page).read().replace("sum i: ha[t,i] * wk[g,c,r,i]", "ha[t,i] * wk[g,c,r,i]")
        open(bad, "w").write(text)
        r = ligature("compile", bad, "--config", config, code=2)
        number = next(i for i, line in enumerate(text.splitlines(), 1) if "= ha[t,i] * wk" in line)
        self.assertIn(f"bad.lg:{number}: cannot ", r.stderr)
        self.assertIn("^", r.stderr)
        so = os.path.join(config, "q.so")
        ligature("compile", page, "--config", QWEN, "--emit", "so", "-o", so)
        ids, g = golden("tiny-qwen3", "base", "p5")
        out = run_json(QWEN, "--ids", ids_text(ids), "-n", 4, "--program", so, "--compiler", "/nonexistent/cc", cache=tempfile.mkdtemp())
        self.assertEqual(len(out["sequences"][0]["ids"]), 4)
        r = ligature("run", LLAMA, "--ids", "1", "-n", 1, "--program", so, code=2)

    def test_explain_cites_lines(self):
        out = json.loads(ligature("explain", QWEN, "--rows", 2, "--json").stdout)
        self.assertGreater(len(out["launches"]), 5)
        for launch in out["launches"]:
            self.assertEqual(launch["provenance"], "Compiled")
            self.assertTrue(launch["lines"])
            self.assertTrue(launch["kernel"])

    def test_output_that_cannot_be_written_is_an_error(self):
        with open("/dev/full", "w") as full:
            r = subprocess.run([EXE, "inspect", QWEN, "--json"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(r.returncode, 1)
        self.assertIn("standard output", r.stderr)

    def test_batch_keys_in_the_wrong_place_are_refused(self):
        load = ["--adapter", f"en={ADAPTERS}/en-r8-all"]
        for line, where in (({"ids": [1], "adapters": [{"name": "en", "weight": 0}]}, "weight"),
                            ({"ids": [1], "adaptor": "en"}, "adaptor"),
                            ({"messages": [{"role": "user", "content": "hi", "adapter": "en"}]}, "adapter"),
                            ({"messages": ["hi"]}, "message 1"),
                            ({"ids": [1], "title": 3}, "title")):
            r = ligature("run", QWEN, "--batch", batch_file([line]), "--json", *load, code=2)
            self.assertIn("batch line 1", r.stderr)
            self.assertIn(where, r.stderr)
        r = ligature("tokenize", QWEN, "--jsonl", batch_file([{"text": "a", "plian": True}]), code=2)
        self.assertIn("plian", r.stderr)

    def test_misspelt_words_are_answered_with_what_there_is(self):
        self.assertIn("did you mean --greedy", ligature("run", QWEN, "--greddy", code=2).stderr)
        self.assertIn("did you mean inspect", ligature("insepct", QWEN, code=2).stderr)
        r = ligature("run", QWEN, "--ids", "1", "--adapter", f"sql={ADAPTERS}/r1", "--use", "sq", code=2)
        self.assertIn('no adapter is named "sq"; loaded: sql', r.stderr)
        self.assertIn("loaded: none", ligature("chat", QWEN, "--use", "sql", code=2).stderr)
        same = [run_json(QWEN, "--ids", "1,2", "-n", 4, *x)["sequences"] for x in (["--temperature", "0"], ["--temperature=0"])]
        self.assertEqual(*same)
        self.assertIn("takes no value", ligature("run", QWEN, "--ids", "1", "--greedy=1", code=2).stderr)

    def test_nothing_that_is_asked_for_is_passed_over(self):
        load = ["--adapter", f"en={ADAPTERS}/en-r8-all"]
        for line in ({"ids": [1], "adapter adapters": "en"}, {"ids": [1], "adapters": [{"name scale": "en"}]},
                     {"ids": [1], "adapter": "en", "adapters": [{"name": "en"}]}, {"ids": [1], "seed": -1}, {"ids": [1], "seed": 1.5},
                     {"messages": [{"role": "user", "content": "a\0b"}]}, {"ids": [1], "adapters": [{"name": "en", "scale": 1e-300}]}, {"ids": [1], "adapters": [{"name": "en", "scale": 1e300}]}):
            self.assertIn("batch line 1", ligature("run", QWEN, "--batch", batch_file([line]), *load, code=2).stderr)
        blank = tempfile.NamedTemporaryFile("w", suffix=".jsonl", delete=False)
        blank.write('\n\n{"ids":[3],"adapter":"zz"}\n')
        blank.close()
        self.assertIn("batch line 3: no adapter", ligature("run", QWEN, "--batch", blank.name, code=2).stderr)
        for line in ({"text": "a", "ids": [3]}, {"text": "a", "plain": "yes"}, {"ids": [3], "tools": []}, {"messages": [], "add_generation_prompt": 1}, {}):
            self.assertIn("line 1", ligature("tokenize", QWEN, "--jsonl", batch_file([line]), code=2).stderr)
        one = ["run", QWEN, "--ids", "1", "-n", 1]
        ligature(*one, "--greedy", "--temperature", 2, code=2)
        ligature(*one, "--backend", "interp", "--level", "generic", code=2)
        ligature(*one, "--adapter", f"qwen3={ADAPTERS}/r1", code=2)
        page = os.path.join(os.path.dirname(__file__), "../../models/qwen3.lg")
        ligature("compile", page, "--config", QWEN, "--level", "bogus", code=2)
        self.assertIn("are not kept", ligature(*one, "--cache", os.path.join(QWEN, "config.json"), code=0).stderr)

    def test_logits_that_are_no_numbers_fail_their_sequence_alone(self):
        ids, g = golden("tiny-qwen3", "base", "p5")
        load = ["--adapter", f"en={ADAPTERS}/en-r8-all", "--store", "f32", "--greedy"]
        batch = batch_file([dict(ids=ids, n=8), dict(ids=ids, n=8, adapters=[dict(name="en", scale=1e38)])])
        r = ligature("run", QWEN, "--batch", batch, "--json", *load, code=2)
        good, bad = json.loads(r.stdout)["sequences"]
        self.assertEqual((good["ids"], good["finish"]), (g["greedy"]["ids"][:8], "length"))
        self.assertEqual((bad["ids"], bad["finish"]), ([], "failed"))
        self.assertIn("too large", bad["error"])
        self.assertIn("batch line 2", r.stderr)
        self.assertIn("too large", ligature("eval", QWEN, "--ids", "3", "--json", "--store", "f32", *load[:2], "--use", "en:1e38", code=2).stderr)

    def test_what_is_written_goes_into_pipes_and_through_links(self):
        folder = tempfile.mkdtemp()
        page = os.path.join(os.path.dirname(__file__), "../../models/qwen3.lg")
        pipe, link, target = (os.path.join(folder, n) for n in ("pipe", "link", "target"))
        os.mkfifo(pipe)
        os.symlink(target, link)
        open(target, "w").close()
        reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True)
        ligature("compile", page, "--config", QWEN, "-o", pipe)
        self.assertIn("ATTEND", reader.communicate(timeout=30)[0])
        ligature("compile", page, "--config", QWEN, "-o", link)
        self.assertTrue(os.path.islink(link))
        self.assertIn("ATTEND", read(target))

    def test_new_tokens_fit_the_context_where_no_number_is_asked_for(self):
        self.assertEqual(len(run_json(QWEN, "--ids", "1,2,3", "--context", 20)["sequences"][0]["ids"]), 17)
        r = ligature("run", QWEN, "--ids", "1,2,3", "-n", 18, "--context", 20, code=2)
        self.assertIn("raise the context", r.stderr)
        self.assertIn("max_position_embeddings", ligature("run", QWEN, "--ids", "1", "--context", 1 << 20, code=2).stderr)

    def test_explain_counts_what_moves(self):
        out = json.loads(ligature("explain", QWEN, "--json").stdout)
        norm = next(l for l in out["launches"] if "ha" in l["name"])
        self.assertLess(norm["flops"], 10 * 128)  # once a row, not once an element
        r = ligature("explain", QWEN)
        self.assertIn(out["digest"][:16], r.stdout)
        self.assertIn(f" {norm['weight_bytes'] + norm['value_bytes'] + norm['state_bytes']} ", r.stdout)
        self.assertEqual(run_json(QWEN, "--ids", "1", "-n", 1)["program"]["digest"], out["digest"])

    def test_inspect(self):
        out = json.loads(ligature("inspect", QWEN, "--json").stdout)
        self.assertEqual(out["config"]["hidden_size"], 128)
        report = json.loads(ligature("inspect", f"{ADAPTERS}/layer1-q-only", "--model", QWEN, "--json").stdout)
        self.assertEqual(len(report["sites"]), 1)
        self.assertEqual(report["sites"][0]["rank"], 3)
        json.loads(ligature("inspect", f"{ADAPTERS}/r1", "--json").stdout)
        text = ligature("inspect", f"{ADAPTERS}/en-r8-all", "--model", QWEN).stdout
        self.assertIn("56 of 56 tensors applied", text)
        self.assertRegex(text, r"wq +4 +0 to 3 +8 +2\b")
        self.assertIn("model.embed_tokens.weight", ligature("inspect", QWEN).stdout)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])

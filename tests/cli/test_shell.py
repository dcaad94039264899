#!/usr/bin/env python3
"""What surrounds the commands: completion by the shells, help, models by their name in the Hugging Face cache. test_shell.py LIGATURE DATA"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

EXE, DATA = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
QWEN = os.path.join(DATA, "tiny/models/tiny-qwen3")
CACHE = tempfile.mkdtemp()


def ligature(*args, code=0, **env):
    env = dict(os.environ, LIGATURE_CACHE=CACHE, **env)
    r = subprocess.run([EXE, *map(str, args)], capture_output=True, text=True, env=env, timeout=120)
    if r.returncode != code:
        raise AssertionError(f"{args}: exit {r.returncode}, wanted {code}\nstdout: {r.stdout[-1500:]}\nstderr: {r.stderr[-1500:]}")
    return r


def commands():
    return re.findall(r"^  (\w+) ", ligature("--help").stdout, re.M)


def options(command):
    return re.findall(r"^  (--?[\w-]+)", ligature(command, "--help").stdout, re.M)


class Completion(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        for shell in ("bash", "zsh", "fish"):
            with open(os.path.join(cls.folder, shell), "w") as f:
                f.write(ligature("completion", shell).stdout)
        os.makedirs(os.path.join(cls.folder, "files/a folder"))
        os.makedirs(os.path.join(cls.folder, "files/adapters"))
        open(os.path.join(cls.folder, "files/model.gguf"), "w").close()

    def bash(self, *words):
        """What bash offers for the last of the words; they are cut at = as bash cuts them."""
        script = f"""complete() {{ :; }}
        source {self.folder}/bash
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _ligature
        printf '%s\\n' "${{COMPREPLY[@]}}" """
        r = subprocess.run(["bash", "-c", script, "bash", "ligature", *words], cwd=os.path.join(self.folder, "files"), capture_output=True, text=True, timeout=30)
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        return [line for line in r.stdout.split("\n") if line]

    def test_the_shells_read_their_scripts(self):
        read_by = 0
        for shell in ("bash", "zsh", "fish"):
            if shutil.which(shell):
                r = subprocess.run([shell, "-n", os.path.join(self.folder, shell)], capture_output=True, text=True)
                self.assertEqual((r.returncode, r.stderr), (0, ""), shell)
                read_by += 1
        self.assertGreater(read_by, 0)

    def test_commands(self):
        self.assertEqual(self.bash(""), commands() + ["--help", "--version"])
        self.assertEqual(self.bash("to"), ["tokenize"])

    def test_options_are_those_of_help(self):
        for command in commands():
            offered = self.bash(command, "-")
            self.assertTrue(set(options(command)) <= set(offered), command)
            for option in offered:
                r = subprocess.run([EXE, command, option, "--help"], capture_output=True, text=True)
                self.assertNotIn("takes no option", r.stderr, f"{command} {option}")
        self.assertEqual(self.bash("run", "--te"), ["--temperature"])

    def test_values(self):
        self.assertEqual(self.bash("run", "--backend", ""), ["cpu", "cuda", "interp"])
        self.assertEqual(self.bash("run", "--level", "avx"), ["avx2", "avx512", "avx512bf16"])
        self.assertEqual(self.bash("run", "--store", "=", "b"), ["bf16"])
        self.assertEqual(self.bash("run", "--store", "="), ["bf16", "f32"])
        self.assertEqual(self.bash("compile", "--emit", ""), ["c", "plan", "so"])
        self.assertEqual(self.bash("completion", ""), ["bash", "zsh", "fish"])
        self.assertEqual(self.bash("run", "--seed", ""), [])

    def test_files(self):
        self.assertIn("model.gguf", self.bash("run", "mo"))
        self.assertIn("a folder", self.bash("run", ""))
        self.assertEqual(self.bash("run", "model.gguf", "--adapter", "sql", "=", "ad"), ["adapters"])
        self.assertEqual(sorted(self.bash("run", "model.gguf", "--adapter", "sql", "=")), ["a folder", "adapters"])

    def test_zsh_and_fish_know_the_same_tables(self):
        zsh, fish = (ligature("completion", shell).stdout for shell in ("zsh", "fish"))
        for command in commands():
            self.assertIn(f"\n    {command})\n", zsh)
            self.assertIn(f"-a {command} ", fish)
            for option in options(command):
                part = zsh.split(f"\n    {command})\n")[1].split(";;")[0]
                self.assertRegex(part, r"'.*" + option + r"=?\[")
                name = option.lstrip("-")
                self.assertRegex(fish, rf"__fish_seen_subcommand_from {command}'.* -[ls] {name} ")
        self.assertIn("(generic avx2 avx512 avx512bf16 amx)", zsh)
        self.assertIn("-x -a 'generic avx2 avx512 avx512bf16 amx'", fish)

    @unittest.skipUnless(shutil.which("fish"), "no fish here")
    def test_fish_completes(self):
        def fish(line):
            r = subprocess.run(["fish", "--no-config", "-c", f"source {self.folder}/fish; complete -C '{line}'"], capture_output=True, text=True, timeout=60, cwd=self.folder)
            return [x.split("\t")[0] for x in r.stdout.splitlines()]
        self.assertEqual(fish("ligature tok"), ["tokenize"])
        self.assertEqual(sorted(fish("ligature run --level ")), ["amx", "avx2", "avx512", "avx512bf16", "generic"])

    def test_other_shells_are_refused(self):
        self.assertIn("bash, zsh and fish", ligature("completion", "tcsh", code=2).stderr)


class Help(unittest.TestCase):
    def test_every_command_has_examples_of_itself(self):
        self.assertIn("run", commands())
        for command in commands():
            text = ligature(command, "--help").stdout
            examples = text.split("\nExamples\n")[1]
            self.assertIn(f"ligature {command}", examples)
            self.assertIn("Exit codes: 0 ", examples)


class HuggingFaceCache(unittest.TestCase):
    COMMIT = "0123456789abcdef0123456789abcdef01234567"

    def setUp(self):
        self.home = tempfile.mkdtemp()
        self.env = dict(HOME=self.home, HF_HUB_CACHE="", HF_HOME="", XDG_CACHE_HOME="")

    def put(self, hub, name, files, commit=COMMIT):
        """As the tools of Hugging Face lay it out: the snapshot's files are links to blobs."""
        repository = os.path.join(hub, "models--" + name.replace("/", "--"))
        snapshot = os.path.join(repository, "snapshots", commit)
        for folder in ("refs", "blobs", f"snapshots/{commit}"):
            os.makedirs(os.path.join(repository, folder), exist_ok=True)
        with open(os.path.join(repository, "refs/main"), "w") as f:
            f.write(commit)
        for name, source in files.items():
            blob = os.path.join(repository, "blobs", f"{abs(hash(name)):x}")
            shutil.copy(source, blob)
            os.symlink(f"../../blobs/{os.path.basename(blob)}", os.path.join(snapshot, name))
        return repository

    def model(self):
        return {name: os.path.join(QWEN, name) for name in os.listdir(QWEN) if os.path.isfile(os.path.join(QWEN, name))}

    def run_ids(self, model, **more):
        out = ligature("run", model, "--ids", "1,2,3", "-n", 4, "--greedy", "--json", **dict(self.env, **more)).stdout
        return json.loads(out)["sequences"][0]["ids"]

    def test_found_in_the_places_where_the_tools_look(self):
        expected = self.run_ids(QWEN)
        for hub, env in ((f"{self.home}/.cache/huggingface/hub", {}), (f"{self.home}/xdg/huggingface/hub", dict(XDG_CACHE_HOME=f"{self.home}/xdg")),
                         (f"{self.home}/hf/hub", dict(HF_HOME=f"{self.home}/hf")), (f"{self.home}/own", dict(HF_HUB_CACHE=f"{self.home}/own", HF_HOME="/nowhere"))):
            repository = self.put(hub, "someone/tiny-model", self.model())
            self.assertEqual(self.run_ids("someone/tiny-model", **env), expected)
            shutil.rmtree(repository)
            self.assertIn(repository, ligature("run", "someone/tiny-model", "--ids", "1", code=2, **dict(self.env, **env)).stderr)

    def test_every_command_that_takes_a_model(self):
        self.put(f"{self.home}/.cache/huggingface/hub", "someone/tiny", self.model())
        self.assertIn("model.embed_tokens.weight", ligature("inspect", "someone/tiny", **self.env).stdout)
        adapter = os.path.join(DATA, "tiny/adapters/tiny-qwen3/r1")
        self.assertIn("tensors applied", ligature("inspect", adapter, "--model", "someone/tiny", **self.env).stdout)
        page = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../models/qwen3.lg")
        self.assertIn("ATTEND", ligature("compile", page, "--config", "someone/tiny", **self.env).stdout)

    def test_what_is_not_there_says_where_it_looked(self):
        r = ligature("run", "someone/absent", "--ids", "1", code=2, **self.env)
        self.assertIn(f"{self.home}/.cache/huggingface/hub/models--someone--absent", r.stderr)
        self.assertIn("downloads nothing", r.stderr)
        repository = self.put(f"{self.home}/.cache/huggingface/hub", "someone/half", {})
        self.assertIn("may have stopped", ligature("run", "someone/half", "--ids", "1", code=2, **self.env).stderr)
        with open(os.path.join(repository, "refs/main"), "w") as f:
            f.write("../../../../etc")
        self.assertIn("does not hold it", ligature("run", "someone/half", "--ids", "1", code=2, **self.env).stderr)
        with open(os.path.join(repository, "refs/main"), "w") as f:
            f.write("f" * 40)
        self.assertIn("not there", ligature("run", "someone/half", "--ids", "1", code=2, **self.env).stderr)

    def test_a_path_is_a_path(self):
        for path in ("./someone/absent", "/someone/absent", "../absent", "someone/absent/deep"):
            self.assertNotIn("Hugging Face", ligature("run", path, "--ids", "1", code=2, **self.env).stderr)

    def test_a_repository_of_gguf_files_is_its_only_one(self):
        hub, note = f"{self.home}/.cache/huggingface/hub", os.path.join(QWEN, "config.json")
        self.put(hub, "someone/one", {"a.gguf": note})
        self.assertIn("a.gguf", ligature("run", "someone/one", "--ids", "1", code=2, **self.env).stderr)  # found, and no GGUF inside
        self.put(hub, "someone/two", {"a.gguf": note, "b.gguf": note})
        r = ligature("run", "someone/two", "--ids", "1", code=2, **self.env)
        self.assertIn("several .gguf files", r.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])

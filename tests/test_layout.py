"""The house rules that a reader relies on, read from the files themselves: layers, sizes, docstrings, what is where."""

import ast
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "flodl_pipe"
FILES = sorted(file for file in PACKAGE.rglob("*.py") if "__pycache__" not in file.parts)

# A part imports only parts on lines below its own. Parts on one line never import each other.
LAYERS = """
__main__
cli
jobs
pipeline
loader
staging
cluster
sources sampling transforms reports
config
memory
batch events storage devices
keyed errors units
arrays
"""
LEVEL = {
    part: level
    for level, line in enumerate(reversed(LAYERS.strip().splitlines()))
    for part in line.split()
}  # fmt: skip

MAX_LINES = 500
TOP_LEVEL = {
    "CHANGELOG.md",
    "Makefile",
    "README.md",
    "conf",
    "constraints.txt",
    "docs",
    "flodl_pipe",
    "pyproject.toml",
    "recipes",
    "tests",
}
# Features of the platform, asked of a module. Everything else has a type.
HASATTR_ALLOWED = {("memory/probe.py", "hasattr(os, 'sched_getaffinity')")}
# Ways to start a thread, by the name they are called under.
THREAD_STARTERS = {"Thread", "Timer", "ThreadPool", "ThreadPoolExecutor", "start_new_thread", "to_thread"}
# Modules that turn data into code, and builtins that do.
CODE_LOADERS = {"cloudpickle", "dill", "marshal", "pickle", "shelve", "joblib"}
CODE_RUNNERS = {"compile", "eval", "exec"}


def name(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def part(file: Path) -> str:
    """Return which part of the package a file belongs to."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def offenders(rule: Callable[[Path], object], files: list[Path] = FILES) -> dict[str, object]:
    """Return what a rule has against each file that it has something against."""
    found = {name(file): rule(file) for file in files}
    return {file: wrong for file, wrong in found.items() if wrong}


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of every import, wherever it stands: in functions and under TYPE_CHECKING too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            dots = "." * node.level
            yield from ((node.lineno, f"{dots}{node.module or ''}.{alias.name}") for alias in node.names)


def called(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """Yield every call with the last name of what is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    yield node, name


def broken_imports(tree: ast.AST, importer: str) -> list[str]:
    """Return what is wrong with the imports of a file that belongs to part ``importer``."""
    wrong = []
    for line, dotted in imports(tree):
        if dotted.startswith("."):
            wrong.append(f"line {line}: relative import {dotted}")
            continue
        root, _, rest = dotted.partition(".")
        if root != "flodl_pipe":
            continue
        imported = rest.partition(".")[0]
        if imported not in LEVEL:
            wrong.append(f"line {line}: {dotted} is of no known part; import from the part that has it")
        elif imported != importer and LEVEL[imported] >= LEVEL[importer]:
            wrong.append(f"line {line}: {importer} imports {imported}, which is not below it")
    return wrong


def test_imports_only_point_down():
    # The package's own __init__ names the public names, from every layer; tests/test_public_names.py sees to it.
    files = [file for file in FILES if file != PACKAGE / "__init__.py"]
    assert offenders(lambda file: broken_imports(parse(file), part(file)), files) == {}


@pytest.mark.parametrize(
    ("importer", "code"),
    [
        ("loader", "from flodl_pipe.pipeline import load"),
        ("loader", "def f():\n    import flodl_pipe.jobs.run"),
        ("sources", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from flodl_pipe.sampling import orders"),
        ("errors", "from flodl_pipe import units"),
        ("units", "from . import errors"),
        ("loader", "from flodl_pipe import Loader"),
    ],
)
def test_an_import_that_points_up_or_sideways_is_seen(importer, code):
    assert len(broken_imports(ast.parse(code), importer)) == 1


def test_every_part_of_the_package_has_a_layer():
    kept = {
        entry for entry in PACKAGE.iterdir() if entry.suffix == ".py" or (entry.is_dir() and any(entry.glob("*.py")))
    }
    assert {entry.stem for entry in kept} - {"__init__"} <= set(LEVEL), (
        "give the new part a layer, here and in the docs"
    )


def test_every_module_says_what_it_is():
    assert offenders(lambda file: not ast.get_docstring(parse(file))) == {}


def test_every_module_is_short_enough_to_read():
    def num_lines_over(file: Path) -> int:
        return max(0, len(file.read_text(encoding="utf-8").splitlines()) - MAX_LINES)

    assert offenders(num_lines_over) == {}, f"lines over {MAX_LINES}: split these by duty"


def test_the_init_of_a_part_holds_nothing_but_its_docstring():
    def more_than_docstring(file: Path) -> bool:
        return [type(node) for node in parse(file).body] != [ast.Expr]

    assert offenders(more_than_docstring, sorted(PACKAGE.glob("*/**/__init__.py"))) == {}


def test_every_folder_of_modules_is_a_package():
    assert offenders(lambda file: not (file.parent / "__init__.py").is_file()) == {}


def test_hydra_and_omegaconf_stay_inside_config():
    def hydra(file: Path) -> set[str]:
        return {dotted.partition(".")[0] for _, dotted in imports(parse(file))} & {"hydra", "omegaconf"}

    assert {file.partition("/")[0] for file in offenders(hydra)} == {"config"}


def test_threads_are_started_in_the_loader_only():
    def started(file: Path) -> list[str]:
        return [ast.unparse(call) for call, what in called(parse(file)) if what in THREAD_STARTERS]

    assert {file.partition("/")[0] for file in offenders(started)} == {"loader"}


def test_objects_have_types_instead_of_being_asked():
    asked = {
        (name(file), ast.unparse(call)) for file in FILES for call, what in called(parse(file)) if what == "hasattr"
    }
    assert asked == HASATTR_ALLOWED


def runs_data(tree: ast.AST) -> list[str]:
    """Return the imports and calls that could turn data into running code."""
    found = [dotted for _, dotted in imports(tree) if dotted.partition(".")[0] in CODE_LOADERS]
    for call, what in called(tree):
        unpickles = any(word.arg == "allow_pickle" and ast.unparse(word.value) != "False" for word in call.keywords)
        runs = what in CODE_RUNNERS and isinstance(call.func, ast.Name)
        if unpickles or runs or ast.unparse(call.func) == "torch.load":
            found.append(ast.unparse(call))
    return found


def test_data_is_never_run():
    assert offenders(lambda file: runs_data(parse(file))) == {}


@pytest.mark.parametrize(
    "code",
    ["import pickle", "from pickle import loads", "eval(text)", "np.load(f, allow_pickle=True)", "torch.load(f)"],
)
def test_a_way_to_run_data_is_seen(code):
    assert len(runs_data(ast.parse(code))) == 1


TESTS = sorted(file for file in (ROOT / "tests").rglob("*.py") if "benchmarks" not in file.parts)
# What others spell with an underscore, and is public.
SPELLED_PRIVATE = {"_SUCCESS", "_asdict", "_exit", "_fields", "_getframe", "_make", "_replace"}
WHITE_BOX = "White box: "


def private_reads(tree: ast.AST) -> list[str]:
    """Return the private names of others that a test reads or changes: attributes, imports, paths for a patch."""
    nodes = list(ast.walk(tree))
    names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {word.arg for word in nodes if isinstance(word, ast.keyword) and word.arg}
    names |= {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    }
    own = names | SPELLED_PRIVATE
    found = []
    for node in nodes:
        if isinstance(node, ast.Attribute) and re.match(r"_[^_]", node.attr) and node.attr not in own:
            found.append(f"line {node.lineno}: .{node.attr}")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flodl_pipe"):
            found += [f"line {node.lineno}: {alias.name}" for alias in node.names if alias.name.startswith("_")]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # Hydra's words, `_self_` and the like, are public.
            is_path = re.fullmatch(r"(flodl_pipe(\.\w+)*\.)?_[a-zA-Z]\w*[^\W_](\.\w+)*", node.value)
            found += [f"line {node.lineno}: {node.value!r}"] if is_path and node.value not in own else []
    return found


def test_tests_that_look_inside_say_so():
    wrong = {}
    for file in TESTS:
        says = any(line.startswith(WHITE_BOX) for line in (ast.get_docstring(parse(file)) or "").splitlines())
        reads = private_reads(parse(file))
        if reads and not says:
            wrong[file.relative_to(ROOT).as_posix()] = reads
    assert wrong == {}, f"take public names, or let the module's docstring have a line that begins with {WHITE_BOX!r}"


@pytest.mark.parametrize(
    "code",
    [
        "loader._engine.close()",
        "from flodl_pipe.jobs.fetch import _sets",
        "patch('flodl_pipe.loader.plan._RING')",
    ],
)
def test_a_look_inside_is_seen(code):
    assert len(private_reads(ast.parse(code))) == 1


def test_conf_and_recipes_hold_yaml_only():
    others = [
        file.relative_to(ROOT).as_posix()
        for folder in ("conf", "recipes")
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and file.suffix != ".yaml"
    ]
    assert others == []


def test_the_top_level_holds_what_it_should():
    git = shutil.which("git")
    done = git and subprocess.run([git, "ls-files"], cwd=ROOT, text=True, capture_output=True)
    if not done or done.returncode:
        pytest.skip(f"git does not say what is under version control here: {done and done.stderr.strip()}")
    files = done.stdout.splitlines()
    assert {file.partition("/")[0] for file in files if not file.startswith(".")} <= TOP_LEVEL
    assert {file for file in files if file.startswith(".ci/")} == {".ci/run"}

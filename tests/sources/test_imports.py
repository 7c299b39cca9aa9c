"""Callables by name: only out of modules that are allowed, and every way to miss one in words."""

import subprocess
import sys

import pytest

from flodl_pipe.errors import ConfigError, SourceError
from flodl_pipe.sources.imports import import_callable
from tests.support import programs

DATA = """
import functools
import os
from subprocess import Popen, run
import subprocess
from json import loads as parse

number = 3
alias = os.getcwd
part = functools.partial(os.getcwd)

def make(n=1):
    return [n]

class Rows(list):
    @classmethod
    def of(cls, n):
        return cls([n])

    class Inner:
        pass

class Runs(Popen):
    pass

class Called:
    def __call__(self):
        return [1]

called = Called()

@functools.cache
def cached():
    return [1]
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A package ``mypkg`` in an empty working directory; what is imported is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)

    def write(name, text):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    write("mypkg/__init__.py", "")
    write("mypkg/data.py", DATA)
    yield write
    for name in set(sys.modules) - before:
        if name.partition(".")[0] not in {"json", "subprocess"}:
            del sys.modules[name]


def load(path, *allowed):
    return import_callable(path, allowed, "source.factory")


def refused(path, *allowed, error=ConfigError):
    with pytest.raises(error) as caught:
        load(path, *allowed)
    return str(caught.value)


@pytest.mark.parametrize("allowed", [["mypkg"], ["mypkg.data"], ["other", "mypkg"]])
def test_a_module_allows_itself_and_what_is_below_it(modules, allowed):
    assert load("mypkg.data:make", *allowed)(n=5) == [5]


@pytest.mark.parametrize("path", ["Rows", "Rows.of", "Rows.Inner", "called", "cached"])
def test_functions_classes_methods_and_objects_that_are_called_are_callables(modules, path):
    assert callable(load(f"mypkg.data:{path}", "mypkg"))


@pytest.mark.parametrize(
    "allowed", [[], ["myp"], ["mypk"], ["mypkgx"], ["mypkg.dat"], ["mypkg.data.more"], ["data"], [""], ["mypkg."]]
)
def test_nothing_is_imported_that_is_not_allowed(modules, allowed):
    modules("mypkg/data.py", "raise SystemExit('ran')")
    text = refused("mypkg.data:make", *allowed)
    assert "mypkg.data:make would import code of the module mypkg.data" in text
    names = ",".join([*allowed, "mypkg"])
    assert f"allow_import=[{names}]" in text
    assert f"FLODL_PIPE_ALLOW_IMPORT={names}" in text
    assert "mypkg" not in sys.modules


@pytest.mark.parametrize(
    ("name", "home"),
    [
        ("run", "subprocess"),
        ("Popen", "subprocess"),
        ("Popen.communicate", "subprocess"),
        ("Runs.communicate", "subprocess"),
        ("alias", "posix"),
        ("part", "functools"),
        ("parse", "json"),
        ("Rows.__class__", "builtins"),
    ],
)
def test_what_an_allowed_module_imports_is_not_allowed_with_it(modules, name, home):
    text = refused(f"mypkg.data:{name}", "mypkg")
    assert f"is defined in {home}, which is not allowed" in text
    assert f"allow_import=[mypkg,{home}]" in text
    if home != "builtins":
        assert callable(load(f"mypkg.data:{name}", "mypkg", home))


@pytest.mark.parametrize("name", ["subprocess.run", "os.system", "make.__globals__.clear", "called.__call__"])
def test_nothing_is_reached_through_modules_and_objects(modules, name):
    assert "only a class may stand before the last dot" in refused(f"mypkg.data:{name}", "mypkg")


def test_a_builtin_method_of_a_class_is_of_no_module(modules):
    assert "does not say where it is defined" in refused("mypkg.data:Rows.__subclasses__", "mypkg")


def test_modules_and_names_that_are_not_there_are_named(modules, tmp_path):
    text = refused("mypkg.dat:make", "mypkg")
    assert f"there is no module 'mypkg.dat'; it is looked for in the working directory {tmp_path}" in text
    assert "there is no module 'nopkg'" in refused("nopkg.data:make", "nopkg")
    assert "the module mypkg.data has no 'mak'. Did you mean 'make'?" in refused("mypkg.data:mak", "mypkg")
    assert "the class Rows has no 'off'. Did you mean 'of'?" in refused("mypkg.data:Rows.off", "mypkg")
    assert "mypkg.data:number is int, not callable" in refused("mypkg.data:number", "mypkg")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("import not_installed_anywhere", ModuleNotFoundError),
        ("x = 1 / 0", ZeroDivisionError),
        ("def f(:", SyntaxError),
        ("raise SystemExit(3)", SystemExit),
        ("from mypkg.data import nothing", ImportError),
    ],
)
def test_a_module_that_fails_keeps_its_error_as_the_cause(modules, text, cause):
    modules("mypkg/broken.py", text)
    text = f"importing mypkg.broken for source.factory=mypkg.broken:make failed: {cause.__name__}"
    with pytest.raises(SourceError, match=text) as caught:
        load("mypkg.broken:make", "mypkg")
    assert isinstance(caught.value.__cause__, cause)
    assert "HYDRA_FULL_ERROR=1 shows the traceback" in str(caught.value)


def test_the_working_directory_is_importable_once(modules, tmp_path):
    modules("alone.py", "def make(): pass")
    for _ in range(2):
        assert load("alone:make", "alone").__name__ == "make"
        assert sys.path.count(str(tmp_path)) == 1


@pytest.mark.parametrize("safe", [False, True])
def test_python_can_be_told_not_to_import_from_the_working_directory(modules, tmp_path, safe):
    modules("alone.py", "def make(): print('made')")
    code = (
        "import sys; sys.path = [entry for entry in sys.path if entry]\n"
        "from flodl_pipe.sources.imports import import_callable\n"
        "import_callable('alone:make', ['alone'], 'source.factory')()"
    )
    command = [sys.executable, *(["-P"] if safe else []), "-c", code]  # a Python of its own: -P is read at its start
    environment = programs.environment()
    environment.pop("PYTHONSAFEPATH", None)
    done = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=120)
    if safe:
        assert "no module 'alone'; it is looked for among the installed packages" in done.stderr
    else:
        assert done.stdout == "made\n"

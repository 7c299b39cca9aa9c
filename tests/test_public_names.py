"""What `flodl_pipe` offers: one list of public names, lazy, and every name in it there."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import flodl_pipe

ROOT = Path(flodl_pipe.__file__).resolve().parents[1]
# Sub-packages are a docstring, and __main__ is a script: neither lists names.
MODULES = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for file in Path(flodl_pipe.__file__).parent.rglob("*.py")
    if file.name not in ("__init__.py", "__main__.py")
)


def full(name):
    return pytest.param(name, marks=pytest.mark.full)


def python(code: str) -> list[str]:
    """Run code in a fresh interpreter and return its output's words."""
    command = [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{code}"]
    done = subprocess.run(command, text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_public_names_are_these():
    names = ["Batch", "Loader", "SampleSpec", "Source", "accumulation_weights", "attach", "errors", "load"]
    assert flodl_pipe.__all__ == names


def test_importing_the_package_loads_nothing_heavy():
    heavy = "{'torch', 'numpy', 'hydra', 'omegaconf', 'pydantic', 'rich', 'yaml'}"
    assert python(f"import flodl_pipe\nprint(*sorted({heavy} & set(sys.modules)))") == []


@pytest.mark.parametrize("public", [*flodl_pipe.__all__[:1], *(full(name) for name in flodl_pipe.__all__[1:])])
def test_every_public_name_loads_on_first_use(public):
    # In a fresh process, so that no other test has loaded one; each by itself, so that none needs another.
    assert python(f"import flodl_pipe\nprint(flodl_pipe.{public}.__name__.rpartition('.')[2])") == [public]


@pytest.mark.full
def test_star_import_gives_exactly_the_public_names():
    code = "from flodl_pipe import *\nprint(*sorted(n for n in dir() if not n.startswith('_') and n != 'sys'))"
    assert python(code) == sorted(flodl_pipe.__all__)


def test_dir_lists_the_public_names_before_they_are_loaded():
    assert set(flodl_pipe.__all__) <= set(python("import flodl_pipe\nprint(*dir(flodl_pipe))"))


def test_an_unknown_name_is_refused_with_the_public_ones():
    with pytest.raises(AttributeError, match=r"no attribute 'DataLoader'; its public names are Batch, Loader, .*load$"):
        _ = flodl_pipe.DataLoader


def test_the_version_is_that_of_the_distribution():
    import tomllib

    written = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert flodl_pipe.__version__ == written


def listed(module: str) -> dict[str, object]:
    """Return the names in a module's ``__all__``, with their values."""
    loaded = importlib.import_module(module)
    return {public: getattr(loaded, public) for public in loaded.__all__}


def test_every_module_lists_its_names_once():
    for module in MODULES:
        names = getattr(importlib.import_module(module), "__all__", [])
        assert len(names) == len(set(names)) > 0, module


def test_a_module_defines_what_it_lists():
    foreign = {
        f"{module}.{public}": value.__module__
        for module in MODULES
        for public, value in listed(module).items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ != module
    }
    assert foreign == {}


def test_public_functions_and_classes_are_documented():
    # Not inspect.getdoc: a docstring inherited from a base would hide that the class has none.
    bare = [
        f"{module}.{public}"
        for module in MODULES
        for public, value in listed(module).items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and not value.__doc__
    ]
    assert bare == []

"""docs/sources/own.md: its Python runs, its recipe works, and what it says of keys is so."""

import re
import sys
from pathlib import Path

import pytest
import yaml

from flodl_pipe.config.sections import check_section
from flodl_pipe.config.source_custom import CustomConfig

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "sources" / "own.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("code", blocks("python"), ids=lambda code: re.search(r"class (\w+)|datasets", code)[0])
def test_the_python_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "import datasets" in code:
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        pytest.importorskip("datasets")
    names = {"__name__": "own"}
    exec(compile(code, "own.md", "exec"), names)
    loader = names["loader"]
    assert loader.num_batches > 0
    loader.close()


def test_there_is_an_example_of_each_kind():
    assert [len(blocks(language)) for language in ("python", "yaml")] == [4, 1]


def test_the_recipes_section_is_valid():
    section = yaml.safe_load(blocks("yaml")[0])["source"]
    assert check_section(CustomConfig, "source", **section).args == {"root": "/data", "size": 64}


def test_the_table_lists_every_key_with_its_default():
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", TEXT, flags=re.MULTILINE))
    shared = set(CustomConfig.model_fields) - {"factory", "args", "thread_safe", "ragged", "pure"}
    assert shared == {"kind", "subset", "on_error", "max_skipped"}
    for name, written in rows.items():
        field = CustomConfig.model_fields[name]
        assert written == "required" if field.is_required() else yaml.safe_load(written.strip("`")) == field.default
    assert set(rows) == set(CustomConfig.model_fields) - shared


def test_the_example_file_is_the_recipes(monkeypatch):
    recipe = yaml.safe_load((ROOT / "recipes" / "custom.yaml").read_text(encoding="utf-8"))
    module, _, name = recipe["source"]["factory"].partition(":")
    assert (ROOT / "docs" / "examples" / f"{module}.py").is_file()
    monkeypatch.syspath_prepend(ROOT / "docs" / "examples")
    made = getattr(__import__(module), name)(**recipe["source"].get("args", {}))
    monkeypatch.delitem(sys.modules, module)
    assert made[0]["y"] == made[0]["x"] ** 2

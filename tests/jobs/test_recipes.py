"""Every recipe, on sample data: it plans, it runs, and its stream is the same however it is read and resumed.

``custom`` and ``remote_shards`` need more than sample data and have tests of their own.
"""

import json
import shutil
import sys
from pathlib import Path

import pytest

import flodl_pipe
from flodl_pipe.config.compose import load_config
from flodl_pipe.config.places import recipe_dirs
from flodl_pipe.jobs import run
from flodl_pipe.pipeline import build_loader

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
RECIPES = sorted(file.stem for file in recipe_dirs()[-1][1].glob("*.yaml") if file.stem != "remote_shards")
STEPS = "job.max_steps=12"


@pytest.fixture(autouse=True)
def _squares(tmp_path, monkeypatch):
    """Make the module of the recipe ``custom`` importable."""
    shutil.copy(EXAMPLES / "squares.py", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("squares", None)


def words(recipe, *overrides):
    allowed = ["allow_import=[squares]"] if recipe == "custom" else []
    return [recipe, *allowed, *overrides]


def digest(recipe, *overrides, epochs=2, num_steps=40):
    """Return the digest and the number of rows of the first steps of two epochs."""
    loader = build_loader(load_config(*words(recipe, *overrides)), keep_digest=True)
    with loader:
        left = num_steps
        for epoch in range(epochs):
            for _ in loader.epoch(epoch):
                left -= 1
                if not left:
                    break
        counted = loader.statistics()
    return counted.digest, counted.num_samples


def some(*quick):
    """All recipes: these in the quick suite, the others in the full one. They differ in their source, which has tests
    of its own, and ``test_every_batch_carries_where_to_go_on_after_it`` builds and reads each."""
    return [pytest.param(name, marks=[] if name in quick else [pytest.mark.full]) for name in RECIPES]


@pytest.mark.parametrize("recipe", some("olmo_shards"))
def test_it_plans_and_runs(recipe, call, shown, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    first, *rest = words(recipe)
    status, out, err = call(f"+recipe={first}", *rest, "job=plan")
    assert status == 0, err
    titles = ["Source", "Order and steps", "Memory", "Reading", "Notes"]
    assert [title for title in shown.titles if title in titles] == titles
    assert widest_below(shown.titles[0], out) <= 80
    shown.titles.clear()
    status, out, err = call(f"+recipe={first}", *rest, STEPS)
    assert status == 0, err
    assert {"Data", "Run", "Speed", "Memory"} <= set(shown.titles)
    assert shown["end"] == "stopped at job.max_steps=12"
    assert widest_below(shown.titles[0], out) <= 80


def widest_below(title, text):
    """Return how long the longest line of the tables is; those of the log before them are as long as they are."""
    _, found, tables = text.partition(f"{title}\n")
    assert found
    return max(map(len, tables.splitlines()))


@pytest.mark.parametrize("recipe", some("cifar10_disk"))
def test_its_stream_does_not_depend_on_how_it_is_read(recipe):
    wanted = digest(recipe)
    assert digest(recipe, "loader.readers=0") == wanted
    assert digest(recipe, "loader.readers=3", "loader.prefetch=2") == wanted
    assert digest(recipe, "loader.mode=streaming") == wanted
    assert digest(recipe, "sampling.seed=43") != wanted


@pytest.mark.parametrize("recipe", some("text_stream"))
def test_a_run_in_pieces_is_the_same_run(recipe, table, saved):
    whole = load_config(*words(recipe, STEPS, "job.save=whole.json", "reports.progress=false"))
    table(run.main, whole)
    for steps in (1, 5, 11, 12):
        piece = [f"job.max_steps={steps}", "job.save=a.json", "job.resume=a.json", "reports.progress=false"]
        table(run.main, load_config(*words(recipe, *piece)))
    assert saved("a.json") == saved("whole.json")


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_batch_carries_where_to_go_on_after_it(recipe):
    config = load_config(*words(recipe))
    with build_loader(config) as loader:
        batches = iter(loader)
        first, second = next(batches), next(batches)
    with build_loader(config) as again:
        again.load_state_dict(json.loads(json.dumps(first.cursor)))
        resumed = next(iter(again))
    for name, value in second.items():
        assert (resumed[name] == value).all()


@pytest.mark.full
def test_the_vocabulary_is_kept_beside_the_run(call, tmp_path):
    status, _, err = call("+recipe=shakespeare_char", "job.max_steps=1", f"hydra.run.dir={tmp_path}/here")
    assert status == 0, err
    vocabulary = json.loads((tmp_path / "here" / "vocabulary.json").read_text())
    with flodl_pipe.load("shakespeare_char") as loader:
        assert list(loader.dataset.vocab) == vocabulary
        ids = next(iter(loader))["input"][0]
        assert "".join(vocabulary[number] for number in ids) == loader.dataset.decode(ids)

"""Samplers, collate functions and transforms of one's own named in a recipe."""

import sys
import textwrap

import pytest

import flodl_pipe
from flodl_pipe.cluster.context import RunContext
from flodl_pipe.errors import ConfigError, LoaderError

MODULE = """
import torch
from torch.utils.data import BatchSampler, SequentialSampler


def backwards(source, step=1):
    return range(len(source) - 1, -1, -step)


def nothing(source):
    pass


def raises(source):
    raise RuntimeError("on purpose")


def batches(source, size=7):
    return BatchSampler(SequentialSampler(source), size, drop_last=False)


def means(samples):
    return {"mean": torch.stack([sample["image"].float().mean() for sample in samples])}


def darker(batch, keys, by=2):
    return batch.with_fields(batch.names, (batch["image"] // by, *batch.values()[1:]))
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    (tmp_path / "own_code.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_code", raising=False)

    def load(*words, **options):
        return flodl_pipe.load("mnist", "allow_import=[own_code]", *words, **options)

    return load


def test_a_sampler_decides_the_order(load):
    with load("sampling.sampler=own_code:backwards", "+sampling.sampler_args.step=2", "loader.batch_size=10") as loader:
        assert next(iter(loader)).pick_keys.sample.tolist() == list(range(5999, 5979, -2))


def test_a_batch_sampler_makes_the_batches(load):
    with load("sampling.batch_sampler=own_code:batches", "loader.batch_size=null") as loader:
        assert [batch.size for batch in loader] == [7] * 857 + [1]
    with pytest.raises(ConfigError, match=r"loader.batch_size: 128 excludes sampling.batch_sampler"):
        load("sampling.batch_sampler=own_code:batches")


def test_functions_of_ones_own_collate_and_transform(load):
    with load("loader.collate=own_code:means", "loader.batch_size=4") as loader:
        assert next(iter(loader)).names == ("mean",)
    step = "+transforms.dark={kind: function, path: 'own_code:darker', args: {by: 4}}"
    with load("loader.batch_size=4") as plain, load(step, "loader.batch_size=4") as dark:
        assert (next(iter(plain))["image"] // 4 == next(iter(dark))["image"]).all()


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        (["sampling.sampler=own_code:nothing"], LoaderError, "returned None; it must return a sampler"),
        (["sampling.sampler=own_code:raises"], LoaderError, "on purpose"),
        (
            ["sampling.sampler=own_code:backwards", "+sampling.sampler_args.stp=2"],
            ConfigError,
            "sampler_args: do not fit",
        ),
        (["sampling.sampler=own_code:none"], ConfigError, "none"),
        (["sampling.weights=inverse_freq", "sampling.order=weighted"], ConfigError, "Did you mean 'inverse_frequency'"),
        (["loader.collate=own_code:nix"], ConfigError, "nix"),
    ],
)
def test_what_is_wrong_is_said(load, words, error, text):
    with pytest.raises(error, match=text):
        load(*words)


def test_code_is_not_imported_without_permission(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for key in ("sampling.sampler", "sampling.batch_sampler", "loader.collate"):
        size = "null" if "batch" in key else "4"
        with pytest.raises(ConfigError, match="only modules that you allow"):
            flodl_pipe.load("mnist", f"{key}=own_code:backwards", f"loader.batch_size={size}")


@pytest.mark.full
def test_ranks_may_be_built_from_a_recipe(load):
    parts = []
    for rank in range(2):
        with load("loader.batch_size=4", context=RunContext(rank, 2)) as loader:
            parts.append(next(iter(loader)).pick_keys.sample.tolist())
    with load("loader.batch_size=8") as loader:
        assert next(iter(loader)).pick_keys.sample.tolist() == sum(parts, [])

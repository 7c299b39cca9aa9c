"""Every recipe of the project is one stream: what ranks load together is what one process loads."""

from functools import cache

import pytest

from flodl_pipe.config.compose import load_config
from flodl_pipe.config.places import recipe_dirs
from flodl_pipe.keyed.digest import Digest
from flodl_pipe.pipeline import build_loader
from tests.cluster.ranks import results

NUM_STEPS = 6
# What a recipe needs to run on samples that come with the package; None: it needs a server of its own.
MORE = {
    "custom": ("source.factory=docs.examples.squares:make_dataset", "allow_import=[docs]"),
    "remote_shards": None,
}
RECIPES = sorted(file.stem for file in recipe_dirs()[-1][1].glob("*.yaml") if MORE.get(file.stem, ()) is not None)
LANES = {
    f"{name} in lanes": (name, "sampling.order=lanes", "sampling.drop_last=false") for name in ("cifar10", "mnist")
}


FEW = ("mixture", "text_stream", "cifar10 in lanes")
"""For each way in which a stream is shared out: by samples, here of a mixture, by documents, and in lanes."""


def read(names, cluster):
    """Return of each recipe what this process hands out of two epochs' first steps: digest, rows, steps."""
    found = {}
    for name in names:
        recipe, *words = LANES.get(name, (name, *MORE.get(name, ())))
        more = (*words, "loader.global_batch_size=24", "loader.device=cpu", "loader.readers=1", *cluster)
        config = load_config(recipe, *more)
        with build_loader(config, keep_digest=True) as loader:
            for epoch in range(2):
                for number, _ in enumerate(loader.epoch(epoch), 1):
                    if number == NUM_STEPS:
                        break
            counted = loader.statistics()
            found[name] = (counted.digest, counted.num_samples, counted.num_steps)
    return found


@pytest.fixture(scope="module")
def alone():
    """What one process hands out of each recipe; each is read once, when it is first asked for."""
    return cache(lambda name: read([name], ())[name])


def everything(*case, id):  # noqa: A002 - as pytest calls it
    return pytest.param((*RECIPES, *LANES), *case, id=id, marks=pytest.mark.full)


@pytest.mark.parametrize(
    ("names", "num_ranks", "cluster"),
    [
        pytest.param(FEW, 3, ("cluster.partition_ratios=[3,2,1]",), id="a few, unequal"),
        everything(2, (), id="equal"),
        everything(3, ("cluster.partition_ratios=[3,2,1]",), id="unequal"),
        everything(4, ("cluster.share_host_cache=false",), id="own caches"),
    ],
)
def test_ranks_load_together_what_one_process_loads(alone, names, num_ranks, cluster):
    parts = results(read, num_ranks, names, cluster)
    for name in names:
        total = Digest()
        for part in parts:
            digest, num_rows, num_steps = part[name]
            total.merge(Digest.from_hex(digest, num_rows))
            assert num_steps == alone(name)[2], name
            assert num_rows > 0, name
        assert (total.hex(), total.num_rows) == alone(name)[:2], name

"""Every key of the schema, one letter short, in every place where a key can be written.

All keys of a section are misspelled together, because every fault of a config is reported at once.
"""

import pytest
import yaml

from flodl_pipe.config.cluster import ClusterConfig, RendezvousConfig
from flodl_pipe.config.cluster_host import HostConfig
from flodl_pipe.config.compose import load_config
from flodl_pipe.config.job import DigestJob, FetchJob, LaunchJob, PlanJob, RunJob, SchemaJob, VerifyJob
from flodl_pipe.config.keys import children, key_names
from flodl_pipe.config.loader import LoaderConfig, SimulatedConfig
from flodl_pipe.config.reports import ReportsConfig
from flodl_pipe.config.root import Config, EngineConfig
from flodl_pipe.config.sampling import SamplingConfig
from flodl_pipe.config.source_custom import CustomConfig
from flodl_pipe.config.source_images import (
    Cifar10Config,
    Cifar10DiskConfig,
    Cifar100Config,
    FashionMnistConfig,
    MnistConfig,
)
from flodl_pipe.config.source_mixture import MixtureConfig
from flodl_pipe.config.source_records import RecordField, RecordsConfig
from flodl_pipe.config.source_stream import StreamConfig
from flodl_pipe.config.source_text import TextConfig
from flodl_pipe.config.source_tokens import TokenShardsConfig
from flodl_pipe.errors import ConfigError

TOKENS = ("source.seq_len=8", "loader.batch_size=1")
RECORDS = (
    "source=records",
    "source.path=a.bin",
    "source.record_bytes=4",
    "source.fields={x: {offset: 0, dtype: u4, shape: []}}",
    "loader.batch_size=1",
)
PART = "{source: {kind: token_shards, seq_len: 8}, weight: 1}"


def of(kind, *words):
    return (f"source={kind}", "loader.batch_size=1", *words)


SECTIONS = {
    "mnist": (of("mnist"), "source", MnistConfig),
    "fashion_mnist": (of("fashion_mnist"), "source", FashionMnistConfig),
    "cifar10": (of("cifar10"), "source", Cifar10Config),
    "cifar10_disk": (of("cifar10_disk"), "source", Cifar10DiskConfig),
    "cifar100": (of("cifar100"), "source", Cifar100Config),
    "shakespeare": (of("shakespeare", "source.seq_len=8"), "source", TextConfig),
    "stream": (of("stream", "source.seq_len=8"), "source", StreamConfig),
    "mixture": (of("mixture", f"source.parts={{a: {PART}, b: {PART}}}"), "source", MixtureConfig),
    "custom": (of("custom", "source.factory=a:b"), "source", CustomConfig),
    "digest": ((*TOKENS, "job=digest"), "job", DigestJob),
    "fetch": ((*TOKENS, "job=fetch"), "job", FetchJob),
    "launch": ((*TOKENS, "job=launch"), "job", LaunchJob),
    "root": (TOKENS, "", Config),
    "token_shards": (TOKENS, "source", TokenShardsConfig),
    "records": (RECORDS, "source", RecordsConfig),
    "field": (RECORDS, "source.fields.x", RecordField),
    "sampling": (TOKENS, "sampling", SamplingConfig),
    "loader": (TOKENS, "loader", LoaderConfig),
    "simulated": (TOKENS, "loader.simulated", SimulatedConfig),
    "cluster": (TOKENS, "cluster", ClusterConfig),
    "host": ((*TOKENS, "cluster=one_host"), "cluster.hosts.0", HostConfig),
    "rendezvous": (TOKENS, "cluster.rendezvous", RendezvousConfig),
    "reports": (TOKENS, "reports", ReportsConfig),
    "run": ((*TOKENS, "job=run"), "job", RunJob),
    "plan": ((*TOKENS, "job=plan"), "job", PlanJob),
    "schema": ((*TOKENS, "job=schema"), "job", SchemaJob),
    "verify": ((*TOKENS, "job=verify"), "job", VerifyJob),
    "engine": (TOKENS, "engine", EngineConfig),
}


def one_letter_short(key):
    middle = len(key) // 2
    return key[:middle] + key[middle + 1 :]


def test_no_section_is_left_out():
    found = {Config, RecordField, SimulatedConfig, HostConfig, RendezvousConfig}
    for name in key_names(Config):
        found.update(children(Config, name))
    assert found == {model for _, _, model in SECTIONS.values()}


# Of each shape a section can have - the root, plain, inside another, of a kind, an item of a list or of a mapping - one
# is misspelled in every place; the others, which are alike, on the command line.
SHAPES = ("root", "loader", "simulated", "token_shards", "run", "host", "field")
PLACES = [(section, place) for section in SHAPES for place in ("added", "forced", "recipe")]
QUICK = [
    *(("root", "override"), ("token_shards", "override"), ("simulated", "override"), ("run", "override")),
    *(("host", "override"), ("field", "added"), ("loader", "forced"), ("host", "forced")),
    *(("root", "recipe"), ("rendezvous", "override")),
]


@pytest.mark.parametrize(
    ("section", "place"),
    [
        pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.full])
        for case in [*((section, "override") for section in SECTIONS), *PLACES]
    ],
)
def test_a_misspelled_key_brings_the_right_one_to_mind(section, place, folder):
    start, path, model = SECTIONS[section]
    typos = {f"{path}.{one_letter_short(key)}".lstrip("."): key for key in key_names(model)}
    if place == "recipe":
        tree = {typo.rpartition(".")[2]: 1 for typo in typos}
        for part in reversed(path.split(".") if path else ()):
            tree = [{"name": "localhost", **tree}] if part == "0" else {part: tree}
        folder("recipes/typos.yaml", yaml.safe_dump(tree))
        words = ["+recipe=typos"]
    else:
        words = [f"{ {'override': '', 'added': '+', 'forced': '++'}[place] }{typo}=1" for typo in typos]
    with pytest.raises(ConfigError) as caught:
        load_config(*start, *words)
    problems = {problem.key.replace("[0]", ".0"): problem for problem in caught.value.problems}
    assert set(problems) == set(typos)
    for typo, key in typos.items():
        assert problems[typo].message == f"unknown key. Did you mean '{key}'?"
        assert problems[typo].where.startswith("recipes/typos.yaml:" if place == "recipe" else "command line: ")

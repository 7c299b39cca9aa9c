"""docs/configuration.md against the models."""

import re
from pathlib import Path

import pytest
import yaml

from flodl_pipe.config.base import StrictModel
from flodl_pipe.config.cluster import ClusterConfig, RendezvousConfig
from flodl_pipe.config.cluster_host import HostConfig
from flodl_pipe.config.compose import load_config
from flodl_pipe.config.host_file import HostFile
from flodl_pipe.config.job import DigestJob, FetchJob, LaunchJob, PlanJob, VerifyJob
from flodl_pipe.config.keys import key_names
from flodl_pipe.config.loader import LoaderConfig, SimulatedConfig
from flodl_pipe.config.reports import ReportsConfig
from flodl_pipe.config.sampling import SamplingConfig
from flodl_pipe.config.source_base import SubsetConfig
from flodl_pipe.config.source_custom import CustomConfig
from flodl_pipe.config.source_images import Cifar10Config, MnistConfig
from flodl_pipe.config.source_mixture import MixtureConfig, MixturePart, WeightChange
from flodl_pipe.config.source_records import RecordsConfig
from flodl_pipe.config.source_stream import StreamConfig
from flodl_pipe.config.source_text import TextConfig
from flodl_pipe.config.source_tokens import DocumentsConfig, TokenShardsConfig
from flodl_pipe.units import parse_bytes

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "configuration.md").read_text()
TABLES = {
    "### `source`, kind `token_shards`": TokenShardsConfig,
    "### `source.documents` of token shards": DocumentsConfig,
    "### `source`, kind `records`": RecordsConfig,
    "### `source`, kinds `mnist` and `fashion_mnist`": MnistConfig,
    "### `source`, kinds `cifar10`, `cifar10_disk` and `cifar100`": Cifar10Config,
    "### `source`, kind `shakespeare`": TextConfig,
    "### `source`, kind `stream`": StreamConfig,
    "### `source`, kind `mixture`": MixtureConfig,
    "### `source.parts.NAME` of a mixture": MixturePart,
    "### `source.schedule[]` of a mixture": WeightChange,
    "### `source`, kind `custom`": CustomConfig,
    "### `source.subset`": SubsetConfig,
    "### `sampling`": SamplingConfig,
    "### `loader`": LoaderConfig,
    "### `loader.simulated`": SimulatedConfig,
    "### `cluster` (options": ClusterConfig,
    "### `cluster.hosts[]`": HostConfig,
    "### `cluster.rendezvous`": RendezvousConfig,
    "### A host's own file": HostFile,
    "### `reports`": ReportsConfig,
    "### `job` (options": PlanJob,
    "### `job`, kind `launch`": LaunchJob,
    "### `job`, kind `fetch`": FetchJob,
    "### `job`, kind `digest`": DigestJob,
    "### `job`, kind `verify`": VerifyJob,
}


def test_every_key_is_listed_with_its_default():
    for heading, model in TABLES.items():
        section = TEXT.partition(heading)[2].partition("\n#")[0]
        rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", section, flags=re.MULTILINE))
        assert set(rows) | {"kind"} == set(key_names(model)) | {"kind"}, heading
        for name, written in rows.items():
            field = model.model_fields[name]
            if field.is_required():
                assert written == "???"
                continue
            default = yaml.safe_load(written)
            if isinstance(field.default, StrictModel):
                default = type(field.default)(**default)
            if isinstance(default, str) and isinstance(field.default, int):
                default = parse_bytes(default)
            assert default == field.default, name


def test_the_recipe_shown_works(folder):
    (text,) = re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)
    folder("recipes/mine.yaml", text)
    config = load_config("mine")
    assert (config.loader.batch_size, config.sampling.shuffle) == (64, False)
    assert config.source.path == "/data/shards/part-*.bin"


DOCS = Path(__file__).resolve().parents[2] / "docs"
SHOWN = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in [DOCS / "sources.md", *sorted((DOCS / "sources").glob("*.md"))]
    for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE))
]


@pytest.mark.parametrize("block", SHOWN)
def test_a_recipe_shown_composes_as_it_is(block, folder):
    folder("recipes/mine.yaml", block)
    given = yaml.safe_load(block)
    words = [] if "loader" in given else ["loader.batch_size=4"]
    config = load_config("mine", *words, "allow_import=[mypkg]")
    chosen = {
        key: value for entry in given.get("defaults", []) if isinstance(entry, dict) for key, value in entry.items()
    }
    assert config.source.kind == given["source"].get("kind", chosen.get("override /source", "token_shards"))

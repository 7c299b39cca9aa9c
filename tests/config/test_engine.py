"""The one object that is built by name."""

import sys
import types
from pathlib import Path

import pytest

from flodl_pipe.cluster.context import RunContext
from flodl_pipe.config.compose import instantiate_engine, load_config
from flodl_pipe.errors import SourceError


@pytest.fixture
def engine(monkeypatch):
    """Stand in for the pipeline: a module whose build_loader a test can set."""
    module = types.ModuleType("flodl_pipe.pipeline")
    module.build_loader = lambda cfg: cfg
    monkeypatch.setitem(sys.modules, "flodl_pipe.pipeline", module)
    monkeypatch.setattr("flodl_pipe.pipeline", module, raising=False)
    return module


def test_the_engine_gets_the_config_as_cfg(engine):
    config = load_config("olmo_shards")
    built = instantiate_engine(config)
    assert built == config
    assert type(built) is type(config)


def test_the_engine_gets_further_arguments_as_they_are(engine):
    context = RunContext(1, 3, ratios=(3, 2, 1))
    engine.build_loader = lambda cfg, context: context
    assert instantiate_engine(load_config("olmo_shards"), context=context) is context


def test_the_engines_own_error_comes_through(engine):
    def fail(cfg):
        try:
            Path("/nowhere/at/all").stat()
        except OSError as error:
            raise SourceError("no data") from error

    engine.build_loader = fail
    with pytest.raises(SourceError, match=r"^no data$") as caught:
        instantiate_engine(load_config("olmo_shards"))
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert caught.traceback[-1].name == "fail"


def test_an_engine_that_cannot_be_imported_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "flodl_pipe.pipeline", None)
    monkeypatch.delattr("flodl_pipe.pipeline", raising=False)
    with pytest.raises(ImportError, match=r"flodl_pipe\.pipeline"):
        instantiate_engine(load_config("olmo_shards"))

"""Kind ``custom``: the factory's dataset as a source, and what goes wrong on the way there."""

import sys
from pathlib import Path

import numpy as np
import pytest

from flodl_pipe.config.sections import check_section
from flodl_pipe.config.source_custom import CustomConfig
from flodl_pipe.errors import ConfigError, SourceError
from flodl_pipe.sources.custom import build_custom
from tests.contract.sources import SourceContract, read_delivered

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"

DATA = """
import numpy as np

def make(n=4, *, options=None):
    if options:
        options["list"].append(n)
    return np.arange(n, dtype=np.int32)

def fails(n):
    raise ValueError("the user's own")

def leaves(): raise SystemExit("bye")
def nothing(): pass
def number(): return 3
def broken():
    class Broken(list):
        def __getitem__(self, index):
            raise KeyError("of the dataset")
    return Broken([1])
def source():
    from flodl_pipe.sources.adapters import adapt
    return adapt([1, 2], thread_safe=True)
"""


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Build from a module ``mine`` in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.py").write_text(DATA)

    def run(name, allowed=("mine",), **values):
        return build_custom(CustomConfig(factory=f"mine:{name}", **values), allowed)

    yield run
    sys.modules.pop("mine", None)


class TestSquares(SourceContract):
    @pytest.fixture(autouse=True)
    def _on_the_path(self, monkeypatch):
        monkeypatch.syspath_prepend(EXAMPLES)
        yield
        sys.modules.pop("squares", None)

    def make_source(self, folder):
        return build_custom(CustomConfig(factory="squares:make_dataset", args={"num_samples": 50}), ["squares"])

    def expected(self, source, index):
        x = np.linspace(-1, 1, 50, dtype=np.float32)[index]
        return {"x": x, "y": x**2}


def test_the_arguments_reach_the_factory_and_the_config_stays_as_it_is(build):
    options = {"list": [1, {"a": None}]}
    source = build("make", args={"n": 7, "options": options})
    np.testing.assert_array_equal(read_delivered(source, [6, 0])["0"], [6, 0])
    assert options == {"list": [1, {"a": None}]}
    assert source.thread_safe  # a list, of which that is known
    assert not build("make", thread_safe=False).thread_safe


def test_a_factory_may_return_a_source(build):
    assert build("source").thread_safe
    assert len(build("source", thread_safe=True)) == 2


def test_without_permission_nothing_runs(build):
    with pytest.raises(ConfigError, match=r"source.factory: mine:make would import.*none are allowed.*=\[mine\]"):
        build("make", allowed=())
    assert "mine" not in sys.modules


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"args": {"m": 1}}, r"source.args: do not fit mine:make\(n=4, \*, options=None\): .*'m'"),
        ({"args": {}}, r"source.args: do not fit mine:fails\(n\): missing a required argument: 'n'"),
    ],
)
def test_arguments_that_do_not_fit_are_told_with_the_signature(build, values, text):
    with pytest.raises(ConfigError, match=text):
        build("make" if values["args"] else "fails", **values)


def test_a_factory_that_raises_keeps_its_error_as_the_cause(build):
    with pytest.raises(
        SourceError, match=r"source.factory=mine:fails raised ValueError: the user's own \(.*:10\)"
    ) as e:
        build("fails", args={"n": 1})
    assert isinstance(e.value.__cause__, ValueError)
    frames = []
    trace = e.value.__cause__.__traceback__
    while trace:
        frames.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert frames[-1] == "fails"
    with pytest.raises(SourceError, match="mine:leaves raised SystemExit: bye"):
        build("leaves")


def test_a_factory_must_return_a_dataset(build):
    with pytest.raises(SourceError, match="mine:nothing returned None; it must return a dataset"):
        build("nothing")
    with pytest.raises(SourceError, match="mine:number returned no dataset: cannot read samples from int; what is"):
        build("number")


def test_the_datasets_own_error_is_no_fault_of_the_factory(build):
    with pytest.raises(KeyError, match="of the dataset"):
        build("broken")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"factory": "mypkg.data.make"}, r"factory: must be MODULE:CALLABLE.*Did you mean 'mypkg.data:make'\?"),
        *(({"factory": value}, "must be MODULE:CALLABLE") for value in ("", "a:", ":f", "a:b:c", "a b:c", "../a:b", 3)),
        ({"factory": "a:b", "pure": 0}, "pure: must be true or false"),
        ({"factory": "a:b", "pure": False, "thread_safe": True}, "must be false with pure=false, got true"),
        ({"factory": "a:b", "on_error": "ignore"}, "on_error: must be"),
        ({"factory": "a:b", "args": [1]}, "args: must be a mapping"),
        ({"factory": "a:b", "thread_safe": 1}, "thread_safe: must be true or false"),
        ({}, "factory: required"),
    ],
)
def test_a_section_that_is_wrong_is_refused_in_words(values, text):
    with pytest.raises(ConfigError, match=text):
        check_section(CustomConfig, "source", **values)


def test_only_the_data_can_tell_the_fields():
    assert CustomConfig(factory="a:b").field_names() is None

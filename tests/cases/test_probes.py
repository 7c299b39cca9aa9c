"""Faults that users of other loaders reported, as probes; and files that change while they are read."""

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.cases.adapter import CASES, Adapter, load_probes
from tests.support import programs

pytestmark = [
    pytest.mark.skipif(not CASES.is_dir(), reason="shared/cases is not beside the checkout"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # the probes leave files of their own open
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

DEAR = {"offsets_beyond_4_gib"}  # it writes a file of that size
NAMES = sorted(load_probes().P) if CASES.is_dir() else ["probes"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full) if name in DEAR else name for name in NAMES]
)
def test_probe(name):
    probes = load_probes()
    task = probes.T(Adapter())
    try:
        probes.P[name](task)
    except probes.Skip as reason:
        pytest.fail(f"skipped ({reason}), but it should be served")
    finally:
        task.end()


@pytest.fixture
def expected():
    """What shared/cases/live_cases.py says may come of each case."""
    spec = importlib.util.spec_from_file_location("live_cases", CASES / "live_cases.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))  # it puts its folder there
        spec.loader.exec_module(module)
    return {case: outcomes for case, (outcomes, *_) in module.EXPECT.items()}


@pytest.mark.parametrize(
    "case",
    [
        "truncate",
        pytest.param("replace", marks=pytest.mark.full),
        pytest.param("unlink", marks=pytest.mark.full),
        "replace_between_epochs",
    ],
)
def test_live_case(case, expected, tmp_path):
    """In a process of its own, since a crash is an outcome too."""
    words = [str(CASES / "live_cases.py"), "--child", "tests.cases.adapter:Adapter", case, str(tmp_path)]
    outcome = programs.run(words, cwd=Path(__file__).parents[2], timeout=300)
    assert outcome.returncode == 0, outcome
    assert outcome.stdout.split()[-1] in expected[case], outcome

"""Faults that users of other loaders reported, as probes; and files that change while they are read."""

from pathlib import Path

import pytest

from tests.cases.adapter import CASES, Adapter, load_probes
from tests.support import programs

pytestmark = [
    pytest.mark.skipif(not CASES.is_dir(), reason="shared/cases is not beside the checkout"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # the probes leave files of their own open
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NAMES = sorted(load_probes().P) if CASES.is_dir() else ["probes"]


@pytest.mark.parametrize("name", NAMES)
def test_probe(name):
    probes = load_probes()
    task = probes.T(Adapter())
    try:
        probes.P[name](task)
    except probes.Skip as reason:
        pytest.fail(f"skipped ({reason}), but it should be served")
    finally:
        task.end()


@pytest.mark.parametrize("case", ["truncate", "replace", "unlink", "replace_between_epochs"])
def test_live_case(case):
    root = Path(__file__).parents[2]
    outcome = programs.run([str(CASES / "live_cases.py"), "tests.cases.adapter:Adapter", case], cwd=root, timeout=120)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert outcome.stdout.split()[-1] == "ok"

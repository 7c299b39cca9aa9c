"""For all tests: sample data is made in a folder of the test run, and logging is left as it was."""

import gc
import importlib
import logging
import os
import signal
import tempfile
from pathlib import Path

import hypothesis
import pytest

# Before torch is there: threads of its own beside those of other tests wait for each other more than they compute.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.support import programs, warm_parent
from tests.support.leftovers import State, forget_devices, left_since, start_what_lasts

# The same examples in every run, and however slow the machine is: others are found by `--hypothesis-profile=explore`.
hypothesis.settings.register_profile(
    "suite", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("explore", hypothesis.settings.get_profile("suite"), derandomize=False)
hypothesis.settings.load_profile("suite")


def pytest_ignore_collect(collection_path, config):
    """Leave files alone, not even importing them, of which `make test` runs nothing."""
    if "not full" in config.option.markexpr and collection_path.suffix == ".py":
        return True if "pytestmark = pytest.mark.full\n" in collection_path.read_text(encoding="utf-8") else None
    return None


def pytest_collection_finish(session):
    """Let the garbage collector leave alone what importing all tests has made: tests have it look again and again."""
    if len(session.items) > MANY:
        for name in warm_parent.IMPORTED:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


MANY = 1000  # tests, of which some import everything
SYSTEMS_OWN = tempfile.gettempdir()
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@pytest.fixture(scope="session", autouse=True)
def _folders_of_the_test_run(tmp_path_factory):
    """Sample data and temporary files are this process's own, so that what a test leaves among them is its doing."""
    folder = str(tmp_path_factory.mktemp("t"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLODL_PIPE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        start_what_lasts()
        # A shell without job control has what it starts ignore Ctrl-C, and nohup a hang-up.
        ignored = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_IGN]
        for number in ignored:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        yield
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
    programs.end_parent()


@pytest.fixture
def open_folder():
    """An empty folder that every user of the machine can get to, unlike those of pytest."""
    with tempfile.TemporaryDirectory(dir=SYSTEMS_OWN) as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture(scope="module", autouse=True)
def _leaves_nothing_at_all():
    before = State()
    yield
    left = left_since(before)
    assert not left, f"the tests of this module, or its fixtures, leave {'; '.join(left)}"


@pytest.fixture(autouse=True)
def _leaves_nothing():
    """Ledger, threads, descriptors, processes, shared memory, temporary files and settings are as before each test."""
    forget_devices()
    before = State()
    yield
    left = left_since(before, sources_may_live=True)
    assert not left, f"this test leaves {'; '.join(left)}"


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    """Hydra sets up logging for a whole process; what a test that runs a job leaves of it must not reach the next."""
    root, own = logging.getLogger(), logging.getLogger("flodl_pipe")
    levels, handlers = (root.level, own.level), list(root.handlers)
    yield
    root.setLevel(levels[0])
    own.setLevel(levels[1])
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
        handler.close()

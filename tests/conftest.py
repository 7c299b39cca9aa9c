"""For all tests: sample data is made in a folder of the test run, and logging is left as it was."""

import logging
import os
import tempfile
from pathlib import Path

import pytest

from tests.support import programs
from tests.support.leftovers import State, forget_devices, left_since, start_what_lasts


def pytest_ignore_collect(collection_path, config):
    """Leave files alone, not even importing them, of which `make test` runs nothing."""
    if "not full" in config.option.markexpr and collection_path.suffix == ".py":
        return True if "pytestmark = pytest.mark.full\n" in collection_path.read_text(encoding="utf-8") else None
    return None


SYSTEMS_OWN = tempfile.gettempdir()


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
        yield
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

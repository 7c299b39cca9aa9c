"""For all tests: sample data is made in a folder of the test run, and logging is left as it was."""

import logging

import pytest


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_test_run(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLODL_PIPE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


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

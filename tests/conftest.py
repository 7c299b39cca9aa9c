"""For all tests: the sample corpus is made in a folder of the test run, never in the user's own cache."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_test_run(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLODL_PIPE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield

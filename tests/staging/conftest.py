"""Of every tier, threads that copy big rows take a second: by default those of one do, and of the others small rows."""

import pytest

DEAR = "test_threads_read_and_offer_at_once[big rows]"
KEPT = "TestOneOfTwo"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.name == DEAR and item.path.parent.name == "staging" and item.cls.__name__ != KEPT:
            item.add_marker(pytest.mark.full)

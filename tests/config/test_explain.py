"""Which errors are about a config or its folders, and which are a job's own."""

import pytest
from hydra.core.utils import JobReturn, JobStatus

from flodl_pipe.config.composition import Composition
from flodl_pipe.config.explain import explain, no_folder


def handed_on(error):
    """What a sweep gets of a job that ran in another process."""
    job = JobReturn(status=JobStatus.FAILED, overrides=[])
    job.return_value = error
    with pytest.raises(type(error)) as caught:
        _ = job.return_value
    return caught.value


def test_an_error_of_a_launched_job_is_not_explained():
    loader = Composition(()).loader
    assert no_folder(handed_on(PermissionError(13, "Permission denied", "x"))) is None
    assert no_folder(PermissionError(13, "Permission denied", "x")) is not None
    assert explain(handed_on(RecursionError()), loader, []) is None
    assert explain(RecursionError(), loader, []) is not None


def test_a_pipe_is_no_folder():
    assert no_folder(BrokenPipeError(32, "Broken pipe")) is None

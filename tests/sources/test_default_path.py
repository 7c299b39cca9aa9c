"""Where a source without a path looks, and that nobody is left to think that a sample is his data."""

import pytest

import flodl_pipe
from flodl_pipe.errors import SourceError
from flodl_pipe.sources.default_path import UNFINISHED, default_path


def test_a_folder_that_is_there_is_used(tmp_path, caplog):
    (tmp_path / "mnist").mkdir()
    assert default_path(str(tmp_path), "mnist", "sample") == str(tmp_path / "mnist")
    assert not caplog.records


def test_a_sample_is_announced_every_time(tmp_path, caplog):
    for times in (1, 2):
        with flodl_pipe.load("mnist", f"data_dir={tmp_path}/typo"):
            pass
        said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert (
            said
            == [f"{tmp_path}/typo/mnist does not exist: a small sample is used instead (source.if_missing=sample)"]
            * times
        )


def test_without_leave_for_a_sample_it_is_an_error(tmp_path):
    with pytest.raises(SourceError, match=r"source\.path is not set and .*/mnist does not exist; set source\.path"):
        default_path(str(tmp_path), "mnist", "error")


def test_an_unfinished_download_is_no_data(tmp_path):
    (tmp_path / "mnist" / UNFINISHED).mkdir(parents=True)
    for if_missing in ("error", "sample"):
        with pytest.raises(SourceError, match="unfinished download; run job=fetch again"):
            default_path(str(tmp_path), "mnist", if_missing)

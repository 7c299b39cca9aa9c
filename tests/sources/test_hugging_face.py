"""The real package ``datasets``: its Dataset is a map-style dataset once it has a format."""

import numpy as np
import pytest

from flodl_pipe.errors import LoaderError, SourceError
from flodl_pipe.sources.adapters import adapt
from flodl_pipe.sources.purity import require_pure
from tests.contract.sources import read_delivered

COLUMNS = {"ids": [[i, i + 1, i + 2] for i in range(20)], "score": [i / 2 for i in range(20)], "label": list(range(20))}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """The package, offline, with its caches in a folder of the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hf")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_OFFLINE", "1")
        yield pytest.importorskip("datasets")


@pytest.mark.parametrize("style", ["torch", "numpy"])
def test_a_dataset_with_a_format_is_read_together(datasets, style):
    source = adapt(datasets.Dataset.from_dict(COLUMNS).with_format(style))
    fields = {field.name: (field.dtype, field.shape) for field in source.spec}
    assert fields == {"ids": ("int64", (3,)), "score": ("float32", ()), "label": ("int64", ())}
    assert "one call for many samples" in {fact.name: fact.value for fact in source.facts()}["read by"]
    found = read_delivered(source, [7, 0, 19, 7])
    np.testing.assert_array_equal(found["ids"], [[7, 8, 9], [0, 1, 2], [19, 20, 21], [7, 8, 9]])
    np.testing.assert_array_equal(found["score"], [3.5, 0, 9.5, 3.5])
    np.testing.assert_array_equal(found["label"], [7, 0, 19, 7])
    require_pure(source, np.array([0, 7, 19]))
    assert source.fingerprint() == adapt(datasets.Dataset.from_dict(COLUMNS).with_format(style)).fingerprint()


def test_columns_that_are_chosen_and_selected_rows_are_read(datasets):
    whole = datasets.Dataset.from_dict({**COLUMNS, "text": ["a"] * 20})
    source = adapt(whole.with_format("torch", columns=["label"]).select([5, 3]))
    np.testing.assert_array_equal(read_delivered(source, [0, 1])["label"], [5, 3])


def test_without_a_format_the_error_says_how_to_set_one(datasets):
    with pytest.raises(SourceError, match=r"field 'ids' is a list inside a sample.*with_format\(\"torch\", columns="):
        adapt(datasets.Dataset.from_dict(COLUMNS))


def test_text_and_ragged_columns_are_named(datasets):
    text = datasets.Dataset.from_dict({"text": ["a", "b"]}).with_format("torch")
    with pytest.raises(SourceError, match=r"field 'text' is text, 'a'.*numeric columns only"):
        adapt(text)
    ragged = datasets.Dataset.from_dict({"ids": [[1, 2], [3]]}).with_format("torch")
    with pytest.raises(SourceError, match=r"sample 1 of datasets.*field 'ids' has shape \(1,\), but sample 0 has"):
        read_delivered(adapt(ragged), [0, 1])


def test_several_splits_and_streams_are_refused(datasets):
    part = datasets.Dataset.from_dict(COLUMNS)
    with pytest.raises(LoaderError, match=r"DatasetDict is a mapping \('train', 'test'\), not a dataset"):
        adapt(datasets.DatasetDict(train=part, test=part))
    with pytest.raises(LoaderError, match="IterableDataset can only be iterated"):
        adapt(part.to_iterable_dataset())

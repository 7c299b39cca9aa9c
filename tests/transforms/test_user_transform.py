"""A function of one's own as a transform: its arguments, scope and tag."""

import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch

from flodl_pipe.batch.batch import Batch
from flodl_pipe.errors import LoaderError
from flodl_pipe.keyed.pick_keys import PickKeys
from flodl_pipe.transforms.protocol import BundledTransform, Transform
from flodl_pipe.transforms.user_transform import UserTransform, name_of
from tests.support import programs

KEYS = PickKeys(np.arange(2), np.zeros(2, np.int64), 0, 0)
HERE = name_of(lambda: None).partition(":")[0]


def scale(batch, keys, factor=1.0, **rest):
    return batch.with_fields(batch.names, (batch["x"] * factor,))


class Noise:
    scope = "pair"

    def __init__(self, amount):
        self.amount = amount

    def __call__(self, batch, keys):
        return batch

    def method(self, batch, keys):
        return batch


def test_it_calls_the_function_with_its_arguments():
    batch = Batch(("x",), (torch.ones(2),), pick_keys=KEYS)
    transform = UserTransform(scale, args={"factor": 3.0})
    assert isinstance(transform, Transform)
    assert not isinstance(transform, BundledTransform), "what it makes is not known beforehand"
    assert transform(batch, KEYS)["x"].tolist() == [3.0, 3.0]


def test_the_scope_is_what_is_given_or_what_the_callable_says_or_row():
    assert UserTransform(scale).scope == "row"
    assert UserTransform(scale, "batch").scope == "batch"
    assert UserTransform(Noise(1)).scope == "pair"
    assert UserTransform(Noise(1), "pair").scope == "pair"


def test_two_scopes_or_an_unknown_one_are_refused():
    with pytest.raises(LoaderError, match="Noise says scope='pair' itself, and scope='row' was given; keep one"):
        UserTransform(Noise(1), "row")
    with pytest.raises(LoaderError, match="must be 'row', 'pair' or 'batch', got 'sample'"):
        UserTransform(scale, "sample")


@pytest.mark.parametrize(
    ("transform", "tag"),
    [
        (UserTransform(scale), f"{HERE}:scale()"),
        (UserTransform(scale, name="mypkg.aug:scale", args={"factor": 2}), "mypkg.aug:scale(factor=2)"),
        (UserTransform(Noise(3)), f"{HERE}:Noise()"),
        (UserTransform(Noise(3), made_with={"amount": 3}), f"{HERE}:Noise(amount=3)"),
        (UserTransform(Noise(3).method), f"{HERE}:Noise.method()"),
        (UserTransform(partial(scale, factor=0.5)), f"{HERE}:scale(factor=0.5)"),
        (UserTransform(partial(scale, factor=0.5), args={"factor": 2.0}), f"{HERE}:scale(factor=2.0)"),
        (
            UserTransform(scale, args={"a": "t", "b": [1, (None, True)], "c": {"k": -1.5}}),
            f"{HERE}:scale(a='t', b=[1, [None, True]], c={{'k': -1.5}})",
        ),
        (UserTransform(scale, args={"a": Noise(1), "b": np.sum}), f"{HERE}:scale(a={HERE}:Noise, b=numpy:sum)"),
    ],
)
def test_the_tag_names_what_is_called_and_its_arguments(transform, tag):
    assert transform.tag == tag


def test_arrays_and_long_values_are_told_apart_by_a_digest():
    tags = {
        UserTransform(scale, args={"table": table}).tag
        for table in (
            np.arange(3, dtype=np.int32),
            np.array([0, 1, 3], dtype=np.int32),
            np.arange(3, dtype=np.int64),
            np.arange(3, dtype=np.int32)[:, None],
            list(range(100)),
            [*range(99), 0],
            {"words": ["x" * 200]},
            {"words": ["x" * 199]},
        )
    }
    assert len(tags) == 8
    assert max(map(len, tags)) < 60 + len(HERE) + 30
    tensor, array = (UserTransform(scale, args={"t": made}).tag for made in (torch.arange(3), np.arange(3)))
    assert tensor == array


TAGGED = """
from functools import partial
from flodl_pipe.transforms.user_transform import UserTransform
class A:
    def __call__(self, batch, keys, **a): return batch
print(UserTransform(A(), args={"o": object(), "s": "text", "l": list(range(99)), "f": partial(A)}).tag)
"""


def test_a_tag_is_the_same_in_another_process(capsys):
    exec(TAGGED, {"__name__": "__main__"})
    here = capsys.readouterr().out
    assert here.startswith("__main__:A(o=builtins:object, s='text', l=[0, 1, ")
    assert programs.run(["-c", TAGGED], check=True).stdout == here


@pytest.mark.full
def test_a_tag_does_not_hang_on_the_seed_of_hashes():
    tags = [
        subprocess.run(  # a Python of its own: the seed is read when one starts
            [sys.executable, "-c", TAGGED],
            env=programs.environment(PYTHONHASHSEED=seed),
            text=True,
            capture_output=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    ]
    assert tags[0]
    assert tags[0] == tags[1]


def test_what_cannot_take_the_arguments_is_refused():
    def plain(batch, keys):
        return batch

    with pytest.raises(LoaderError, match=r"takes \(batch, keys\), .*here also with factor; correct the arguments"):
        UserTransform(plain, args={"factor": 2})
    with pytest.raises(LoaderError, match=r"takes \(img\), and a transform is called with \(batch, keys\).*around it"):
        UserTransform(lambda img: img)


def test_a_callable_without_a_signature_is_taken():
    # Its rule is what the chain sees when it is called.
    assert UserTransform(max).tag == "builtins:max()"


def test_a_library_of_transforms_of_single_samples_is_known_by_its_name(monkeypatch):
    """Its classes take any number of arguments, so that the signature does not tell."""

    class Resize(torch.nn.Module):
        def forward(self, *inputs):
            return inputs

    UserTransform(Resize())
    monkeypatch.setattr(Resize, "__module__", "torchvision.transforms.v2")
    with pytest.raises(LoaderError, match=r"Resize is a transform of single samples.*changes batch"):
        UserTransform(Resize())

"""Unequal shares, equal gradients: real ranks and one process end with the same parameters, to 1e-12 in float64."""

from functools import cache

import numpy as np
import pytest
import torch

from tests.cluster import attached_cases
from tests.cluster.ranks import results
from tests.cluster.trained import train, train_in

EXACT, WRONG = 1e-12, 1e-3
SETTINGS = {
    # Batches of 96 in shares 3:2:1; the last has 42 rows, or 2 for three ranks.
    "42 left, sgd": {"num_samples": 96 * 2 + 42, "optimizer": "sgd"},
    "42 left, adamw": {"num_samples": 96 * 2 + 42, "optimizer": "adamw"},
    "2 left, sgd": {"num_samples": 96 + 2, "optimizer": "sgd"},
    "2 left, adamw": {"num_samples": 96 + 2, "optimizer": "adamw"},
    "padded": {"num_samples": 250, "drop_last": "pad"},
    "accumulated": {"num_samples": 96 * 4 + 20, "accumulate": 3},
    "accumulated, even": {"num_samples": 96 * 3, "drop_last": True, "accumulate": 3},
}
SHORT = ["42 left, sgd", "42 left, adamw", "2 left, sgd", "2 left, adamw"]
WAYS = {
    **{key: ["loss", "attach", "attach, look ahead", "attach, inputs computed", "plain"] for key in SHORT},
    "padded": ["loss", "attach", "plain"],
    "accumulated": ["accumulation_weights", "loss", "plain"],
    "accumulated, even": ["attach", "plain"],
}
CASES = [(setting, way) for setting, ways in WAYS.items() for way in ways if way != "plain"]
# One of each way, and of each end of an epoch; of the settings whose mistake is looked for, one.
FEW = {("42 left, adamw", way) for way in WAYS["42 left, adamw"]}
FEW |= {("2 left, sgd", "attach"), ("padded", "loss"), ("accumulated", "accumulation_weights")}
FEW |= {("accumulated, even", "attach")}


def case(setting, way, *values):
    return pytest.param(*values, marks=() if (setting, way) in FEW else pytest.mark.full)


def options(setting):
    return {"global_batch_size": 96, "batch_size": 32, "drop_last": False, "epochs": 2, **SETTINGS[setting]}


def apart(one, other):
    return float(np.abs(np.array(one) - np.array(other)).max())


@pytest.fixture(scope="module")
def trained(request):
    """Parameters after every way of training that tests ask for, on three ranks, all in one start of them."""
    asked = [item.callspec.params for item in request.session.items if item.path == request.path and has_setting(item)]
    keys = sorted({(one["setting"], one.get("way", "plain")) for one in asked})
    runs = [(way, {**options(setting), "ratios": (3, 2, 1)}) for setting, way in keys]
    runs.append(("attach", {**options("42 left, sgd"), "ratios": (3, 2, 1), "wrap": True}))
    ended = results(train_in, 3, runs)
    assert ended[0] == ended[1] == ended[2]
    return dict(zip([*keys, "wrapped"], ended[0], strict=True))


def has_setting(item):
    return "setting" in getattr(getattr(item, "callspec", None), "params", ())


@pytest.fixture(scope="module")
def alone():
    """Parameters of one process, of each setting once, when it is first asked for."""
    threads = torch.get_num_threads()
    yield cache(lambda setting: train("alone", **options(setting)))
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("setting", "way"), [case(*one, *one) for one in CASES])
def test_three_ranks_train_the_model_of_one(trained, alone, setting, way):
    assert apart(trained[setting, way], alone(setting)) < EXACT


@pytest.mark.parametrize("setting", [case(setting, "plain", setting) for setting in SETTINGS])
def test_the_usual_mistake_is_seen(trained, alone, setting):
    """An average over ranks as DistributedDataParallel takes it."""
    assert apart(trained[setting, "plain"], alone(setting)) > WRONG


def test_a_hook_of_the_users_is_wrapped(trained, alone):
    assert apart(trained["wrapped"], alone("42 left, sgd")) < EXACT


@pytest.fixture(scope="module")
def attached():
    """What went wrong in each case, on two ranks, all in one start of them."""
    return results(attached_cases.run_all, 2)


@pytest.mark.parametrize("name", [case.__name__ for case in attached_cases.CASES])
def test_attach(attached, name):
    """Each case checks what it is named after, in tests/cluster/attached_cases.py."""
    assert [rank[name] for rank in attached] == ["", ""]

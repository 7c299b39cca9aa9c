import pytest
import torch

from flodl_pipe.devices.choose import KINDS, Kind, find_device, known_devices
from flodl_pipe.errors import ConfigError, LoaderError


def kind(name, count, *, numbered=True, current=0, start=lambda: None):
    return Kind(
        name, numbered, lambda: count, start, lambda: current, lambda index: (name, index), lambda: f"no {name} here"
    )


def choose(name, *kinds):
    return find_device(name, simulated=lambda: "simulated device", kinds=kinds)


def fault(name, *kinds):
    with pytest.raises(ConfigError) as caught:
        choose(name, *kinds)
    assert [problem.key for problem in caught.value.problems] == ["loader.device"]
    return caught.value.problems[0].message


CUDA, NO_CUDA = kind("cuda", 2, current=1), kind("cuda", 0)
XPU, NO_XPU = kind("xpu", 1), kind("xpu", 0)
MPS, NO_MPS = kind("mps", 1, numbered=False), kind("mps", 0, numbered=False)


def test_auto_is_the_current_device_of_the_first_kind_there_is_else_the_cpu():
    assert choose("auto", CUDA, XPU, MPS) == ("cuda", 1)
    assert choose("auto", NO_CUDA, XPU, MPS) == ("xpu", 0)
    assert choose("auto", NO_CUDA, NO_XPU, MPS) == ("mps", 0)
    assert choose("auto", NO_CUDA, NO_XPU, NO_MPS) is None


def test_a_name_is_the_device_of_that_name():
    assert choose("cpu", CUDA) is None
    assert choose("simulated", CUDA) == "simulated device"
    assert choose("cuda", CUDA) == ("cuda", 1)
    assert choose("cuda:0", CUDA) == ("cuda", 0)
    assert choose("mps", MPS) == ("mps", 0)


def test_known_devices_are_those_that_can_be_chosen():
    kinds = (CUDA, NO_XPU, MPS)
    assert known_devices(kinds) == ("cpu", "cuda:0", "cuda:1", "mps", "simulated")
    for name in known_devices(kinds):
        choose(name, *kinds)


def test_a_device_of_a_kind_that_is_not_here_says_why_and_what_is():
    assert fault("cuda", NO_CUDA, XPU) == "cuda does not exist: no cuda here; here are cpu, xpu:0, simulated"
    assert fault("mps", NO_MPS) == "mps does not exist: no mps here; here are cpu, simulated"


def test_an_index_that_is_not_here_says_which_are():
    assert "cuda:2 does not exist: this machine has 2: cuda:0, cuda:1" in fault("cuda:2", CUDA)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gpu", "did you mean 'cuda'?"),
        ("gpu:1", "did you mean 'cuda:1'?"),
        ("CUDA:0", "did you mean 'cuda:0'?"),
        ("mps:0", "did you mean 'mps'?"),
        ("cuda:", "did you mean 'cuda'?"),
        ("cuda:-1", "did you mean 'cuda'?"),
        ("simulate", "did you mean 'simulated'?"),
        ("tpu9000", "got 'tpu9000' (here are cpu, cuda:0, cuda:1, simulated)"),
    ],
)
def test_an_unknown_name_gets_the_rule_and_a_near_one(name, hint):
    message = fault(name, CUDA, NO_XPU, NO_MPS)
    assert "must be one of auto, cpu, simulated, cuda, xpu, mps" in message
    assert hint in message


def raising(error):
    def start():
        raise error

    return start


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:1"])
def test_in_a_forked_process_the_remedy_is_another_way_to_start_processes(name):
    torchs = RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, ...")
    with pytest.raises(LoaderError, match=r"forked from one that uses cuda.*'spawn' or 'forkserver'"):
        choose(name, kind("cuda", 2, start=raising(torchs)))


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_a_device_that_cannot_be_started_is_an_error_and_never_the_cpu_in_silence(name):
    torchs = RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nmore")
    with pytest.raises(LoaderError, match=r"too old \(found version 11040\)\.\).*loader\.device=cpu"):
        choose(name, kind("cuda", 2, start=raising(torchs)))


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has CUDA")
def test_a_torch_without_cuda_says_so():
    with pytest.raises(ConfigError, match=r"this build of torch has no CUDA \(torch "):
        find_device("cuda:0", simulated=lambda: None)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")
def test_without_an_accelerator_this_machine_has_the_cpu():
    assert known_devices() == ("cpu", "simulated")
    assert find_device("auto", simulated=lambda: None) is None


def test_every_kind_that_is_not_here_says_why():
    assert all(one.count() or one.why_none() for one in KINDS)

"""No wait of the device path can go: without any of them a run on a simulated device shows it.

Code is run without one wait after the other, and at least one of the runs must meet two operations that nothing orders,
or deliver other bytes. A new wait that no run needs makes the test fail: either it is superfluous, or a run is missing
in :mod:`tests.loader.device_scenarios` that shows what it is for.
"""

import sys
import textwrap

import pytest

from flodl_pipe.devices.simulated import SimulatedDevice
from flodl_pipe.devices.simulated_order import OrderError
from tests.loader.device_scenarios import OtherBytesError, scenarios, write_data
from tests.loader.wait_mutations import SHAPES, all_waits, waits_of, without

WAITS = all_waits()
# Of these it takes many runs until one shows it.
LATE = ("GroupUpload", "SamplePool")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return scenarios(folder)


def test_every_run_is_right_and_between_them_they_need_every_wait(runs, monkeypatch):
    places = set()

    def watched(name):
        inner = getattr(SimulatedDevice, name)

        def outer(self, *args):
            frame = sys._getframe(1)
            places.add(f"{frame.f_code.co_filename}:{frame.f_lineno}")
            return inner(self, *args)

        return outer

    for name in SHAPES:
        monkeypatch.setattr(SimulatedDevice, name, watched(name))
    for run in runs.values():
        run()
    unreached = [str(wait) for wait in WAITS if not any(wait.covers(place) for place in places)]
    assert not unreached, f"no run comes to {unreached}; add one to tests/loader/device_scenarios.py"


@pytest.mark.parametrize(
    "wait",
    [
        pytest.param(
            wait,
            id=f"{'.'.join(wait.functions)}-{wait.name}",
            marks=pytest.mark.full if wait.functions[0] in LATE else (),
        )
        for wait in WAITS
    ],
)
def test_without_this_wait_a_run_shows_it(runs, wait):
    with without(wait):
        for run in runs.values():
            try:
                run()
            except (OrderError, OtherBytesError):
                return
    pytest.fail(f"no run shows that {wait} is missing: it is superfluous, or a run that needs it is to be added")


def test_waits_are_found_wherever_they_stand(tmp_path):
    path = tmp_path / "code.py"
    path.write_text(
        textwrap.dedent("""
        class Pass:
            def take(self):
                self._changed.wait()
                self._stop.wait(0.1)
                self.side.device.wait(stream, event=done)
                def later():
                    device.synchronize(
                        done
                    )
                return [device.keep_for(stream, tensors) for tensors in made]
        """)
    )
    found = [(wait.name, wait.functions, wait.line, wait.end) for wait in waits_of(path)]
    assert found == [
        ("wait", ("Pass", "take"), 6, 6),
        ("synchronize", ("Pass", "take", "later"), 8, 10),
        ("keep_for", ("Pass", "take"), 11, 11),
    ]


def test_there_are_waits_to_be_found():
    assert {wait.name for wait in WAITS} == set(SHAPES)
    assert {wait.path.parent.name for wait in WAITS} == {"loader", "staging"}

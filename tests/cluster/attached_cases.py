"""What attach() refuses, and what it makes of odd loops; each function runs on two real ranks."""

import traceback

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from flodl_pipe.errors import ClusterError, LoaderError
from flodl_pipe.loader.attach import accumulation_weights, attach
from flodl_pipe.loader.loader import Loader
from tests.cluster.trained import Net, Regression, loss_of, one_ahead, rank_context

CASES = []


def case(function):
    CASES.append(function)
    return function


def loader_of(num_samples=20, **options):
    how = {"global_batch_size": 8, "batch_size": 4, "drop_last": False, "shuffle": False, **options}
    return Loader(Regression(num_samples), context=rank_context((3, 1)), **how)


def gradients(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def expected(batches_of_all):
    """Return the gradients of one process for some rows of the source."""
    raw, data = Net(), Regression(64)
    x, y = (torch.from_numpy(column[batches_of_all]) for column in (data.x, data.y))
    ((raw(x) - y) ** 2).mean().backward()
    return gradients(raw)


@case
def a_model_that_is_not_wrapped_is_refused():
    with loader_of() as loader:
        for model in (Net(), torch.nn.Linear(1, 1)):
            with pytest.raises(LoaderError, match=r"wrapped by torch's DistributedDataParallel, got (Net|Linear)"):
                attach(model, loader)


@case
def a_loader_of_one_process_is_refused():
    with (
        Loader(Regression(20), batch_size=4) as loader,
        pytest.raises(
            ClusterError, match=r"the model is rank [01] of 2, and the loader is rank 0 of 1; build the loader after"
        ),
    ):
        attach(DistributedDataParallel(Net()), loader)


@case
def a_second_hook_is_refused_and_the_way_out_is_named():
    model = DistributedDataParallel(Net())
    with loader_of() as loader:
        attach(model, loader)
        with pytest.raises(LoaderError, match=r"has a comm hook already.*attach\(model, loader, comm_hook=\.\.\."):
            attach(model, loader)


@case
def nan_of_a_row_that_weighs_nothing_goes_nowhere():
    """One row for two ranks: one of them computes on a filler row."""
    model = DistributedDataParallel(Net())
    with loader_of(9) as loader:
        attach(model, loader)
        batches = list(loader)
        model(batches[0]["x"]).mean().backward()
        model.zero_grad()
        loss = loss_of(model, batches[1])
        (loss * (float("nan") if batches[1].weight == 0 else 1.0)).backward()
    assert {batch.weight for batch in batches[1:]} <= {0.0, 2.0}
    assert torch.allclose(gradients(model.module), expected([8]), rtol=0, atol=1e-13)


@case
def a_batch_is_told_by_its_storage_through_views_and_parts():
    model = DistributedDataParallel(Net())
    with loader_of(11) as loader:
        attach(model, loader)
        kept = list(loader)  # far ahead of the loop
        for number, rows in [(1, [8, 9, 10]), (0, range(8))]:
            model.zero_grad()
            x, y = kept[number]
            ((model(x.view(-1, x.shape[1])[:, :]) - y) ** 2).mean().backward()
            assert torch.allclose(gradients(model.module), expected(list(rows)), rtol=0, atol=1e-13)


@case
def inputs_that_tell_nothing_are_an_error_once_weights_differ_and_use_helps():
    class Flat(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def forward(self, flat):
            return self.net(flat.view(-1, 12))

    model = DistributedDataParallel(Flat())
    with loader_of(11) as loader:
        attached = attach(model, loader)
        first, second = list(loader)
        with pytest.raises(
            LoaderError, match=r"which batch .*first shape \(\d+,\).*rows weigh .*attached.use\(batch\)"
        ):
            model(first["x"].flatten() * 1.0)
        attached.use(second)
        ((model(second["x"].flatten() * 1.0) - second["y"]) ** 2).mean().backward()
        assert torch.allclose(gradients(model.module), expected([8, 9, 10]), rtol=0, atol=1e-13)


@case
def weights_that_differ_cannot_be_accumulated_and_it_is_said_before_the_forward_pass():
    model = DistributedDataParallel(Net())
    with loader_of(11) as loader:
        attach(model, loader)
        first, second = list(loader)
        assert first.weight != second.weight
        with model.no_sync():
            loss_of(model, first).backward()
        with pytest.raises(
            LoaderError, match=r"accumulated that weigh differently.*weight=False.*accumulation_weights"
        ):
            model(second["x"])
        loss_of(model, first).backward()  # it goes on


@case
def validation_between_steps_changes_nothing():
    model = DistributedDataParallel(Net())
    with loader_of(11) as loader:
        attach(model, loader)
        first, second = list(loader)
        with torch.no_grad():
            model(torch.zeros(7, 12, dtype=torch.float64))
        model.eval()
        model(torch.zeros(7, 12, dtype=torch.float64))
        model.train()
        loss_of(model, second).backward()
        assert torch.allclose(gradients(model.module), expected([8, 9, 10]), rtol=0, atol=1e-13)
        model.eval()  # and training with layers held still is training
        model.zero_grad()
        loss_of(model, first).backward()
        assert torch.allclose(gradients(model.module), expected(list(range(8))), rtol=0, atol=1e-13)


@case
def gradients_of_a_forward_pass_before_attach_are_an_error():
    model = DistributedDataParallel(Net())
    with loader_of() as loader:
        loss = loss_of(model, next(iter(loader)))
        attach(model, loader)
        with pytest.raises(LoaderError, match="a forward pass that did not go through the model that was attached"):
            loss.backward()


@case
def detached_gradients_are_those_of_torch():
    model, plain = DistributedDataParallel(Net()), DistributedDataParallel(Net())
    with loader_of(11) as loader:
        attached = attach(model, loader)
        attached.detach()
        for batch in loader:
            for each in (model, plain):
                each.zero_grad()
                loss_of(each, batch).backward()
            assert torch.equal(gradients(model.module), gradients(plain.module))


@case
def a_loop_that_begins_before_attach_is_watched_from_then_on():
    model = DistributedDataParallel(Net())
    with loader_of(24) as loader:
        iterator = one_ahead(loader)
        next(iterator)
        attach(model, loader)
        batch = next(iterator)
        loss_of(model, batch).backward()
        assert torch.allclose(gradients(model.module), expected(list(range(8, 16))), rtol=0, atol=1e-13)


@case
def factors_of_accumulated_batches_sum_to_the_ranks_rows():
    with loader_of(9) as loader:
        first, last = list(loader)
        rank = loader.context.rank
        assert accumulation_weights([first, last]) == pytest.approx([[6 * 2 / 9, 1 * 2 / 9], [2 * 2 / 9, 0.0]][rank])
        assert accumulation_weights([last]) == [last.weight]
        with pytest.raises(LoaderError, match="of no batch"):
            accumulation_weights([])


def run_all():
    """Return what went wrong in each case; a rank that fails in one is not where the others are, and stops there."""
    wrong = dict.fromkeys((case.__name__ for case in CASES), "not run")
    for case in CASES:
        try:
            case()
            wrong[case.__name__] = ""
        except BaseException:  # noqa: BLE001 - it is told by the test
            wrong[case.__name__] = traceback.format_exc()
            break
    return wrong

"""What attach() refuses, and what it makes of odd loops; each function runs on two real ranks."""

import contextlib
import logging
import re
import traceback
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from flodl_pipe.cluster.world import World
from flodl_pipe.errors import ClusterError, LoaderError
from flodl_pipe.loader.accumulation import accumulation_weights
from flodl_pipe.loader.attach import attach
from flodl_pipe.loader.loader import Loader
from tests.cluster.ranks import PATIENT_S
from tests.cluster.trained import Net, Regression, loss_of, one_ahead, rank_context

CASES = []


def case(function):
    CASES.append(function)
    return function


def loader_of(num_samples=20, world=None, **options):
    how = {"global_batch_size": 8, "batch_size": 4, "drop_last": False, "shuffle": False, **options}
    return Loader(Regression(num_samples), context=replace(rank_context((3, 1)), world=world), **how)


@contextlib.contextmanager
def warnings():
    """Collect what the package warns of."""
    told = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: told.append(record.getMessage())
    log = logging.getLogger("flodl_pipe")
    log.addHandler(handler)
    try:
        yield told
    finally:
        log.removeHandler(handler)


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
    model.register_comm_hook(None, allreduce_hook)
    with (
        loader_of() as loader,
        pytest.raises(LoaderError, match=r"has a comm hook already.*attach\(model, loader, comm_hook=\.\.\."),
    ):
        attach(model, loader)


@case
def a_model_is_attached_once_and_again_to_another_loader_after_it_was_detached():
    model = DistributedDataParallel(Net())
    with loader_of() as loader, loader_of(11) as other:
        attached = attach(model, loader)
        for each in (loader, other):
            with pytest.raises(LoaderError, match=r"called for this model already; call it once, or detach\(\) what"):
                attach(model, each)
        attached.detach()
        attach(model, other)
        for batch in other:
            model.zero_grad()
            loss_of(model, batch).backward()
        assert torch.allclose(gradients(model.module), expected([8, 9, 10]), rtol=0, atol=1e-13)


@case
def ranks_that_do_not_all_attach_alike_are_told():
    model = DistributedDataParallel(Net())
    rank = dist.get_rank()
    with loader_of(world=World.join("h", rank, PATIENT_S)) as loader:
        with pytest.raises(
            ClusterError, match=r"do not agree at attach\(\).*\n  attach.weight: false on h/1; true on h/0"
        ):
            attach(model, loader, weight=rank == 0)
        attach(model, loader)


@case
def a_loop_that_takes_none_ahead_may_compute_its_inputs():
    """The last batch has as many rows as the others, and weighs otherwise: some of it only fill its places."""
    model = DistributedDataParallel(Net())
    with loader_of(13, drop_last="pad") as loader:
        attach(model, loader)
        weights = []
        for batch in loader:
            weights.append(batch.peek_weight())
            model.zero_grad()
            for part in (slice(0, 1), slice(1, None)):  # and cut it into parts
                with model.no_sync() if part.start == 0 else contextlib.nullcontext():
                    error = (model(batch["x"][part] * 1.0) - batch["y"][part]) ** 2
                    here = slice(None) if batch.valid is None else batch.valid[part]
                    rows = batch.size if batch.valid is None else int(batch.valid.sum())
                    (error[here].sum() / max(1, rows)).backward()
        assert weights[0] != weights[1]
        assert torch.allclose(gradients(model.module), expected(list(range(8, 13))), rtol=0, atol=1e-13)


@case
def layers_held_still_are_accumulated_as_others_are():
    model = DistributedDataParallel(Net()).eval()
    with loader_of(19) as loader:
        attach(model, loader)
        first, second, last = list(loader)
        with model.no_sync():
            loss_of(model, first).backward()
        (loss_of(model, second)).backward()
        assert torch.allclose(gradients(model.module) / 2, expected(list(range(16))), rtol=0, atol=1e-13)
        model.zero_grad()
        with model.no_sync():
            loss_of(model, first).backward()
        with pytest.raises(LoaderError, match=r"evaluation mode.*weigh differently.*torch.no_grad\(\).*weight=False"):
            loss_of(model, last).backward()


@case
def factors_of_batches_that_are_weighted_already_are_refused():
    model = DistributedDataParallel(Net())
    with loader_of(11) as loader:
        attached = attach(model, loader)
        batches = list(loader)
        with pytest.raises(LoaderError, match=r"weighs the gradients of these batches already.*weight=False"):
            accumulation_weights(batches)
        attached.detach()
        attach(model, loader, weight=False)
        assert len(accumulation_weights(batches)) == 2


@case
def gradients_that_nobody_or_two_weigh_are_told_once():
    for way in ("none", "loss", "attach", "both", "without gradients"):
        model = DistributedDataParallel(Net())
        with loader_of(80, world=World.join("h", dist.get_rank(), PATIENT_S)) as loader, warnings() as told:
            if way in ("attach", "both"):
                attach(model, loader)
            with torch.no_grad() if way == "without gradients" else contextlib.nullcontext():
                for batch in loader:
                    loss = loss_of(model, batch)
                    loss = loss * batch.weight if way in ("loss", "both") else loss
                    if loss.requires_grad:
                        loss.backward()
        wanted = {"none": r"weighs (1\.5|0\.5), and nothing weighs its gradients", "both": "counts twice"}.get(way)
        assert len(told) == (wanted is not None), (way, told)
        assert wanted is None or re.search(wanted, told[0]), told


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
        assert accumulation_weights([last.to("cpu")]) == [last.weight]
        with pytest.raises(LoaderError, match="of no batch"):
            accumulation_weights([])


@case
def factors_hold_where_an_epoch_is_cut_otherwise_since_it_was_resumed():
    """A step of 8 rows, then steps of 7: the last has 1 of 16."""
    with loader_of(16) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with loader_of(16, global_batch_size=7, global_batch_on_resume="scale") as loader:
        loader.load_state_dict(state)
        last = list(loader)[-1]
        first = next(iter(loader.epoch(1)))
        rank = loader.context.rank
        assert accumulation_weights([last, first]) == pytest.approx([[2 / 8, 5 * 2 / 8], [0.0, 2 * 2 / 8]][rank])


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

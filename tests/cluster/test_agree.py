"""Ranks with other data, seed or config stop all of them, by name; so does one that fails; the same pass."""

import json

import pytest
from torch import distributed

from flodl_pipe.cluster.agree import agree, outcome
from flodl_pipe.cluster.signature import config_facts
from flodl_pipe.cluster.world import World
from flodl_pipe.config.compose import load_config
from flodl_pipe.errors import ClusterError, SourceError
from flodl_pipe.sampling.cursor import Cursor
from tests.cluster.ranks import PATIENT_S, results

FACTS = {"data": "sha256:" + "5" * 64, "order": "uniform f6v1 n=60000", "global batch": "32"}
CURSOR = Cursor(epoch=3, position=640, global_batch=32, order="uniform", source="abc").state()


def error_of(call):
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
        return f"{type(error).__name__}: {error}"
    return None


def facts_of(*overrides):
    return config_facts(load_config("mnist", "loader.batch_size=32", *overrides))


def fails_on(*ranks):
    def call():
        rank = distributed.get_rank()
        if rank in ranks:
            raise SourceError(f"/data/{'one' if len(ranks) > 1 else rank} is not there")
        return f"of rank {rank}"

    return call


def composed():
    """Return facts of real configs, composed once for all ranks."""
    return {
        "plain": facts_of(),
        "host's own": facts_of("loader.readers=3", "source.path=/data/other", "loader.device=cpu"),
        "seed": facts_of("sampling.seed=43"),
        "other": facts_of("loader.batch_size=16", "sampling.drop_last=false"),
    }


def many_checks(configs):
    """Run every check with one launch of the ranks; return what each raised."""
    rank = distributed.get_rank()
    last = rank == distributed.get_world_size() - 1
    world = World.join("ab"[last], 0 if last else rank, PATIENT_S)

    def agrees(facts, when="before the first step"):
        return error_of(lambda: agree(world, facts, when))

    undone = []
    found = {
        "same": agrees(dict(reversed(FACTS.items())) if last else FACTS),
        "same config": agrees(configs["host's own" if last else "plain"]),
        "data": agrees(FACTS | {"data": "sha256:" + "5" * 63 + "7"} if last else FACTS),
        "two facts": agrees(FACTS | {"order": f"of {rank}", "global batch": str(32 * (1 + last))}),
        "a fact less": agrees({"data": "x"} if last else {"data": "x", "order": "y"}),
        "seed": agrees(configs["seed" if last else "plain"]),
        "config": agrees(configs["other" if last else "plain"]),
        "transforms": agrees({"transforms": ['{"a": 1, "b": 2}', '{"b": 2, "a": 1}'][last]}),
        "many": agrees({f"fact{place}": str(rank) for place in range(40)}),
        "cursor": agrees(CURSOR | {"position": 640 + 32 * last}, "at resume"),
        "same cursor": agrees(CURSOR, "at resume"),
        "all well": error_of(lambda: outcome(world, "building the loader", fails_on())),
        "result": outcome(world, "building the loader", fails_on()),
        "one fails": error_of(lambda: outcome(world, "building the loader", fails_on(1), undo=undone.append)),
        "undone": undone,
        "all but one fail": error_of(lambda: outcome(world, "building the loader", fails_on(*range(1, 9)))),
    }
    found["still talks"] = world.gather(rank, "a test")
    return found


@pytest.mark.parametrize("num_ranks", [pytest.param(2, marks=pytest.mark.full), 3])
def test_ranks_agree_or_all_stop_by_name(num_ranks):
    all_found = results(many_checks, num_ranks, composed())
    most = ", ".join(f"a/{rank}" for rank in range(num_ranks - 1))
    head = "ClusterError: the ranks do not agree before the first step; give all of them the same data and config\n  "
    for rank, found in enumerate(all_found):
        for name in ("same", "same config", "same cursor", "all well"):
            assert found[name] is None
        fives = "5" * 63
        assert found["data"] == f"{head}data: sha256:{fives}7 on b/0; sha256:{fives}5 on {most}"
        order = "; ".join(
            f"of {rank} on {'b/0' if rank == num_ranks - 1 else f'a/{rank}'}" for rank in range(num_ranks)[::-1]
        )
        assert found["two facts"] == f"{head}order: {order}\n  global batch: 64 on b/0; 32 on {most}"
        assert found["a fact less"] == f"{head}order: nothing on b/0; y on {most}"
        assert found["seed"] == f"{head}sampling.seed: 43 on b/0; 42 on {most}"
        assert found["config"] == (
            f"{head}sampling.drop_last: false on b/0; true on {most}\n  loader.batch_size: 16 on b/0; 32 on {most}"
        )
        assert found["transforms"] == f'{head}transforms: {{"b": 2, "a": 1}} on b/0; {{"a": 1, "b": 2}} on {most}'
        assert found["many"].count("\n") == 13
        assert found["many"].endswith("\n  and 28 more differences")
        assert (
            found["cursor"]
            == head.replace("before the first step", "at resume") + f"position: 672 on b/0; 640 on {most}"
        )
        assert found["result"] == f"of rank {rank}"
        name = "b/0" if num_ranks == 2 else "a/1"
        assert found["one fails"] == (
            "SourceError: /data/1 is not there"
            if rank == 1
            else f"ClusterError: building the loader failed on 1 of {num_ranks} ranks, so all stop: {name}: "
            "SourceError: /data/1 is not there"
        )
        assert found["undone"] == ([] if rank == 1 else [f"of rank {rank}"])
        failed = [f"a/{rank}" for rank in range(1, num_ranks - 1)] + ["b/0"]
        assert found["all but one fail"] == (
            "SourceError: /data/one is not there"
            if rank and num_ranks > 2
            else found["all but one fail"]
            if rank
            else f"ClusterError: building the loader failed on {num_ranks - 1} of {num_ranks} ranks, so all stop: "
            f"{', '.join(failed)}: SourceError: /data/one is not there"
        )
        assert found["still talks"] == list(range(num_ranks))


class Alone:
    """A world of many, as one process sees it: what the others say is given."""

    def __init__(self, *others):
        self.others = others
        self.world_size = 1 + len(others)

    def gather(self, value, what):
        first_word_is_a_digest = isinstance(value, str)
        return [value, *(["another"] * len(self.others) if first_word_is_a_digest else self.others)]

    def names(self, ranks):
        return World.names(self, ranks)

    def name(self, rank):
        return f"h/{rank}"


def lines_of(*all_facts):
    world = Alone(*all_facts[1:])
    with pytest.raises(ClusterError) as caught:
        agree(world, all_facts[0], "now")
    return str(caught.value).splitlines()[1:]


def test_values_that_are_long_are_shown_where_they_differ():
    (line,) = lines_of({"x": "s" * 300 + "A" + "t" * 300}, {"x": "s" * 300 + "B" + "t" * 300})
    assert line == f"  x: ...{'s' * 20}B{'t' * 59}... on h/1; ...{'s' * 20}A{'t' * 59}... on h/0"


def test_many_ranks_are_counted():
    (line,) = lines_of({"x": "1"}, *[{"x": "2"}] * 20)
    assert line == "  x: 1 on h/0; 2 on h/1, h/2, h/3, h/4, h/5, h/6, h/7, h/8 and 12 more"


def test_keys_inside_are_told_apart_from_texts_that_only_look_like_json():
    assert lines_of({"x": '{"a": {"b": 1}}'}, {"x": '{"a": {"b": 2}, "c": []}'}) == [
        "  x.a.b: 2 on h/1; 1 on h/0",
        "  x.c: [] on h/1; nothing on h/0",
    ]
    assert lines_of({"x": "{1"}, {"x": ""}) == ["  x: '' on h/1; {1 on h/0"]


SUBSET = {"range": [0, 100], "indices": None, "fraction": None}


@pytest.mark.parametrize(
    ("other", "told"),
    [({"subset": None}, "null"), ({}, "nothing"), ({"subset": "all"}, "all"), ({"subset": []}, "[]")],
)
def test_an_object_that_a_rank_does_not_have_is_told_once_without_what_is_null_in_it(other, told):
    ours, theirs = (json.dumps({"kind": "x", **more}) for more in ({"subset": SUBSET}, other))
    assert lines_of({"source": ours}, {"source": theirs}) == [
        f'  source.subset: {told} on h/1; {{"range": [0, 100]}} on h/0'
    ]


def test_of_objects_that_some_ranks_have_those_that_differ_are_told():
    facts = [json.dumps({"subset": subset}) for subset in (SUBSET, SUBSET | {"fraction": 0.5}, None, SUBSET)]
    assert lines_of(*({"source": fact} for fact in facts)) == [
        '  source.subset: null on h/2; {"range": [0, 100], "fraction": 0.5} on h/1; {"range": [0, 100]} on h/0, h/3'
    ]


def test_a_fact_that_only_some_ranks_have_is_told_once():
    assert lines_of({"x": '{"a": 1, "b": null}'}, {"y": "1"}) == [
        '  x: nothing on h/1; {"a": 1} on h/0',
        "  y: 1 on h/1; nothing on h/0",
    ]


def test_values_that_would_be_told_alike_are_told_as_json():
    assert lines_of({"x": '{"a": "[1]"}'}, {"x": '{"a": [1]}'}) == ['  x.a: [1] on h/1; "[1]" on h/0']
    assert lines_of({"x": '{"a": 1}'}, {"x": '{"a": 1.0}'}) == ["  x.a: 1.0 on h/1; 1 on h/0"]


def test_an_interruption_is_no_outcome():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        outcome(Alone("not asked"), "waiting", interrupted)

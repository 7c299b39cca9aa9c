"""Delivery on a device: what the source delivers, bit by bit, in tensors that belong to nobody else.

White box: how parts of a mixture deliver is asked of the first of them.
"""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from flodl_pipe.batch.ragged import Ragged
from flodl_pipe.batch.spec import Field, SampleSpec
from flodl_pipe.devices.simulated import SimulatedDevice
from flodl_pipe.sources.adapters import adapt
from flodl_pipe.sources.cifar import CIFAR10, CIFAR100
from flodl_pipe.sources.documents import Documents
from flodl_pipe.sources.mixture import Mixture
from flodl_pipe.sources.ordering import Weights
from flodl_pipe.sources.protocol import CopiedField, CopiedFields
from flodl_pipe.sources.ragged_source import RaggedRows
from flodl_pipe.sources.records import RecordPart, Records
from flodl_pipe.sources.subset import Subset
from flodl_pipe.sources.text import Text
from flodl_pipe.sources.tokens import TokenShards
from flodl_pipe.staging.device_rows import DeviceRows
from tests.loader.sources import Numbers
from tests.sources import test_cifar, test_idx, test_records

HALVES = (Weights(0, (Fraction(1, 2), Fraction(1, 2))),)
PARTS = {name: part for name, part in test_records.PARTS.items() if name != "flag"}


def tokens(folder, dtype, name="t.bin", **options):
    info = np.iinfo(dtype)
    low = max(info.min, 0) if options else info.min
    high = min(int(info.max), 2**31) if options else int(info.max)
    ids = np.random.default_rng(4).integers(low, high, 400, dtype=dtype, endpoint=True)
    ids.astype(np.dtype(dtype).newbyteorder("<")).tofile(folder / name)
    return TokenShards.open(str(folder / name), dtype=dtype, **{"seq_len": 8, **options})


def text(folder, **options):
    (folder / "t.txt").write_text("Die Fuße der Möwen: hello, wörld! " * 20, encoding="utf-8")
    return Text.open(str(folder / "t.txt"), **{"seq_len": 5, **options})


def records(folder, parts, record_bytes=23):
    if not (folder / "r0.bin").exists():
        test_records.write_records(folder)
    return Records.open(str(folder), record_bytes=record_bytes, header_bytes=24, parts=parts)


def dataset(folder):
    rng = np.random.default_rng(1)
    dtypes = ["bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32"]
    columns = [rng.integers(0, 2, (30, 3)).astype(dtype) for dtype in dtypes]
    columns.append(rng.standard_normal((30,)))
    return adapt(TensorDataset(*map(torch.from_numpy, columns)))


POSSIBLE = {
    **{f"tokens {dtype}": lambda folder, dtype=dtype: tokens(folder, dtype) for dtype in ("uint16", "uint32", "int32")},
    "tokens uint8": lambda folder: tokens(folder, "uint8", stride=3),
    "tokens at random": lambda folder: tokens(folder, "uint16", starts="random"),
    "tokens of one": lambda folder: tokens(folder, "uint32", seq_len=1),
    "text": text,
    "mnist": lambda folder: test_idx.opened(folder, num_classes=10),
    "idx, wide": lambda folder: test_idx.opened(folder, test_idx.FLOATS, test_idx.PAIRS),
    "cifar10": lambda folder: test_cifar.opened(folder, in_memory=True, layout=CIFAR10),
    "cifar100": lambda folder: test_cifar.opened(folder, test_cifar.HUNDRED, in_memory=False, layout=CIFAR100),
    "records": lambda folder: records(folder, PARTS),
    "subset": lambda folder: Subset(records(folder, PARTS), np.array([1, 5, 6, 40])),
    "mixture of tokens": lambda folder: Mixture(
        {"a": tokens(folder, "uint16"), "b": tokens(folder, "uint16", "b.bin")}, HALVES, block=4
    ),
    "mixture of records": lambda folder: Mixture(
        {"a": records(folder, PARTS), "b": Subset(records(folder, PARTS), range(7))}, HALVES, block=4
    ),
    "dataset": dataset,
    "mixture of datasets": lambda folder: Mixture({"a": dataset(folder), "b": dataset(folder)}, HALVES, block=4),
}


def stored_rows(source, indices):
    out = source.spec.empty(len(indices))
    source.read_into(indices, np.arange(len(indices)), out)
    return out


def as_bytes(array):
    """Return stored rows as a pool has them."""
    row_bytes = array.nbytes // max(1, len(array))
    return torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy()).view(len(array), row_bytes)


def require_delivered(source, rows, stored):
    expected = source.delivered.empty(len(next(iter(stored.values()))))
    source.deliver(stored, expected)
    on_device = {name: as_bytes(array) for name, array in stored.items()}
    before = {name: tensor.clone() for name, tensor in on_device.items()}
    found = rows.deliver(on_device)
    for field, tensor in zip(source.delivered, found, strict=True):
        ours = tensor.numpy()
        assert (str(ours.dtype), ours.shape) == (field.dtype, expected[field.name].shape)
        assert ours.tobytes() == expected[field.name].tobytes(), field.name
        assert tensor.is_contiguous()
    assert rows.num_bytes(len(expected[field.name])) == sum(tensor.nbytes for tensor in found)
    require_owned(found, on_device.values())
    for tensor in found:
        tensor.zero_()
    assert all(torch.equal(on_device[name], tensor) for name, tensor in before.items())


def require_owned(found, others):
    storages = [tensor.untyped_storage().data_ptr() for tensor in (*found, *others) if tensor.numel()]
    assert len(set(storages)) == len(storages)


@pytest.mark.parametrize("kind", POSSIBLE)
def test_a_bundled_source_is_delivered_as_it_delivers(kind, tmp_path):
    source = POSSIBLE[kind](tmp_path)
    rows = DeviceRows.of(source)
    assert rows is not None
    rng = np.random.default_rng(0)
    for count in (1, 7, len(source), 0):
        require_delivered(source, rows, stored_rows(source, rng.integers(0, len(source), count)))


@pytest.mark.parametrize("kind", ["tokens uint16", "records", "dataset"])
def test_delivery_on_a_simulated_device_owns_its_memory(kind, tmp_path):
    source = POSSIBLE[kind](tmp_path)
    rows = DeviceRows.of(source)
    device = SimulatedDevice(1 << 20)
    stream = device.stream("transfer")
    stored = stored_rows(source, np.arange(9))
    uploaded = {}
    for name, array in stored.items():
        memory = device.allocate(array.nbytes, stream)
        device.copy_in(stream, array.reshape(-1).view(np.uint8), memory)
        uploaded[name] = memory.view(9, -1)
    found = device.compute(stream, lambda: rows.deliver(uploaded), reads=list(uploaded.values()))
    uploaded.clear()
    del memory
    device.synchronize(device.record(stream))
    expected = source.delivered.empty(9)
    source.deliver(stored, expected)
    for tensor, array in zip(found, expected.values(), strict=True):
        assert tensor.numpy().tobytes() == array.tobytes()
    assert device.allocated_bytes == sum(-(-array.nbytes // 512) * 512 for array in expected.values())


def ragged(folder):
    return RaggedRows({"x": Ragged(np.arange(5), np.array([0, 2, 5]))})


IMPOSSIBLE = {
    "a source that says nothing": lambda folder: Numbers(5),
    "records with booleans": lambda folder: records(folder, test_records.PARTS),
    "documents": lambda folder: tokens(folder, "uint16", documents=Documents(0)),
    "tails that are kept": lambda folder: tokens(folder, "uint16", tail="keep"),
    "kept tails of text": lambda folder: text(folder, tail="keep"),
    "rows of different lengths": ragged,
    "parts that deliver differently": lambda folder: Mixture(
        {"a": records(folder, PARTS), "b": records(folder, {**PARTS, "weight": RecordPart(3, "float32")})},
        HALVES,
        block=4,
    ),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_what_does_more_than_copy_is_left_to_the_host(kind, tmp_path):
    assert DeviceRows.of(IMPOSSIBLE[kind](tmp_path)) is None


class Copied:
    """A source of one's own that says how it delivers."""

    thread_safe = True

    def __init__(self, row_bytes, fields):
        """Take fields as (name, offset, stored dtype, delivered dtype, shape)."""
        self.spec = SampleSpec.of(row=("uint8", (row_bytes,)))
        self.delivered = SampleSpec(tuple(Field(name, out, shape) for name, _, _, out, shape in fields))
        self.delivery = CopiedFields("own", tuple(CopiedField(*field[:3]) for field in fields))

    def __len__(self):
        return 1

    def read_into(self, indices, rows, out):
        raise NotImplementedError

    def fingerprint(self, *, full=False):
        raise NotImplementedError

    def deliver(self, stored, out):
        for copied, field in zip(self.delivery.fields, self.delivered, strict=True):
            size = np.dtype(copied.dtype).itemsize * int(np.prod(field.shape, dtype=int))
            part = np.ascontiguousarray(stored["row"][:, copied.offset : copied.offset + size])
            np.copyto(out[field.name], part.view(copied.dtype).reshape(out[field.name].shape))


INTEGERS = ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
WIDENED = [
    (stored, delivered)
    for stored, delivered in itertools.product(INTEGERS, [*INTEGERS, "float16", "float32", "float64"])
    if stored == delivered
    or (stored != "uint64" and not delivered.startswith("uint") and np.can_cast(stored, delivered, "safe"))
]


@settings(max_examples=150, deadline=None)
@given(
    fields=st.lists(
        st.tuples(
            st.integers(0, 9),
            st.sampled_from([*WIDENED, ("bool", "bool"), ("complex64", "complex64"), ("float16", "float16")]),
            st.sampled_from([(), (1,), (3,), (2, 2), (0,)]),
        ),
        min_size=1,
        max_size=4,
    ),
    spare=st.integers(0, 3),
    num_rows=st.integers(0, 5),
    start=st.integers(0, 8),
    seed=st.integers(0, 2**32),
)
def test_fields_are_widened_wherever_they_lie(fields, spare, num_rows, start, seed):
    sizes = [at + np.dtype(stored).itemsize * int(np.prod(shape, dtype=int)) for at, (stored, _), shape in fields]
    row_bytes = max(sizes) + spare
    source = Copied(row_bytes, [(f"f{i}", at, *types, shape) for i, (at, types, shape) in enumerate(fields)])
    rows = DeviceRows.of(source)
    raw = np.random.default_rng(seed).integers(0, 256, (num_rows, row_bytes), dtype=np.uint8)
    expected = source.delivered.empty(num_rows)
    source.deliver({"row": raw}, expected)
    memory = torch.zeros(raw.size + start, dtype=torch.uint8)  # rows that begin at any byte
    memory[start:] = torch.from_numpy(raw.reshape(-1))
    found = rows.deliver({"row": memory[start:].view(num_rows, row_bytes)})
    for tensor, array in zip(found, expected.values(), strict=True):
        assert tensor.numpy().dtype == array.dtype
        assert tensor.shape == array.shape
        assert tensor.is_contiguous()
        assert tensor.numpy().tobytes() == array.tobytes()
    require_owned(found, [memory])


@pytest.mark.parametrize(
    ("stored", "delivered"),
    [
        ("uint64", "int64"),
        ("uint64", "float64"),
        ("int64", "int32"),
        ("uint8", "uint16"),
        ("float32", "float64"),
        ("float32", "int64"),
        (">u2", "int64"),
        ("datetime64[s]", "datetime64[s]"),
    ],
)
def test_types_that_torch_would_not_widen_exactly_are_left_to_the_host(stored, delivered):
    assert DeviceRows.of(Copied(16, [("x", 0, stored, delivered, ())])) is None


def test_a_mixture_delivers_as_its_parts_do_or_says_nothing(tmp_path):
    same = POSSIBLE["mixture of records"](tmp_path)
    assert same.delivery == same._sources[0].delivery
    other = IMPOSSIBLE["parts that deliver differently"](tmp_path)
    assert other.delivery is None

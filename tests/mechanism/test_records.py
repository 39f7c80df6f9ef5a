"""Padded records: what is gathered is what was packed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import whitebox
from cases import CASES
from scipy import sparse, stats
from whitebox import drawn, fit_of

from skdpbayes import inference
from skdpbayes.intake.packing import pack_ragged, pack_records
from skdpbayes.mechanism.contributions import Scattered
from skdpbayes.mechanism.keys import fit_keys
from skdpbayes.mechanism.private_sum import CHUNK, private_sum, slots_of_a_batch
from skdpbayes.mechanism.records import RaggedRows, SparseRows, padded_size
from skdpbayes.mechanism.spec import Block, MechanismSpec
from skdpbayes.privacy import GaussianSteps


@jax.jit
def take(records, indices):
    return records.take(indices)


def gathered(records, indices):
    return jax.tree.map(np.asarray, take(records, np.array(indices, np.int32)))


def test_padded_sizes_are_few_and_not_much_larger():
    sizes = [padded_size(n) for n in range(1, 5000)]
    assert sizes == sorted(sizes)
    for n, size in enumerate(sizes, start=1):
        assert n <= size <= max(64, 1.26 * n)
        assert padded_size(size) == size
    assert len(set(sizes)) < 40
    assert padded_size(2**31 - 1) == 2**31


def test_packing_pads_and_keeps():
    x, y = np.arange(140.0).reshape(70, 2).astype(np.float32), np.arange(70, dtype=np.int32)
    records = pack_records(x=x, y=y)
    assert records.n_records == 70
    assert records.fields["x"].shape == (80, 2) and records.fields["y"].dtype == np.int32
    np.testing.assert_array_equal(records.fields["x"][70:], 0)


def test_fields_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match=r"equal lengths, got \{'x': 3, 'y': 4\}"):
        pack_records(x=np.zeros((3, 1)), y=np.zeros(4))


def rows_with_everything():
    """CSR rows: empty, longer than a slot group, full, ending in empty ones."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(70, 50)) * (rng.random((70, 50)) < 0.1)
    X[[0, 7, 69]] = 0
    X[3] = rng.normal(size=50)
    X[4, :17] = 1.0
    return X.astype(np.float32)


def test_sparse_rows_equal_dense_rows():
    X = rows_with_everything()
    packed = pack_records(x=sparse.csr_matrix(X), y=np.arange(70))
    assert isinstance(packed.fields["x"], SparseRows)
    dense = pack_records(x=X, y=np.arange(70))
    for indices in ([3, 3, 0, 69, 4, 7, 1], [0, 7, 69], [69], list(range(70)), [0] * 9):
        got, want = gathered(packed, indices), gathered(dense, indices)
        np.testing.assert_array_equal(got["x"], want["x"])
        np.testing.assert_array_equal(got["y"], want["y"])


def test_a_matrix_without_values():
    packed = pack_records(x=sparse.csr_matrix((5, 3), dtype=np.float32))
    np.testing.assert_array_equal(gathered(packed, [0, 4])["x"], np.zeros((2, 3)))


def test_columns_that_repeat_add_up():
    X = sparse.csr_matrix(
        (np.array([2.0, 3.0], "f"), np.array([1, 1]), np.array([0, 2])), shape=(1, 3)
    )
    np.testing.assert_array_equal(gathered(pack_records(x=X), [0])["x"], [[0, 5, 0]])


def test_sparse_data_give_the_transcript_of_dense_data():
    X = rows_with_everything()
    y = (np.arange(70) % 2).astype(np.int32)
    planned = whitebox.plan("sgld", 70, 50, noise=1.0, rate=0.4, n_steps=12)
    dense = whitebox.released(planned, X, y)
    model, solver, spec = planned
    records = pack_records(x=sparse.csr_matrix(X), y=y)
    got = np.asarray(
        inference.run(fit_keys(0), model, solver, spec, records, keep_releases=True)[1]
    )
    np.testing.assert_allclose(got, dense, rtol=1e-4, atol=1e-4)


# Ragged rows

N_WORDS = 700


def documents(n=90, longest=(600,)):
    """Counts with empty rows, short rows, and a few that are far longer than the rest."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 60, n)
    lengths[[0, 5, n - 1]] = 0
    lengths[3 : 3 + len(longest)] = longest
    X = np.zeros((n, N_WORDS), np.float32)
    for row, length in zip(X, lengths, strict=True):
        row[rng.choice(N_WORDS, length, replace=False)] = rng.integers(1, 9, length)
    return X


def groups_of(packed):
    return [(group.width, int(group.start), int(group.stop)) for group in packed.groups()]


@pytest.mark.parametrize("longest", [(600,), (32,), (33,), (64, 65, 128, 129, 700), ()])
def test_groups_have_every_row_once_with_its_columns_and_values(longest):
    X = documents(longest=longest)
    packed = pack_ragged(sparse.csr_array(X))
    assert isinstance(packed.fields, RaggedRows) and packed.n_records == len(X)
    found, at = [], 0
    for width, start, stop in groups_of(packed):
        assert start == at
        at = stop
        if start == stop:
            continue
        rows = jax.tree.map(
            np.asarray, packed.fields.take(jnp.arange(start, stop, dtype=jnp.int32), width)
        )
        assert rows["columns"].shape == rows["values"].shape == (stop - start, width)
        assert (np.diff(rows["columns"], axis=1) > 0)[rows["columns"][:, 1:] < N_WORDS].all()
        assert not rows["values"][rows["columns"] == N_WORDS].any()
        dense = np.zeros((stop - start, N_WORDS + 1), np.float32)
        np.put_along_axis(dense, rows["columns"], rows["values"], axis=1)
        lengths = (dense > 0).sum(axis=1)
        assert (lengths <= width).all() and (width == 32 or (lengths > width // 2).all())
        found.append(dense[:, :N_WORDS])
    assert at == len(X)
    order = np.argsort((X > 0).sum(axis=1), kind="stable")
    np.testing.assert_array_equal(np.concatenate(found), X[order])


def test_empty_rows_alone_are_packed():
    packed = pack_ragged(sparse.csr_array((5, 9), dtype=np.float32))
    assert groups_of(packed) == [(32, 0, 5)]
    assert not np.asarray(packed.fields.take(jnp.arange(5), 32)["values"]).any()


def test_the_width_of_a_row_does_not_depend_on_other_rows():
    """So neither does what it contributes, to the last bit."""
    X = documents(longest=(600, 40, 70))

    def width_of(rows, length):
        packed = pack_ragged(sparse.csr_array(rows))
        lengths = np.sort((rows > 0).sum(axis=1))
        place = int(np.searchsorted(lengths, length))
        return next(width for width, start, stop in groups_of(packed) if start <= place < stop)

    for length, width in ((600, 1024), (40, 64), (70, 128)):
        alone = X[(X > 0).sum(axis=1) == length][:1]
        among = [X, alone, np.concatenate([alone, X[6:9]]), X[(X > 0).sum(axis=1) >= length]]
        assert {width_of(rows, length) for rows in among} == {width}


def words(record):
    return {"words": Scattered(record["columns"], record["values"][:, None], N_WORDS)}


@jax.jit
def _summed(packed, norm, mechanism, draw):
    return private_sum(words, {"words": Block(norm)}, mechanism, draw, 0, packed)


def summed(X, rate, seed=0):
    with jax.enable_x64(True):
        spec, norm = MechanismSpec((GaussianSteps(0.0, rate, 1),)), np.float32(1e6)
        packed = jax.device_put(pack_ragged(sparse.csr_array(X)))
        draw = drawn(words, {"words": Block(norm)}, spec, packed, seed)
        return np.asarray(_summed(packed, norm, jax.device_put(spec.traced()), draw)["words"])[:, 0]


def test_the_private_sum_over_groups_is_the_plain_sum():
    X = documents(longest=(600, 300, 100, 40))
    assert sum(stop > start for _, start, stop in groups_of(pack_ragged(sparse.csr_array(X)))) == 5
    np.testing.assert_allclose(summed(X, 1.0), X.sum(axis=0), rtol=1e-5, atol=1e-3)


def test_every_record_of_every_group_is_sampled_by_itself():
    """Words of its own show whether a document took part: at the rate that is charged, whoever else did."""
    n, rate, rounds = 100, 0.3, 150
    X = np.zeros((n, N_WORDS), np.float32)
    X[np.arange(n), np.arange(n)] = 1
    for i, length in enumerate([20] * 40 + [50] * 25 + [100] * 20 + [200] * 10 + [400] * 5):
        X[i, n : n + length - 1] = 1
    assert sum(stop > start for _, start, stop in groups_of(pack_ragged(sparse.csr_array(X)))) == 5
    took_part = np.stack([summed(X, rate, step)[:n] for step in range(rounds)])
    assert (np.isclose(took_part, 0, atol=1e-3) | np.isclose(took_part, 1, atol=1e-3)).all()
    mask = took_part > 0.5
    for group in (slice(0, 40), slice(40, 65), slice(65, 85), slice(85, 95), slice(95, 100)):
        assert stats.binomtest(int(mask[:, group].sum()), mask[:, group].size, rate).pvalue > 1e-6
    least = min(stats.binomtest(int(count), rounds, rate).pvalue for count in mask.sum(axis=0))
    assert least > 1e-7
    correlations = np.corrcoef(mask.T)[np.triu_indices(n, 1)] * rounds**0.5
    assert np.abs(correlations).max() < 6 and 0.9 < correlations.std() < 1.1
    later = [np.corrcoef(mask[1:, i], mask[:-1, i])[0, 1] for i in range(n)]
    assert np.abs(later).max() < 6 / rounds**0.5


@pytest.mark.parametrize("expected", [40, 64, 100, 128, 200, 300, 400, 1000])
def test_few_slots_are_empty_where_they_are_expensive(expected):
    rate = 0.01
    slots = slots_of_a_batch(rate, round(expected / rate))
    sizes = np.random.default_rng(0).poisson(expected, 10_000)
    taken = slots * np.ceil(sizes / slots)
    assert taken.mean() < 1.2 * expected + 40
    assert slots % 32 == 0 and 64 <= slots <= CHUNK


def test_rounds_of_all_rows_have_chunks_of_equal_length():
    found = [slots_of_a_batch(1.0, n) for n in (0, 64, 384, 385, 10**9)]
    assert found == [64, 64, CHUNK, 224, CHUNK]


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a device has a memory of its own")
@pytest.mark.parametrize("name", ["logistic", "linear", "mixture"])
def test_rows_are_packed_once(name):
    """Where programs take them as they are: a fit has one copy of its table, and not three."""
    case = next(case for case in CASES if case.entry.name == name)
    X, y = case.data(1000)
    packed = fit_of(case, X, y, **case.quick).records.fields["x"]
    assert packed.shape[0] == padded_size(1000) and not packed[1000:].any()
    with jax.enable_x64(True):
        assert jax.device_put(packed).unsafe_buffer_pointer() == packed.ctypes.data


def test_a_field_that_is_neither_padded_nor_of_all_records_is_refused():
    rows = np.ones((100, 2), np.float32)
    with pytest.raises(ValueError, match="equal lengths"):
        pack_records(x=rows, y=np.ones(padded_size(100), np.int32))
    with pytest.raises(ValueError, match="equal lengths"):
        pack_records(n=99, x=rows)

"""Padded records: what is gathered is what was packed."""

import jax
import numpy as np
import pytest
import whitebox
from scipy import sparse

from skdpbayes import inference
from skdpbayes.privacy.random import fit_keys
from skdpbayes.records import SparseRows, pack_records, padded_size


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
    X = sparse.csr_matrix((np.array([2.0, 3.0], "f"), np.array([1, 1]), np.array([0, 2])), shape=(1, 3))
    np.testing.assert_array_equal(gathered(pack_records(x=X), [0])["x"], [[0, 5, 0]])


def test_sparse_data_give_the_transcript_of_dense_data():
    X = rows_with_everything()
    y = (np.arange(70) % 2).astype(np.int32)
    planned = whitebox.plan("sgld", 70, 50, noise=1.0, rate=0.4, n_steps=12)
    dense = whitebox.released(planned, X, y)
    model, solver, spec = planned
    records = pack_records(x=sparse.csr_matrix(X), y=y)
    got = np.asarray(inference.run(fit_keys(0), model, solver, spec, records, keep_releases=True)[1])
    np.testing.assert_allclose(got, dense, rtol=1e-4, atol=1e-4)

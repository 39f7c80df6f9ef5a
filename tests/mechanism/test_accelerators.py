"""Rounds as an accelerator runs them: it draws the noise, takes many chunks at once, and never calls the host.

These tests run on whichever platform JAX has; on an accelerator they say that its arithmetic is exact.
"""

import itertools
from dataclasses import replace
from functools import partial

import divided
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, slow_but
from jax import export
from scipy import stats
from whitebox import fit_of, in_one

from skdpbayes import inference
from skdpbayes.mechanism import draws as draws_module
from skdpbayes.mechanism import on_device as of_device
from skdpbayes.mechanism import private_sum as private_sum_module
from skdpbayes.mechanism import stored
from skdpbayes.mechanism.draws import Draw, Draws, noise_of_steps
from skdpbayes.mechanism.integer_noise import WORDS, undrawn
from skdpbayes.mechanism.on_device import MANY, DeviceNoise, by_kernel, by_operations, chacha20
from skdpbayes.mechanism.private_sum import CHUNK, _slots, partial_sums, slots_at_once
from skdpbayes.solvers.base import arithmetic

KERNEL = "__gpu$xla.gpu.triton"


class Stopped(Exception):
    pass


def rounds_for_cuda(fit, patch):
    """All kinds of rounds of a fit, as a text in StableHLO; nothing is run."""
    texts = []

    def exported(*given):
        program = export.export(
            jax.jit(inference._some_steps, static_argnums=0),
            platforms=["cuda"],
            disabled_checks=[export.DisabledSafetyCheck.custom_call(KERNEL)],
        )(*given)
        texts.append(str(program.mlir_module()))
        raise Stopped

    patch.setattr(inference, "_steps", exported)
    with pytest.raises(Stopped):
        fit.run(0)
    return texts[0]


def calls_of_the_host(text):
    return [line for line in text.splitlines() if "callback" in line or "outfeed" in line]


@pytest.fixture
def as_on_an_accelerator(monkeypatch):
    """Noise is drawn in the program, and many chunks are taken at once."""

    def suited(records, spec):
        return replace(records, slots=4 * CHUNK), True

    monkeypatch.setattr(inference, "_suited", suited)


@pytest.mark.usefixtures("in_a_loop", "as_on_an_accelerator")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if case.id == "logistic" else [pytest.mark.slow], id=case.id)
        for case in CASES
    ],
)
def test_no_round_of_a_fit_calls_the_host(case, monkeypatch):
    X, y = case.data(160)
    text = rounds_for_cuda(fit_of(case, X, y, **case.quick), monkeypatch)
    assert "stablehlo.while" in text and KERNEL in text and not calls_of_the_host(text)


def test_the_check_sees_a_call_of_the_host():
    def noisy(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), np.float32), x)

    assert calls_of_the_host(jax.jit(noisy).lower(np.float32(1)).as_text())
    other = "cuda" if jax.default_backend() == "cpu" else "cpu"
    with pytest.raises(ValueError, match="platform"):  # and no such program can be exported
        export.export(jax.jit(noisy), platforms=[other])(np.float32(1))


def test_the_cipher_is_that_of_rfc_8439():
    """Section 2.3.2."""
    key = jnp.asarray(np.frombuffer(bytes(range(32)), np.uint32))
    nonce = np.frombuffer(bytes.fromhex("000000090000004a00000000"), np.uint32)
    words = jax.jit(chacha20)(key, jnp.array([1, 2], jnp.uint32), tuple(map(jnp.uint32, nonce)))
    block = np.array([word[0] for word in words], "<u4").tobytes()
    assert block.hex() == (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )


@pytest.mark.parametrize("size", slow_but([30_000, MANY + 1000], 30_000))  # two programs
def test_the_device_draws_the_integers_of_the_host(size):
    key = bytes(range(1, 33))
    with jax.enable_x64(True):
        drawn = jax.jit(lambda noise, step: noise.at(step, 2**31 - 1).values(size))
        few = [(1, 0), (2, 3), (3, 3), (4, 2**31 - 2)]
        for levels, step in few:
            expected = noise_of_steps(key, levels, step, [size])
            np.testing.assert_array_equal(drawn(DeviceNoise.of(key, levels), step), expected)
        assert drawn._cache_size() == 1


def test_the_kernel_draws_the_same_integers():
    """Here it is interpreted; a GPU's own draws are compared above, and once in each process."""
    noise, step, size = DeviceNoise.of(bytes(range(1, 33)), 3), np.uint32(5), 600
    with jax.enable_x64(True):
        given = (jnp.asarray(x) for x in (noise.key, step, noise.levels, noise.known))
        drawn = jax.jit(partial(by_kernel, size, interpret=True))(*given)
    np.testing.assert_array_equal(drawn, noise_of_steps(bytes(range(1, 33)), 3, 5, [size]))


def test_where_there_is_a_kernel_it_is_run(monkeypatch):
    monkeypatch.setattr(of_device, "by_kernel", partial(by_kernel, interpret=True))
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *given, cuda, default: cuda(*given))
    key = bytes(range(2, 34))
    with jax.enable_x64(True):
        for levels, step in [(1, 0), (3, 5), (4, 2**31 - 2)]:
            drawn = DeviceNoise.of(key, levels).at(step, 2**31 - 1).values(300)
            np.testing.assert_array_equal(drawn, noise_of_steps(key, levels, step, [300]))


def test_without_the_kernel_operations_are_run(monkeypatch):
    pallas = pytest.importorskip("jax.experimental.pallas")
    monkeypatch.delattr(pallas, "no_block_spec")
    noise = DeviceNoise.of(bytes(32), 4)
    with jax.enable_x64(True):
        given = [jnp.asarray(x) for x in (noise.key, np.uint32(1), noise.levels, noise.known)]
        np.testing.assert_array_equal(by_kernel(9, *given), by_operations(9, *given))


@pytest.fixture
def unchecked():
    draws_module.check_device.cache_clear()
    yield
    draws_module.check_device.cache_clear()


@pytest.mark.usefixtures("unchecked")
def test_every_device_is_checked_and_each_once(monkeypatch):
    seen, original = [], DeviceNoise.values
    monkeypatch.setattr(inference, "_own_devices", lambda records: jax.devices() * 2)
    monkeypatch.setattr(inference, "_suited", lambda records, spec: (records, True))

    def values(self, size):
        seen.append(jax.config.jax_default_device)
        return original(self, size)

    monkeypatch.setattr(DeviceNoise, "values", values)
    case = next(case for case in CASES if case.id == "logistic")
    fit = fit_of(case, *case.data(160), **case.quick)
    monkeypatch.setattr(inference, "sizes_of_steps", lambda *rest: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fit.run(0)
    assert seen == jax.devices()


@pytest.mark.usefixtures("in_a_loop", "unchecked")
def test_a_device_that_draws_other_noise_runs_no_fit(monkeypatch):
    """Had its compiler an error, noise could be known or missing, and nobody would see it."""
    case = next(case for case in CASES if case.id == "logistic")
    original, secure = DeviceNoise.values, fit_of(case, *case.data(160), **case.quick)
    monkeypatch.setattr(
        DeviceNoise, "values", lambda self, size: original(self, size).at[900].add(1)
    )
    monkeypatch.setattr(inference, "_suited", lambda records, spec: (records, True))
    for _ in range(2):  # it is not forgotten
        with pytest.raises(RuntimeError, match="draws other noise"):
            secure.run(0)


def test_a_variable_takes_a_block():
    assert WORDS * 8 == 16 * 4


def test_a_program_does_not_hold_the_key():
    with jax.enable_x64(True):
        one, other = (DeviceNoise.of(bytes([k]) * 32, 4) for k in (1, 2))
        assert jax.tree.structure(one) == jax.tree.structure(other)


def test_fast_noise_of_a_device_is_normal_and_of_its_step_and_key():
    with jax.enable_x64(True):
        drawn = [
            np.asarray(DeviceNoise.of(bytes([k]) * 32, None).at(step, 2).values(50_000))
            for k, step in [(1, 0), (1, 1), (2, 0)]
        ]
    for noise in drawn:
        assert noise.dtype == np.float32 and stats.kstest(noise, "norm").pvalue > 1e-6
    assert np.abs(np.corrcoef(drawn) - np.eye(3)).max() < 6 / len(noise) ** 0.5


def ran(fit, patch, suited):
    patch.setattr(inference, "_suited", suited)
    state, releases = fit.run(0)
    return jax.device_get(jax.tree.leaves(state)), releases


@pytest.mark.parametrize(
    ("name", "numerics"),
    [
        ("linear, vips", "secure"),
        pytest.param("logistic", "secure", marks=pytest.mark.slow),
        pytest.param("logistic", "fast", marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("in_a_loop")
def test_a_fit_releases_the_same_whoever_draws_the_noise(name, numerics, monkeypatch):
    case = next(case for case in CASES if case.id == name)
    X, y = case.data(160)
    fit = fit_of(case, X, y, **case.quick, numerics=numerics)
    assert fit.spec.n_steps % inference.IN_A_ROW  # rounds beyond the last are forgotten
    (state, host), (same, device) = (
        ran(fit, monkeypatch, lambda records, spec, where=where: (records, where))
        for where in (False, True)
    )
    assert np.isfinite(device).all()
    if numerics == "fast":
        assert (host != device).any()
        return
    # Rounds are compiled otherwise, so that steps differ in their last bits.
    for a, b in zip([host, *state], [device, *same], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(a).max(initial=0))


@pytest.mark.parametrize("rate", slow_but([0.02, 0.3], 0.3), ids=["batches", "pieces"])
def test_stored_rows_get_the_noise_of_rows_in_memory(rate, monkeypatch, tmp_path):
    """They are read, and draws are made, by a thread that has no 64 bits unless it is told to."""
    monkeypatch.setattr(stored, "_MOST_BYTES", 2**12)
    X, y = divided.table()
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    on_disk = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "Xy")
    how = {"sampling_rate": rate, "n_steps": 12}
    expected = divided.digest(divided.fitted("dpvi", how, X, y))  # with the host's noise
    monkeypatch.setattr(inference, "_suited", lambda records, spec: (records, True))
    assert divided.digest(divided.fitted("dpvi", how, *on_disk)) == expected


def test_noise_without_64_bits_is_refused():
    with jax.enable_x64(True):
        noise = DeviceNoise.of(bytes(32), 4)
        narrow = replace(noise, known=noise.known.astype(np.uint32))
        with pytest.raises(TypeError, match="64 bits"):
            narrow.values(8)
        with pytest.raises(TypeError, match="64 bits"):
            replace(noise, key=noise.key.astype(np.int64)).values(8)
    assert "key" not in repr(noise)


def test_no_program_tells_of_a_private_number_of_rows(monkeypatch):
    """How many chunks an accelerator takes at once depends on public numbers alone."""

    class Accelerator:
        platform = "cuda"

    case = next(case for case in CASES if case.id == "logistic")
    settings = {**case.quick, "sampling_rate": 0.5}
    of = {}
    for adjacency in ("zero_out", "add_remove"):
        for n in (1000, 2000):
            fit = fit_of(case, *case.data(n), **settings, adjacency=adjacency)
            with monkeypatch.context() as patch:
                patch.setattr(inference, "default_device", Accelerator)
                records, on_device = inference._suited(fit.records, fit.spec)
            assert on_device
            of[adjacency, n] = records.slots
    assert of["zero_out", 1000] < of["zero_out", 2000]
    assert of["add_remove", 1000] is of["add_remove", 2000] is None


@pytest.mark.usefixtures("in_a_loop")
@pytest.mark.parametrize(("adjacency", "told"), [("zero_out", True), ("add_remove", False)])
def test_batches_are_taken_whole_where_their_number_is_public(adjacency, told, monkeypatch):
    """A program without a loop over chunks would tell that all batches are small."""
    case = next(case for case in CASES if case.id == "logistic")
    fit = fit_of(case, *case.data(160), **case.quick, adjacency=adjacency)
    seen = []

    def with_draws(records, draws, whole):
        seen.append(whole)
        raise Stopped

    monkeypatch.setattr(inference, "_suited", lambda records, spec: (records, True))
    monkeypatch.setattr(inference, "with_draws", with_draws)
    with pytest.raises(Stopped):
        fit.run(0)
    assert seen == [told]


def test_a_batch_that_does_not_fit_is_not_taken_whole():
    """Nor is any other of the window; what counts is the batch, not how it is cut into groups."""
    case = next(case for case in CASES if case.id == "logistic")
    records = replace(fit_of(case, *case.data(160), **case.quick).records, slots=64)
    starts = [np.array([[0, 2, 3], [3, 5, 3 + size], [0, 0, 0]]) for size in (64, 65)]
    draws = [Draws(0, 2, np.zeros(0, np.int32), own, np.zeros(0)) for own in starts]
    for whole, expected in ((True, [True, False]), (False, [False, False])):
        found = [own.whole for own, _ in stored.with_draws(records, draws, whole=whole)]
        assert found == expected


@pytest.mark.parametrize("numerics", [4, None], ids=["secure", "fast"])
def test_steps_beyond_the_last_have_no_noise(numerics):
    """What an accelerator computes there and forgets is not a number, should it not be forgotten."""
    with jax.enable_x64(True):
        noise = DeviceNoise.of(bytes(32), numerics)
        within, beyond = (np.asarray(noise.at(step, 5).values(8)) for step in (4, 5))
    assert (beyond == undrawn(beyond.dtype)).all() and not (within == undrawn(beyond.dtype)).any()
    draws = Draws(np.int32(0), np.int32(5), np.zeros(1, np.int32), np.zeros((8, 2), int), noise)
    assert draws.at(np.int32(6)).noise.stop == 5


def test_rounds_in_a_row_depend_on_public_numbers():
    case = next(case for case in CASES if case.id == "logistic")

    def in_a_row(n, rate, adjacency="zero_out", on_device=True):
        parameters = {**case.quick, "sampling_rate": rate, "adjacency": adjacency}
        return inference.rounds_in_a_row(fit_of(case, *case.data(n), **parameters).spec, on_device)

    many = inference.IN_A_ROW
    assert [in_a_row(1000, 0.1), in_a_row(1000, 1.0), in_a_row(2600, 0.1)] == [many, many, 1]
    assert in_a_row(1000, 0.1, on_device=False) == 1
    assert {in_a_row(n, 0.1, "add_remove") for n in (1000, 2600)} == {1}


@pytest.mark.slow
@pytest.mark.usefixtures("in_a_loop")
def test_windows_need_not_end_with_rounds_in_a_row(monkeypatch):
    X, y = divided.table()
    how = {"sampling_rate": 0.1, "n_steps": 37, "adjacency": "zero_out"}
    monkeypatch.setattr(draws_module, "_HITS", int(13.5 * 0.1 * len(X)))  # windows of 13 or fewer
    fitted = []
    for on_device in (False, True):
        monkeypatch.setattr(inference, "_suited", lambda records, spec, d=on_device: (records, d))
        fitted.append(divided.fitted("dpvi", how, X, y))
    host, device = (np.concatenate([x.coef_.ravel(), x.posterior_.std]) for x in fitted)
    np.testing.assert_allclose(device, host, rtol=1e-3, atol=1e-4)


@jax.enable_x64(True)
def test_each_entry_has_noise_of_its_own():
    sums = {
        "a": [jnp.zeros((2, 3), jnp.int64), jnp.zeros(4, jnp.int64)],
        "b": jnp.zeros(5, jnp.int64),
    }
    noisy = private_sum_module.add_noise(jnp.arange(20), sums)
    values = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(noisy)])
    np.testing.assert_array_equal(values, np.arange(15))


def sums_of(fit, order, slots, *, whole=False):
    """Integer sums over all records, taken in an order, of each kind of round."""
    with arithmetic():
        mechanism = jax.device_put(fit.spec.traced())
        records = jax.device_put(replace(fit.records, slots=slots, whole=whole))
        key = fit.keys(0).solver[0]

        @jax.jit
        def every(records, order, mechanism, model, solver):
            state = inference.start(key, model, solver)
            starts = jnp.asarray([0, *(group.stop for group in records.groups())])
            draw = Draw(order, starts, jnp.zeros(1, jnp.int64))

            def of(round_):
                query, blocks = inference._asked(round_, mechanism, state, round_.point(state, key))
                found = partial_sums(query, blocks, mechanism, draw, jnp.int32(0), records)
                return in_one(found)

            return [of(round_) for round_ in solver.rounds(model, mechanism)]

        return jax.device_get(every(records, order, mechanism, fit.model, fit.solver))


@pytest.mark.parametrize(
    ("case", "chunks"),
    [
        pytest.param(case, chunks, marks=marks, id=f"{case.id}, {chunks}")
        for case in CASES
        for chunks, marks in (
            [(2, []), (4, [])] if case.id == "logistic" else [(4, pytest.mark.slow)]
        )
    ],
)
def test_records_do_not_see_where_they_stand(case, chunks):
    """To the last bit: the sum is that of the records, in any order, all at once or in two parts."""
    X, y = case.data(5 * CHUNK // 2)
    fit = fit_of(case, X, y, **case.quick)
    n, rng = int(fit.records.n_records), np.random.default_rng(0)
    order = np.zeros(fit.records.n_slots, np.int32)
    order[:n] = np.arange(n)
    shuffled = order.copy()
    for low, high in itertools.pairwise(fit.records.bounds()):
        shuffled[low:high] = rng.permutation(order[low:high])
    one, other = sums_of(fit, order, chunks * CHUNK), sums_of(fit, shuffled, chunks * CHUNK)
    most = max(np.abs(leaf).max(initial=0) for leaf in jax.tree.leaves(one))
    assert most > 2**20
    by_one = sums_of(fit, order, None)  # by a program whose floating-point numbers may be others
    for a, b, c in zip(*map(jax.tree.leaves, (one, other, by_one)), strict=True):
        assert a.dtype == np.int64
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=0, atol=1e-4 * most)


def test_batches_of_documents_whose_chunks_are_short_are_not_cut_off():
    """Fewer documents than slots fit in a chunk: the loop over chunks stays."""
    case = next(case for case in CASES if case.id == "topics")
    fit = fit_of(case, *case.data(300), **case.quick)
    n, order = int(fit.records.n_records), np.zeros(fit.records.n_slots, np.int32)
    order[:n] = np.arange(n)
    assert _slots(lambda record: record, fit.records, fit.records.groups()[0]) == (1, 256)
    for a, b in zip(
        *(jax.tree.leaves(sums_of(fit, order, None, whole=w)) for w in (True, False)), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_a_chunk_is_never_longer_than_its_sum_is_exact():
    """2^9 contributions of at most 2^43 steps: whatever an accelerator takes at once."""
    case = next(case for case in CASES if case.id == "logistic")
    fit = fit_of(case, *case.data(1000), **case.quick)
    (group,) = fit.records.groups()
    for at_once in (64, CHUNK, 4 * CHUNK, 64 * CHUNK):
        records = jax.device_put(replace(fit.records, slots=at_once))
        chunks, slots = _slots(lambda record: {"x": record["x"]}, records, group)
        assert slots == min(at_once, CHUNK) < 2**9 and chunks == max(1, at_once // CHUNK)


def test_many_small_chunks_are_taken_at_once():
    """Chunks of long documents are short; an accelerator takes as many rows as of other records."""
    case = next(case for case in CASES if case.id == "logistic")
    fit = fit_of(case, *case.data(1000), **case.quick)
    records, (group,) = jax.device_put(fit.records), fit.records.groups()
    long = group._replace(width=2**11)
    for at_once, expected in ((None, (1, 8)), (64 * CHUNK, (64 * CHUNK // 8, 8))):
        found = _slots(lambda record: {"x": record["x"]}, replace(records, slots=at_once), long)
        assert found == expected


def test_products_are_as_precise_as_their_numbers():
    with arithmetic():
        text = jax.jit(jnp.dot).lower(*[np.ones((2, 2), np.float32)] * 2).as_text()
    assert "HIGHEST" in text


def test_an_accelerator_takes_nearly_any_batch_at_once():
    assert slots_at_once(100, None) is None and slots_at_once(100, 128) == 192
    for expected in (1e3, 1e4, 1e5):
        slots = slots_at_once(expected, None)
        assert expected + 8 * expected**0.5 <= slots < 2.5 * expected + 2 * CHUNK
        assert slots % CHUNK == 0
    assert slots_at_once(300, 256) == 2 * CHUNK
    assert slots_at_once(1e9, None) == slots_at_once(1e8, None)  # as much as memory holds

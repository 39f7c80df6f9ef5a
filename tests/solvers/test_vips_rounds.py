"""Rounds of expected statistics, on a model small enough to follow by hand."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from skdpbayes import inference
from skdpbayes.intake.packing import pack_records
from skdpbayes.mechanism.keys import fit_keys
from skdpbayes.mechanism.spec import Block, MechanismSpec
from skdpbayes.models.base import Opening
from skdpbayes.privacy import GaussianSteps
from skdpbayes.pytrees import pytree
from skdpbayes.solvers.vips_rounds import StatisticsRounds

f32 = np.float32


@pytree
@dataclasses.dataclass(frozen=True)
class Centred:
    """Sums about a point that an opening sets to the sum of all over four, and that moves by one in each round."""

    def init(self):
        return {
            "point": jnp.zeros((), jnp.float32),
            "seen": jnp.zeros(2, jnp.float32),
            "scale": jnp.zeros((), jnp.float32),
        }

    def openings(self):
        def update(params, sums, scales, key):
            return params | {"point": sums["all"] / 4}

        opening = Opening(
            lambda params: lambda record: {"all": record["x"]}, {"all": Block(f32(100))}, update
        )
        return (opening,)

    def statistics(self, params):
        return lambda record: {
            "sums": jnp.stack([1 + 0 * record["x"], record["x"] - params["point"]])
        }

    def blocks(self):
        return {"sums": Block(f32(100))}

    def zeros(self):
        return {"sums": jnp.zeros(2, jnp.float32)}

    def carry(self, sums, old, new):
        count, first = sums["sums"]
        return {"sums": jnp.stack([count, first - count * (new["point"] - old["point"])])}

    def m_step(self, params, sums, scales):
        return {"point": params["point"] + 1, "seen": sums["sums"], "scale": scales["sums"]}

    def posterior(self, params):
        return params


def run(model, rounds, *, least_weight=0.0, noise=0.0, x=(1.0, 2.0, 3.0, 6.0), rate=1.0):
    solver = StatisticsRounds(np.int32(1), f32(least_weight), f32(100))
    spec = MechanismSpec((GaussianSteps(noise, rate, 1 + rounds),))
    state, _ = inference.run(fit_keys(0), model, solver, spec, pack_records(x=np.array(x, f32)))
    return solver, state


@pytest.mark.parametrize("least_weight", [0.0, 1.0])
def test_sums_of_all_rounds_are_averaged_in_present_coordinates(least_weight, compiled_quickly):
    """All rounds see the same rows: about the last round's point they have the same sums, whatever their weights.

    That point is the opening's, which comes first and once, and one more for each round.
    """
    solver, state = run(Centred(), 5, least_weight=least_weight)
    np.testing.assert_allclose(state.params["seen"], [4, 12 - 4 * (3 + 4)], rtol=1e-5)
    np.testing.assert_allclose(state.sums["sums"], [4, 12 - 4 * (3 + 5)], rtol=1e-5)
    assert solver.posterior(Centred(), state)["point"] == pytest.approx(3 + 5)


def test_the_scale_is_that_of_the_average(compiled_quickly):
    """Of null rows the average is noise; its standard deviation follows from the weights 2 / (t + 2)."""
    rounds, noise, rate = 6, 0.5, 0.5
    weight = 2 / (np.arange(rounds) + 2)
    share = weight * np.append(np.cumprod((1 - weight[1:])[::-1])[::-1], 1)
    assert share.sum() == pytest.approx(1)
    want = 100 * noise / rate * np.sqrt(np.sum(share**2))
    solver, state = run(Centred(), rounds, noise=noise, x=[np.nan] * 4, rate=rate)
    assert state.params["scale"] == pytest.approx(want, rel=1e-5)
    assert solver.diagnostics(None, state, None)["noise_std"]["sums"] == pytest.approx(
        want, rel=1e-5
    )
    _, alone = run(Centred(), rounds, noise=noise, x=[np.nan] * 4, rate=rate, least_weight=1.0)
    assert alone.params["scale"] == pytest.approx(100 * noise / rate, rel=1e-5)

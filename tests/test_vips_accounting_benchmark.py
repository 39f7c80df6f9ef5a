"""The benchmark of the VIPS paper's accounting: its equations, its bounds, and what it prints."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import vips_accounting as vips
from skdpbayes.privacy import GaussianSteps, compose
from skdpbayes.privacy.accounting._baselines import zcdp_epsilon


@pytest.mark.parametrize("setting", [vips.lda(1.0), vips.logistic(0.2), vips.sbn(0.5, 100, 50)])
def test_table_one_solves_the_equations_of_the_paper(setting):
    one = vips.TableOne(setting)
    sampled = math.log1p(setting.rate * math.expm1(one.epsilon_one))  # equation 14
    delta = setting.rate * one.delta_one
    assert delta * setting.releases == pytest.approx(setting.delta)
    rho = setting.releases * sampled**2 / (4 * math.log(1.25 / delta))  # equation 13
    assert rho + 2 * math.sqrt(rho * math.log(1 / setting.delta)) == pytest.approx(setting.epsilon)
    assert (one.multiplier * one.epsilon_one) ** 2 == pytest.approx(
        2 * math.log(1.25 / one.delta_one)
    )  # equation 11


def test_without_sampling_table_one_is_zcdp():
    setting = vips.Setting("", 100, 100, 7, 0.8)
    for delta in (1e-5, 0.3):
        steps = GaussianSteps(vips.TableOne(setting, delta).multiplier, 1.0, 7)
        assert zcdp_epsilon((steps,), setting.delta, "zero_out") == pytest.approx(0.8)


def test_blocks_and_distances():
    assert (vips.lda(1.0).rounds, vips.logistic(0.2).releases) == (16_000, 800)
    assert vips.sbn(1.0, 50, 100).releases == 889 * 1200
    rng = np.random.default_rng(
        0
    )  # distances of (y - 1/2) x and x x' / 4, in units of 1 and 1/2, rows on a circle
    angle, signs = rng.uniform(0, 2 * np.pi, (100_000, 2)), rng.choice([-0.5, 0.5], (100_000, 2))
    x = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    first = np.sum((signs[:, :1] * x[:, 0] - signs[:, 1:] * x[:, 1]) ** 2, axis=1)
    outer = (x[:, :, :, None] * x[:, :, None, :]) / 4
    second = np.sum((outer[:, 0] - outer[:, 1]) ** 2, axis=(1, 2))
    assert np.sqrt(first + 4 * second).max() == pytest.approx(vips.logistic(0.2).distance, rel=1e-4)


@pytest.mark.parametrize("noise", [0.1, 0.2, 0.4])
def test_the_lower_bound_lies_below_what_holds(noise):
    setting = vips.Setting("", 1_000, 10, 50, 1.0)
    assert 0.3 < vips.at_least(setting, noise) / vips.holds(setting, noise) < 1
    assert vips.holds_text(setting, 0.01).startswith(">")


def test_needed_noise_keeps_the_claim_and_ours_is_the_least():
    setting = vips.Setting("", 1_000, 10, 20, 1.0)
    noise = vips.needed(setting)
    assert compose(GaussianSteps(noise["RDP"], 0.01, 20)).rdp_epsilon(1e-4) == pytest.approx(
        1.0, rel=1e-2
    )
    assert zcdp_epsilon(
        (GaussianSteps(noise["zCDP"], 0.01, 20),), 1e-4, "zero_out"
    ) == pytest.approx(1.0, rel=1e-2)
    assert all(noise["PLD"] < other for name, other in noise.items() if name != "PLD")


def test_two_images_are_at_the_bound_of_all_statistics():
    assert 0.9 < vips.sbn_distance(1.0, 5) < vips.sbn_distance(100.0, 5) <= 1
    assert vips.sbn_distance(100.0, 5) > 0.99


def test_best_shares_have_the_least_noise():
    least = vips.sbn_noise(50)["three blocks, best shares"]
    K, J = 50, vips.PIXELS
    assert least == pytest.approx((K + J * (K + 1) + J * (K + 1) ** 2 / 4) ** 2)
    assert least == min(vips.sbn_noise(50).values())


def test_tables_show_what_fails(capsys):
    vips.delta_table(vips.lda(1.0), [2.5e-4, 1.2])
    vips.counterexamples()
    lines = capsys.readouterr().out.splitlines()
    held = [line.split()[-1] for line in lines if line[:4] in ("0.00", "1.2 ", "equa", "exac")]
    safe, no_noise, equation_11, exact = (float(cell.strip(">")) for cell in held)
    assert safe < 1 < exact < 1.1 < equation_11 < no_noise

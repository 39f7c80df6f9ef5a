"""The report of a fit: plain public data that says when it does not hold."""

import dataclasses
import html
import json
import math
import pickle
import re

import numpy as np
import pytest

from skdpbayes.privacy import (
    BudgetError,
    GaussianSteps,
    PrivacyLeakWarning,
    PrivacyLedger,
    PrivacySpent,
    calibrate_noise,
    compose,
    truncation_delta,
)
from skdpbayes.privacy.selection import SelectionSpent
from skdpbayes.privacy.spent import Total

STEPS = (GaussianSteps(2.0, 0.05, 300),)


def spent(**changes):
    eps = compose(STEPS).epsilon(1e-5)
    fields = {
        "epsilon": eps,
        "delta": 1e-5,
        "adjacency": "zero_out",
        "steps": STEPS,
        "clipping_norm": 1.5,
        "crosscheck": {"accepted": True, "ratio": 0.999},
        "random_source": "os.urandom, ChaCha20",
        "public": {"n_records": 1000, "classes": [0, 1], "bounds": [-1.0, 1.0]},
    }
    return PrivacySpent(**(fields | changes))


def test_derived_values_follow_the_steps():
    report = spent()
    assert (report.sampling_rate, report.noise_multiplier, report.n_steps) == (0.05, 2.0, 300)
    varied = spent(steps=[GaussianSteps(2.0, 0.05, 300), GaussianSteps(4.0, 0.05, 10)])
    assert varied.noise_multiplier == ((2.0, 300), (4.0, 10))
    assert varied.sampling_rate == 0.05
    assert varied.n_steps == 310


def test_round_trips_are_equal():
    for report in (
        spent(),
        spent(
            epsilon=math.inf,
            steps=[GaussianSteps(0.0, 0.1, 3)],
            seeded=True,
            grid=2.0**-16,
            numerics="secure",
        ),
        spent(
            cumulative=[GaussianSteps(1.0, 0.1, 3)],
            voided_by=["labels inferred"],
            crosscheck="rejected",
        ),
    ):
        text = report.to_json()
        assert PrivacySpent.from_json(text) == report
        assert PrivacySpent.from_json(text).to_json() == text
        assert pickle.loads(pickle.dumps(report)) == report
        json.loads(text, parse_constant=pytest.fail)  # strict JSON: no Infinity, no NaN
    assert spent() != spent(seeded=True)


def test_numpy_values_become_plain():
    report = spent(
        clipping_norm=np.float32(1.5),
        public={
            "n_records": np.int64(1000),
            "classes": np.array([0, 1]),
            "bounds": (-1.0, np.float64(1.0)),
        },
    )
    assert report == spent()
    assert report.to_json() == spent().to_json()
    assert type(report.public["n_records"]) is int


def test_it_is_immutable_and_keeps_its_own_copy():
    public = {"classes": [0, 1]}
    report = spent(public=public)
    public["classes"].append(2)
    assert report.public == {"classes": [0, 1]}
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.epsilon = 0.0


def test_epsilon_and_delta_elsewhere():
    report = spent()
    assert report.epsilon_at(1e-5) == report.epsilon
    assert report.delta_at(report.epsilon) <= 1e-5 * (1 + 1e-9)
    assert report.epsilon_at(1e-7) > report.epsilon > report.epsilon_at(1e-3)
    assert report.curve == compose(STEPS)


@pytest.mark.parametrize("delta", [2e-6, 5e-6, 1.1e-5, 1e-4])
def test_overheads_are_part_of_every_answer(delta):
    overhead = 1e-6
    base = compose(STEPS)
    report = spent(
        epsilon=base.epsilon(1e-5) + 0.01,
        delta=1e-5 + overhead,
        delta_overhead=overhead,
        epsilon_overhead=0.01,
    )
    eps = report.epsilon_at(delta)
    assert report.delta_at(eps) <= delta * (1 + 1e-9)
    # Truncation with this overhead at the reported epsilon, computed from scratch at the new one
    growth = (1 + math.exp(eps)) / (1 + math.exp(report.epsilon))
    assert base.delta(eps - 0.01) + overhead * growth <= delta * (1 + 1e-9)
    assert eps > base.epsilon(delta)
    assert report.epsilon_at(overhead) == math.inf
    assert report.delta_at(0.005) == 1.0


def test_an_overhead_of_epsilon_alone_shifts_the_curve():
    base = compose(STEPS)
    report = spent(epsilon=base.epsilon(1e-5) + 0.25, epsilon_overhead=0.25)
    for delta in (1e-7, 1e-5, 1e-3):
        assert report.epsilon_at(delta) == base.epsilon(delta) + 0.25
    assert report.delta_at(1.0) == base.delta(0.75)


def test_overhead_grows_at_least_as_truncation_does():
    eps = compose(STEPS).epsilon(1e-5)
    report = spent(delta=2e-5, delta_overhead=truncation_delta(10000, 0.05, 650, 300, eps))
    later = eps + 1.0
    assert report.delta_at(later) >= compose(STEPS).delta(later) + truncation_delta(
        10000, 0.05, 650, 300, later
    )


def test_overheads_grow_in_a_composition():
    """Together the fits have a larger epsilon, at which each one's overhead is larger, too."""
    eps = compose(STEPS).epsilon(1e-5)
    one = spent(epsilon=eps + 1e-3, delta=1.01e-5, epsilon_overhead=1e-3, delta_overhead=1e-7)
    total = Total.composed([one.total] * 3)
    ideal, unknown = compose(STEPS * 3), Total(*one.total[:4])
    assert total.epsilon_overhead == pytest.approx(3e-3) and total.delta == pytest.approx(3.03e-5)
    steps = ideal.delta(total.epsilon - 3e-3)
    assert steps + 3e-7 * math.exp(total.epsilon - one.epsilon) <= 3.03e-5
    assert total.epsilon < Total.composed([unknown] * 3).epsilon == pytest.approx(3 * one.epsilon)
    assert Total.composed([one.total, unknown]).releases is None
    again = spent(epsilon=eps, delta=1.01e-5, delta_overhead=1e-7, cumulative=STEPS * 2)
    assert again.total.epsilon == again.cumulative_epsilon > eps
    grown = 1e-7 * math.exp(again.cumulative_epsilon - eps)
    assert 2e-7 < grown and ideal.delta(again.cumulative_epsilon) + grown <= 1.01e-5
    assert again.total.delta_overhead == pytest.approx(grown)


def test_a_composition_is_of_the_worst_of_its_parts():
    search = SelectionSpent(1.0, 1e-5, 1.5, 2e-5, "secure", "zero_out", "row", 0.2, 5.0)
    fit = spent(numerics="fast", seeded=True, voided_by=["a seed"])
    both = SelectionSpent.composed({"scale": fit, "search": search}, [fit])
    assert both.epsilon == both.total_epsilon == pytest.approx(1.5 + 2 * fit.epsilon)
    assert both.total.delta == pytest.approx(2e-5 + 2 * fit.delta) and both.releases is None
    assert both.numerics == "fast" and both.seeded
    assert both.voided_by == ("a seed", "an earlier fit: a seed")
    safe = spent(numerics="secure", grid=1e-9)
    fits = PrivacySpent.composed(
        {"a": fit, "b": safe}, [safe], public={"c": 1}, covered=safe.not_covered[:1]
    )
    assert fits.numerics == "fast" and fits.seeded and fits.grid == 1e-9
    assert fits.steps == fit.steps + safe.steps and fits.cumulative == safe.releases
    assert fits.public == {"c": 1, "a": fit.public, "b": safe.public}
    assert fits.not_covered == safe.not_covered[1:]
    for wrong in ({"search": search, "a": fit}, {}):
        with pytest.raises(ValueError, match="has to be the last"):
            PrivacySpent.composed(wrong)
    with pytest.raises(ValueError, match="has to be a private search"):
        SelectionSpent.composed({"a": fit})
    with pytest.raises(ValueError, match="different adjacencies"):
        PrivacySpent.composed({"a": fit, "b": spent(adjacency="replace_one")})


def test_from_calibration():
    found = calibrate_noise(1.0, 1e-5, 0.02, 500)
    report = PrivacySpent.from_calibration(
        found, 2.0, seeded=True, delta_overhead=1e-9, epsilon_overhead=1e-4
    )
    assert report.epsilon == found.epsilon + 1e-4
    assert report.delta == 1e-5 + 1e-9
    assert (report.steps, report.accountant, report.clipping_norm) == (found.steps, "pld", 2.0)
    assert report.crosscheck == str(found.crosscheck)
    assert report.seeded


def test_refits_compose():
    report = spent(cumulative=STEPS + STEPS)
    assert report.cumulative_epsilon == compose(STEPS * 3).epsilon(1e-5)
    assert report.cumulative_epsilon > report.epsilon
    assert spent().cumulative_epsilon == spent().epsilon


def test_compose_refuses_what_does_not_fit():
    assert spent().compose(spent(), spent()) == compose(STEPS * 3)
    assert spent().compose() == compose(STEPS)
    for other, message in [
        (spent(adjacency="replace_one"), "adjacency"),
        (spent(unit="document"), "unit"),
        (spent(delta_overhead=1e-9), "overheads"),
        (3, "PrivacySpent"),
    ]:
        with pytest.raises(ValueError, match=message):
            spent().compose(other)


def test_what_voids_the_guarantee_is_said_everywhere():
    assert spent().guarantee_holds
    report = spent(voided_by=("classes were read from y",), seeded=True)
    assert not report.guarantee_holds
    assert "VOID: classes were read from y" in repr(report)
    assert "seeded" in repr(report)
    assert "void: classes were read from y" in report._repr_html_()
    assert "VOID" not in repr(spent())


def test_repr_is_one_line():
    report = spent(
        voided_by=("two\nlines",), steps=[GaussianSteps(2.0, 0.05, 3), GaussianSteps(3.0, 0.1, 3)]
    )
    assert "\n" not in repr(report)
    assert repr(spent()).startswith("PrivacySpent(epsilon=")


def test_html_escapes_everything_a_user_can_name():
    evil = "<script>alert('x')</script>"
    report = spent(
        unit=evil, accountant=evil, crosscheck=evil, random_source=evil, public={evil: evil},
        voided_by=(evil,), not_covered=(evil,), cumulative=STEPS,
    )  # fmt: skip
    card = report._repr_html_()
    assert "<script" not in card
    assert card.count(html.escape(evil)) == 8
    assert "with earlier fits" in card
    assert card.count("<tr>") == card.count("</tr>") == 12


def test_many_blocks_are_abridged():
    report = spent(steps=[GaussianSteps(1.0 + i, 0.05, 2) for i in range(9)])
    assert "5 more blocks" in report._repr_html_()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"adjacency": "swap"}, "adjacency"),
        ({"steps": []}, "steps"),
        ({"clipping_norm": 0.0}, "clipping_norm"),
        ({"grid": -1.0}, "grid"),
        ({"numerics": "exact"}, "numerics"),
        ({"delta_overhead": 1e-4}, "delta_overhead"),
        ({"epsilon_overhead": 1e4}, "epsilon_overhead"),
        ({"public": {"model": object()}}, "public"),
        ({"voided_by": "a string"}, "voided_by"),
    ],
)
def test_fields_are_checked(changes, message):
    with pytest.raises(ValueError, match=message):
        spent(**changes)


def test_foreign_records_are_refused():
    record = spent().to_dict()
    with pytest.raises(ValueError, match="not a PrivacySpent"):
        PrivacySpent.from_dict(record | {"color": "red"})
    del record["steps"]
    with pytest.raises(ValueError, match="not a PrivacySpent"):
        PrivacySpent.from_dict(record)


def test_leak_warning_is_a_user_warning():
    assert issubclass(PrivacyLeakWarning, UserWarning)


def numbers_after(word, text):
    return [
        float(found) for found in re.findall(rf"{word}[ =]+([0-9.e-]*[0-9])", html.unescape(text))
    ]


def test_what_is_shown_is_rounded_towards_caution():
    steps, delta = (
        GaussianSteps(8.0, 1.0, 1),
        1.00049e-5,
    )  # to the nearest of three digits, delta would fall
    spent = PrivacySpent(
        epsilon=1.00004,
        delta=delta,
        adjacency="zero_out",
        steps=steps,
        clipping_norm=1.0,
        cumulative=[steps] * 2,
    )
    for text in (repr(spent), spent._repr_html_()):
        assert min(numbers_after("(?:epsilon|ε)", text)[:1]) >= 1.00004
        assert min(numbers_after("(?:delta|δ)", text)) >= delta
        assert numbers_after("epsilon", text)[-1] >= spent.cumulative_epsilon
    search = SelectionSpent(
        epsilon=1.00004, delta=delta, total_epsilon=2.00004, total_delta=2 * delta, numerics="secure",
        adjacency="zero_out", unit="row", run_epsilon=0.500014, n_iter=2.0,
    )  # fmt: skip
    assert numbers_after("with epsilon", str(search))[0] >= 0.500014 and str(search).startswith(
        "(1.001, 1.001e-05)"
    )
    assert numbers_after("epsilon", search._repr_html_())[-1] >= 2.00004
    assert numbers_after("delta", search._repr_html_())[-1] >= 2 * delta


@pytest.mark.parametrize("sigma", [7.0, 8.0, 9.0, 10.0, 11.0, 12.0])
def test_a_ledger_rounds_what_is_spent_up_and_what_is_left_down(sigma):
    ledger = PrivacyLedger(1.00004, 1.00049e-5)
    ledger.charge(GaussianSteps(sigma, 1.0, 1))
    text = ledger._repr_html_()
    assert numbers_after("epsilon", text)[-1] >= ledger.spent_epsilon
    spent, *_, left = (float(found) for found in re.findall(r"([0-9.]+)%", text))
    assert left <= 100 * (1 - ledger.spent) and spent >= 100 * ledger.spent
    with pytest.raises(BudgetError) as refused:
        ledger.charge(GaussianSteps(0.5, 1.0, 1))
    assert numbers_after("may take epsilon", str(refused.value))[0] <= ledger.affordable_epsilon()

"""Rounds as an accelerator would get them: none of them calls the host."""

import jax
import numpy as np
import pytest
from cases import CASES
from jax import export
from whitebox import fit_of

from skdpbayes import inference


class Stopped(Exception):
    pass


def rounds_for_cuda(fit, patch):
    """All kinds of rounds of a fit, as a text in StableHLO; nothing is run."""
    texts = []

    def exported(*given):
        program = export.export(jax.jit(inference._some_steps), platforms=["cuda"])(*given)
        texts.append(str(program.mlir_module()))
        raise Stopped

    patch.setattr(inference, "_steps", exported)
    with pytest.raises(Stopped):
        fit.run(0)
    return texts[0]


def calls_of_the_host(text):
    return [line for line in text.splitlines() if "callback" in line or "outfeed" in line]


@pytest.mark.usefixtures("in_a_loop")
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
    assert "stablehlo.while" in text and not calls_of_the_host(text)


def test_the_check_sees_a_call_of_the_host():
    def noisy(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), np.float32), x)

    assert calls_of_the_host(jax.jit(noisy).lower(np.float32(1)).as_text())
    with pytest.raises(ValueError, match="platform"):  # and no such program can be exported
        export.export(jax.jit(noisy), platforms=["cuda"])(np.float32(1))

"""Settings drawn at random: each is fixed by its number, and the command runs them."""

import pytest

from benchmarks import random_settings


@pytest.mark.parametrize("family", random_settings.FAMILIES)
def test_a_setting_is_fixed_by_its_number(family):
    (first, cell), (again, _) = (random_settings.setting(family, 3) for _ in range(2))
    labels = {random_settings.setting(family, k)[0] for k in range(20)}
    assert first == again and len(labels) == 20
    assert 40 < cell.n_rows < 200_000 and cell.estimator().epsilon > 0


def test_lines_and_summaries_are_printed(capsys):
    arguments = "--families conjugate linear --first 13 --settings 1 --seeds 2"
    random_settings.main([*arguments.split(), "--parameters", "sampling_rate=0.9"])
    out = capsys.readouterr().out.splitlines()
    assert sum("covered" in line for line in out) + sum("REFUSED" in line for line in out) == 2
    assert "REFUSED" in "".join(out)  # single releases take no rate
    assert out[-1].startswith("linear: 1 settings; coef 0.") and "noise_std 0." in out[-1]

"""`python -m skdpbayes`: answers are those of `skdpbayes.privacy`, rounded towards caution; errors are one line."""

import dataclasses
import json
import math
import re
import shlex
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import skdpbayes
from skdpbayes.__main__ import main
from skdpbayes.privacy import (
    GaussianSteps,
    PrivacyLedger,
    PrivacySpent,
    Selection,
    baselines,
    calibrate_noise,
    compose,
)
from skdpbayes.privacy.report import rounded

BLOCK = GaussianSteps(2.0, 0.01, 5000)
SCHEDULE = "--noise-multiplier 2 --sampling-rate 0.01 --steps 5000"


@pytest.fixture
def run(capsys):
    """Runs a command and returns what it prints."""

    def call(command):
        assert main(shlex.split(command)) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return call


@pytest.fixture
def ask(run):
    """Runs a command and returns its answer, which has to be strict JSON."""

    def not_json(name):
        raise AssertionError(f"{name} is no JSON")

    return lambda command: json.loads(run(f"{command} --json"), parse_constant=not_json)


@pytest.fixture
def complaint(capsys):
    """Runs a command that fails and returns what it says."""

    def call(command):
        with pytest.raises(SystemExit) as stopped:
            main(command.split())
        out, err = capsys.readouterr()
        assert (
            stopped.value.code == 2
            and out == ""
            and err.count("\n") == 1
            and err.startswith("skdpbayes")
        )
        return err

    return call


def shown(text, name):
    """The number that follows a name at the start of a line."""
    return float(re.search(rf"^{re.escape(name)}\D*?\s+([-+.e\d]+)", text, re.MULTILINE)[1])


@settings(max_examples=200)
@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 6))
def test_rounding_keeps_a_bound_a_bound(value, digits):
    above, below = (float(rounded(value, digits, up=up)) for up in (True, False))
    assert below <= value <= above
    if math.isfinite(above) and math.isfinite(below) and abs(value) > 1e-300:
        assert above - below <= 1.001 * abs(value) * 10.0 ** (1 - digits)


def test_rounding_leaves_what_needs_none():
    assert [rounded(value) for value in (0.1, 2.0, 1e-5, 0.0, math.inf)] == [
        "0.1",
        "2",
        "1e-05",
        "0",
        "inf",
    ]


def test_noise(run, ask):
    question = "noise --epsilon 1 --delta 1e-5 --sampling-rate 600/60000 --steps 1000 --adjacency replace_one"
    found, answer = calibrate_noise(1.0, 1e-5, 0.01, 1000, adjacency="replace_one"), ask(question)
    for name in ("noise_multiplier", "epsilon", "target_epsilon", "delta", "adjacency"):
        assert answer[name] == getattr(found, name)
    assert answer["steps"] == [step.to_dict() for step in found.steps]
    assert answer["crosscheck"] == found.crosscheck.to_dict() and answer["crosscheck"]["accepted"]
    text = run(question)
    assert str(found.crosscheck) in text
    sigma, epsilon = shown(text, "noise multiplier"), shown(text, "epsilon")
    assert (
        found.noise_multiplier <= sigma < 1.001 * found.noise_multiplier
        and found.epsilon <= epsilon <= 1
    )
    # What is read off the screen keeps the budget.
    assert compose(GaussianSteps(sigma, 0.01, 1000), "replace_one").epsilon(1e-5) <= epsilon


def test_no_privacy_is_no_noise(run, ask):
    assert ask("noise --epsilon inf --delta 1e-5 --steps 10")["epsilon"] == "inf"
    answer = ask("epsilon --noise-multiplier 0 --delta 1e-5 --steps 10 --accountants")
    assert {answer["epsilon"], *answer["accountants"].values()} == {"inf"}
    assert "inf at most" in run("epsilon --noise-multiplier 0 --delta 1e-5 --steps 10")


def test_epsilon_of_blocks(run, ask):
    question = "epsilon --noise-multiplier 2 4 --sampling-rate 0.01 --steps 5000 300 --delta 1e-6 --accountants"
    blocks = [BLOCK, GaussianSteps(4.0, 0.01, 300)]
    answer, text = ask(question), run(question)
    assert answer["epsilon"] == compose(blocks).epsilon(1e-6) <= shown(text, "epsilon")
    assert answer["steps"] == [block.to_dict() for block in blocks]
    assert answer["accountants"] == baselines(blocks, 1e-6)
    for name, value in answer["accountants"].items():
        assert value <= shown(text, name) < 1.001 * value
    rates = ask(
        "epsilon --noise-multiplier 2 --sampling-rate 0.01 0.02 --steps 5000 300 --delta 1e-6"
    )
    assert [step["sampling_rate"] for step in rates["steps"]] == [0.01, 0.02]
    of_all = ask("epsilon --noise-multiplier 2 --steps 3 --delta 1e-6")
    assert of_all["epsilon"] == compose(GaussianSteps(2.0, 1.0, 3)).epsilon(1e-6)


def test_meaning_of_a_schedule(run, ask):
    question = f"meaning {SCHEDULE} --fpr 0 0.01 0.5 --prior 1e-4 0.1 --adjacency replace_one"
    curve, answer, text = compose(BLOCK, "replace_one"), ask(question), run(question)
    assert (
        answer["advantage"]
        == curve.advantage()
        <= shown(text, "advantage (largest difference of the two rates)")
    )
    assert answer["attacks"] == [{"fpr": fpr, "tpr": curve.tpr(fpr)} for fpr in (0, 0.01, 0.5)]
    assert answer["reconstruction"] == [
        {"prior": p, "success": curve.reconstruction(p)} for p in (1e-4, 0.1)
    ]
    assert curve.tpr(0.01) <= shown(text, "0.01") < 1.001 * curve.tpr(0.01)
    assert "exchanged for any other" in text


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(1.0, 1e-2), (0.1, 1e-5), (3.0, 0.0), (0.0, 0.3), (800.0, 1e-5)]
)
def test_what_epsilon_and_delta_allow_is_what_the_worst_mechanism_does(ask, epsilon, delta):
    """It tells all with probability delta, and otherwise answers a yes or no question at odds of exp(epsilon)."""
    wrong = (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))
    right = 1 - delta - wrong
    answer = ask(f"meaning --epsilon {epsilon} --delta {delta} --fpr 0 {wrong!r} 1")
    rates = [attack["tpr"] for attack in answer["attacks"]]
    assert rates == pytest.approx([delta, delta + right, 1], rel=1e-12)
    assert answer["advantage"] == pytest.approx(delta + right - wrong, abs=1e-12)
    assert f"({epsilon:g}, {delta:g})-privacy" in answer["supposed"]


def test_one_gaussian_release_gives_less_away_than_epsilon_and_delta_allow(ask):
    question = "meaning --epsilon 1 --delta 1e-5 --fpr 1e-6 0.001 0.1 0.9"
    worst, gaussian = ask(question), ask(f"{question} --gaussian")
    pairs = list(zip(worst["attacks"], gaussian["attacks"], strict=True))
    assert (
        all(one["tpr"] < most["tpr"] for most, one in pairs)
        and gaussian["advantage"] < worst["advantage"]
    )
    sigma = calibrate_noise(1.0, 1e-5, 1.0, 1, rtol=1e-6).noise_multiplier
    assert gaussian["advantage"] == pytest.approx(
        compose(GaussianSteps(sigma, 1.0, 1)).advantage(), rel=1e-5
    )
    assert "one Gaussian release" in gaussian["supposed"]


@pytest.fixture
def spent():
    found = calibrate_noise(1.0, 1e-5, 0.01, 1000)
    return PrivacySpent.from_calibration(found, 1.0, public={"n_samples": 60000})


def test_report(run, ask, spent, tmp_path):
    file = tmp_path / "spent.json"
    file.write_text(spent.to_json())
    answer, text = ask(f"report {file} --delta 1e-3 1e-8"), run(f"report {file} --delta 1e-8")
    assert answer["epsilon_at"] == [
        {"delta": d, "epsilon": spent.epsilon_at(d)} for d in (1e-3, 1e-8)
    ]
    assert answer["guarantee_holds"] and answer["cumulative_epsilon"] == spent.epsilon
    assert PrivacySpent.from_dict({name: answer[name] for name in spent.to_dict()}) == spent
    assert (
        text.startswith(f"(epsilon {rounded(spent.epsilon)}, delta 1e-05)")
        and "The guarantee holds." in text
    )
    factor = float(re.search("^(.*) times the probability", text, re.MULTILINE)[1])
    assert (
        math.exp(spent.epsilon) <= factor < 1.001 * math.exp(spent.epsilon)
        and "n_samples=60000" in text
    )
    assert spent.epsilon_at(1e-8) <= shown(text, "1e-08")


def test_report_says_what_does_not_hold_and_what_came_before(run, ask, spent, tmp_path):
    file = tmp_path / "spent.json"
    later = dataclasses.replace(
        spent, voided_by=("classes were read from y",), cumulative=spent.steps
    )
    file.write_text(later.to_json())
    text = run(f"report {file}")
    assert "GUARANTEE VOID: classes were read from y" in text and "The guarantee holds" not in text
    assert later.cumulative_epsilon <= shown(text, "with earlier fits  epsilon")
    assert not ask(f"report {file}")["guarantee_holds"]
    file.write_text(
        dataclasses.replace(spent, epsilon=math.inf, steps=[GaussianSteps(0.0, 1.0, 1)]).to_json()
    )
    assert ask(f"report {file}")["epsilon"] == "inf"
    assert "inf times the probability" in run(f"report {file}")


def test_report_refuses_a_claim_that_its_rounds_contradict(complaint, spent, tmp_path):
    file = tmp_path / "spent.json"
    file.write_text(dataclasses.replace(spent, epsilon=0.9).to_json())
    assert "claims epsilon=0.9" in complaint(f"report {file}")


def charged(**how):
    ledger = PrivacyLedger(1.0, 1e-5, **how)
    for label, sigma in (("first fit", 8.0), ("second fit", 16.0)):
        ledger.charge([GaussianSteps(sigma, 1.0, 1)], label=label)
    return ledger


@pytest.mark.parametrize("form", ["sqlite", "json"])
def test_ledger(run, ask, tmp_path, form):
    file = tmp_path / "a budget?.db"
    ledger = charged(path=file if form == "sqlite" else None)
    if form == "json":
        file.write_text(ledger.to_json())
    before = file.read_bytes()
    file.chmod(0o444)
    answer, text = ask(f"ledger '{file}'"), run(f"ledger '{file}'")
    assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]
    for name in ("epsilon", "delta", "adjacency", "unit", "composition", "spent", "spent_epsilon"):
        assert answer[name] == getattr(ledger, name)
    assert answer["affordable_epsilon"] == ledger.affordable_epsilon()
    assert [entry["label"] for entry in answer["entries"]] == ["first fit", "second fit"]
    shares = [entry["share"] for entry in answer["entries"]]
    assert shares == pytest.approx([0.8 * ledger.spent, 0.2 * ledger.spent])  # squares of the noise
    assert 100 * ledger.spent <= shown(text, "spent") and 100 * (1 - ledger.spent) >= shown(
        text, "left"
    )
    may = float(re.search("may take epsilon (.*)", text)[1])
    assert 0.999 * ledger.affordable_epsilon() < may <= ledger.affordable_epsilon()


def test_a_ledger_with_a_void_fit_and_a_search(run, ask, tmp_path):
    file, ledger = tmp_path / "ledger.json", PrivacyLedger(9.0, 1e-5)
    ledger.charge(Selection([[BLOCK]], 10, 0.0), label="search", voided_by=["a seed"])
    file.write_text(ledger.to_json())
    assert "GUARANTEE VOID: search: a seed." in run(f"ledger {file}")
    answer = ask(f"ledger {file}")
    (entry,) = answer["entries"]
    assert (
        answer["voided_by"] == ["search: a seed"]
        and entry["selection"]["mean"] == 10
        and entry["when"]
    )


def test_ledger_without_entries_and_with_a_plan(run, tmp_path):
    file = tmp_path / "budget.db"
    PrivacyLedger(1.0, 1e-5, path=file)
    text = run(f"ledger {file}")
    assert shown(text, "spent") == 0 and shown(text, "left") == 100 and "share" not in text
    plan = [[GaussianSteps(8.0, 1.0, 1)], [GaussianSteps(16.0, 1.0, 1)], [BLOCK]]
    ledger = PrivacyLedger(5.0, 1e-5, composition="plan", plan=plan)
    ledger.charge(plan[0])
    file.write_text(ledger.to_json())
    assert "2 of 3 planned fits" in run(f"ledger {file}")


def test_a_file_that_is_missing_or_something_else(complaint, tmp_path, spent):
    missing, text, other = (tmp_path / name for name in ("missing.db", "text.json", "other.json"))
    text.write_text("no JSON")
    other.write_text("[1, 2]")
    for command in ("report", "ledger"):
        assert "No such file" in complaint(f"{command} {missing}") and not missing.exists()
        assert "cannot read" in complaint(f"{command} {tmp_path}")
        for file in (text, other):
            assert f"{file.name} is not a" in complaint(f"{command} {file}")
    other.write_text(spent.to_json())
    assert "it has no 'ledger'" in complaint(f"ledger {other}")
    other.write_text(PrivacyLedger(1.0, 1e-5).to_json())
    assert "it is a ledger, which `skdpbayes ledger` reads" in complaint(f"report {other}")
    other.write_text('{"epsilon": 1.0, "run_epsilon": 0.5}')
    assert "report of a private search" in complaint(f"report {other}")
    PrivacyLedger(1.0, 1e-5, path=missing)
    assert "is not a report" in complaint(f"report {missing}")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("", "arguments are required: command"),
        ("guess", "invalid choice: 'guess'"),
        ("noise --epsilon 1", "required: --delta, --steps"),
        ("noise --epsilon -1 --delta 1e-5 --steps 10", "epsilon must be above 0"),
        ("noise --epsilon 1 --delta 2 --steps 10", "delta must be in (0, 1)"),
        ("noise --epsilon 1 --delta 1e-5 --steps 2.5", "whole number"),
        ("noise --epsilon 1 --delta 1e-5 --steps 10 --sampling-rate 600/0", "zero records"),
        (
            "noise --epsilon 1 --delta 1e-5 --steps 10 --sampling-rate 6/4",
            "sampling_rate must be in (0, 1]",
        ),
        ("noise --epsilon 1e-300 --delta 1e-5 --steps 10", "no noise multiplier"),
        ("noise --eps 1 --delta 1e-5 --steps 10", "required: --epsilon"),
        ("epsilon --noise-multiplier 1 2 --steps 10 --delta 1e-5", "one value, or one a block"),
        ("epsilon --noise-multiplier nan --steps 10 --delta 1e-5", "--noise-multiplier must be"),
        (
            "epsilon --noise-multiplier 1 --sampling-rate 0.1 --steps 1e300 --delta 1e-5",
            "too extreme",
        ),
        ("meaning", "a schedule needs"),
        (f"meaning {SCHEDULE} --delta 1e-5", "go with --epsilon"),
        (f"meaning {SCHEDULE} --epsilon 1 --delta 1e-5", "give one of both"),
        ("meaning --epsilon 1", "needs --delta"),
        ("meaning --epsilon inf --delta 1e-5", "promises nothing"),
        ("meaning --epsilon 1 --delta 0 --gaussian", "delta must be in (0, 1)"),
        ("meaning --epsilon 1 --delta 1e-5 --fpr 1.5", "--fpr: must be in [0, 1]"),
        ("meaning --epsilon 1 --delta 1e-5 --prior nan", "--prior: must be in [0, 1]"),
    ],
)
def test_an_error_is_one_line(complaint, command, says):
    assert says in complaint(command)


@pytest.mark.parametrize("command", ["noise", "epsilon", "meaning", "report", "verify", "ledger"])
def test_help_has_an_example_that_parses(capsys, command):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    examples = re.findall(r"^  skdpbayes (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert examples
    for example in examples:
        if command in ("noise", "epsilon", "meaning"):
            assert main(example.split()) == 0
        else:
            with pytest.raises(SystemExit):  # the file of the example is not there
                main(example.split())
            assert "No such file" in capsys.readouterr().err


def test_as_a_program_without_jax():
    version = subprocess.run(
        [sys.executable, "-m", "skdpbayes", "--version"], capture_output=True, text=True, timeout=60
    )
    assert (version.returncode, version.stdout) == (0, f"skdpbayes {skdpbayes.__version__}\n")
    code = (
        "import sys; from skdpbayes.__main__ import main; "
        "main('noise --epsilon 1 --delta 1e-5 --sampling-rate 0.01 --steps 100'.split()); "
        f"main('meaning {SCHEDULE}'.split()); "
        "sys.exit(str({'jax', 'sklearn', 'matplotlib', 'scipy.stats'} & set(sys.modules) or '') or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr

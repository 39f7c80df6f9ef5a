"""Statements for officers: their numbers, their page, and what a tampered one is told."""

import copy
import dataclasses
import json
import math
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from skdpbayes import DPBetaBernoulli
from skdpbayes.__main__ import main
from skdpbayes.pipelines import make_private_pipeline
from skdpbayes.preprocessing import CategoryEncoder
from skdpbayes.privacy import (
    GaussianSteps,
    PrivacyLedger,
    PrivacySpent,
    SelectionSpent,
    calibrate_noise,
    compose,
    statement,
    statement_page,
    verify_statement,
)
from skdpbayes.privacy.card import rounded
from skdpbayes.privacy.statements import attack_rates, read_statement
from skdpbayes.schema import Schema

WHO = {"by": "Hospital of Ur", "name": "Smokers <by ward>", "intended_use": "planning"}


def sampled(**others):
    found = calibrate_noise(1.0, 1e-5, 0.01, 1000)
    own = {"version": _version(), "public": {"n_samples": 60000}, "estimator": "DPModel"}
    return PrivacySpent.from_calibration(found, 1.0, **(own | others))


def _version():
    from skdpbayes import __version__

    return __version__


@pytest.fixture(scope="module")
def spent():
    return sampled()


@pytest.fixture(scope="module")
def told(spent):
    ledger = PrivacyLedger(2.0, 1e-5)
    ledger.charge(spent.steps, label="DPModel")
    return statement(spent, ledger=ledger, **WHO)


@pytest.fixture(scope="module")
def fitted(compiled_quickly):
    rows = pd.DataFrame({"smokes": ["no", "yes"] * 500})
    schema = {"columns": [{"name": "smokes", "categories": ["no", "yes"]}]}
    encoder = CategoryEncoder(Schema.from_dict(schema))
    model = DPBetaBernoulli(epsilon=0.5)
    pipeline = make_private_pipeline(encoder, model).fit(rows)
    first = pipeline.privacy_spent_
    return first, pipeline.fit(rows).privacy_spent_, model.privacy_spent_


def test_a_statement_says_who_what_and_under_which_conditions(told, spent):
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    own = told["deployment"]
    assert own["basic"]["data_curators"] == ["Hospital of Ur"]
    assert own["privacy_loss"]["privacy_parameters"] == {
        "epsilon": spent.epsilon,
        "delta": spent.delta,
    }
    assert own["privacy_loss"]["privacy_unit"] == "row"
    assert "n_samples: 60000" in own["dp_variant"]["unprotected_quantities"]
    assert PrivacySpent.from_dict(told["spent"]) == spent
    curve = compose(spent.steps)
    assert told["meaning"]["attacks"] == [
        {"fpr": rate, "tpr": pytest.approx(curve.tpr(rate))} for rate in (0.001, 0.01, 0.1)
    ]
    assert told["ledger"]["content"]["entries"][0]["label"] == "DPModel"
    with pytest.raises(ValueError, match="PrivacySpent"):
        statement("spent")


def test_fields_are_those_of_the_registry(told):
    """Of its schema (deployments-schema.yaml, opendp/deployments-registry-data, 2026)."""
    known = {
        "basic": "name data_curators intended_use data_product_type data_product_region "
        "description publication_date data_product_sector",
        "dp_variant": "variant_name data_domain unprotected_quantities",
        "privacy_loss": "privacy_unit privacy_unit_details privacy_parameters "
        "privacy_parameters_details",
        "deployment_model": "model_name model_name_details actors release_type "
        "release_type_details data_source_type data_source_type_details access_type "
        "access_type_details",
        "accounting": "post_processing composition",
        "implementation": "preprocessing_and_hyperparameter_tuning mechanisms justification",
        "administrative": "sources notes registry_authors",
    }
    assert set(told["deployment"]) == set(known)
    for group, names in known.items():
        assert set(told["deployment"][group]) <= set(names.split()), group
    required = known["basic"].split()[:-1]
    assert set(told["deployment"]["basic"]) == set(required)


def test_an_honest_statement_follows(told, spent, fitted):
    verdict = verify_statement(told)
    assert verdict.follows and not verdict.problems and len(verdict.checked) > 10
    assert verify_statement({"spent": spent.to_dict()}).follows
    for report in fitted:
        for told_of in (statement(report), {"spent": report.to_dict()}):
            assert verify_statement(told_of).follows, verify_statement(told_of)
    for adjacency in ("add_remove", "replace_one"):
        found = calibrate_noise(2.0, 1e-6, 1.0, 3, adjacency=adjacency)
        report = PrivacySpent.from_calibration(found, None, version=_version())
        assert verify_statement(statement(report)).follows


def changed(record, path, value):
    """Copy with another value, a function of the old one."""
    out = copy.deepcopy(record)
    *way, last = path
    inner = out
    for step in way:
        inner = inner[step]
    inner[last] = 1e-3 if value is None else value(inner[last])
    return out


TAMPERED = {
    "epsilon": (["spent", "epsilon"], lambda x: 0.9 * x),
    "epsilon, slightly": (["spent", "epsilon"], lambda x: 0.9999 * x),
    "epsilon, larger": (["spent", "epsilon"], lambda x: 1.1 * x),
    "delta": (["spent", "delta"], lambda x: 0.1 * x),
    "delta, larger": (["spent", "delta"], lambda x: 10 * x),
    "number of steps": (["spent", "steps", 0, "steps"], lambda x: 2 * x),
    "number of steps, less": (["spent", "steps", 0, "steps"], lambda x: x - 1),
    "noise multiplier": (["spent", "steps", 0, "noise_multiplier"], lambda x: 0.9 * x),
    "noise multiplier, larger": (["spent", "steps", 0, "noise_multiplier"], lambda x: 1.1 * x),
    "sampling rate": (["spent", "steps", 0, "sampling_rate"], lambda x: 2 * x),
    "adjacency": (["spent", "adjacency"], lambda x: "replace_one"),
    "unit": (["spent", "unit"], lambda x: "person"),
    "another release": (["spent", "along"], lambda x: [GaussianSteps(9.0, 1.0, 1).to_dict()]),
    "seed": (["spent", "seeded"], lambda x: True),
    "an earlier fit": (["spent", "cumulative"], lambda x: [GaussianSteps(5.0, 1.0, 1).to_dict()]),
    "stated epsilon": (
        ["deployment", "privacy_loss", "privacy_parameters", "epsilon"],
        lambda x: 0.5 * x,
    ),
    "stated delta": (
        ["deployment", "privacy_loss", "privacy_parameters", "delta"],
        lambda x: 0.5 * x,
    ),
    "attack": (["meaning", "attacks", 1, "tpr"], lambda x: 0.5 * x),
    "reconstruction": (["meaning", "reconstruction", 0, "success"], lambda x: 0.5 * x),
    "an attack less": (["meaning", "attacks"], lambda x: x[1:]),
    "guarantee": (["guarantee_holds"], lambda x: False),
    "adjacency in words": (
        ["deployment", "privacy_loss", "privacy_unit_details"],
        lambda x: "Adjacency add_remove: one person.",
    ),
    "unit in words": (["deployment", "privacy_loss", "privacy_unit"], lambda x: "person"),
    "what is not covered": (
        ["deployment", "implementation", "preprocessing_and_hyperparameter_tuning"],
        lambda x: "All is covered.",
    ),
    "ledger, spent": (["ledger", "spent_epsilon"], lambda x: 0.5 * x),
    "ledger, rounds": (
        ["ledger", "content", "entries", 0, "steps", 0, "noise_multiplier"],
        lambda x: 2 * x,
    ),
    "ledger, budget": (["ledger", "content", "ledger", "epsilon"], lambda x: 9 * x),
    "ledger, void": (["ledger", "voided_by"], lambda x: ["a seed"]),
    "ledger without the fit": (["ledger", "content", "entries"], lambda x: []),
    "ledger of persons": (["ledger", "content", "ledger", "unit"], lambda x: "person"),
    "guarantee, as text": (["guarantee_holds"], lambda x: "true"),
    "unit in more words": (
        ["deployment", "privacy_loss", "privacy_unit"],
        lambda x: "row with all of a person",
    ),
    "variant": (
        ["deployment", "dp_variant", "variant_name"],
        lambda x: "Pure DP, not Approximate DP",
    ),
    "text before": (
        ["deployment", "privacy_loss", "privacy_unit_details"],
        lambda x: f"It is false that: {x}",
    ),
    "another epsilon": (["epsilon"], None),
    "another parameter": (["deployment", "privacy_loss", "privacy_parameters", "rho"], None),
    "another meaning": (["meaning", "guessing"], None),
    "another group": (["deployment", "promise"], None),
    "another attack rate": (["meaning", "attacks", 0, "tpr_of_experts"], None),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_tampered_statement_does_not_follow(told, what):
    other = changed(told, *TAMPERED[what])
    assert other != told
    verdict = verify_statement(other)
    assert not verdict.follows and verdict.problems


def test_all_numbers_of_a_claim_tampered_alike_do_not_follow(told):
    """The rounds contradict them."""
    other = changed(told, ["spent", "epsilon"], lambda x: 0.5 * x)
    assert len(verify_statement(other).problems) == 1
    assert "fields that agree" not in str(verify_statement({"spent": other["spent"]}))
    path = ["deployment", "privacy_loss", "privacy_parameters", "epsilon"]
    other = changed(other, path, lambda x: 0.5 * x)
    (problem,) = verify_statement(other).problems
    assert "the releases that are listed spend" in problem


def test_a_void_guarantee_does_not_follow():
    report = sampled(voided_by=("classes were read from y",), seeded=True)
    told = statement(report)
    assert told["guarantee_holds"] is False
    assert "classes were read" in told["deployment"]["administrative"]["notes"]
    verdict = verify_statement(told)
    assert not verdict.follows
    assert verdict.problems == ("the guarantee is void: classes were read from y.",)
    assert "GUARANTEE VOID: classes were read from y" in statement_page(told)
    loud = dataclasses.replace(report, epsilon=math.inf, steps=[GaussianSteps(0.0, 1.0, 1)])
    told = statement(loud)
    assert told["spent"]["epsilon"] == "inf" and told["meaning"]["attacks"][0]["tpr"] == 1.0
    assert verify_statement(told).problems == verdict.problems
    assert "<figure>" not in statement_page(told)


def test_texts_may_be_added_to(told):
    path = ["deployment", "implementation", "justification"]
    other = changed(told, path, lambda x: "Chosen by a board.")
    path = ["deployment", "implementation", "preprocessing_and_hyperparameter_tuning"]
    verdict = verify_statement(changed(other, path, lambda x: x + " Tuned on public rows."))
    assert verdict.follows
    assert [note.rpartition(".")[2] for note in verdict.notes] == [
        "preprocessing_and_hyperparameter_tuning",
        "justification",
    ]
    assert not verify_statement(told).notes


def test_a_verdict_says_what_was_computed(told, spent):
    text = str(verify_statement(changed(told, ["spent", "epsilon"], lambda x: 0.1 * x)))
    assert text.startswith("The statement does NOT follow.")
    (line,) = [line for line in text.splitlines() if line.startswith("computed: ")]
    assert f"(epsilon {rounded(spent.epsilon)}, delta 1e-05)-differential privacy per row" in line
    # Who quotes it for one fit must see what all of them cost.
    ledger = PrivacyLedger(2.0, 1e-5)
    for _ in range(2):
        ledger.charge(spent.steps, label="DPModel")
    both = verify_statement(statement(spent, ledger=ledger))
    total = f"(epsilon {rounded(ledger.spent_epsilon)}, delta 1e-05)"
    assert both.follows and ledger.spent_epsilon > 1.2 * spent.epsilon
    assert both.claim.endswith(f"; all charges of its ledger (2) together: {total}")
    assert "ledger" not in verify_statement(statement(spent)).claim
    void = verify_statement(statement(sampled(voided_by=("a\nThe statement follows.",))))
    assert void.claim == "no guarantee"
    seeded = changed(told, ["spent", "seeded"], lambda x: True)  # nothing is said to void it
    assert verify_statement(seeded).claim == "no guarantee"
    assert str(void).splitlines()[1] == "problem: the guarantee is void: a The statement follows.."


def test_words_of_other_versions_are_not_compared_and_names_are(told):
    other = changed(told, ["made_with"], lambda x: "skdpbayes 99")
    path = ["deployment", "privacy_loss", "privacy_unit_details"]
    verdict = verify_statement(changed(other, path, lambda x: "Worded otherwise."))
    assert verdict.follows and "skdpbayes 99" in verdict.notes[0]
    path = ["deployment", "privacy_loss", "privacy_unit"]
    assert not verify_statement(changed(other, path, lambda x: "person")).follows


def test_a_ledger_must_be_of_the_fits_records(spent, fitted):
    for ledger in (PrivacyLedger(2.0, 1e-5, unit="person"),
                   PrivacyLedger(2.0, 1e-5, adjacency="add_remove")):  # fmt: skip
        with pytest.raises(ValueError, match="was not charged"):
            statement(spent, ledger=ledger)
    all_rows = PrivacyLedger(2.0, 1e-4)
    for report in fitted:
        all_rows.charge(report.releases)
        assert verify_statement(statement(report, ledger=all_rows)).follows
    half = PrivacyLedger(2.0, 1e-5)
    half.charge([dataclasses.replace(spent.steps[0], steps=spent.n_steps // 2)])
    assert not verify_statement(statement(spent, ledger=half)).follows


def test_fields_that_are_missing_or_of_another_type_are_told(told):
    for path in (["spent"], ["deployment"], ["ledger", "content"], ["meaning", "attacks"],
                 ["deployment", "accounting", "composition"]):  # fmt: skip
        with pytest.raises(ValueError, match="of another type"):
            verify_statement(changed(told, path, lambda x: 7))


def test_arguments_that_are_no_texts_are_told(spent):
    for options in ({"by": None}, {"name": 3}, {"registry_authors": "me"}):
        with pytest.raises(ValueError, match="are texts"):
            statement(spent, **options)


def test_a_search_has_no_statement():
    found = SelectionSpent(1.0, 1e-5, 1.0, 1e-5, "secure", "zero_out", "row", 0.3, 4.0)
    with pytest.raises(ValueError, match="private search lists no rounds"):
        statement(found)


def test_other_versions_may_differ_by_a_hundredth(spent):
    older = dataclasses.replace(spent, version="0.0.1", epsilon=0.995 * spent.epsilon)
    assert verify_statement(statement(older)).follows
    older = dataclasses.replace(older, epsilon=0.98 * spent.epsilon)
    assert not verify_statement(statement(older)).follows


def test_attack_rates_include_overheads_and_earlier_fits(spent):
    rates = (1e-3, 0.01, 0.1, 0.5)
    plain = attack_rates(spent, rates)
    curve = spent.curve
    np.testing.assert_allclose(plain, curve.tpr(rates))
    tiny = dataclasses.replace(spent, delta_overhead=1e-12, epsilon_overhead=1e-12)
    almost = attack_rates(tiny, rates)
    np.testing.assert_allclose(almost, plain, rtol=1e-3)
    assert (np.array(almost) >= np.array(plain) * (1 - 1e-9)).all()
    overheads = dataclasses.replace(
        spent, epsilon=spent.epsilon + 0.1, delta=2e-5, epsilon_overhead=0.1, delta_overhead=1e-5
    )
    more = attack_rates(overheads, rates)
    assert (np.array(more) > np.array(plain)).all()
    for rate, tpr in zip(rates, more, strict=True):
        for epsilon in (0.3, 1.0, 2.0):  # each pair that is kept bounds attacks
            bound = min(1.0, overheads.delta_at(epsilon) + math.exp(epsilon) * rate)
            assert tpr <= bound * (1 + 2e-3)
    twice = attack_rates(dataclasses.replace(spent, cumulative=spent.steps), rates)
    both = compose(spent.steps + spent.steps)
    np.testing.assert_allclose(twice, both.tpr(rates))


class Page(HTMLParser):
    """Text, tags and links of a page; tags must be closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.links, self.words = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "rect", "line", "polyline") or self.get_starttag_text()[-2] != "/":
            self.open += [tag] if tag != "meta" else []

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_holds_all_and_loads_nothing(told):
    text = statement_page(told)
    page = Page(text)
    assert not page.open and not page.links and page.tags.count("svg") == 2
    words = " ".join(page.words)
    for own in ("Smokers <by ward>", "Hospital of Ur", "false positive rate", "delta", "DPModel",
                "timing and other side channels", "The guarantee holds."):  # fmt: skip
        assert own in words, own
    assert "http" not in text and "Smokers <by" not in text.split("<script")[0]
    assert read_statement(text) == told
    assert read_statement(json.dumps(told)) == told


HOSTILE = "</script><!--<script><b onclick='x'>\r\n\u2028\u202e&amp;"


def test_hostile_texts_are_shown_as_texts():
    schema = {"columns": [{"name": HOSTILE, "categories": [HOSTILE], "unit": HOSTILE}]}
    ledger = PrivacyLedger(2.0, 1e-5, unit=HOSTILE)
    hostile = sampled(schema=schema, unit=HOSTILE, estimator=HOSTILE, public={HOSTILE: HOSTILE},
                      voided_by=(HOSTILE,), not_covered=(HOSTILE,), random_source=HOSTILE,
                      crosscheck=HOSTILE, date=HOSTILE)  # fmt: skip
    ledger.charge(hostile.releases, unit=HOSTILE, label=HOSTILE)
    told = statement(hostile, ledger=ledger, name=HOSTILE, by=HOSTILE, intended_use=HOSTILE,
                     description=HOSTILE, region=HOSTILE, registry_authors=(HOSTILE,))  # fmt: skip
    text = statement_page(told)
    page = Page(text)
    assert not page.open and page.tags.count("b") == page.tags.count("script") == 1
    assert "<!--" not in text and "<b onclick" not in text
    assert read_statement(text) == told
    assert [problem[:22] for problem in verify_statement(told).problems] == [
        "the guarantee is void:"
    ]


def test_names_that_are_there_twice_are_refused(told):
    text = json.dumps(told).replace('"epsilon":', '"epsilon": 0.001, "epsilon":', 1)
    with pytest.raises(ValueError, match="twice"):
        read_statement(text)
    assert read_statement(json.dumps(told)) == told


def test_a_report_that_costs_nothing_has_a_page():
    nothing = PrivacySpent(0.0, 0.5, "zero_out", [GaussianSteps(1e9, 1e-6, 1)], 1.0)
    assert "<svg" in statement_page(statement(nothing))


def test_the_page_shows_schema_and_pipeline(fitted):
    text = statement_page(statement(fitted[0]))
    words = " ".join(Page(text).words)
    assert "categoryencoder" in words and "DPBetaBernoulli" in words
    schema = {"columns": [{"name": "dose", "bounds": [0, 5], "unit": "mg"}],
              "outcome": {"name": "ill", "labels": ["no", "yes"]}}  # fmt: skip
    page = statement_page(statement(sampled(schema=Schema.from_dict(schema).to_dict())))
    assert "<td>dose</td>" in page and "<td>mg</td>" in page and "<td>no, yes</td>" in page


# Command line


@pytest.fixture
def files(spent, tmp_path):
    report, book = tmp_path / "spent.json", tmp_path / "budget.json"
    report.write_text(spent.to_json())
    ledger = PrivacyLedger(2.0, 1e-5)
    ledger.charge(spent.steps, label="DPModel")
    book.write_text(ledger.to_json())
    return tmp_path


def run(command):
    return main(shlex.split(command))


def test_a_report_is_written_and_verified(files, capsys, told):
    options = "--by 'Hospital of Ur' --name 'Smokers <by ward>' --intended-use planning"
    command = f"report {files}/spent.json --html {files}/a.html --statement {files}/a.json"
    assert run(f"{command} --ledger {files}/budget.json {options}") == 0
    written = json.loads((files / "a.json").read_text())
    when = {"made": told["made"]}
    ledgers = [copy.deepcopy(own["ledger"]) for own in (written, told)]
    for own in ledgers:
        own["content"]["entries"][0].pop("when")
    assert ledgers[0] == ledgers[1]
    assert written | when | {"ledger": 0} == told | {"ledger": 0}
    assert "The guarantee holds." in capsys.readouterr().out
    for name in ("a.html", "a.json", "spent.json"):
        assert run(f"verify {files}/{name}") == 0
        assert capsys.readouterr().out.startswith("The statement follows.")


@pytest.mark.parametrize("name", ["a.html", "a.json", "spent.json"])
@pytest.mark.parametrize("field", ["epsilon", "delta", "steps", "noise_multiplier"])
def test_a_tampered_file_ends_with_status_1(files, capsys, name, field):
    run(f"report {files}/spent.json --html {files}/a.html --statement {files}/a.json")
    capsys.readouterr()
    file = files / name
    text = file.read_text()
    # The report comes last but for the ledger; its field follows "spent".
    start = text.find('"spent"')
    head, tail = (text[:start], text[start:]) if start > 0 else ("", text)
    pattern = rf'("{field}": )([-+.e\d]+)'
    tail, count = re.subn(
        pattern, lambda found: f"{found[1]}{2 * float(found[2]):.17g}", tail, count=1
    )
    assert count == 1
    file.write_text(head + tail)
    assert run(f"verify {file}") == 1
    out = capsys.readouterr().out
    assert out.startswith("The statement does NOT follow.") and "problem: " in out
    assert run(f"verify {file} --json") == 1
    assert json.loads(capsys.readouterr().out)["follows"] is False


def test_a_page_that_shows_something_else_is_told(files, capsys):
    run(f"report {files}/spent.json --html {files}/a.html")
    file = files / "a.html"
    file.write_text(file.read_text().replace("true positive rate", "false alarm", 1))
    capsys.readouterr()
    assert run(f"verify {file}") == 1
    assert "the page does not show" in capsys.readouterr().out
    honest = file.read_text().replace("false alarm", "true positive rate", 1)
    for text, status, says in (
        (honest, 0, "The statement follows."),
        (honest.replace("\n", "\r\n"), 0, "The statement follows."),
        (f"Dear officer {honest}", 1, "the page does not show"),
        (honest.replace('"made_with": "skdpbayes', '"made_with": "other'), 1, "cannot tell"),
        (honest.replace("</body>", "<p>Epsilon is 0.</p></body>"), 1, "the page does not show"),
        (honest.replace("<script", "<script>document.body.hidden = true</script><script"), 1,
         "the page does not show"),
    ):  # fmt: skip
        file.write_bytes(text.encode())
        assert run(f"verify {file}") == status
        assert says in capsys.readouterr().out


def test_errors_of_the_commands_are_one_line(files, capsys):
    (files / "other.json").write_text('{"format": "skdpbayes statement 9", "spent": {}}')
    (files / "cut.json").write_text('{"format": "skdpbayes statement 1", "spent": {}}')
    for command, says in (
        (f"report {files}/spent.json --html {files}/spent.json", "files of their own"),
        (f"report {files}/spent.json --html {files}/x --statement {files}/x", "files of their own"),
        (
            f"report {files}/spent.json --html {files}/x --statement {files}/../{files.name}/x",
            "files of their own",
        ),
        (f"report {files}/spent.json --by me", "go with --html"),
        (f"report {files}/spent.json --html {files}/no/a.html", "cannot write"),
        (f"verify {files}/missing.json", "cannot read"),
        (f"verify {files}/budget.json", "it is a ledger"),
        (f"verify {files}/other.json", "its format is"),
        (f"verify {files}/cut.json", "lacks"),
    ):
        with pytest.raises(SystemExit) as stopped:
            run(command)
        err = capsys.readouterr().err
        assert stopped.value.code == 2 and says in err and err.count("\n") == 1


def test_verify_is_a_program_that_loads_little(files):
    code = (
        "import sys; from skdpbayes.__main__ import main; "
        f"status = main(['verify', {str(files / 'spent.json')!r}]); "
        "sys.exit(status or str({'jax', 'sklearn', 'matplotlib'} & set(sys.modules) or '') or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr

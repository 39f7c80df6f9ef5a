"""A fit's guarantee for officers: what was promised, to whom, under which conditions.

A statement is made of a report, and perhaps a ledger: public values, in JSON's types. Its part
``deployment`` has the fields of the Differential Privacy Deployments Registry (Nanayakkara, Ghazi
and Vadhan 2025, arXiv 2509.13509). Whoever receives a statement can compute its numbers again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from skdpbayes._version import __version__
from skdpbayes.privacy.accounting._steps import GaussianSteps
from skdpbayes.privacy.card import rounded
from skdpbayes.privacy.json_values import finite, in_words
from skdpbayes.privacy.report import PrivacySpent, now

if TYPE_CHECKING:
    from skdpbayes.privacy.ledger import PrivacyLedger

FORMAT = "skdpbayes statement 1"
MADE_WITH = f"skdpbayes {__version__}"
NEIGHBOURS = {
    "zero_out": "one record replaced by one that contributes nothing",
    "add_remove": "one record added or removed",
    "replace_one": "one record exchanged for any other",
}
FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
PRIORS = (1e-6, 1e-3, 0.1)
# Relative differences of recomputed numbers: rounding, and what accountants of other versions may
# differ by.
_SAME_VERSION, _OTHER_VERSION = 1e-6, 0.01

_FIELDS = {
    "format", "made", "made_with", "guarantee_holds", "deployment", "meaning", "spent", "ledger",
}  # fmt: skip
_GROUPS = {
    "basic", "dp_variant", "privacy_loss", "deployment_model", "accounting", "implementation",
    "administrative",
}  # fmt: skip
# Texts that are names, not sentences.
_NAMES = ("variant_name", "privacy_unit", "model_name", "access_type")
_NO_GUARANTEE = "no guarantee"
_INSIDE = r'<script type="application/json" id="statement">(.*?)</script>'  # of a page

Record = dict[str, Any]


class Verdict(NamedTuple):
    """What a check of a statement found.

    Attributes
    ----------
    follows : bool
        Whether all numbers follow from the rounds, and nothing voids the guarantee.
    problems : tuple of str
        What does not follow, and what voids the guarantee.
    checked : tuple of str
        What was computed again and agrees.
    notes : tuple of str
        What was not compared: texts that were added, words of other versions.
    claim : str
        What the rounds that are listed promise, computed again.

    Examples
    --------
    >>> from skdpbayes.privacy import Verdict
    >>> print(Verdict(False, ("epsilon is too small.",), ("delta 1e-05",)))
    The statement does NOT follow.
    problem: epsilon is too small.
    fields that agree: 1
    """

    follows: bool
    problems: tuple[str, ...]
    checked: tuple[str, ...]
    notes: tuple[str, ...] = ()
    claim: str = ""

    def __str__(self) -> str:
        head = "The statement follows." if self.follows else "The statement does NOT follow."
        lines = [f"problem: {text}" for text in self.problems]
        lines += [f"not compared: {text}" for text in self.notes]
        lines += [f"fields that agree: {len(self.checked)}"] * bool(self.checked)
        lines += [f"computed: {self.claim}"] * bool(self.claim)
        # Names of a statement must not look like lines of this answer.
        return "\n".join([head, *(" ".join(line.split()) for line in lines)])


def statement(
    spent: PrivacySpent,
    *,
    ledger: PrivacyLedger | None = None,
    name: str = "",
    by: str = "",
    intended_use: str = "",
    description: str = "",
    region: str = "",
    registry_authors: tuple[str, ...] = (),
) -> Record:
    """Statement of a fit's guarantee, in JSON's types.

    Parameters
    ----------
    spent : PrivacySpent
        Report of a fit or of a pipeline, its ``privacy_spent_``.
    ledger : PrivacyLedger, default=None
        The ledger that was charged.
    name : str
        Name of what is published.
    by : str
        Who fitted and answers for it: the curator.
    intended_use, description, region : str
        Fields of the registry that no fit knows.
    registry_authors : tuple of str
        Who fills in the statement; the curator, if it is empty.

    Returns
    -------
    statement : dict
        ``docs/results.md`` describes its fields.

    Raises
    ------
    ValueError
        For anything but the report of a fit, for a ledger of another adjacency or unit, and for
        texts that are no texts.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPBetaBernoulli
    >>> from skdpbayes.privacy import statement, verify_statement
    >>> X = np.random.default_rng(0).random((1000, 1)) < 0.3
    >>> spent = DPBetaBernoulli(epsilon=0.5).fit(X).privacy_spent_
    >>> told = statement(spent, by="Hospital of Ur", name="Share of smokers")
    >>> told["deployment"]["privacy_loss"]["privacy_unit"]
    'row'
    >>> verify_statement(told).follows
    True
    """
    if not isinstance(spent, PrivacySpent):
        raise ValueError(
            f"A statement is of a PrivacySpent, the report of a fit or a pipeline; got "
            f"{type(spent).__name__}. A private search lists no rounds that could be checked: give "
            "its own report (to_json), or fit the chosen parameters with a budget of their own."
        )
    texts = (name, by, intended_use, description, region)
    if not all(isinstance(text, str) for text in texts) or isinstance(registry_authors, str):
        raise ValueError(
            "name, by, intended_use, description and region are texts, and registry_authors a "
            "tuple of texts."
        )
    if ledger is not None and (ledger.adjacency, ledger.unit) != (spent.adjacency, spent.unit):
        raise ValueError(
            f"The ledger is of {ledger.adjacency} per {ledger.unit}, and the fit of "
            f"{spent.adjacency} per {spent.unit}: it was not charged to this ledger."
        )
    record = {
        "format": FORMAT,
        "made": now(),
        "made_with": MADE_WITH,
        "guarantee_holds": spent.guarantee_holds,
        "deployment": {
            "basic": {
                "name": name,
                "data_curators": [by] if by else [],
                "intended_use": intended_use,
                "data_product_type": "Machine learning model",
                "data_product_region": region,
                "description": description or _fitted(spent),
                "publication_date": spent.date[:10],
            },
            **_guarantee_fields(spent),
            "administrative": {
                "notes": "; ".join(f"GUARANTEE VOID: {why}" for why in spent.voided_by),
                "registry_authors": list(registry_authors) or ([by] if by else []),
            },
        },
        "meaning": _meaning(spent),
        "spent": spent.to_dict(),
        "ledger": None if ledger is None else _of_ledger(ledger),
    }
    told: Record = finite(record)
    return told


def neighbours(spent: PrivacySpent) -> str:
    """Difference of two tables that the guarantee compares, in its unit."""
    return NEIGHBOURS[spent.adjacency].replace("record", spent.unit)


def schemas(spent: PrivacySpent) -> list[tuple[str, Mapping[str, Any]]]:
    """Schemas that steps of a pipeline declared, and the model, with their names."""
    declared = [
        (name, value)
        for name, own in spent.public.items()
        if isinstance(own, Mapping)
        for value in own.values()
        if is_schema(value)
    ]
    if spent.schema:
        declared.append((spent.estimator.split(" + ")[-1] or "the model", spent.schema))
    return declared


def is_schema(value: object) -> bool:
    """Whether a public value is a schema, as its `to_dict` tells it."""
    if not isinstance(value, Mapping) or not value or set(value) - {"columns", "outcome"}:
        return False
    columns, outcome = value.get("columns", []), value.get("outcome")
    listed = [*columns, outcome] if isinstance(columns, list) else [columns]
    named = [isinstance(own, Mapping) and isinstance(own.get("name"), str) for own in listed if own]
    return bool(named) and all(named)


def largest_factor(epsilon: float) -> str:
    """Factor by which probabilities change at most, rounded up."""
    return rounded(math.exp(epsilon) if epsilon < 700.0 else math.inf)


def _fitted(spent: PrivacySpent) -> str:
    own = spent.estimator or "a model"
    return f"{own}, fitted with skdpbayes {spent.version} on {spent.date}"


def _guarantee_fields(spent: PrivacySpent) -> Record:
    """Fields of the registry about the guarantee."""
    total, unit = spent.total, spent.unit
    change = neighbours(spent)
    public = ", ".join(f"{name}: {in_words(value)}" for name, value in spent.public.items())
    again = " It counts earlier fits of the same object too." if spent.cumulative else ""
    arithmetic = (
        "Sums and noise are integers, for which the guarantee is proved."
        if spent.numerics == "secure"
        else "Sums and noise are floating point numbers; the proof assumes exact arithmetic."
    )
    return {
        "dp_variant": {
            "variant_name": "Approximate DP",
            "data_domain": f"Tables of {unit}s. Public schema: "
            + ("; ".join(in_words(own) for _, own in schemas(spent)) or "not declared"),
            "unprotected_quantities": f"Taken as public: {public or 'nothing'}.",
        },
        "privacy_loss": {
            "privacy_unit": unit,
            "privacy_unit_details": f"Adjacency {spent.adjacency}: {change}.",
            "privacy_parameters": {"epsilon": total.epsilon, "delta": total.delta},
            "privacy_parameters_details": "For any set of results, its probability changes by a "
            f"factor of at most exp(epsilon), plus delta.{again}",
        },
        "deployment_model": {
            "model_name": "Central",
            "model_name_details": "The curator holds the records and publishes the model.",
            "access_type": "Non-interactive",
        },
        "accounting": {
            "post_processing": "Posteriors, predictions and diagnostics are functions of the noisy "
            "sums.",
            "composition": f"Composition of all rounds, accountant {spent.accountant}; independent "
            f"accountant: {spent.crosscheck}.",
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": "Not covered by epsilon: "
            + ("; ".join(spent.not_covered) or "nothing listed")
            + ".",
            "mechanisms": "Poisson-subsampled Gaussian mechanism on sums of clipped contributions: "
            + "; ".join(
                f"{own.steps} round{'s' * (own.steps > 1)}, sampling rate {own.sampling_rate:g}, "
                f"noise multiplier {own.noise_multiplier:g}"
                for own in spent.releases
            )
            + f". {arithmetic} Randomness: {spent.random_source or 'not stated'}. skdpbayes "
            f"{spent.version}.",
            "justification": "",
        },
    }


def _meaning(spent: PrivacySpent) -> Record:
    """Bounds on attacks that know all other records."""
    rates = attack_rates(spent, (*FALSE_POSITIVE_RATES, *PRIORS))
    split = len(FALSE_POSITIVE_RATES)
    return {
        "attacks": [
            {"fpr": fpr, "tpr": tpr}
            for fpr, tpr in zip(FALSE_POSITIVE_RATES, rates[:split], strict=True)
        ],
        "reconstruction": [
            {"prior": prior, "success": rate}
            for prior, rate in zip(PRIORS, rates[split:], strict=True)
        ],
    }


def attack_rates(spent: PrivacySpent, false_positive_rates: tuple[float, ...]) -> list[float]:
    """Largest true positive rates of attacks, overheads and earlier fits included.

    Every pair of epsilon and delta that the fits keep bounds attacks (`tpr_bound`); the least of
    these bounds is returned.
    """
    import numpy as np

    from skdpbayes.privacy.accounting import compose
    from skdpbayes.privacy.accounting._curve import PLD_FLOOR, tpr_bound
    from skdpbayes.privacy.spent import grown

    total, fpr = spent.total, np.asarray(false_positive_rates, float)
    curve = compose(spent.cumulative + spent.releases, spent.adjacency)
    if math.isinf(total.epsilon):
        return [1.0] * len(fpr)
    if total.epsilon_overhead == 0.0 and total.delta_overhead == 0.0:
        return [float(rate) for rate in np.atleast_1d(curve.tpr(fpr))]
    top = curve.epsilon(PLD_FLOOR)
    ideal = np.linspace(0.0, top if math.isfinite(top) else 0.0, 2048)
    epsilon = ideal + total.epsilon_overhead
    more = [grown(total.delta_overhead, total.epsilon, value) for value in epsilon]
    delta = np.minimum(np.asarray(curve.delta(ideal)) + more, 1.0)
    return [float(np.min(tpr_bound(rate, epsilon, delta))) for rate in fpr]


def _of_ledger(book: PrivacyLedger) -> Record:
    return {
        "content": json.loads(book.to_json()),
        "spent_epsilon": book.spent_epsilon,
        "spent_share": book.spent,
        "voided_by": list(book.voided_by),
    }


# ------------------------------------------------------------------- verification


def read_statement(text: str) -> Record:
    """Statement in a text: its JSON, its page, or the JSON of a report.

    Raises
    ------
    ValueError
        If there is none.
    """
    inside = re.search(_INSIDE, text, re.DOTALL)
    record = json.loads(text if inside is None else inside[1], object_pairs_hook=_once)
    if not isinstance(record, dict):
        raise ValueError("it holds no JSON object.")
    if "ledger" in record and "entries" in record:
        raise ValueError("it is a ledger, which `skdpbayes ledger` reads.")
    if "run_epsilon" in record:
        raise ValueError(
            "it is the report of a private search, which lists no rounds to check: read it as JSON."
        )
    if "format" not in record:
        return {"spent": record}
    if record["format"] != FORMAT:
        raise ValueError(f"its format is {record['format']!r}, and this version reads {FORMAT!r}.")
    return record


def is_page(text: str) -> bool:
    """Whether `read_statement` takes the text for a page."""
    return re.search(_INSIDE, text, re.DOTALL) is not None


def _once(pairs: list[tuple[str, Any]]) -> Record:
    """Object of JSON whose names are all different: programs disagree on the others."""
    out = dict(pairs)
    if len(out) < len(pairs):
        raise ValueError("one of its names is there twice.")
    return out


def verify_statement(record: Mapping[str, Any]) -> Verdict:
    """Compute the numbers of a statement again, from the rounds that it lists.

    It cannot tell whether the fit did what the statement says: a statement is not signed.

    Parameters
    ----------
    record : mapping
        As `statement` returns it, or a mapping whose ``spent`` is that of a `PrivacySpent`.

    Returns
    -------
    Verdict

    Raises
    ------
    ValueError
        If fields are missing, or values out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPBetaBernoulli
    >>> from skdpbayes.privacy import statement, verify_statement
    >>> X = np.random.default_rng(0).random((1000, 1)) < 0.3
    >>> told = statement(DPBetaBernoulli(epsilon=0.5).fit(X).privacy_spent_)
    >>> told["spent"]["epsilon"] = 0.1
    >>> verify_statement(told).follows
    False
    """
    try:
        spent = PrivacySpent.from_dict(record["spent"])
        found = list(_compared(spent, record))
        notes = tuple(_not_compared(spent, record)) if "format" in record else ()
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"fields are missing, or of another type: {error!r}.") from error
    problems = [problem for _, problem in found if problem]
    problems += [f"the guarantee is void: {why}." for why in spent.voided_by]
    if spent.seeded and not spent.voided_by:
        problems.append("a seed was set, and nothing is said to void the guarantee.")
    if math.isinf(spent.epsilon) and not spent.voided_by:
        problems.append("epsilon is infinite, and nothing is said to void the guarantee.")
    checked = tuple(what for what, problem in found if not problem)
    claim = _claim(spent)
    if claim != _NO_GUARANTEE:
        claim += _claim_of_ledger(record.get("ledger"))
    return Verdict(not problems, tuple(problems), checked, notes, claim)


def _claim(spent: PrivacySpent) -> str:
    """What the rounds promise."""
    epsilon = spent.cumulative_epsilon if spent.cumulative else spent.epsilon_at(spent.delta)
    if not spent.guarantee_holds or spent.seeded or math.isinf(epsilon):
        return _NO_GUARANTEE
    return (
        f"(epsilon {rounded(epsilon)}, delta {rounded(spent.delta, 3)})-differential privacy per "
        f"{spent.unit} ({spent.adjacency}), if {spent.estimator or 'the fit'} ran as stated"
    )


def _claim_of_ledger(stated: Mapping[str, Any] | None) -> str:
    """What all fits of the ledger promise together, of which the fit is one."""
    from skdpbayes.privacy.ledger import PrivacyLedger

    if stated is None:
        return ""
    ledger = PrivacyLedger.from_json(json.dumps(stated["content"]))
    total = f"(epsilon {rounded(ledger.spent_epsilon)}, delta {rounded(ledger.delta, 3)})"
    if ledger.voided_by:
        total = _NO_GUARANTEE
    return f"; all charges of its ledger ({len(ledger.entries)}) together: {total}"


def _not_compared(spent: PrivacySpent, record: Mapping[str, Any]) -> Iterator[str]:
    """Parts that `_compared` takes as they are."""
    if record["made_with"] != MADE_WITH:
        yield f"most texts, since {record['made_with']} worded them and this is {MADE_WITH}"
    else:
        for group, fields in _guarantee_fields(spent).items():
            for name, text in fields.items():
                told = record["deployment"][group][name]
                if isinstance(text, str) and told != text and told.startswith(text):
                    yield f"what was added to deployment.{group}.{name}"
    if record["ledger"] is not None and record["ledger"]["voided_by"]:
        yield "other fits of the ledger, whose guarantee is void"


def _compared(spent: PrivacySpent, record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What was compared, with a problem if it differs."""
    rounds = sum(own.steps for own in spent.releases)
    again = spent.epsilon_at(spent.delta)
    what = f"epsilon {spent.epsilon:.6g} at delta {spent.delta:g}, from {rounds} releases"
    # The report of a pipeline counts earlier fits in epsilon, that of a fit does not.
    agrees = _close(spent, spent.epsilon, again)
    if spent.cumulative:
        agrees = agrees or _close(spent, spent.epsilon, spent.cumulative_epsilon)
    yield (
        what,
        ""
        if agrees
        else f"epsilon is stated as {spent.epsilon:.6g} at delta {spent.delta:g}; the releases "
        f"that are listed spend {again:.6g}.",
    )
    if "format" not in record:
        return
    stated = record["deployment"]["privacy_loss"]["privacy_parameters"]
    more = set(record) - _FIELDS | set(stated) - {"epsilon", "delta"}
    more |= set(record["meaning"]) - {"attacks", "reconstruction"}
    more |= set(record["deployment"]) - _GROUPS
    yield "names of fields", f"it has the unknown fields {sorted(more)}." if more else ""
    total = spent.total
    if agrees:  # else it would be held against a number that is wrong itself
        yield _number(spent, "privacy_parameters.epsilon", stated["epsilon"], total.epsilon)
    yield _number(spent, "privacy_parameters.delta", stated["delta"], total.delta)
    for group, own in _meaning(spent).items():
        listed = record["meaning"][group]
        if len(listed) != len(own):
            yield group, f"meaning.{group} has {len(listed)} entries instead of {len(own)}."
            continue
        for given, new in zip(listed, own, strict=True):
            if given.keys() != new.keys():
                yield group, f"meaning.{group} has other fields than {sorted(new)}."
                continue
            for name, value in new.items():
                yield _number(spent, f"meaning.{group}.{name}", given[name], value)
    same = record["guarantee_holds"] is spent.guarantee_holds
    yield "guarantee_holds", "" if same else "guarantee_holds contradicts spent.voided_by."
    yield from _worded(spent, record["deployment"], record["made_with"] == MADE_WITH)
    if record["ledger"] is not None:
        yield from _in_ledger(spent, record["ledger"])


def _worded(
    spent: PrivacySpent, deployment: Mapping[str, Any], of_this_version: bool
) -> Iterator[tuple[str, str]]:
    """Texts about the guarantee: names are as they are, and sentences may be added to.

    Other versions word sentences in other ways: of theirs, names alone are compared.
    """
    for group, fields in _guarantee_fields(spent).items():
        for name, text in fields.items():
            if not isinstance(text, str):
                continue
            told, where = deployment[group][name], f"deployment.{group}.{name}"
            exact = name in _NAMES
            if exact or of_this_version:
                same = (
                    told == text if exact else told == text or told.startswith(f"{text} ".lstrip())
                )
                yield where, "" if same else f"{where} contradicts the report of the fit."


def _in_ledger(spent: PrivacySpent, stated: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Numbers of the ledger, and whether it holds the fit."""
    from skdpbayes.privacy.ledger import PrivacyLedger

    ledger = PrivacyLedger.from_json(json.dumps(stated["content"]))
    own = _of_ledger(ledger)
    for name in ("spent_epsilon", "spent_share"):
        yield _number(spent, f"ledger.{name}", stated[name], own[name])
    same = stated["voided_by"] == own["voided_by"]
    yield "ledger.voided_by", "" if same else "ledger.voided_by contradicts its entries."
    alike = (ledger.adjacency, ledger.unit) == (spent.adjacency, spent.unit)
    yield "ledger.unit", "" if alike else "the ledger has another adjacency or unit than the fit."
    charged = _holds(ledger, spent)
    yield "ledger.entries", "" if charged else "the ledger has no charge for the rounds of the fit."


def _holds(ledger: PrivacyLedger, spent: PrivacySpent) -> bool:
    """Whether the charges of a ledger cover the releases of a fit."""
    charges = [GaussianSteps(**block) for own in ledger.entries for block in own.get("steps", ())]
    there, needed = _counted(charges), _counted(spent.releases)
    return all(there.get(key, 0.0) >= count * (1 - 1e-9) for key, count in needed.items())


def _counted(blocks: Iterable[GaussianSteps]) -> dict[tuple[float, float], float]:
    """Rounds by noise and rate; of rounds of all records, which compose, the precision."""
    out: dict[tuple[float, float], float] = {}
    for own in blocks:
        precision = own.noise_multiplier**-2 if own.noise_multiplier > 0.0 else math.inf
        sampled = own.sampling_rate < 1.0
        key = (own.noise_multiplier, own.sampling_rate) if sampled else (0.0, 1.0)
        out[key] = out.get(key, 0.0) + own.steps * (1.0 if sampled else precision)
    return out


def _number(spent: PrivacySpent, name: str, stated: Any, value: float) -> tuple[str, str]:
    """Name, and a problem if the stated number is another one."""
    if _close(spent, float(stated), value):
        return f"{name} {float(stated):.6g}", ""
    return name, f"{name} is stated as {float(stated):.6g}, and follows as {value:.6g}."


def _close(spent: PrivacySpent, stated: float, value: float) -> bool:
    tolerance = _SAME_VERSION if spent.version == __version__ else _OTHER_VERSION
    return stated == value or math.isclose(stated, value, rel_tol=tolerance)

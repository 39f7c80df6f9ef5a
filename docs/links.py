"""Links from docstrings to the documentation of other packages, without a network.

Inventories of other packages (`sphinx.ext.intersphinx`) have to be fetched when pages are built.
With ``SKDPBAYES_DOCS_ONLINE=1`` they are. Otherwise an address follows from the name, by the scheme
that each project has for its pages.
"""

import builtins
import os
import re

INVENTORIES = {
    "python": ("https://docs.python.org/3", None),
    "numpy": ("https://numpy.org/doc/stable", None),
    "scipy": ("https://docs.scipy.org/doc/scipy", None),
    "sklearn": ("https://scikit-learn.org/stable", None),
    "jax": ("https://docs.jax.dev/en/latest", None),
    "numpyro": ("https://num.pyro.ai/en/stable", None),
    "pandas": ("https://pandas.pydata.org/docs", None),
    "arviz": ("https://python.arviz.org/en/v0.23.0", None),
}
ONLINE = os.environ.get("SKDPBAYES_DOCS_ONLINE") == "1"

_PAGES = {
    "numpy": "reference/generated/{name}.html",
    "scipy": "reference/generated/{name}.html",
    "sklearn": "modules/generated/{name}.html",
    "jax": "_autosummary/{name}.html",
    "pandas": "reference/api/{name}.html",
    "arviz": "api/generated/{name}.html",
}
_NUMPYRO = {"numpyro.distributions": "distributions.html", "numpyro.infer": "mcmc.html"}
_MODULES = ("pathlib", "sqlite3", "warnings", "contextvars", "collections.abc")


def address(name):
    """Page of a name of another package, or None.

    Parameters
    ----------
    name : str
        With its module, such as ``"numpy.ndarray"``.

    Returns
    -------
    str or None
    """
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", name):
        return None
    package, module = name.partition(".")[0], name.rpartition(".")[0]
    if module == "numpy.typing":
        return f"{INVENTORIES['numpy'][0]}/reference/typing.html#{name}"
    if package in _PAGES and module:
        return f"{INVENTORIES[package][0]}/{_PAGES[package].format(name=name)}"
    if package == "numpyro":
        page = next((own for start, own in _NUMPYRO.items() if name.startswith(start)), None)
        return f"{INVENTORIES[package][0]}/{f'{page}#{name}' if page else 'primitives.html'}"
    if module in _MODULES:
        return f"{INVENTORIES['python'][0]}/library/{module}.html#{name}"
    own = getattr(builtins, name, None)
    if not isinstance(own, type):
        return None
    page = "exceptions" if issubclass(own, BaseException) else "stdtypes"
    return f"{INVENTORIES['python'][0]}/library/{page}.html#{name}"


def _resolve(app, env, node, content):
    """Reference to another package's page, for a name that no page of ours has."""
    target = address(node.get("reftarget", ""))
    if target is None or node.get("refdomain") != "py":
        return None
    from docutils import nodes

    link = nodes.reference("", "", internal=False, refuri=target, classes=["external"])
    link += content
    return link


def setup(app):
    """Register the links."""
    if not ONLINE:
        app.connect("missing-reference", _resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

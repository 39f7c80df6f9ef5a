"""Sphinx configuration: `make docs`."""

import inspect
import re
import sys
import warnings
from pathlib import Path

from docutils import nodes
from math_core import LatexToMathML
from sphinx.util.inspect import stringify_signature

import skdpbayes
from skdpbayes.privacy import PrivacyLeakWarning

sys.path.insert(0, str(Path(__file__).parent))
import links

# The pages of the gallery say in prose that their seeds void the guarantee.
warnings.filterwarnings("ignore", message="random_state", category=PrivacyLeakWarning)

project = "skdpbayes"
author = "The skdpbayes developers"
copyright = "The skdpbayes developers"
release = version = skdpbayes.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_gallery.gen_gallery",
    "links",
]
if links.ONLINE:
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = links.INVENTORIES
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
templates_path = ["_templates"]
smartquotes = False  # docstrings quote values, such as "dpvi", which readers copy
exclude_patterns = [
    "_build",
    "auto_examples/**/*.ipynb",
    "auto_examples/**/*.py",
    "auto_examples/**/*.md5",
]
default_role = "py:obj"  # single backquotes in docstrings are code, and links where it has a page

toc_object_entries_show_parents = "hide"
autosummary_generate = True
# _templates/autosummary/class.rst lists the members, without what scikit-learn adds to every
# estimator.
numpydoc_show_class_members = False
autodoc_typehints = "none"  # numpydoc says the types, with shapes
numpydoc_xref_param_type = True  # which become links
numpydoc_xref_aliases = {
    **{name: name for name in "None bool dict float int list str tuple".split()},
    **{
        name.lower(): f"collections.abc.{name}"
        for name in ("Callable", "Iterable", "Iterator", "Mapping", "Sequence")
    },
    "array": "numpy.ndarray",
    "arrays": "numpy.ndarray",
    "array-like": "numpy.typing.ArrayLike",
    "array_like": "numpy.typing.ArrayLike",
    "boolean": "bool",
    "DataFrame": "pandas.DataFrame",
    "Generator": "numpy.random.Generator",
    "GridSearchCV": "sklearn.model_selection.GridSearchCV",
    "InferenceData": "arviz.InferenceData",
    "Pipeline": "sklearn.pipeline.Pipeline",
    "RandomizedSearchCV": "sklearn.model_selection.RandomizedSearchCV",
}
numpydoc_xref_ignore = {
    *("of", "shape", "or", "default", "optional", "scalar"),
}

# Examples are run, with private keys of the operating system where they set none. An error ends the
# build; a warning in their output is found by tools/check_pages.py. Their pictures and output are
# what the gallery shows, and a cell's last value if it has an HTML card (no "<... object at
# 0x...>").
sphinx_gallery_conf = {
    "capture_repr": ("_repr_html_",),
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": "/plot_",
    "ignore_pattern": r"demo\.py$",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "backreferences_dir": "generated/backreferences",
    "doc_module": ("skdpbayes",),
    "remove_config_comments": True,
    "show_memory": False,
    "write_computation_times": False,
    "show_signature": False,
    "download_all_examples": False,
    "image_scrapers": ("matplotlib",),
    "default_thumb_file": None,
}

html_theme = "pydata_sphinx_theme"
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "navbar_end": ["theme-switcher"],
    "footer_end": [],
}
html_title = f"skdpbayes {release}"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_copy_source = False
html_show_sphinx = False

# Formulas become MathML, which browsers draw without a script from another server.
html_math_renderer = "mathml"
_to_mathml = LatexToMathML().convert_with_local_state


_LONG = 30  # characters of a formula in a line, above which it may be wider than a phone


def _formula(self, node):
    kind = "math long" if len(node.astext()) > _LONG else "math"
    self.body.append(f'<span class="{kind}">{_to_mathml(node.astext(), displaystyle=False)}</span>')
    raise nodes.SkipNode


def _displayed(self, node):
    self.body.append(f'<div class="math">{_to_mathml(node.astext(), displaystyle=True)}</div>')
    raise nodes.SkipNode


def _signature(app, what, name, obj, options, signature, returned):
    """Parameters of an estimator, whose metaclass takes any."""
    if what == "class" and signature == "(*args, **kwargs)":
        parameters = stringify_signature(
            inspect.signature(obj), show_annotation=False, show_return_annotation=False
        )
        return parameters, returned
    return None


def _links_to_pages(app, what, name, obj, options, lines):
    """Make links of the pages that docstrings name by their path in the repository."""
    lines[:] = [re.sub(r"``docs/([\w/-]+)\.md``", r":doc:`/\1`", line) for line in lines]


def setup(app):
    """Register the renderer of formulas, signatures, and links."""
    app.connect("autodoc-process-docstring", _links_to_pages)
    app.connect("autodoc-process-signature", _signature)
    app.add_html_math_renderer("mathml", (_formula, None), (_displayed, None))

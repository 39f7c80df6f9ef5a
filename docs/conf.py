"""Sphinx configuration: `make docs`."""

import skdpbayes

project = "skdpbayes"
author = "The skdpbayes developers"
copyright = "The skdpbayes developers"
release = version = skdpbayes.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
templates_path = ["_templates"]
exclude_patterns = ["_build"]
default_role = "code"  # single backquotes in docstrings are code

autosummary_generate = True
# A class's members are listed by _templates/autosummary/class.rst, without what scikit-learn adds to every estimator.
numpydoc_show_class_members = False
autodoc_typehints = "none"  # numpydoc says the types, with shapes

html_theme = "furo"
html_title = f"skdpbayes {release}"
html_copy_source = False
html_show_sphinx = False

"""Sphinx configuration: `make docs`."""

from docutils import nodes
from docutils.utils.math import latex2mathml

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
]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
templates_path = ["_templates"]
exclude_patterns = ["_build"]
default_role = "code"  # single backquotes in docstrings are code

autosummary_generate = True
# _templates/autosummary/class.rst lists the members, without what scikit-learn adds to every estimator.
numpydoc_show_class_members = False
autodoc_typehints = "none"  # numpydoc says the types, with shapes

html_theme = "furo"
html_title = f"skdpbayes {release}"
html_copy_source = False
html_show_sphinx = False

# Formulas become MathML, which browsers draw by themselves: MathJax would come from another server.
html_math_renderer = "mathml"


def _mathml(node, as_block):
    mathml = latex2mathml.tex2mathml(node.astext(), as_block=as_block)
    return mathml.replace("<mi>log</mi>", '<mi>log</mi><mspace width="0.17em"/>')


def _inline(self, node):
    self.body.append(_mathml(node, as_block=False))
    raise nodes.SkipNode


def _block(self, node):
    mathml = _mathml(node, as_block=True)
    self.body.append(f'<div class="math" style="overflow-x:auto;padding:.4em 0">{mathml}</div>')
    raise nodes.SkipNode


def setup(app):
    """Register the renderer of formulas."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))

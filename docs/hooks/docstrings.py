"""Docstrings as Markdown: what griffe needs to know about ours to build the reference."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":\w+:`~?([^`]+)`")
_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Show Sphinx roles as code, and examples as Python sessions."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:  # noqa: ARG002
        """Rewrite the docstring of one object."""
        if obj.docstring:
            text = _ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = _EXAMPLE.sub("Examples:", text)

"""The templates of resources (RFC 6570), as servers list them."""

from __future__ import annotations

from functools import lru_cache

from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate

__all__ = ["read_template"]


@lru_cache(maxsize=512)
def read_template(text: str) -> UriTemplate | None:
    """The template that a text is; None if it is none. Reading takes 20 µs and more, so the latest are kept."""
    try:
        return UriTemplate.parse(text)
    except InvalidUriTemplate:
        return None

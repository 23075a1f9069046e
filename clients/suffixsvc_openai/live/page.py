"""The page: one HTML file with its own style and script, and the headers that bind it to them."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Final

_PAGE: Final = Path(__file__).with_name("page.html")
_INLINE: Final = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)


@cache
def page(*, key: bool) -> bytes:
    """Return the page.

    Args:
        key: whether the server has tokens, of which the page asks for one.
    """
    return _PAGE.read_text(encoding="utf-8").replace("@KEY@", str(key).lower()).encode()


@cache
def headers() -> dict[str, str]:
    """Return the headers of the page: it runs its own script and no other, and asks this server only."""
    hashes: dict[str, str] = {}
    for kind, text in _INLINE.findall(_PAGE.read_text(encoding="utf-8")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        hashes[kind] = f"'sha256-{digest}'"
    policy = {
        "default-src": "'none'",
        "script-src": hashes["script"],
        "style-src": hashes["style"],
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }

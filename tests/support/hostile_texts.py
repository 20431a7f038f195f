"""Texts that try to be markup, to reorder text or to be too long."""

from __future__ import annotations

HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "{{ 7 * 123457 }}{% raw %}",
    "</title></textarea></pre><svg onload=alert(1)>",
    "\u202ereversed\u202c\u2066isolated\u200b\ufeff\u061c",
    "javascript:alert(1)",
    "\\u0000 \\x00 %00",
    "\x1b[31mred\x07\r\nSet-Cookie: a=b",
    "../../etc/passwd?x#y&z=1+2 %2F",
    "x" * 600 + " 🦉" * 30,
    "\u2028line\u2029paragraph",
]
LONG = "10 kB " + "y" * 10_000

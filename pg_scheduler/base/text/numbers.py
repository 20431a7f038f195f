"""Numbers with nouns, for messages and pages."""

from __future__ import annotations


def count(number: int, *, is_capped: bool) -> str:
    """Show a number that may be capped."""
    return f"{number:,}{'+' if is_capped else ''}"


def counted(number: int, noun: str, *, is_capped: bool = False) -> str:
    """Show a number, which may be capped, with a noun whose plural ends with an s.

    Example:
        >>> counted(1, "due job"), counted(1200, "due job")
        ('1 due job', '1,200 due jobs')
    """
    # A capped 1 is shown as "1+", which stands for more than one.
    noun_form = f"{noun}s" if is_capped else plural(number, noun)
    return f"{count(number, is_capped=is_capped)} {noun_form}"


def plural(number: float | None, noun: str) -> str:
    """Return a noun, with an s unless the number is 1."""
    return noun if number == 1 else f"{noun}s"


def two_digits(value: float) -> str:
    """Show a number with two significant digits, and never in scientific notation.

    Example:
        >>> two_digits(0.0123), two_digits(9.96), two_digits(250e3)
        ('0.012', '10', '250,000')
    """
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 10 else f"{rounded:.2g}"


def exact(value: float) -> str:
    """Show a number with up to ten significant digits, as people write it.

    Example:
        >>> exact(1_500_000), exact(0.5)
        ('1,500,000', '0.5')
    """
    return f"{value:,.10g}"

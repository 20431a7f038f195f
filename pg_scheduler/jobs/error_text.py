"""The text of an error without what differs from job to job, and the fingerprint of jobs with the same error.

The statement that writes a failure counts it by these two. Pages find the jobs of an error by them.
"""

from __future__ import annotations

import re
from hashlib import md5
from typing import Final

from pg_scheduler.base.status import JobStatus
from pg_scheduler.events.types import EXPIRED

MAX_LENGTH: Final = 200
"""Characters of an error that tell errors apart."""

MAX_ERROR_LENGTH: Final = 300
"""Characters of an error from which its text is made."""

OTHER_ERRORS: Final = "other errors"
"""The text by which further errors of a name count if it has too many different ones."""

_VARIABLE: Final = re.compile(
    r"(?P<code>(?i:\b(?:HTTP(?:/[0-9](?:\.[0-9])?)?|status)(?:[ _](?:error|code))?[\s:='\"(]{1,3})"
    r"[1-5][0-9]{2}\b"
    r"|\b[45][0-9]{2}(?= (?:Bad|Client|Conflict|Content|Forbidden|Gateway|Gone|Insufficient|Internal|Length"
    r"|Locked|Method|Not|Payload|Payment|Precondition|Proxy|Request|Server|Service|Too|Unauthorized"
    r"|Unprocessable|Unsupported)\b)"  # status codes of HTTP, which stay
    r"|\b[245][0-9]{2}[ -](?=[245]\.[0-9]\.[0-9]{1,2}\b)|(?<![0-9.])[245]\.[0-9]\.[0-9]{1,2}\b(?!\.?[0-9])"
    r"|(?<=: )[45][0-9]{2}(?= [A-Z])|(?<=\()[45][0-9]{2}(?=, b?['\"]))"  # those of mail servers, which stay
    r"|\b0[xX][0-9a-fA-F]+\b"  # addresses
    r"|\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"  # UUIDs
    r"|\b(?=[a-fA-F]{0,7}[0-9])[0-9a-fA-F]{8,}\b"  # hashes
    r"|[0-9]+(?:[.,:][0-9]+)*"
)


def normalized(error: str) -> str:
    """Return the first line of an error, with ``#`` for each number and id except status codes.

    A number of three digits can also be a count or an id. It counts as a status code of HTTP or of a mail
    server only where servers and clients write these.

    Example:
        >>> normalized("TimeoutError: no answer from 10.0.0.7 after 31 s")
        'TimeoutError: no answer from # after # s'
        >>> normalized("UpstreamError: 502 Bad Gateway in 31 ms")
        'UpstreamError: 502 Bad Gateway in # ms'
        >>> normalized("SMTPDataError: 550 5.1.1 mailbox 4711 unavailable")
        'SMTPDataError: 550 5.1.1 mailbox # unavailable'
    """
    line = error[:MAX_ERROR_LENGTH].lstrip().partition("\n")[0][:MAX_LENGTH]
    # The group ``code`` has matched a status code, which stays.
    return _VARIABLE.sub(lambda match: match["code"] or "#", line).rstrip()


def text_of(status: JobStatus, error: str | None) -> str:
    """Return the text by which a job counts among the failures of its name, from its status and its error."""
    return EXPIRED if status is JobStatus.EXPIRED else normalized(error or "")


def fingerprint_of(job_name: str, text: str) -> str:
    """Return the fingerprint of the errors of a name with a text: twelve hexadecimal digits.

    The fragment ``fingerprint`` of the statements computes the same.
    """
    return md5(f"{job_name}\n{text}".encode(), usedforsecurity=False).hexdigest()[:12]

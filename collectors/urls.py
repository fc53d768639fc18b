"""Store URLs as they may be shown in messages and logs."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

_SECRET_IN_QUERY = re.compile(r"(?i)(password=)[^&#]*")


def masked_url(url: str) -> str:
    """The URL with its password replaced."""
    try:
        parts = urlsplit(url)
        password = parts.password
    except ValueError:
        return "(unreadable URL)"
    url = _SECRET_IN_QUERY.sub(r"\1***", url)
    parts = urlsplit(url)
    if password is None:
        return url
    user_and_host = parts.netloc.rsplit("@", 1)
    user = user_and_host[0].split(":", 1)[0]
    return urlunsplit(parts._replace(netloc=f"{user}:***@{user_and_host[1]}"))

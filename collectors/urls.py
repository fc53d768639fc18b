"""Store URLs as they may be shown in messages and logs."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit


def masked_url(url: str) -> str:
    """The URL with its password replaced."""
    try:
        parts = urlsplit(url)
        password = parts.password
    except ValueError:
        return "(unreadable URL)"
    if password is None:
        return url
    user_and_host = parts.netloc.rsplit("@", 1)
    user = user_and_host[0].split(":", 1)[0]
    return urlunsplit(parts._replace(netloc=f"{user}:***@{user_and_host[1]}"))

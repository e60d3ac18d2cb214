"""URLs that settings and options name: http or https, a host, and no user, whose password would be shown."""

from yarl import URL


def plain_url(text: str) -> URL | None:
    """The URL; None when it is none, has no host, another scheme, or a user."""
    try:
        parsed = URL(text)
        good = parsed.scheme in ("http", "https") and bool(parsed.host) and parsed.user is None
    except ValueError:
        return None
    return parsed if good else None


def without_user(text: str) -> str:
    """What may be shown of a URL that is none: before the last @ there may be a password."""
    return text.rpartition("@")[2]

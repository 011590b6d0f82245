"""Dates in revisions: `main@{2 weeks ago}`, by a grammar of their own.

Git reads any text as some date, nonsense as now. Here what is no date is refused, and a date does not depend on the
machine's time zone.
"""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from oombisect.errors import OombisectError

_REVISION = re.compile(r"(?P<branch>[^{}]*)@\{(?P<date>[^{}]*)\}(?P<rest>[~^][^{}]*)?")
_OF_GIT = re.compile(r"[+-]?[0-9]{1,6}|u|upstream|push", re.IGNORECASE)
_AGO = re.compile(r"(?:[0-9]{1,6} [a-z]+ )+ago")
_AMOUNT = re.compile(r"([0-9]+) ([a-z]+?)s? ")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(rf"{_DAY.pattern}[T ][0-9]{{2}}:[0-9]{{2}}(?::[0-9]{{2}})?(?:Z| ?[+-][0-9]{{2}}:?[0-9]{{2}})?")
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 7 * 86_400}
_MONTHS = {"month": 1, "year": 12}


@dataclass(frozen=True, slots=True)
class Dated:
    """A revision by date: `branch` (HEAD if it was left out) as it was at `date`, then `rest` (`~3`) from there."""

    branch: str
    date: datetime
    rest: str = ""


def dated(revision: str, now: datetime) -> Dated | None:
    """The branch and date that a revision names; None where it names none (`main`, `main@{1}`, `@{upstream}`).

    Args:
        now: what relative dates count from, aware.

    Raises:
        OombisectError: what stands between the braces is no date.
    """
    found = _REVISION.fullmatch(revision)
    if found is None or _OF_GIT.fullmatch(found["date"].strip()):
        return None
    return Dated(found["branch"] or "HEAD", parse_date(found["date"], now), found["rest"] or "")


def parse_date(text: str, now: datetime) -> datetime:
    """A date as people write it; a day means its end, and what names no time zone is UTC.

    Raises:
        OombisectError: it is no date.
    """
    words = re.sub(r"[\s.]+", " ", text.strip().lower())
    try:
        if words in ("now", "yesterday"):
            return now - timedelta(days=words == "yesterday")
        if _AGO.fullmatch(words):
            return _before(now, [(unit, int(count)) for count, unit in _AMOUNT.findall(words)])
        return _absolute(text.strip())
    except (ValueError, OverflowError, KeyError) as error:
        raise OombisectError(
            f"{text!r} is no date",
            "Write it like 2026-08-01, 2026-08-01 14:30 (UTC), 2 weeks ago, 1 month 3 days ago, or yesterday.",
        ) from error


def _before(now: datetime, amounts: list[tuple[str, int]]) -> datetime:
    for unit, count in amounts:
        if unit in _MONTHS:
            year, month = divmod(now.year * 12 + now.month - 1 - count * _MONTHS[unit], 12)
            day = min(now.day, calendar.monthrange(year, month + 1)[1])
            now = now.replace(year=year, month=month + 1, day=day)
        else:
            now -= timedelta(seconds=count * _UNITS[unit])
    return now


def _absolute(text: str) -> datetime:
    if _DAY.fullmatch(text):
        return datetime.fromisoformat(text).replace(tzinfo=UTC) + timedelta(days=1, seconds=-1)
    if not _TIME.fullmatch(text.upper()):
        raise ValueError(text)
    moment = datetime.fromisoformat(re.sub(r" (?=[+-])", "", text.upper()))
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

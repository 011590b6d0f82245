from pathlib import Path

import pytest

from oombisect.history.location import cache_dir, default_database


@pytest.mark.parametrize(
    ("environ", "database", "cache"),
    [
        ({"HOME": "/h"}, "/h/.local/share/oombisect/oombisect.db", "/h/.cache/oombisect"),
        ({"HOME": "/h", "XDG_DATA_HOME": "/d", "XDG_CACHE_HOME": "/c"}, "/d/oombisect/oombisect.db", "/c/oombisect"),
        (
            {"HOME": "/h", "XDG_DATA_HOME": "relative", "XDG_CACHE_HOME": ""},
            "/h/.local/share/oombisect/oombisect.db",
            "/h/.cache/oombisect",
        ),
        ({"HOME": "/h", "XDG_DATA_HOME": "/d", "OOMBISECT_HOME": "/o"}, "/o/oombisect.db", "/o/cache"),
    ],
)
def test_where_things_lie(environ: dict[str, str], database: str, cache: str) -> None:
    assert default_database(environ) == Path(database)
    assert cache_dir(environ) == Path(cache)


def test_a_relative_home_of_ours_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_database({"OOMBISECT_HOME": "here"}) == tmp_path / "here" / "oombisect.db"

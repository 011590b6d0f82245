"""Settings as PyTorch reads them. The expected values were printed by torch 2.9.1 and 2.14.1 themselves."""

from __future__ import annotations

import pytest

from oombisect.memory.allocator.rules import TORCH_2_9, TORCH_2_14, Rules, guess_rules, rules_for
from oombisect.memory.allocator.settings import MIB, UNLIMITED, Settings, SettingsError

BOTH = pytest.mark.parametrize("rules", [TORCH_2_9, TORCH_2_14], ids=lambda rules: rules.name)


@BOTH
def test_nothing_set(rules: Rules) -> None:
    settings = Settings.parse("", rules)
    assert settings == Settings()
    assert settings.max_split_size == UNLIMITED
    assert settings.large_segment_size == settings.non_split_rounding == 20 * MIB


@BOTH
def test_white_space_and_several_keys(rules: Rules) -> None:
    settings = Settings.parse(" max_split_size_mb : 64 , expandable_segments:True", rules)
    assert (settings.max_split_size, settings.expandable_segments) == (64 * MIB, True)


@BOTH
@pytest.mark.parametrize(
    "text",
    [
        "expandable_segments:true",
        "nonsense:1",
        "max_split_size_mb=64",
        "max_split_size_mb:19",
        "max_split_size_mb:x",
        "max_split_size_mb:-1",
        "max_split_size_mb:",
        "max_split_size_mb",
        "max_non_split_rounding_mb:10",
        "garbage_collection_threshold:1.0",
        "garbage_collection_threshold:0",
        "garbage_collection_threshold:much",
        "roundup_power2_divisions:3",
        "roundup_power2_divisions:0",
        "roundup_power2_divisions:[3:4]",
        "roundup_power2_divisions:[4:3]",
        "roundup_power2_divisions:[4",
        "roundup_power2_divisions:[]",
        "backend:cudaMallocAsync",
    ],
)
def test_refused(text: str, rules: Rules) -> None:
    with pytest.raises(SettingsError):
        Settings.parse(text, rules)


@pytest.mark.parametrize(
    ("text", "older", "newer"),
    [
        ("max_split_size_mb:20", False, True),
        ("max_split_size_mb:21", True, True),
        ("max_non_split_rounding_mb:20", False, True),
        ("large_segment_size_mb:11", False, True),
        ("large_segment_size_mb:10", False, False),
        ("large_segment_size_mb:64,max_split_size_mb:32", False, False),
        ("large_segment_size_mb:64,max_non_split_rounding_mb:32", False, False),
        ("per_process_memory_fraction:0.5", False, True),
    ],
)
def test_releases_differ(text: str, older: bool, newer: bool) -> None:
    for rules, accepted in ((TORCH_2_9, older), (TORCH_2_14, newer)):
        if accepted:
            Settings.parse(text, rules)
        else:
            with pytest.raises(SettingsError):
                Settings.parse(text, rules)


@pytest.mark.parametrize(
    ("value", "older", "newer"),
    [
        ("8", [8] * 16, [8] * 16),
        ("[64:8]", [8] * 7 + [0] * 9, [8] * 7 + [0] * 9),
        ("[1:4,2:8]", [4, 8] + [0] * 14, [4, 8] + [0] * 14),
        ("[65536:4]", [4] * 16, [4] * 16),
        ("[>:4]", [4] * 16, [0] + [4] * 15),
        (
            "[64:8,256:4,1024:4,>:1]",
            [8] * 7 + [0, 4, 0] + [1] * 6,
            [8] * 7 + [0, 4, 0, 4] + [1] * 5,
        ),
        (
            "[256:1,512:2,1024:4,>:8]",
            [1] * 9 + [2] + [8] * 6,
            [1] * 9 + [2, 4] + [8] * 5,
        ),
    ],
)
def test_roundup_lists(value: str, older: list[int], newer: list[int]) -> None:
    for rules, expected in ((TORCH_2_9, older), (TORCH_2_14, newer)):
        assert list(Settings.parse(f"roundup_power2_divisions:{value}", rules).roundup) == expected


def test_new_settings_reset_only_some_of_the_old() -> None:
    first = Settings.parse(
        "expandable_segments:True,large_segment_size_mb:64,max_split_size_mb:128,garbage_collection_threshold:0.5,"
        "roundup_power2_divisions:4",
        TORCH_2_14,
    )
    then = Settings.parse("", TORCH_2_14, first)
    assert (then.expandable_segments, then.large_segment_size) == (True, 64 * MIB)
    assert (then.max_split_size, then.garbage_collection_threshold, then.roundup) == (UNLIMITED, 0.0, ())
    with pytest.raises(SettingsError):
        Settings.parse("max_split_size_mb:32", TORCH_2_14, first)


def test_what_oversize_blocks_may_waste_is_reset_by_newer_releases() -> None:
    for rules, kept in ((TORCH_2_9, 100), (TORCH_2_14, 20)):
        first = Settings.parse("max_split_size_mb:200,max_non_split_rounding_mb:100", rules)
        assert first.non_split_rounding == 100 * MIB
        assert Settings.parse("max_split_size_mb:200", rules, first).non_split_rounding == kept * MIB
    larger = Settings.parse("max_split_size_mb:200,large_segment_size_mb:50", TORCH_2_14)
    assert larger.non_split_rounding == 50 * MIB


def test_of_a_snapshot() -> None:
    divisions = {str(1 << power): 0 for power in range(16)}
    written: dict[str, object] = {
        "PYTORCH_CUDA_ALLOC_CONF": "large_segment_size_mb:32",
        "max_split_size": 134217728,
        "garbage_collection_threshold": 0.8,
        "expandable_segments": True,
        "max_round_threshold": -1,
        "roundup_power2_divisions": {**divisions, "4": 2},
    }
    settings = Settings.of_snapshot(written, TORCH_2_14)
    assert settings == Settings(
        expandable_segments=True,
        max_split_size=128 * MIB,
        large_segment_size=32 * MIB,
        garbage_collection_threshold=0.8,
        roundup=(0, 0, 2) + (0,) * 13,
        text="large_segment_size_mb:32",
    )
    plain = {**written, "PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "roundup_power2_divisions": divisions}
    assert Settings.of_snapshot(plain, TORCH_2_14).max_split_size == UNLIMITED
    assert Settings.of_snapshot(plain, TORCH_2_14).roundup == ()
    assert Settings.of_snapshot({}, TORCH_2_9) == Settings()


@pytest.mark.parametrize(
    "written",
    [
        {"max_split_size": "big"},
        {"garbage_collection_threshold": "x"},
        {"roundup_power2_divisions": {"1": "x"}},
    ],
)
def test_a_snapshot_with_nonsense(written: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        Settings.of_snapshot(written, TORCH_2_14)


def test_rules_of_versions() -> None:
    assert not rules_for("2.9.1+cu128").older_segments_first
    assert not rules_for("2.4.0").older_segments_first
    assert rules_for("2.14.1+cu130").older_segments_first
    assert rules_for("3.0").older_segments_first
    assert "not known" in rules_for(None).reason
    assert "2.4.0" in rules_for("2.4.0").reason


def test_rules_guessed_from_a_snapshot() -> None:
    assert guess_rules({"max_round_threshold": -1}).name == TORCH_2_14.name
    assert guess_rules({"PYTORCH_CUDA_ALLOC_CONF": "large_segment_size_mb:32"}).name == TORCH_2_14.name
    assert guess_rules({"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1}).name == TORCH_2_9.name
    assert guess_rules({}).name == TORCH_2_9.name
    for settings in ({"max_round_threshold": -1}, {"max_split_size": -1}, {}):
        assert guess_rules(settings).reason


@pytest.mark.parametrize("value", [3, 48, -4, True, 2.0, "x", 10**30])
def test_a_snapshot_with_divisions_that_pytorch_never_writes(value: object) -> None:
    with pytest.raises(SettingsError, match="powers of 2 or 0") as error:
        Settings.of_snapshot({"roundup_power2_divisions": {"1": value}}, TORCH_2_14)
    assert len(str(error.value)) < 120


def test_a_huge_number_is_named_and_cut() -> None:
    with pytest.raises(SettingsError, match=r"max_split_size_mb is '1000.*too large") as error:
        Settings.parse("max_split_size_mb:1" + "0" * 5000, TORCH_2_14)
    assert len(str(error.value)) < 150


@pytest.mark.parametrize(
    "conf",
    [
        "{}:1",
        "expandable_segments:{}",
        "backend:{}",
        "max_split_size_mb:{}",
        "garbage_collection_threshold:{}",
        "garbage_collection_threshold:1.{}",
        "per_process_memory_fraction:1{}",
        "roundup_power2_divisions:{}",
        "roundup_power2_divisions:[{}:1]",
        "roundup_power2_divisions:[1:{}]",
        "large_segment_size_mb:{}",
        "[{}",
    ],
)
@pytest.mark.parametrize("text", ["x" * 5000, "0" * 5000])
def test_no_refusal_is_longer_for_a_long_value(conf: str, text: str) -> None:
    with pytest.raises(SettingsError) as error:
        Settings.parse(conf.format(text), TORCH_2_14)
    assert len(str(error.value)) < 200

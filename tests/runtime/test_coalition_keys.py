"""A coalition key identifies one generation request: everything that changes the text changes the key."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from undercurrent.errors import UndercurrentError
from undercurrent.runtime import (
    CoalitionDedupRegistry,
    DedupConfig,
    GenerationConfig,
    build_coalition_key,
    dedup_enabled,
)
from undercurrent.runtime.errors import RuntimeTypeError, RuntimeValueError

PLAYERS = ("a", "b", "c")
MASK = (True, False, True)
GENERATION = GenerationConfig()
TEXTS = st.text(max_size=4)


def key(**changes: object) -> str:
    request: dict[str, object] = {
        "snapshot_id": "s",
        "player_ids": PLAYERS,
        "mask_present": MASK,
        "absence_policy": "delete",
        "model_id": "m",
        "generation": GENERATION,
    }
    return build_coalition_key(**{**request, **changes})  # type: ignore[arg-type]


def test_key_is_a_sha256_in_hexadecimal_and_stays_what_it_was() -> None:
    assert key() == "4a6cbaabecc6b0eaca52911b1a2660264cdcb2ee5f79e6881e8a64a1fb9d355e"
    assert len(key()) == 64
    assert set(key()) <= set("0123456789abcdef")


@pytest.mark.parametrize(
    "changes",
    [
        {"snapshot_id": "t"},
        {"player_ids": ("a", "b", "d")},
        {"mask_present": (True, True, True)},
        {"absence_policy": "mask"},
        {"model_id": "n"},
        *(
            {"generation": msgspec.structs.replace(GENERATION, **{name: value})}
            for name, value in [
                ("max_new_tokens", 2**31),
                ("temperature", 1e-9),
                ("top_k", 2),
                ("top_p", 0.5),
                ("seed", 0),
                ("stop", ("\n",)),
                ("template", "chat"),
            ]
        ),
        {"generation": None},
    ],
    ids=str,
)
def test_whatever_changes_the_text_changes_the_key(changes: dict[str, object]) -> None:
    assert key(**changes) != key()


def test_every_setting_of_a_generation_is_in_the_key() -> None:
    tried = {"max_new_tokens", "temperature", "top_k", "top_p", "seed", "stop", "template"}
    assert set(GenerationConfig.__struct_fields__) == tried


def test_fields_do_not_run_together() -> None:
    assert key(absence_policy="del", model_id="etem") != key(absence_policy="delete", model_id="m")
    assert key(player_ids=("a", "b\x1fc", "d")) != key(player_ids=("a\x1fb", "c", "d"))


@given(st.tuples(TEXTS, TEXTS, TEXTS, TEXTS), st.tuples(TEXTS, TEXTS, TEXTS, TEXTS))
def test_different_requests_have_different_keys(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    def of(texts: tuple[str, ...]) -> str:
        snapshot_id, player, policy, model = texts
        return build_coalition_key(snapshot_id, (player,), (True,), policy, model, None)

    assert (of(one) == of(other)) == (one == other)


@given(st.lists(st.booleans(), max_size=40), st.lists(st.booleans(), max_size=40))
def test_different_masks_have_different_keys(one: list[bool], other: list[bool]) -> None:
    def of(mask: list[bool]) -> str:
        return build_coalition_key("s", tuple(map(str, range(len(mask)))), mask, "delete", "m", None)

    assert (of(one) == of(other)) == (one == other)


def test_equal_requests_have_equal_keys_however_they_are_spelled() -> None:
    assert key(mask_present=np.array(MASK)) == key(mask_present=[1, 0, 5]) == key()
    assert key(player_ids=list(PLAYERS)) == key()
    assert (
        key(generation=GenerationConfig(temperature=0)) == key(generation=GenerationConfig(temperature=-0.0)) == key()
    )


@dataclasses.dataclass
class Settings:
    temperature: float = 0.0
    stop: list[str] = dataclasses.field(default_factory=list)


def test_settings_may_be_any_object_with_fields() -> None:
    by_mapping = key(generation={"temperature": 0.0, "stop": ["x"]})
    assert by_mapping == key(generation={"stop": ["x"], "temperature": 0})
    assert by_mapping == key(generation=Settings(stop=["x"]))
    assert by_mapping != key(generation=Settings(stop=[]))


def test_settings_that_change_in_place_change_the_key() -> None:
    settings = Settings()
    before = key(generation=settings)
    settings.temperature = 1.0
    assert key(generation=settings) != before


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"mask_present": (True,)}, RuntimeValueError, "a mask of 3 players was expected, got one of 1"),
        ({"generation": {"temperature": float("nan")}}, RuntimeValueError, "`generation.temperature`, got NaN"),
        ({"generation": {"hook": print}}, RuntimeTypeError, "`generation.hook`, got builtin_function_or_method"),
        ({"generation": {1: 2}}, RuntimeTypeError, "names of settings must be strings"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_has_no_one_spelling_is_refused(changes: dict[str, object], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        key(**changes)
    assert issubclass(error, UndercurrentError)


@pytest.mark.parametrize(
    ("mode", "temperature", "is_on"),
    [("on", 1.0, True), ("off", 0.0, False), ("auto", 0.0, True), ("auto", 0.7, False)],
)
def test_dedup_auto_means_on_at_temperature_0(mode: str, temperature: float, is_on: bool) -> None:
    generation = GenerationConfig(temperature=temperature)
    assert dedup_enabled(DedupConfig(mode), generation) is is_on  # type: ignore[arg-type]
    assert dedup_enabled(mode, generation) is is_on


def test_dedup_without_settings_is_on_only_where_asked_for() -> None:
    assert dedup_enabled("on", None)
    assert not dedup_enabled("auto", None)


@pytest.mark.parametrize(
    "ask",
    [lambda: dedup_enabled("atuo", None), lambda: dedup_enabled(SimpleNamespace(enabled="atuo"), None)],
)
def test_another_mode_of_dedup_is_refused_with_the_nearest(ask: Callable[[], bool]) -> None:
    with pytest.raises(ValueError, match="did you mean 'auto'"):
        ask()


def test_registry_sees_a_key_once_and_forgets_what_failed() -> None:
    registry = CoalitionDedupRegistry()
    assert [registry.observe("a"), registry.observe("a"), registry.observe("b")] == [True, False, True]
    assert registry.contains("a")
    assert len(registry) == 2
    registry.release("a")
    assert not registry.contains("a")
    assert registry.observe("a")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stop": "\n"}, r"`stop` must be tuple or list, got '\\n'"),
        ({"stop": [1]}, "`stop` must hold strings"),
        ({"temperature": "0"}, "`temperature` must be int or float, got '0'"),
        ({"seed": 1.5}, "`seed` must be int or None"),
        ({"max_new_tokens": True}, "`max_new_tokens` must be int"),
    ],
    ids=str,
)
def test_settings_of_the_wrong_type_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        GenerationConfig(**changes)  # type: ignore[arg-type]


def test_stop_strings_may_come_as_a_list() -> None:
    assert key(generation=GenerationConfig(stop=["\n"])) == key(generation=GenerationConfig(stop=("\n",)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_new_tokens": 0}, "`max_new_tokens` must be >= 1"),
        ({"temperature": -1.0}, "`temperature` must be a finite number >= 0"),
        ({"temperature": float("nan")}, "`temperature`"),
        ({"top_p": 0.0}, "`top_p` must be above 0"),
        ({"top_k": -1}, "`top_k` must be >= 0"),
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GenerationConfig(**changes)  # type: ignore[arg-type]

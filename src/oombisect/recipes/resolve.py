"""A recipe name -> the function that plays that part at a commit.

`qwen3_8b_lora` is the function of no commit: through history the same workload has been
`qwen3_8b_finetune_config(peft="lora")`, `qwen3_8b_peft_config(peft_scheme="lora")` and
`qwen3_8b_peft_1gpu_h100_bf16_config(peft_scheme="lora")`. What is chosen depends on names and signatures alone, never
on versions. The order of preference is told in docs/recipes.md.
"""

from __future__ import annotations

import ast
import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from oombisect.errors import OombisectError
from oombisect.recipes.scan import RecipeFunction, RecipeTable
from oombisect.recipes.untrusted import REQUEST_LIMIT, UNREADABLE, parse_expression

RESOLVER_VERSION = 1
"""Part of a measurement's signature: to be raised when a name may lead to another function than before."""

# The part a recipe plays -> the words its functions have used for it, preferred first.
MODES = {
    "pretrain": ("pretrain",),
    "sft": ("sft", "finetune"),
    "lora": ("lora", "peft", "finetune"),
    "dora": ("dora", "peft", "finetune"),
}
# Bridge's own default for a PEFT or fine-tuning recipe is LoRA.
_MODE_OF_WORD = {mode: mode for mode in MODES} | {"peft": "lora", "finetune": "lora"}
_SCHEME_KEYWORDS = ("peft_scheme", "peft")
_GPUS = re.compile(r"([1-9]\d*)gpus?")
_GPU_NAME = re.compile(r"[a-z]{1,3}\d{2,3}[a-z]?")  # what follows a count, if it looks like one: GPUs yet to come
_HARDWARE = ("h100", "h200", "a100", "b200", "gb200", "b300", "gb300", "r100", "vr200", "l40s")
# A probe brings its own data, so a recipe that differs by its data set alone is the same workload.
_NO_VARIANT = ("config", "mock")
_SHOWN = 3
_SHOWN_TEXT = 80
_PRECISION = ("bf16", "fp8cs", "fp8ds", "fp8mx", "fp8sc", "nvfp4", "fp16")


class UnknownRecipe(OombisectError):
    """No function of the commit plays the part; `near` are names that come close. The point is unresolved."""

    def __init__(self, cause: str, near: tuple[str, ...] = ()) -> None:
        way_out = f"Did you mean {', '.join(near)}?" if near else "`--recipe module:function` names one exactly."
        super().__init__(cause, way_out)
        self.near = near


@dataclass(frozen=True, slots=True)
class Resolved:
    """The call that plays the part: `module`, `function`, `kwargs`; `note` tells of a choice that was made."""

    module: str
    function: str
    kwargs: Mapping[str, object] = field(default_factory=dict)
    note: str = ""

    def __str__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.kwargs.items())
        return f"{self.module}:{self.function}({arguments})"


@dataclass(frozen=True, slots=True)
class Request:
    """What a user asked for: `name` (or `module:name`) and literal keyword arguments."""

    name: str
    module: str = ""
    kwargs: Mapping[str, object] = field(default_factory=dict)


def parse_request(text: str) -> Request:
    """`name`, `module:function`, either with literal arguments: `name(peft_scheme="dora", seq_length=4096)`.

    Raises:
        OombisectError: it is none of these.
    """
    if len(text) > REQUEST_LIMIT:
        raise OombisectError(
            f"{text[:40]!r}... is no recipe name: it has {len(text)} characters",
            f"At most {REQUEST_LIMIT} characters are read; name a function and few arguments.",
        )
    match = re.fullmatch(r"\s*(?:([\w.]+):)?(\w+)\s*(\(.*\))?\s*", text, re.DOTALL)
    if match is None:
        raise OombisectError(
            f"{text!r} is no recipe name", 'Write it like qwen3_8b_lora, module:function or name(peft_scheme="dora").'
        )
    try:
        call = parse_expression(f"f{match[3] or '()'}")
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("not one call")
        names = [k.arg for k in call.keywords]
        if call.args or None in names or len(set(names)) < len(names):
            raise ValueError("not keyword arguments, each once")
        kwargs = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
        json.dumps(kwargs, allow_nan=False)  # a probe is told of them in JSON
    except UNREADABLE as error:
        shown = text if len(text) <= _SHOWN_TEXT else f"{text[:_SHOWN_TEXT]}..."
        raise OombisectError(
            f"The arguments of {shown!r} are not literal keyword arguments that JSON can hold",
            'Write them like name(peft_scheme="dora").',
        ) from error
    return Request(match[2], match[1] or "", kwargs)


@dataclass(frozen=True, slots=True)
class _Parts:
    """A recipe name taken apart: model and variant words (sorted), the word for its mode, and what it was tuned for."""

    words: tuple[str, ...]
    mode_word: str
    gpus: int | None = None
    hardware: str = ""
    precision: str = ""

    @classmethod
    def of(cls, name: str) -> _Parts:
        words, mode, gpus, hardware, precision = [], "", None, "", ""
        before = ""
        for word in name.split("_"):
            after_count, before = _GPUS.fullmatch(before) is not None, word
            if word in _MODE_OF_WORD and not mode:
                mode = word
            elif match := _GPUS.fullmatch(word):
                gpus = int(match[1])
            elif not hardware and (word in _HARDWARE or (after_count and _GPU_NAME.fullmatch(word))):
                hardware = word
            elif word in _PRECISION and not precision:
                precision = word
            elif word not in _NO_VARIANT:
                words.append(word)
        return cls(tuple(sorted(words)), mode, gpus, hardware, precision)

    def meets(self, asked: _Parts) -> bool:
        """Whether a function of these parts is a variant of what was asked for, its mode aside."""
        tuned = ((asked.gpus, self.gpus), (asked.hardware, self.hardware), (asked.precision, self.precision))
        return self.words == asked.words and all(not wanted or wanted == has for wanted, has in tuned)

    @property
    def rank(self) -> tuple[bool, bool, str, bool, str, int]:
        """Order among variants: tuned for nothing in particular, then H100, then bf16, then the fewest GPUs."""
        return (
            bool(self.hardware or self.gpus),
            self.hardware not in ("", "h100"),
            self.hardware,
            self.precision not in ("", "bf16"),
            self.precision,
            self.gpus or 0,
        )


def resolve(text: str, table: RecipeTable) -> Resolved:
    """The function that plays the named part at a commit.

    Raises:
        UnknownRecipe: none does, or it does not take the arguments; near names are listed.
        OombisectError: `text` is no recipe name at all.
    """
    request = parse_request(text)
    if request.module:
        return _qualified(request, table)
    exact = _exact(request, table)
    if exact is not None:
        return exact
    asked = _Parts.of(request.name)
    mode = _mode(asked, request)
    if not asked.mode_word:
        raise UnknownRecipe(f"There is no recipe {request.name!r} at this commit", _near(request.name, table))
    scheme = _scheme(request) or (mode if mode in ("lora", "dora") else None)
    kwargs = {k: v for k, v in request.kwargs.items() if k not in _SCHEME_KEYWORDS}
    calls = [
        _call(function, mode, parts.mode_word, scheme, kwargs)
        for parts, function in sorted(_candidates(asked, mode, table), key=lambda c: _preference(mode, *c))
    ]
    fitting = [call for call in calls if isinstance(call, Resolved)]
    if fitting:
        return _chosen(request.name, fitting)
    refusals = [call for call in calls if isinstance(call, str)]
    why = f": {refusals[0]}" if refusals else ""
    raise UnknownRecipe(f"No recipe at this commit plays the part of {request.name!r}{why}", _near(request.name, table))


def _qualified(request: Request, table: RecipeTable) -> Resolved:
    found = table.functions.get(f"{request.module}:{request.name}")
    if found is None:
        near = difflib.get_close_matches(f"{request.module}:{request.name}", table.functions, n=4, cutoff=0.6)
        raise UnknownRecipe(f"There is no function {request.module}:{request.name} at this commit", tuple(near))
    problem = _refusal(found, request.kwargs)
    if problem:
        raise UnknownRecipe(problem)
    return Resolved(found.module, found.function, dict(request.kwargs))


def _exact(request: Request, table: RecipeTable) -> Resolved | None:
    """A function known by the very name (`_config` may be left out), if it takes the arguments given."""
    for name in (request.name, f"{request.name}_config"):
        found = table.named(name)
        fitting = [f for f in found if not _refusal(f, request.kwargs)]
        if found and not fitting and not _names_scheme(request):
            raise UnknownRecipe(_refusal(found[0], request.kwargs))
        if fitting:
            others = ", ".join(f.key for f in fitting[1:])
            note = f"{name} is also the name of {others}" if others else ""
            return Resolved(fitting[0].module, fitting[0].function, dict(request.kwargs), note)
    return None


def _names_scheme(request: Request) -> bool:
    return any(k in request.kwargs for k in _SCHEME_KEYWORDS)


def _mode(asked: _Parts, request: Request) -> str:
    mode = _MODE_OF_WORD.get(asked.mode_word, "")
    scheme = _scheme(request)
    if mode == "lora" and any(k in request.kwargs and request.kwargs[k] in (None, "none") for k in _SCHEME_KEYWORDS):
        return "sft"
    return scheme if mode == "lora" and scheme in ("lora", "dora") else mode


def _scheme(request: Request) -> str | None:
    value = next((request.kwargs[k] for k in _SCHEME_KEYWORDS if k in request.kwargs), None)
    return str(value).lower() if value not in (None, "none") else None


def _preference(mode: str, parts: _Parts, function: RecipeFunction) -> tuple[object, ...]:
    return not function.is_library, MODES[mode].index(parts.mode_word), parts.rank, function.key


def _candidates(asked: _Parts, mode: str, table: RecipeTable) -> Iterator[tuple[_Parts, RecipeFunction]]:
    for name in table.names:
        parts = _Parts.of(name)
        if parts.mode_word in MODES[mode] and parts.meets(asked):
            yield from ((parts, function) for function in table.named(name))


def _call(
    function: RecipeFunction, mode: str, word: str, scheme: str | None, kwargs: Mapping[str, object]
) -> Resolved | str:
    """The call that makes a function play the mode, or why it cannot."""
    arguments, note = dict(kwargs), ""
    keyword = next((k for k in _SCHEME_KEYWORDS if function.accepts(k)), None)
    if word == "finetune" and keyword is None and mode != "sft":
        return f"{function.function} takes no choice of PEFT scheme"
    if word == "finetune" and keyword is not None:
        arguments[keyword] = None if mode == "sft" else scheme
    elif word == "peft" and keyword is not None:
        arguments[keyword] = scheme
    elif word == "peft" and scheme != "lora":
        return f"{function.function} takes no choice of PEFT scheme"
    elif word == "peft":
        note = f"{function.function} takes no choice of PEFT scheme; its own is used"
    problem = _refusal(function, arguments)
    return problem or Resolved(function.module, function.function, arguments, note)


def _refusal(function: RecipeFunction, kwargs: Mapping[str, object]) -> str:
    """Why a function cannot be called with these arguments; "" if it can."""
    unknown = [k for k in kwargs if not function.accepts(k)]
    if unknown:
        return f"{function.function} does not take {', '.join(unknown)}"
    missing = [k for k in function.required if k not in kwargs]
    return f"{function.function} needs {', '.join(missing)}" if missing else ""


def _chosen(name: str, fitting: list[Resolved]) -> Resolved:
    first = fitting[0]
    others = list(dict.fromkeys(call.function for call in fitting[1:] if call.function != first.function))
    if not others:
        return first
    more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
    choice = f"{first.function} was chosen for {name}; there are also {', '.join(others[:_SHOWN])}{more}"
    return Resolved(first.module, first.function, first.kwargs, "; ".join(filter(None, (first.note, choice))))


def _near(name: str, table: RecipeTable) -> tuple[str, ...]:
    """Names that come close: the same model's first (those of the same mode before others), then the same
    spelling, then the same family."""
    asked = _Parts.of(name)
    words, mode = set(asked.words), _MODE_OF_WORD.get(asked.mode_word)
    model = [(n, _Parts.of(n)) for n in table.names]
    model = [(n, parts) for n, parts in model if words and words <= set(parts.words)]
    model.sort(key=lambda m: (_MODE_OF_WORD.get(m[1].mode_word) != mode, len(m[1].words), m[1].rank, m[0]))
    spelled = difflib.get_close_matches(name, table.names, n=4, cutoff=0.5)
    family = [n for n in table.names if n.split("_")[0] == name.split("_")[0]]
    return tuple(dict.fromkeys([*(n for n, _ in model[:4]), *spelled, *family[:4]]))[:6]

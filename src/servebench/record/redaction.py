"""What may be written of a run: the keys of run.json by an allow-list, and no value that is or looks like a secret.

Everything that comes from outside (the command line, a scenario's headers and variables, what a server says of itself)
passes through `clean` before it is stored. A name or header that is not on a list keeps its name and loses its value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

WITHHELD = "[withheld]"
LEAST = 8  # characters; a shorter value would blank out ordinary words

KEYS = frozenset(
    {
        "cache_reset",
        "clocks",
        "cold_start",
        "command",
        "created_ns",
        "endpoint",
        "environment",
        "name",
        "phases",
        "plan",
        "probes",
        "profile",
        "prompts",
        "random_weights",
        "scenario",
        "schema",
        "selftest",
        "servebench",
        "server_identity",
        "simulated",
        "status",
        "telemetry",
        "warnings",
        "workers",
    }
)
HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "accept-language",
        "cache-control",
        "content-type",
        "user-agent",
        "x-request-id",
        "x-slo-class",
    }
)
VARIABLES = re.compile(
    r"(VLLM|SGLANG|SGL|OMP|KMP|MKL|OPENBLAS|NCCL|GLOO|CUDA|NVIDIA|TORCH|PYTORCH|TORCHINDUCTOR|TRITON|FLASHINFER|XLA|RAY|"
    r"TOKENIZERS|MALLOC|SERVEBENCH)_[A-Z0-9_]+"
    r"|HF_HUB_OFFLINE|HF_HOME|TRANSFORMERS_OFFLINE|PYTHONHASHSEED|PYTHONUNBUFFERED|LD_PRELOAD|DO_NOT_TRACK|CXX|CC"
)
_TELLING = re.compile(
    r"(?:^|_)(?:apikey|token|secret|password|passwd|passphrase|credentials?|auth|authorization|cookie|bearer|jwt|"
    r"(?:api|access|private|auth|master)_key|key(?=_*\d*$))(?:_|$)"
)
_COUNTED = re.compile(  # tokens of text: per_prefill_token, long_prefill_token_threshold
    r"(?:^|_)(?:(?:per|prefill|decode|input|output|context|prompt|first|next|each|eos|bos|pad|stop)_token"
    r"|token_(?:budget|threshold|ids?|count|limit|length|size|rate|time|latency|window))(?=_|$)"
)
_KEYS = re.compile(  # what no ordinary text holds: known prefixes, a JWT, an authorization, long mixed characters
    r"\b(?:sk|hf|ghp|gho|ghs|github_pat|glpat|xoxb|xoxp|nvapi|ya29)[-_.][\w-]{12,}|\bAKIA[0-9A-Z]{12,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}[\w.-]*"
    r"|\b(?:[Bb]earer|[Bb]asic)\s+(?=\S*[0-9])\S{8,}"
    r"|(?<![A-Za-z0-9])(?=[A-Z0-9]*[a-z])(?=[a-z0-9]*[A-Z])(?=[A-Za-z]*[0-9])[A-Za-z0-9]{24,}"
)
_ORDINARY = re.compile(r"[a-z]*|[0-9.:]*")  # a word, a number, an address: found everywhere, and no secret
_SETTER = re.compile(r"(--set=|-s=?)?([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
_URL = re.compile(r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"]+")
_NAME, _VALUE = r"([A-Za-z_][\w.-]*)", r"('[^']*'|\"[^\"]*\"|[^\s'\"]+)"
_WITHIN = (  # where a line for a shell, or an arm's settings, give a name its value: name, what is between, value
    re.compile(rf"(?<='){_NAME}(=)([^']*)"),
    re.compile(rf'(?<="){_NAME}(=)([^"]*)'),
    re.compile(rf"(?<![\w.'\"-]){_NAME}(=){_VALUE}"),
    re.compile(rf"(?<![\w-])(--?[A-Za-z][\w-]*)(=|\s+)(?!-){_VALUE}"),
    re.compile(r'(?<=")([A-Za-z][\w-]*)("\s*:\s*)("[^"]*")'),
    re.compile(
        r"(?i)(?<![\w-])(authorization|cookie|[a-z][a-z0-9_]*-[\w-]*)(\s*:\s*)"
        r"((?:(?:bearer|basic|token)\s+)?[^\s'\"]+)"
    ),
)


def names_secret(name: str) -> bool:
    """Whether a name (of a variable, header, flag or key) says that its value is a secret: ``HF_TOKEN``, ``api-key``.

    A word counts only as a whole: ``max_tokens``, ``tokenizer`` and ``key_value_heads`` name none, nor do
    ``per_prefill_token`` and ``token_budget``, and ``api_key_env`` names a variable.
    """
    snake = re.sub(r"[^A-Za-z0-9]+", "_", re.sub(r"([a-z])([A-Z])", r"\1_\2", name)).lower()
    return not snake.endswith("_env") and _TELLING.search(_COUNTED.sub("", snake)) is not None


def looks_secret(value: str) -> bool:
    """Whether a value holds what looks like a key: a known prefix, a JWT, an authorization, long mixed characters."""
    return _KEYS.search(value) is not None


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """Environment variables of a server: the values of those on the list, unless they look like secrets."""
    return {name: value if _shown_variable(name, str(value)) else WITHHELD for name, value in env.items()}


def _shown_variable(name: str, value: str) -> bool:
    return VARIABLES.fullmatch(name) is not None and not names_secret(name) and not looks_secret(value)


def headers(sent: Mapping[str, str]) -> dict[str, str]:
    """Request headers: the values of those on the list, unless they look like secrets."""
    return {name: value if _shown_header(name, str(value)) else WITHHELD for name, value in sent.items()}


def _shown_header(name: str, value: str) -> bool:
    return name.lower() in HEADERS and not looks_secret(value)


def command(arguments: Sequence[str]) -> list[str]:
    """A command line, without the values that name or look like secrets, and without credentials in URLs."""
    shown: list[str] = []
    for argument in arguments:
        before = shown[-1] if shown else ""
        takes = before.startswith("-") and "=" not in before and names_secret(before)
        shown.append(WITHHELD if takes and not argument.startswith("--") else _argument(str(argument)))
    return shown


def _argument(text: str) -> str:
    option = text.partition("=")[0]
    if text.startswith("--") and "=" in text and names_secret(option):
        return f"{option}={WITHHELD}"
    setter = _SETTER.fullmatch(text)
    if setter is not None and not _shown_setting(setter[2], setter[3]):
        return f"{setter[1] or ''}{setter[2]}={WITHHELD}"
    if re.search(r"\s", text):
        return _line(text)
    bare = _address(text) if _URL.match(text) else _without_credentials(text)
    return WITHHELD if looks_secret(bare) else bare


def _line(text: str) -> str:
    """An argument of several words, such as a command for a shell or the settings of an arm: only its secrets go."""
    text = _without_credentials(text)
    for pattern in _WITHIN:
        text = pattern.sub(_given, text)
    return _KEYS.sub(WITHHELD, text)


def _given(found: re.Match[str]) -> str:
    """A name and its value within a line; a variable that holds the value tells nothing."""
    name, between, value = found.groups()
    refers = value.split()[-1:] != [] and value.split()[-1].lstrip("'\"").startswith("$")
    return found[0] if refers or _shown_setting(name, "") else f"{name}{between}{WITHHELD}"


def _without_credentials(text: str) -> str:
    return _URL.sub(lambda found: _address(found[0]), text)


def _shown_setting(path: str, value: str) -> bool:
    """Whether ``--set PATH=VALUE`` may be shown: headers and variables by their lists, the rest by name and look."""
    _, found, header = path.partition("headers.")
    if found or path.endswith("headers"):
        return bool(found) and _shown_header(header, value)
    _, found, name = path.partition(".env.")
    if found or path.endswith(".env"):
        return bool(found) and _shown_variable(name, value)
    return not names_secret(path) and not looks_secret(value)


def _address(text: str) -> str:
    """A URL without credentials, query and fragment; text that is none passes as it is."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return WITHHELD
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")
    return text if bare == parts else bare.geturl()


def clean(manifest: Mapping[str, Any], secrets: Iterable[str] = ()) -> dict[str, Any]:
    """What may be stored of a manifest; cleaning it again changes nothing.

    Args:
        manifest: run.json as a mapping; keys that are not in `KEYS` are left out.
        secrets: values to be taken out wherever they occur (`secrets_of`).
    """
    shown = {key: _general(key, value) for key, value in manifest.items() if key in KEYS}
    for path, rule in _RULES.items():
        _apply(shown, manifest, path.split("."), rule)
    known = tuple(secrets)
    return {key: _without(value, known) for key, value in shown.items()}


_RULES: dict[str, Callable[[Any], Any]] = {
    "command": command,
    "endpoint.url": _address,
    "scenario.endpoint.headers": headers,
    "scenario.engine.vllm.env": variables,
    "endpoint.server.env": variables,
    "endpoint.server.command": command,
}


def _apply(shown: Any, stored: Any, path: Sequence[str], rule: Callable[[Any], Any]) -> None:
    """Replace what lies at `path` by what `rule` makes of it, if there is anything."""
    for key in path[:-1]:
        shown, stored = _at(shown, key), _at(stored, key)
    value = _at(stored, path[-1])
    if value is not None and isinstance(shown, dict):
        shown[path[-1]] = rule(value)


def _at(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None


def _general(name: str, value: Any) -> Any:
    """Any part of the manifest: texts under a telling name are withheld, and in others what looks like a key."""
    if isinstance(value, Mapping):
        return {key: _general(str(key), inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_general(name, inner) for inner in value]
    if not isinstance(value, str) or not value:
        return value
    return WITHHELD if names_secret(name) else _KEYS.sub(WITHHELD, value)


def _without(value: Any, secrets: Sequence[str]) -> Any:
    if isinstance(value, str):
        return without(value, secrets)
    if isinstance(value, dict):
        return {key: _without(inner, secrets) for key, inner in value.items()}
    return [_without(inner, secrets) for inner in value] if isinstance(value, list) else value


def without_in(document: Any, secrets: Sequence[str]) -> Any:
    """`document`, a tree of JSON values, with `secrets` taken out of every text in it."""
    return _without(document, tuple(secrets))


def without(text: str, secrets: Iterable[str]) -> str:
    """`text` with each of `secrets` replaced."""
    for secret in secrets:
        text = text.replace(secret, WITHHELD)
    return text


def secrets_of(scenario: Mapping[str, Any], environ: Mapping[str, str], named: Iterable[str | None]) -> tuple[str, ...]:
    """The values that a run must never write, the longest first.

    Args:
        scenario: as resolved; its headers and variables that are not on the lists.
        environ: this process's variables; those whose names tell of a secret.
        named: variables that hold a key or token by the user's own word (`--api-key-env`), whatever their names.
    """
    vllm = _at(_at(scenario, "engine"), "vllm")
    settings = {**environ, **(_at(vllm, "flags") or {}), **(_at(vllm, "env") or {})}
    told = [value for name, value in settings.items() if isinstance(value, str) and names_secret(name)]
    told += withheld_headers(_at(_at(scenario, "endpoint"), "headers") or {})
    sure = [environ[name] for name in named if name is not None and environ.get(name)]
    return tuple(sorted({*sure, *filter(_is_worth_hiding, told)}, key=lambda value: (-len(value), value)))


def withheld_headers(sent: Mapping[str, str]) -> list[str]:
    """The values of headers that are not stored: whole, and without the scheme before them (``Bearer``)."""
    values = [str(value) for name, value in sent.items() if not _shown_header(name, str(value))]
    parts = {part for value in values for part in (value, *value.split()[-1:])}
    return sorted(filter(_is_worth_hiding, parts), key=lambda value: (-len(value), value))


def _is_worth_hiding(value: str) -> bool:
    return len(value) >= LEAST and _ORDINARY.fullmatch(value) is None


def clean_file(path: Path, secrets: Sequence[str]) -> None:
    """Take `secrets` out of a text file, such as a server's log, if any is in it; nobody may be writing it."""
    if not secrets or not path.exists():
        return
    data = path.read_bytes()
    found = [secret.encode() for secret in secrets if secret.encode() in data]
    for secret in found:
        data = data.replace(secret, WITHHELD.encode())
    if found:
        path.write_bytes(data)

"""Tokenizers that a prompt kit can be made with: the server's own, over HTTP, or a local one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from servebench.errors import UsageError

if TYPE_CHECKING:
    import httpx

CALL_TIMEOUT = 10.0  # seconds; a server that answers these calls at all does so in milliseconds
# Parts of a request body that change how the server renders the prompt, and that its /tokenize takes as well.
TEMPLATE_KEYS = ("add_special_tokens", "chat_template", "chat_template_kwargs", "add_generation_prompt", "tools")


@dataclass(frozen=True, slots=True)
class Encoding:
    """How many tokens a text has, and their ids; `ids` is empty where only the count was told."""

    count: int
    ids: tuple[int, ...] = ()


class Tokenizer(Protocol):
    """What counts tokens. Every method returns None where it cannot answer; none of them raises."""

    def encode(self, text: str) -> Encoding | None:
        """Encode a completions prompt, as the server would: special tokens included."""

    def encode_chat(self, text: str) -> Encoding | None:
        """Encode a chat of one user message, through the chat template."""

    def decode(self, ids: Sequence[int]) -> str | None:
        """Return the text of `ids`."""


class ServerTokenizer:
    """The server's `/tokenize` and `/detokenize`, in the form that vLLM and SGLang share.

    Attributes:
        calls: how many HTTP calls were made.
    """

    def __init__(self, client: httpx.Client, url: str, model: str, extra_body: Mapping[str, Any] | None = None) -> None:
        self._client = client
        self._url = url.rstrip("/")
        self._model = model
        self._template = {key: value for key, value in (extra_body or {}).items() if key in TEMPLATE_KEYS}
        self.calls = 0

    def encode(self, text: str) -> Encoding | None:
        """See `Tokenizer`."""
        special = {k: v for k, v in self._template.items() if k == "add_special_tokens"}
        return _encoding(self._post("/tokenize", {"prompt": text} | special))

    def encode_chat(self, text: str) -> Encoding | None:
        """See `Tokenizer`."""
        body = {"messages": [{"role": "user", "content": text}], "add_generation_prompt": True}
        return _encoding(self._post("/tokenize", body | self._template))

    def decode(self, ids: Sequence[int]) -> str | None:
        """See `Tokenizer`."""
        answer = self._post("/detokenize", {"tokens": list(ids)}) or {}
        text = answer.get("prompt", answer.get("text"))
        return text if isinstance(text, str) else None

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """POST `body`; None for anything but a 200 with a JSON object."""
        import httpx

        self.calls += 1
        try:
            response = self._client.post(self._url + path, json={"model": self._model} | body, timeout=CALL_TIMEOUT)
            answer = response.json() if response.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return None
        return answer if isinstance(answer, dict) else None


class LocalTokenizer:
    """A tokenizer of the `transformers` library, from a model name or a folder."""

    def __init__(self, name: str) -> None:
        self._tokenizer = _load(name)

    def encode(self, text: str) -> Encoding | None:
        """See `Tokenizer`."""
        ids = tuple(self._tokenizer(text)["input_ids"])
        return Encoding(len(ids), ids)

    def encode_chat(self, text: str) -> Encoding | None:
        """See `Tokenizer`; None if the tokenizer has no chat template or its template refuses the message."""
        if not self._tokenizer.chat_template:
            return None
        messages = [{"role": "user", "content": text}]
        try:
            ids = tuple(self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))
        except Exception:  # noqa: BLE001  a template is code of the model's author and may raise anything
            return None
        return Encoding(len(ids), ids)

    def decode(self, ids: Sequence[int]) -> str | None:
        """See `Tokenizer`."""
        return str(self._tokenizer.decode(list(ids)))


def _encoding(answer: dict[str, Any] | None) -> Encoding | None:
    """Read a `/tokenize` answer; None without a plausible count."""
    count = (answer or {}).get("count")
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        return None
    ids = (answer or {}).get("tokens")
    if not isinstance(ids, list) or len(ids) != count or not all(type(i) is int and i >= 0 for i in ids):
        return Encoding(count)
    return Encoding(count, tuple(ids))


def _load(name: str) -> Any:
    """Load a tokenizer; raises UsageError, in one line, if the library or the tokenizer is not to be had."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        hint = "pip install 'servebench[tokenizer]'"
        raise UsageError(f"--tokenizer {name}: the transformers library is not installed ({hint})") from None
    try:
        return AutoTokenizer.from_pretrained(name)
    except Exception as error:  # noqa: BLE001  OS, hub, JSON or code errors: this name is of no use
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(f"--tokenizer {name}: cannot be loaded: {reason}") from None

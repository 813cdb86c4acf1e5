"""The simulated engine's routes: the OpenAI ones, and those of vLLM that a load test uses."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable

import msgspec

from servebench import __version__
from servebench.engine.sim import tokens
from servebench.engine.sim.answers import StreamAnswer, WholeAnswer
from servebench.engine.sim.bodies import Detokenize, Generation, RefusedError, Tokenize, read, wanted
from servebench.engine.sim.engine import LiveEngine
from servebench.engine.sim.exposition import CONTENT_TYPE, metrics_page
from servebench.engine.sim.http import HttpConnection, HttpRequest
from servebench.engine.sim.scheduler import TooLongError
from servebench.engine.sim.settings import SimSettings

ENGINE_NAME = "servebench-sim"

Route = Callable[[HttpConnection, HttpRequest], None]


class SimApp:
    """Answers requests from one simulated engine."""

    def __init__(self, settings: SimSettings, model: str, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = LiveEngine(settings, loop)
        self.connections: set[HttpConnection] = set()
        self._model = model
        self._created = int(time.time())
        self._routes: dict[str, dict[str, Route]] = {
            "/v1/chat/completions": {"POST": functools.partial(self._generate, chat=True)},
            "/v1/completions": {"POST": functools.partial(self._generate, chat=False)},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/health": {"GET": self._health},
            "/version": {"GET": self._version},
            "/metrics": {"GET": self._metrics},
            "/reset_prefix_cache": {"POST": self._reset_prefix_cache},
        }

    def protocol(self) -> HttpConnection:
        """Return the protocol of a new connection."""
        return HttpConnection(self.handle, self.connections)

    def handle(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Answer one request; a refused one gets an OpenAI-shaped error."""
        try:
            self._route(request)(connection, request)
        except RefusedError as refusal:
            connection.respond(refusal.status, refusal.body())

    def close(self) -> None:
        """Drop all connections and stop the engine."""
        for connection in list(self.connections):
            connection.close()
        self.engine.close()

    def _route(self, request: HttpRequest) -> Route:
        methods = self._routes.get(request.path)
        if methods is None:
            raise RefusedError(f"{request.path} is not served here", 404, "NotFoundError")
        if request.method not in methods:
            raise RefusedError(f"{request.path} takes {', '.join(methods)} only", 405, "MethodNotAllowedError")
        return methods[request.method]

    def _generate(self, connection: HttpConnection, request: HttpRequest, chat: bool) -> None:
        body = read(request.body, Generation)
        self._check_model(body.model)
        want = wanted(body, chat)
        answer = (StreamAnswer if want.stream else WholeAnswer)(connection, want, self._model)
        try:
            self.engine.submit(answer.request)
        except TooLongError as error:
            raise RefusedError(str(error)) from None
        connection.on_disconnect = functools.partial(self.engine.abort, answer.request)
        answer.accepted()

    def _check_model(self, model: str | None) -> None:
        if model is not None and model != self._model:
            raise RefusedError(f"The model `{model}` does not exist.", 404, "NotFoundError", "model")

    def _models(self, connection: HttpConnection, request: HttpRequest) -> None:
        model = {
            "id": self._model,
            "object": "model",
            "created": self._created,
            "owned_by": ENGINE_NAME,
            "root": self._model,
            "parent": None,
            "max_model_len": self.engine.core.settings.max_model_len,
        }
        _answer(connection, {"object": "list", "data": [model]})

    def _tokenize(self, connection: HttpConnection, request: HttpRequest) -> None:
        body = read(request.body, Tokenize)
        self._check_model(body.model)
        if body.messages is None and body.prompt is None:
            raise RefusedError("the body has neither prompt nor messages", param="prompt")
        ids = body.prompt_ids(body.add_generation_prompt)
        limit = self.engine.core.settings.max_model_len
        words = [tokens.WORDS[token] for token in ids] if body.return_token_strs else None
        _answer(connection, {"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": words})

    def _detokenize(self, connection: HttpConnection, request: HttpRequest) -> None:
        body = read(request.body, Detokenize)
        self._check_model(body.model)
        try:
            text = tokens.decode(body.tokens)
        except ValueError as error:
            raise RefusedError(str(error), param="tokens") from None
        _answer(connection, {"prompt": text})

    def _health(self, connection: HttpConnection, request: HttpRequest) -> None:
        connection.respond(200, b"")

    def _version(self, connection: HttpConnection, request: HttpRequest) -> None:
        _answer(connection, {"version": __version__, "engine": ENGINE_NAME, "simulated": True})

    def _metrics(self, connection: HttpConnection, request: HttpRequest) -> None:
        connection.respond(200, metrics_page(self.engine, self._model), CONTENT_TYPE)

    def _reset_prefix_cache(self, connection: HttpConnection, request: HttpRequest) -> None:
        _answer(connection, {"success": self.engine.core.scheduler.pool.reset()})


def _answer(connection: HttpConnection, value: object) -> None:
    connection.respond(200, msgspec.json.encode(value))

"""Running the simulated server: an event loop, a listener, and the signals that end it."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import socket
from collections.abc import Callable

from servebench.engine.sim.server import SimApp
from servebench.engine.sim.settings import SimSettings
from servebench.engine.sim.steplog import StepLog

_CONNECTIONS = 65_536
_ENDED_BY = (signal.SIGINT, signal.SIGTERM)


def run(
    settings: SimSettings,
    model: str,
    host: str,
    port: int,
    ready: Callable[[str], None],
    watch: Callable[[asyncio.Event], None] | None = None,
    step_log: str | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        port: 0 takes a free one.
        ready: called with the base URL once connections are accepted.
        watch: called inside the loop with an event that ends the server when set.
        step_log: a file for one line a step, see `steplog.StepLog`.

    Raises:
        OSError: the address cannot be bound, or the file cannot be made.
    """
    serving = _serve(settings, model, host, port, ready, watch, step_log)
    try:
        import uvloop
    except ImportError:  # not on Windows
        asyncio.run(serving)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serving)


async def _serve(
    settings: SimSettings,
    model: str,
    host: str,
    port: int,
    ready: Callable[[str], None],
    watch: Callable[[asyncio.Event], None] | None,
    step_log: str | None,
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    app = SimApp(settings, model, loop)
    if step_log is not None:
        app.engine.step_log = StepLog(step_log)
    server = await loop.create_server(app.protocol, host, port, backlog=4096)
    for number in _ENDED_BY:  # not before it listens: if it cannot, nothing would take them away
        loop.add_signal_handler(number, stop.set)
    _allow_many_connections()
    if watch is not None:
        watch(stop)
    _spare_the_collector()
    ready(_url(server.sockets[0]))
    await stop.wait()
    server.close()
    app.close()
    for number in _ENDED_BY:
        loop.remove_signal_handler(number)


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"


def _allow_many_connections() -> None:
    # The usual soft limit of 1,024 descriptors would end a load test of that many streams.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _CONNECTIONS if hard == resource.RLIM_INFINITY else min(hard, _CONNECTIONS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def _spare_the_collector() -> None:
    # What lives from here on is freed by reference counts; a full collection in mid-run would delay every stream.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)

"""Helpers for tests of anything that talks to an LLM server: a scripted server and a ground-truth server."""

from servebench.testing.events import DONE, Events, error, sse, usage
from servebench.testing.groundtruth import GroundTruth
from servebench.testing.responses import chunk, head, json_response, response, sse_response
from servebench.testing.script import (
    Close,
    HalfClose,
    Hang,
    ReadRequest,
    Reset,
    Script,
    Send,
    Step,
    Wait,
    byte_by_byte,
    split_at,
)
from servebench.testing.scripted import RequestSeen, ScriptedServer, Sent, refusing_port, unanswering_port

__all__ = [
    "DONE",
    "Close",
    "Events",
    "GroundTruth",
    "HalfClose",
    "Hang",
    "ReadRequest",
    "RequestSeen",
    "Reset",
    "Script",
    "ScriptedServer",
    "Send",
    "Sent",
    "Step",
    "Wait",
    "byte_by_byte",
    "chunk",
    "error",
    "head",
    "json_response",
    "refusing_port",
    "response",
    "split_at",
    "sse",
    "sse_response",
    "unanswering_port",
    "usage",
]

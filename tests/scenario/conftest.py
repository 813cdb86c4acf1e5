from pathlib import Path

import pytest

BASE = """\
servebench: 1
name: base
endpoint: {api: chat}
workload:
  input_tokens: {lognormal: {mean: 200, cv: 0.9, min: 32, max: 2k}}
  output_tokens: 16
load:
  poisson: 4/s
  duration: 60s
  warmup: 5s
slo: {ttft: p95 < 1s}
engine:
  vllm: {model: tiny-random, flags: {max-model-len: 8192}}
  sim: {base: 8ms, max-num-seqs: 64}
seed: 1
"""


@pytest.fixture
def write(tmp_path):
    """Write the base scenario with `old` replaced by `new`, and return its path."""

    def write(old: str = "", new: str = "") -> Path:
        assert old in BASE
        path = tmp_path / "s.yaml"
        path.write_text(BASE.replace(old, new, 1) if old else BASE)
        return path

    return write

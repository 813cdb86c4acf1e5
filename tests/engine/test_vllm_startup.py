"""The seconds of a start in vLLM's log: lines as vLLM 0.32 writes them."""

from __future__ import annotations

from servebench.engine.vllm_startup import startup_times

LOG = """(EngineCore pid=9) INFO 11-30 06:10:01 [default_loader.py:502] Loading weights took 0.02 seconds
(EngineCore pid=9) INFO 11-30 06:10:02 [runner.py:5150] Model loading took 14.99 GiB memory and 3.912345 seconds
(EngineCore pid=9) INFO 11-30 06:10:22 [monitor.py:81] torch.compile took 17.63 s in total
(EngineCore pid=9) INFO 11-30 06:10:23 [monitor.py:92] Initial profiling/warmup run took 0.71 s
(EngineCore pid=9) INFO 11-30 06:10:25 [kernel_warmup.py:190] JIT kernel warmup finished in 1.50s.
(EngineCore pid=9) INFO 11-30 06:10:30 [mm_encoder.py:95] Encoder graph capturing finished in 2 secs, took 0.10 GiB
(EngineCore pid=9) INFO 11-30 06:10:31 [gpu_model_runner.py:6582] Graph capturing finished in 6 secs, took 0.51 GiB
(EngineCore pid=9) INFO 11-30 06:10:32 [core.py:403] init engine (profile, create kv cache, warmup model) took 29.14 s
"""


def test_every_stage_is_found() -> None:
    assert startup_times(LOG) == {
        "weights_s": 0.02,
        "model_s": 3.912345,
        "compile_s": 17.63,
        "profiling_s": 0.71,
        "kernel_warmup_s": 1.5,
        "graph_capture_s": 6.0,
        "engine_s": 29.14,
    }


def test_what_the_log_does_not_tell_is_left_out() -> None:
    assert startup_times("INFO starting\n") == {}
    assert set(startup_times(LOG.splitlines()[0])) == {"weights_s"}


def test_of_several_the_last_counts() -> None:
    assert startup_times(LOG + "Loading weights took 4.50 seconds\n")["weights_s"] == 4.5

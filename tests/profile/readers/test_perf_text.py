"""The text of `perf script`: samples, what stands between them, and what is not understood."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servebench.profile.readers.perf_text import PerfText, Sample, split_frame

HEADER = """\
# ========
# perf version : 6.1.192
# arch : x86_64
# nrcpus online : 2
# cmdline : /usr/bin/perf record -F 99 -g -p 1
# event : name = cpu-clock:pppH, , id = { 1 }, type = 1, { sample_period, sample_freq } = 99, sample_type = IP
# event : name = dummy:HG, , id = { 2 }, type = 1, { sample_period, sample_freq } = 7, sample_type = IP
# clockid: monotonic (1)
# reference time: 2026-11-30 12:29:48.517034 = 1796041788.517034 (TOD) = 25437.725481109 (monotonic)
# ========
#
"""
SAMPLE = """\
hot 21907/21908 25437.822362174:   10101010 cpu-clock:pppH:\x20
\t            1166 hot_a (/tmp/a b/hot)
\t            11f9 main (/tmp/a b/hot)
\tffffffff81000000 do_syscall_64 ([kernel.kallsyms])

"""


def read(text: str) -> tuple[PerfText, list[Sample]]:
    parser = PerfText()
    return parser, list(parser.samples(text.splitlines(keepends=True)))


def test_a_sample() -> None:
    parser, samples = read(HEADER + SAMPLE)
    (sample,) = samples
    assert sample[:5] == ("hot", 21907, 21908, 25_437_822_362_174, "cpu-clock:pppH")
    assert [split_frame(line) for line in sample.frames] == [
        ("hot_a", "/tmp/a b/hot"),
        ("main", "/tmp/a b/hot"),
        ("do_syscall_64", "[kernel.kallsyms]"),
    ]
    assert parser.facts == {
        "version": "6.1.192",
        "arch": "x86_64",
        "cpus": "2",
        "command": "/usr/bin/perf record -F 99 -g -p 1",
        "event": "cpu-clock",
        "frequency": 99,
        "kernel": True,
    }
    assert parser.reference is not None
    assert parser.reference.to_realtime(25_437_725_481_110) == 1_796_041_788_517_034_001


@pytest.mark.parametrize("name", ["a", "pool thread 3", "x 12/13 1.5:", "12", ":99", "ünï", "a  b"])
def test_a_threads_name_may_be_anything(name: str) -> None:
    parser, samples = read(SAMPLE.replace("hot 21907", f"{name:>16} 21907"))
    assert samples[0][:3] == (name, 21907, 21908)
    assert parser.malformed == 0


@pytest.mark.parametrize(
    ("line", "frame"),
    [
        ("7f12 at::sum(int) const (/lib/libtorch.so)", ("at::sum(int) const", "/lib/libtorch.so")),
        ("7f12 f (anonymous) (/lib/x (1).so)", ("f (anonymous) (/lib/x", "1).so")),  # no name of a file is so
        ("7f12 [unknown] ([unknown])", ("[unknown]", "[unknown]")),
        ("7f12 jit (/memfd:code (deleted))", ("jit", "/memfd:code (deleted)")),
        ("7f12 py::f:/a/b.py (/tmp/perf-1.map)", ("py::f:/a/b.py", "/tmp/perf-1.map")),
        ("7f12  (/lib/x.so)", ("[unknown]", "/lib/x.so")),
    ],
)
def test_frames(line: str, frame: tuple[str, str]) -> None:
    assert split_frame(line) == frame


def test_a_recording_without_stacks_has_one_frame_a_sample() -> None:
    line = "hot 21907/21907 25437.822362174:   10101010 cpu-clock:      1166 hot_a (/tmp/hot)\n"
    _, samples = read(line + line)
    assert [split_frame(sample.frames[0]) for sample in samples] == [("hot_a", "/tmp/hot")] * 2


def test_lost_samples_are_counted() -> None:
    line = "hot 7/7 1.000000001: PERF_RECORD_LOST lost 12\n\n"
    parser, samples = read(SAMPLE + line + SAMPLE + line)
    assert len(samples) == 2
    assert parser.lost == 24
    assert parser.malformed == 0


def test_what_is_not_understood_is_counted_and_costs_no_neighbour() -> None:
    parser, samples = read(SAMPLE + "nonsense\n\n" + SAMPLE + SAMPLE.replace("hot_a (/tmp/a b/hot)", "?") + SAMPLE)
    assert len(samples) == 4
    assert parser.malformed == 2
    assert len(samples[2].frames) == 2


def test_the_last_sample_needs_no_blank_line() -> None:
    assert len(read(SAMPLE.rstrip("\n"))[1]) == 1
    assert read("")[1] == []


@given(st.text())
def test_any_text_is_survived(text: str) -> None:
    parser, samples = read(text)
    assert parser.malformed <= len(text.splitlines())
    assert all(sample.time_ns >= 0 for sample in samples)


def test_microseconds_are_read_as_well() -> None:
    _, samples = read(SAMPLE.replace("25437.822362174", "25437.822362"))
    assert samples[0].time_ns == 25_437_822_362_000

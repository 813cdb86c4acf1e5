"""What the analysis needs grows with the chunks by a stated number of bytes, so that long runs can be analysed."""

import tracemalloc

import pytest

from servebench.analysis.data import chunk_columns
from servebench.analysis.facts import gather
from servebench.testing.synthetic import open_run

BYTES_A_CHUNK = 64  # beside the columns themselves, which take 12


@pytest.mark.parametrize("tokens_per_chunk", [1, 3])
def test_working_memory_of_the_analysis(tokens_per_chunk: int) -> None:
    tokens = 150 * tokens_per_chunk
    run = open_run(requests=1000, rate=50, tokens=tokens, tokens_per_chunk=tokens_per_chunk, slo={"itl": ["p99 < 1s"]})
    data = run.data()
    assert len(data.chunks) >= 150_000
    gather(data)  # caches and imports are paid here
    tracemalloc.start()
    try:
        gather(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < BYTES_A_CHUNK * len(data.chunks) + 4_000_000


def test_reading_keeps_two_columns_of_the_chunks() -> None:
    run = open_run(requests=500, tokens=100)
    table = run.chunk_table()
    index = run.data().requests.index
    tracemalloc.start()
    try:
        chunks = chunk_columns(table, index)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept <= 13 * len(chunks) + 200_000

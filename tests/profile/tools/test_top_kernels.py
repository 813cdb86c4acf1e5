from __future__ import annotations

import numpy as np
import pytest

from servebench.profile.timeline import Kind, Timeline
from servebench.profile.tools.top_kernels import function_name, longest_kernel


def timeline(*rows: tuple[str, int, int, int, Kind]) -> Timeline:
    """Name, start, end, device, kind of each row."""
    names = tuple(dict.fromkeys(row[0] for row in rows))
    columns = {
        "name": np.array([names.index(row[0]) for row in rows]),
        "start": np.array([row[1] for row in rows], np.int64),
        "end": np.array([row[2] for row in rows], np.int64),
        "device": np.array([row[3] for row in rows]),
        "kind": np.array([row[4] for row in rows]),
    }
    return Timeline.of_columns("nsys", names, columns)


def test_the_longest_exposed_kernel() -> None:
    found = longest_kernel(
        timeline(
            ("hidden", 0, 100, 0, Kind.COMPUTE),
            ("ncclAllReduce", 0, 100, 0, Kind.COMMUNICATION),
            ("gemm", 100, 130, 0, Kind.COMPUTE),
            ("gemm", 100, 130, 1, Kind.COMPUTE),
            ("norm", 130, 170, 0, Kind.COMPUTE),
            ("cudaLaunchKernel", 0, 1000, -1, Kind.API),
        )
    )
    assert found == "gemm"  # on two devices; `hidden` is never alone, and a collective is no kernel to replay


def test_without_a_device_there_is_none() -> None:
    assert longest_kernel(timeline(("aten::mm", 0, 5, -1, Kind.OPERATOR))) is None


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("gemm", "gemm"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
            "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)",
            "vectorized_elementwise_kernel",
        ),
        ("void (anonymous namespace)::softmax<float, (int)4>(float *)", "softmax"),
        ("cutlass::Kernel2<Params<int>>(Params<int>::Inner)", "Kernel2"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("nvjet_tst_64x8_64x16_1x4_h_bz_TNT", "nvjet_tst_64x8_64x16_1x4_h_bz_TNT"),
        ("", ""),
    ],
)
def test_names_of_functions(kernel: str, name: str) -> None:
    assert function_name(kernel) == name

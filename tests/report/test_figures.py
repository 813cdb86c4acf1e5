import pytest

from servebench.report import figures


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (0.0, "0"),
        (7, "7"),
        (12345, "12,345"),
        (0.2154, "0.215"),
        (9.996, "10.00"),
        (10.004, "10.00"),
        (123.44, "123.4"),
        (1234.6, "1,235"),
    ],
)
def test_number(value: float | None, text: str) -> None:
    assert figures.number(value) == text


def test_a_row_has_the_decimals_of_its_first_figure() -> None:
    assert figures.row([10.0, 123.456, 2345.678]) == ["10.00", "123.46", "2,345.68"]
    assert figures.row([None, 2.5]) == ["–", "2.50"]
    assert figures.row([None, None]) == ["–", "–"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0 %"),
        (1, "100 %"),
        (0.99999, "99.99 %"),
        (0.000001, "0.01 %"),
        (0.5, "50 %"),
        (0.9712, "97.12 %"),
    ],
)
def test_share_is_never_rounded_to_all_or_none(value: float | None, text: str) -> None:
    assert figures.share(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.215, "215 µs"), (0, "0.0 ms"), (9.96, "10.0 ms"), (457.3, "457 ms"), (1534, "1.53 s")],
)
def test_duration(value: float | None, text: str) -> None:
    assert figures.duration(value) == text


def test_plural() -> None:
    assert [figures.plural(n, "worker") for n in (0, 1, 2)] == ["0 workers", "1 worker", "2 workers"]


def test_size() -> None:
    assert figures.size(81_200_000) == "81 MB"

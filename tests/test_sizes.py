"""Numbers of bytes as people write them."""

from __future__ import annotations

import pytest

from onnx_cfad.errors import PlanError
from onnx_cfad.sizes import format_bytes, number_of_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("4096", 4096),
        ("12B", 12),
        ("512MiB", 512 << 20),
        ("512 mib", 512 << 20),
        ("2GB", 2_000_000_000),
        ("1.5KiB", 1536),
        ("3TiB", 3 << 40),
    ],
)
def test_sizes_are_read(text: str, number: int) -> None:
    assert parse_bytes(text) == number


@pytest.mark.parametrize("text", ["", "much", "3x", "-1", "1 2", "MiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="expected a number of bytes.*512MiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536 << 20, "1.5 GiB"), (12_000, "11.7 KiB")]
)
def test_sizes_are_written(number: int, text: str) -> None:
    assert format_bytes(number) == text


@pytest.mark.parametrize("given", [-1, 1.5, True, [1], "much"])
def test_what_is_no_number_of_bytes_is_refused(given: object) -> None:
    with pytest.raises(PlanError, match="expected a (whole )?number"):
        number_of_bytes(given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("given", "number"), [(0, 0), (4096, 4096), ("1KiB", 1024)])
def test_numbers_of_bytes_are_taken_as_text_or_number(given: str | int, number: int) -> None:
    assert number_of_bytes(given) == number

from benchmarks.numbers import comparison, done_at, percentile, rates, rounded


def test_a_percentile_is_a_value_that_was_measured() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert percentile([7.0], 0.5) == percentile([7.0], 0.99) == 7.0


def test_rowlock_beside_the_raw_limit_and_the_peers() -> None:
    assert comparison({"rowlock": 30_000.0, "raw": 40_000.0, "other": 15_000.0}) == {
        "rowlock": 30_000,
        "raw": 40_000,
        "vs_raw": 0.75,
        "vs": {"other": 2.0},
    }


def test_a_comparison_without_a_side() -> None:
    assert comparison({"rowlock": 10.0}) == {"rowlock": 10, "raw": None, "vs_raw": None, "vs": {}}
    assert comparison({"raw": 10.0, "other": 5.0}) == {"rowlock": None, "raw": 10}


def test_rounding_keeps_three_digits_and_no_part_of_a_job() -> None:
    assert [rounded(value) for value in (12345.6, 1.23456, 0.0123456, 0.0, None)] == [12346, 1.23, 0.0123, 0, None]


def test_the_rate_of_a_part_of_a_series() -> None:
    series = [(0.0, 0), (1.0, 100), (2.0, 300), (3.0, 300)]
    assert rates(series, 0, 3) == 100
    assert rates(series, 1, 2) == 200
    assert rates(series, 2.5, 3) == 0
    assert done_at(series, 2.5) == 300

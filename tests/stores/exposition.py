"""What Prometheus reads of /metrics."""


def counters_of(exposition: bytes) -> dict[str, float]:
    """Every sample, with its labels, of the metrics that call themselves counters."""
    counters: dict[str, float] = {}
    kind = ""
    for line in exposition.decode().splitlines():
        if line.startswith("# TYPE"):
            kind = line.split()[3]
        elif kind == "counter" and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            counters[name] = float(value)
    return counters

"""Read /metrics as Prometheus does."""


def counters_of(exposition: bytes) -> dict[str, float]:
    """Return every sample, by its name with labels, of the metrics whose type is counter."""
    counters: dict[str, float] = {}
    kind = ""
    for line in exposition.decode().splitlines():
        if line.startswith("# TYPE"):
            kind = line.split()[3]
        elif kind == "counter" and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            counters[name] = float(value)
    return counters

"""Lower bounds for the time of one step on the wire (BytePS, OSDI'20), for M bytes of parameters, n workers, k servers
and hosts of B bytes/s in each direction that can send and receive at once."""


def dedicated_servers_s(model_bytes: float, workers: int, servers: int, bytes_per_s: float) -> float:
    """max(M/B, nM/(kB)): a worker's own link, or a server's."""
    return max(model_bytes / bytes_per_s, workers * model_bytes / (servers * bytes_per_s))


def ring_s(model_bytes: float, workers: int, bytes_per_s: float) -> float:
    """2(n−1)M/(nB): ring all-reduce, or servers colocated on all workers."""
    return 2 * (workers - 1) * model_bytes / (workers * bytes_per_s)


def bound_s(exchange: str, model_bytes: float, workers: int, servers: int, bytes_per_s: float) -> float:
    """The bound of an exchange by its name in `ExchangeConfig`."""
    if exchange in ("servers", "async"):
        return dedicated_servers_s(model_bytes, workers, servers, bytes_per_s)
    return ring_s(model_bytes, workers, bytes_per_s)

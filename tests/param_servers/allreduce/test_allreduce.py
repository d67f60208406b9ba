import math
import os
import sys
import threading
from types import SimpleNamespace

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from param_servers.allreduce.collective import TorchCollective
from param_servers.allreduce.exchange import (
    COMPARE_EVERY_STEPS,
    MOST_DATA_POINTS,
    ROW_NUMBERS,
    AllReduceExchange,
    StepRow,
    read_rows,
    write_rows,
)
from param_servers.allreduce.mpi_horovod import HorovodCollective, MpiCollective
from param_servers.config import ExchangeConfig, OptimizerConfig
from param_servers.errors import ConfigError, ParamServersError, PeerLost, RunBroken, RunStopped
from param_servers.exchange import Receipt
from param_servers.layout import FlatLayout
from tests.ports import free_port

LAYOUT = FlatLayout.of({"weight": (3, 4), "bias": (5,)})
CONFIG = OptimizerConfig(optimizer="adam", learning_rate="0.01")
INITIAL = torch.linspace(-1, 1, LAYOUT.numel)


def gradient(rank, step):
    return torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(1000 * rank + step))


def exchange(collective, initial=INITIAL, layout=LAYOUT, settings=None, **options):
    config = ExchangeConfig(**{"exchange": "allreduce", "num_workers": collective.size, **(settings or {})})
    return AllReduceExchange(
        collective=collective,
        layout=layout,
        initial_parameters=initial,
        optimizer_config=CONFIG,
        exchange_config=config,
        **options,
    )


def train(worker, rank, steps):
    for _ in range(steps):
        pulled = worker.pull()
        assert worker.push(gradient(rank, pulled.step), pulled.step, 5 + rank).accepted
    return worker.pull()


def reference(members):
    """Parameters after one step of torch.optim for each entry of `members`, the ranks that are averaged."""
    parameter = torch.nn.Parameter(INITIAL.clone())
    optimizer = torch.optim.Adam([parameter], lr=0.01, eps=CONFIG.epsilon)
    for step, ranks in enumerate(members):
        parameter.grad = sum(gradient(rank, step) for rank in ranks) / len(ranks)
        optimizer.step()
    return parameter.detach()


def test_all_ranks_begin_with_the_parameters_of_rank_0(run_ranks):
    pulls = run_ranks(2, lambda c: train(exchange(c, initial=INITIAL + c.rank), c.rank, 3))
    for pulled in pulls:
        assert torch.equal(pulled.parameters, reference([[0, 1]] * 3))
        assert (pulled.step, pulled.data_points) == (3, 3 * (5 + 6))


@pytest.mark.parametrize("value", [math.nan, 3e38])
def test_a_gradient_that_is_not_finite_or_would_overflow_is_left_out_of_the_mean_on_all_ranks(run_ranks, value):
    def body(collective):
        worker = exchange(collective)
        pulled = worker.pull()
        own = gradient(collective.rank, 0)
        if collective.rank == 1:
            own[2] = value
        receipt = worker.push(own, pulled.step, 5)
        return receipt, worker.pull()

    (first, pulled), (second, _), (_, last) = run_ranks(3, body)
    assert first == Receipt(True, 1) and second == Receipt(False, 1, "non-finite")
    assert pulled.data_points == 10 and torch.equal(pulled.parameters, last.parameters)
    assert torch.equal(pulled.parameters, reference([[0, 2]]))


def test_a_rank_whose_first_gradient_comes_late_is_waited_for_as_long_as_for_the_rank_itself(run_ranks):
    waited = threading.Event()

    def body(collective):
        worker = exchange(collective, settings={"step_timeout_s": 2, "join_timeout_s": 30})
        if collective.rank == 1:
            waited.wait(4)  # never set: twice the step's patience
        return train(worker, collective.rank, 1).step, collective.patience_s

    assert run_ranks(2, body, step_timeout_s=2, join_timeout_s=30) == [(1, 2), (1, 2)]


@pytest.mark.parametrize(("collective", "module"), [(MpiCollective, "mpi4py"), (HorovodCollective, "horovod.torch")])
def test_a_library_that_is_not_there_is_one_line_that_says_how_to_install_it(collective, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(os, "environ", {})
    with pytest.raises(ConfigError, match=r"cannot be loaded .*: (pip install mpi4py|run .*horovod\.sh VENV)$"):
        collective(ExchangeConfig(exchange="allreduce", num_workers=2))


def test_horovod_which_asks_once_waits_as_long_as_the_first_sum_may_take(monkeypatch):
    horovod = SimpleNamespace(init=lambda: None, rank=lambda: 0, size=lambda: 2)
    monkeypatch.setitem(sys.modules, "horovod", SimpleNamespace(torch=horovod))
    monkeypatch.setitem(sys.modules, "horovod.torch", horovod)
    monkeypatch.setattr(os, "environ", {})
    config = ExchangeConfig(exchange="allreduce", collective_backend="horovod", num_workers=2)
    patience_s = HorovodCollective(config).patience_s
    assert int(os.environ["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"]) == patience_s == config.timeouts.first_sum_s
    assert int(os.environ["HOROVOD_STALL_CHECK_TIME_SECONDS"]) == 30  # it warns as soon as a step is late


def test_a_rank_0_that_leaves_unasked_with_nobody_left_writes_a_checkpoint(run_ranks, tmp_path):
    def body(collective):
        worker = exchange(collective, checkpoint_dir=tmp_path, settings={"checkpoint_every_steps": 0})
        train(worker, 0, 3)
        worker.close()  # as where its environment has failed

    assert run_ranks(1, body) == [None]
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-3"]


def test_a_last_checkpoint_that_cannot_be_written_is_tried_once_however_often_an_exchange_is_closed(
    run_ranks, tmp_path, monkeypatch
):
    def full(*given):
        raise OSError("no space left")

    def body(collective):
        told = []
        worker = exchange(collective, checkpoint_dir=tmp_path, on_event=told.append)
        monkeypatch.setattr("param_servers.checkpoint.writer.write_shard", full)
        train(worker, 0, 3)
        worker.close()
        worker.close()
        return [event["message"] for event in told]

    (told,) = run_ranks(1, body)
    assert told == [
        "checkpoint of step 3 failed: no space left; training goes on",
        "rank 0 leaves; the last checkpoint could not be written (no space left): all steps since 0 are lost",
    ]


def test_a_gradient_of_a_graph_is_summed_without_it(run_ranks):
    def body(collective):
        worker = exchange(collective)
        pulled = worker.pull()
        assert worker.push(torch.ones(LAYOUT.numel, requires_grad=True) * 2, pulled.step, 5).accepted
        return worker._buffer.requires_grad

    assert run_ranks(1, body) == [False]


def test_a_run_whose_gradients_are_never_finite_ends_on_all_ranks_with_a_checkpoint(run_ranks, tmp_path):
    def body(collective):
        worker = exchange(collective, checkpoint_dir=tmp_path)
        train(worker, collective.rank, 3)
        with pytest.raises(RunBroken, match="none of the last 100 gradients was finite.*: it has diverged"):
            for _ in range(101):
                worker.push(torch.full((LAYOUT.numel,), math.nan), worker.pull().step, 5)

    assert run_ranks(2, body) == [None, None]
    assert [path.name for path in tmp_path.iterdir()] == ["step-3"]


def test_rank_0_ends_the_run_on_all_ranks_at_the_same_step_with_a_checkpoint(run_ranks, tmp_path):
    def stop(step, data_points):
        return "4 steps" if step >= 4 else None

    def body(collective):
        options = {"should_stop": stop} if collective.rank == 0 else {}
        worker = exchange(collective, checkpoint_dir=tmp_path, **options)
        with pytest.raises(RunStopped) as stopped:
            train(worker, collective.rank, 20)
        with pytest.raises(RunStopped):
            worker.push(gradient(0, 0), 4, 1)
        worker.close()
        return stopped.value.reason, worker.replica.step

    assert run_ranks(2, body) == [("4 steps", 4)] * 2

    def resumed(collective):
        worker = exchange(collective, checkpoint_dir=tmp_path)
        return train(worker, collective.rank, 3)

    pulls = run_ranks(2, resumed)
    assert [pulled.step for pulled in pulls] == [7, 7]
    assert all(torch.equal(pulled.parameters, reference([[0, 1]] * 7)) for pulled in pulls)


def test_an_end_for_a_reason_with_a_file_s_name_that_is_no_text_is_told_to_all_ranks(run_ranks):
    def body(collective):
        worker = exchange(collective, should_stop=lambda step, data_points: "caf\udce9: full" if step else None)
        with pytest.raises(RunStopped) as stopped:
            train(worker, collective.rank, 2)
        return stopped.value.reason

    assert run_ranks(2, body) == ["caf\\udce9: full"] * 2


def test_a_run_that_rank_0_cannot_look_at_any_more_ends_as_failed_on_all_ranks_with_a_checkpoint(run_ranks, tmp_path):
    def stop(step, data_points):
        if step >= 2:
            raise RunBroken("the run cannot be read for 60 s: NFS is away")
        return None

    def body(collective):
        options = {"should_stop": stop} if collective.rank == 0 else {}
        worker = exchange(collective, checkpoint_dir=tmp_path, **options)
        try:
            train(worker, collective.rank, 5)
        finally:
            worker.close()

    errors = run_ranks(2, body)
    assert [str(error) for error in errors] == ["the run cannot be read for 60 s: NFS is away"] * 2
    assert all(isinstance(error, RunBroken) for error in errors)
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-2"]


def test_ranks_with_another_model_are_named(run_ranks):
    def body(collective):
        other = FlatLayout.of({"bias": (5,), "weight": (3, 4)})
        return exchange(collective, layout=other if collective.rank == 1 else LAYOUT)

    for error in run_ranks(2, body):
        assert isinstance(error, ConfigError) and "ranks [1] were given another model" in str(error)


@pytest.mark.parametrize(
    ("size", "rank", "settings", "worker", "line"),
    [
        (1, 0, {"num_workers": 2, "collective_backend": "mpi"}, 1, "sums over 1 rank, but 2 workers.* mpirun -n 2$"),
        (1, 0, {"num_workers": 4, "collective_backend": "horovod"}, 0, "4 workers were given: .*horovodrun -np 4$"),
        (3, 2, {"num_workers": 2}, 2, r"\(torch\) sums over 3 ranks, but 2 workers were given"),
        (2, 0, {"num_workers": 2, "collective_backend": "mpi"}, 1, "worker 1 is rank 0 of the all-reduce"),
        (2, 1, {"num_workers": 2}, 0, "worker 0 is rank 1 of the all-reduce"),
    ],
)
def test_a_sum_over_others_than_the_run_s_workers_is_refused(size, rank, settings, worker, line):
    ranks = SimpleNamespace(size=size, rank=rank)
    with pytest.raises(ConfigError, match=line) as caught:
        exchange(ranks, settings=settings, worker=worker)
    assert "\n" not in str(caught.value)


def test_ranks_whose_parameters_have_drifted_apart_are_named_and_none_writes_a_checkpoint(run_ranks, tmp_path):
    def body(collective):
        worker = exchange(collective, checkpoint_dir=tmp_path, settings={"checkpoint_every_steps": 0})
        train(worker, collective.rank, COMPARE_EVERY_STEPS)
        if collective.rank == 1:
            worker.replica.shard.parameters[0] += 1e-6
        try:
            return train(worker, collective.rank, 1)
        finally:
            worker.close()

    for error in run_ranks(2, body):
        assert isinstance(error, RunBroken) and "ranks [1] hold other parameters than rank 0 at step 100" in str(error)
    assert not list(tmp_path.glob("step-*"))


def test_a_rank_that_is_lost_after_the_last_step_costs_no_step(run_ranks, tmp_path):
    def body(collective):
        stop = {"should_stop": lambda step, data_points: "3 steps" if step >= 3 else None}
        worker = exchange(collective, checkpoint_dir=tmp_path, **(stop if collective.rank == 0 else {}))
        train(worker, collective.rank, 3)
        if collective.rank == 1:
            worker._agree_on_reason = lambda reason: worker.close()  # dies between the sum and the reason
        worker.push(gradient(collective.rank, 3), 3, 1)

    error = run_ranks(2, body, step_timeout_s=8)[0]
    assert isinstance(error, PeerLost) and "rank 1 of 2 does not answer" in str(error)
    assert (tmp_path / "step-3").is_dir()


def test_a_farewell_checkpoint_of_rank_0_that_cannot_be_written_is_told(run_ranks):
    events = []

    def body(collective):
        worker = exchange(collective, on_event=events.append)
        train(worker, collective.rank, 1)
        worker.replica.finish = lambda: "the last checkpoint was not written: no such disk"
        worker.close()

    assert run_ranks(2, body) == [None, None]
    (told,) = [event["message"] for event in events if event["event"] == "checkpoint_failed"]
    assert told == "rank 0 leaves; the last checkpoint was not written: no such disk"


def test_a_rank_that_waited_for_a_survivor_is_not_called_lost(run_ranks):
    leaves, has_left = threading.Event(), threading.Event()

    def body(collective):
        """Rank 0 waits for rank 1, which waits for rank 2, which leaves: 0 hears of it only as 1 closes its group."""
        collective.broadcast_(torch.zeros(1))
        if collective.rank == 2:
            leaves.wait(10)
            collective.close()
            return has_left.set()
        leaves.set()
        collective.broadcast_(torch.zeros(1_000_000), root=collective.rank + 1)

    errors = run_ranks(3, body)
    assert has_left.is_set()
    for error in errors[:2]:
        assert isinstance(error, PeerLost) and str(error).startswith("rank 2 of 3 does not answer: ")


def test_a_rank_that_never_comes_is_named(board):
    errors = {}

    def join(rank):
        with pytest.raises(PeerLost) as error:
            TorchCollective.join(
                rank,
                ExchangeConfig(exchange="allreduce", num_workers=3, join_timeout_s=5),
                secret=b"0123456789abcdef",
                publish=board.publisher(rank),
                resolve=board.resolve,
            )
        errors[rank] = str(error.value)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(errors) == {0, 1} and errors[0] == "rank 2 of 3 does not answer: did not come within 5 s"


def test_a_rank_whose_rank_0_publishes_no_address_does_not_wait_for_ever(board):
    config = ExchangeConfig(exchange="allreduce", num_workers=2, join_timeout_s=0.1)
    with pytest.raises(PeerLost, match="^rank 0 published no address within 0.1 s$"):
        TorchCollective.join(
            1, config, secret=b"0123456789abcdef", publish=board.publisher(1), resolve=lambda rank: None
        )


def test_a_rank_that_dials_where_rank_0_was_before_it_was_started_again_finds_where_it_is_now(board):
    config = ExchangeConfig(exchange="allreduce", num_workers=2, join_timeout_s=60)
    earlier = iter([("127.0.0.1", free_port())])  # nobody listens there any more
    begins, joined = threading.Event(), []

    def resolve(rank):
        begins.set()
        return next(earlier, None) or board.resolve(rank)

    def join(rank):
        if rank == 0:
            begins.wait(60)
        how = {"secret": b"0123456789abcdef", "publish": board.publisher(rank), "resolve": resolve}
        joined.append(TorchCollective.join(rank, config, **how))

    threads = [threading.Thread(target=join, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(collective.rank for collective in joined) == [0, 1]
    for collective in joined:
        collective.close()


def test_store_and_group_listen_on_the_chosen_address_only(run_ranks):
    def listening():
        return {c.laddr for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN}

    before = listening()
    found = run_ranks(2, lambda collective: listening() - before, listen_host="127.0.0.3")
    assert all({address.ip for address in addresses} == {"127.0.0.3"} for addresses in found), found


@given(
    st.lists(
        st.builds(
            StepRow, st.integers(0, MOST_DATA_POINTS), st.booleans(), st.booleans(), st.integers(0, 255),
            st.integers(0, 65535),
        ),
        min_size=1, max_size=5,
    )
)  # fmt: skip
def test_the_sum_of_rows_hands_every_row_to_everybody_exactly(rows):
    total = torch.zeros(len(rows), ROW_NUMBERS)
    for rank, row in enumerate(rows):
        own = torch.empty(len(rows), ROW_NUMBERS)
        write_rows(own, rank, row)
        total += own
    assert read_rows(total) == rows


def test_a_row_refuses_more_data_points_than_it_holds():
    with pytest.raises(ParamServersError, match="one gradient over 16777216 data points"):
        write_rows(torch.zeros(1, ROW_NUMBERS), 0, StepRow(MOST_DATA_POINTS + 1, False, False, 0, 0))

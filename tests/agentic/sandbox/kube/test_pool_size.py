"""Pools follow demand within their bounds."""

from hypothesis import given
from hypothesis import strategies as st

from agentic.sandbox.kube.pool_size import Demand, PoolSize, resize, wanted
from agentic.sandbox.settings import PoolSettings

demands = st.builds(Demand, st.integers(0, 300), st.integers(0, 300))
settings = st.builds(
    PoolSettings,
    minimum=st.integers(0, 10),
    maximum=st.integers(10, 100),
    spare=st.floats(0, 2),
    idle_seconds=st.floats(1, 100),
)


@given(settings, demands)
def test_a_pool_is_within_its_bounds_and_serves_who_waits(settings: PoolSettings, demand: Demand) -> None:
    size = wanted(settings, demand)
    assert settings.minimum <= size <= settings.maximum
    assert size >= min(demand.waiting, settings.maximum)


@given(settings, st.lists(st.tuples(demands, st.floats(0, 50)), max_size=20))
def test_a_pool_grows_at_once_and_never_shrinks_before_its_time(
    settings: PoolSettings, steps: list[tuple[Demand, float]]
) -> None:
    size, now, last_needed = PoolSize(), 0.0, 0.0
    for demand, seconds in steps:
        now += seconds
        before, size = size, resize(settings, size, demand, now)
        assert size.replicas >= wanted(settings, demand)
        if wanted(settings, demand) >= before.replicas:
            last_needed = now
        if size.replicas < before.replicas:
            assert now - last_needed >= settings.idle_seconds


def test_an_idle_pool_shrinks_to_its_minimum() -> None:
    settings = PoolSettings(minimum=1, idle_seconds=60)
    size = resize(settings, PoolSize(), Demand(in_use=40, waiting=10), 0.0)
    assert size.replicas == 23
    size = resize(settings, size, Demand(0, 0), 10.0)
    assert size.replicas == 23
    assert resize(settings, size, Demand(0, 0), 71.0).replicas == 1


def test_a_tasks_pool_has_the_rollouts_number_while_the_task_is_worked_on() -> None:
    settings = PoolSettings(by="task", replicas=4)
    assert [wanted(settings, Demand(busy, 0)) for busy in (0, 1, 9)] == [0, 4, 4]
    settings = PoolSettings(by="task", replicas=4, maximum=10)
    assert [wanted(settings, Demand(1, 0), others) for others in (0, 7, 10, 12)] == [4, 3, 0, 0]

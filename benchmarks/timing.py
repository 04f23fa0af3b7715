"""How long calls take: interleaved rounds, their median and quartiles, one method for all calls.

benchmarks/README.md states the method.
"""

from __future__ import annotations

import ctypes
import dataclasses
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch

Calls = Mapping[str, Callable[[], object]]
Seconds = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Spread:
    """Seconds over several rounds: the median, and the quartiles around it."""

    median: float
    low: float
    high: float
    rounds: int


def spread(seconds: Iterable[float]) -> Spread:
    values = list(seconds)
    if len(values) == 1:
        return Spread(values[0], values[0], values[0], 1)
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high, len(values))


@dataclasses.dataclass(frozen=True)
class Effort:
    """How many rounds: `rounds`, and fewer where they take longer than `seconds` in all."""

    rounds: int = 30
    seconds: float = 1.0
    fewest: int = 7

    def of(self, seconds_a_round: float) -> int:
        affordable = int(self.seconds / max(seconds_a_round, 1e-9))
        return max(min(self.fewest, self.rounds), min(self.rounds, affordable))


def interleaved(
    once: Callable[[Calls], Seconds],
    calls: Calls,
    effort: Effort,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Spread]:
    """Rounds in which each call is timed once, so that a change of clock or load meets them all.

    Each round has an order of its own: what one call leaves in the caches serves another one in
    the next round.

    Args:
        once: times each of some calls, in their order.
        calls: by name.
        effort: how many rounds.
        clock: says how long a round takes.
    """
    names = list(calls)
    if not names:
        return {}
    once(calls)
    start = clock()
    once(calls)
    rounds = effort.of(clock() - start)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        order = {name: calls[name] for name in random.Random(number).sample(names, len(names))}
        for name, measured in once(order).items():
            seconds[name].append(measured)
    return {name: spread(values) for name, values in seconds.items()}


class Timer(Protocol):
    """What times calls on a device."""

    def time(self, calls: Calls) -> dict[str, Spread]:
        """The time of each call, from memory where the device allows that to be arranged."""

    def warm(self, calls: Calls) -> dict[str, Spread]:
        """The time of each call right after itself, where that is another one."""

    def host(self, calls: Calls) -> dict[str, Spread]:
        """How long the caller waits for each, where that is less than until it has finished."""


def keep_freed_memory() -> None:
    """Lets the main thread keep the memory that it frees, where the C library is glibc.

    Else results of some MiB are new pages in every call, each of which the system gives out and
    fills with zeros: most of the time, and none of it that of a kernel. Some still are: of what was
    freed, not all has room for the next aligned result.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        m_trim_threshold, m_mmap_max = -1, -4  # as malloc.h names them
        kept = mallopt(m_trim_threshold, -1) and mallopt(m_mmap_max, 0)
        assert kept, "mallopt refuses"


class CpuTimer:
    """Wall time of calls. Caches hold what the call before it left there, others' or its own."""

    def __init__(self, effort: Effort, clock: Callable[[], float] = time.perf_counter) -> None:
        keep_freed_memory()
        self._effort = effort
        self._clock = clock

    def time(self, calls: Calls) -> dict[str, Spread]:
        return self._interleaved(calls, lambda call: None)

    def warm(self, calls: Calls) -> dict[str, Spread]:
        return self._interleaved(calls, lambda call: call())

    def host(self, calls: Calls) -> dict[str, Spread]:
        return {}

    def _interleaved(
        self, calls: Calls, before: Callable[[Callable[[], object]], object]
    ) -> dict[str, Spread]:
        def once(calls: Calls) -> Seconds:
            seconds = {}
            for name, call in calls.items():
                before(call)
                start = self._clock()
                call()
                seconds[name] = self._clock() - start
            return seconds

        return interleaved(once, calls, self._effort, self._clock)


class Gpu(Protocol):
    """What :class:`CudaTimer` asks of a GPU. Work is queued, and done in order."""

    def spin(self, seconds: float) -> None:
        """Queues a kernel that keeps the GPU busy, and the memory idle."""

    def evict(self) -> None:
        """Queues what leaves nothing in the L2 cache that a call could find, nor have to write."""

    def record(self) -> Any:
        """Queues an event."""

    def passed(self, event: Any) -> bool:
        """Whether the GPU has come to an event."""

    def between(self, start: Any, end: Any) -> float:
        """Seconds of the GPU from one event to another, both passed."""

    def synchronize(self) -> None:
        """Waits until the queue is empty."""


class CudaTimer:
    """Device time by events in a queue that is never empty, so that launches do not show.

    A round starts with a kernel that spins while the host queues all calls of the round, each
    between two events. The GPU must not have come to the first call when the last one is queued:
    else the round does not count, and the next one spins for longer.
    """

    # Of the spinning kernel, in seconds.
    SHORTEST = 1e-3
    LONGEST = 0.25
    # Enough for the clock's resolution, few enough for the queue not to fill.
    HOST_CALLS = 10

    def __init__(
        self, gpu: Gpu, effort: Effort, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._gpu = gpu
        self._effort = effort
        self._clock = clock
        self._spin = self.SHORTEST

    def time(self, calls: Calls) -> dict[str, Spread]:
        return self._interleaved(calls, lambda call: self._gpu.evict())

    def warm(self, calls: Calls) -> dict[str, Spread]:
        return self._interleaved(calls, lambda call: call())

    def host(self, calls: Calls) -> dict[str, Spread]:
        def once(calls: Calls) -> Seconds:
            seconds = {}
            for name, call in calls.items():
                self._gpu.synchronize()
                start = self._clock()
                for _ in range(self.HOST_CALLS):
                    call()
                seconds[name] = (self._clock() - start) / self.HOST_CALLS
            self._gpu.synchronize()
            return seconds

        return interleaved(once, calls, self._fewer(), self._clock)

    def _fewer(self) -> Effort:
        return dataclasses.replace(self._effort, rounds=min(self._effort.rounds, 10), fewest=3)

    def _interleaved(
        self, calls: Calls, before: Callable[[Callable[[], object]], object]
    ) -> dict[str, Spread]:
        self._spin = self.SHORTEST

        def once(calls: Calls) -> Seconds:
            while True:
                seconds, full = self._queue(calls, before)
                if full:
                    return seconds
                if self._spin >= self.LONGEST:
                    raise RuntimeError(
                        f"the queue ran empty while the GPU spun for {self._spin} s: one of "
                        f"{', '.join(calls)} waits for the GPU"
                    )
                self._spin *= 2

        return interleaved(once, calls, self._effort, self._clock)

    def _queue(
        self, calls: Calls, before: Callable[[Callable[[], object]], object]
    ) -> tuple[Seconds, bool]:
        """The seconds of each call, and whether all were queued before the first one started."""
        gpu = self._gpu
        gpu.synchronize()
        gpu.spin(self._spin)
        gate = gpu.record()
        events = {}
        for name, call in calls.items():
            before(call)
            start = gpu.record()
            call()
            events[name] = start, gpu.record()
        full = not gpu.passed(gate)
        gpu.synchronize()
        return {name: gpu.between(*pair) for name, pair in events.items()}, full


class Cuda:
    """The current CUDA device, as :class:`CudaTimer` asks for it."""

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties()
        # Reading evicts what was there without leaving anything to write back.
        self._evicting = torch.ones(properties.L2_cache_size, device="cuda")
        self._cycles = 1e9
        for _ in range(2):  # the first one warms up
            start = self.record()
            self.spin(0.01)
            end = self.record()
            self.synchronize()
            measured = 0.01 / self.between(start, end)
        self._cycles *= measured

    def spin(self, seconds: float) -> None:
        torch.cuda._sleep(int(seconds * self._cycles))

    def evict(self) -> None:
        torch.sum(self._evicting)

    def record(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def passed(self, event: torch.cuda.Event) -> bool:
        return event.query()

    def between(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return start.elapsed_time(end) / 1e3

    def synchronize(self) -> None:
        torch.cuda.synchronize()


def timer(device: str, effort: Effort) -> Timer:
    return CudaTimer(Cuda(), effort) if device == "cuda" else CpuTimer(effort)

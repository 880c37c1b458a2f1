"""Metrics of the process, of the garbage collector and of the Python version.

`prometheus_client.ProcessCollector` lists the directory of all descriptors, which takes more than 10 ms with 50,000
connections; the kernel gives their number as the size of that directory (since Linux 6.2).
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_PAGE = resource.getpagesize()
_registry = CollectorRegistry()
_OTHERS = (PlatformCollector(_registry), GCCollector(_registry))


def collect(started: float) -> Iterator[Metric]:
    """Yield the metrics. ``started`` is the time of the start in seconds of the epoch."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield CounterMetricFamily(
        "process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", used.ru_utime + used.ru_stime
    )
    yield GaugeMetricFamily(
        "process_start_time_seconds", "Start time of the process since unix epoch in seconds.", started
    )
    yield GaugeMetricFamily(
        "process_max_fds", "Maximum number of open file descriptors.", resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    )
    try:
        with open("/proc/self/statm", "rb") as file:
            virtual, resident = (int(each) * _PAGE for each in file.read().split()[:2])
        descriptors = os.stat("/proc/self/fd").st_size
    except (OSError, ValueError):
        pass
    else:
        yield GaugeMetricFamily("process_virtual_memory_bytes", "Virtual memory size in bytes.", virtual)
        yield GaugeMetricFamily("process_resident_memory_bytes", "Resident memory size in bytes.", resident)
        if descriptors:
            yield GaugeMetricFamily("process_open_fds", "Number of open file descriptors.", descriptors)
    for collector in _OTHERS:
        yield from collector.collect()

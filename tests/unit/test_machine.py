import os

import pytest

from mixerloop import machine

CPUINFO = "processor : 0\nmodel name : Some CPU\ncpuid level : {level}\nflags : fpu {flags}\n"


@pytest.mark.parametrize(
    ("level", "flags", "hidden"),
    [(28, "amx_tile amx_bf16", True), (32, "amx_tile amx_bf16", False), (28, "avx2", False)],
)
def test_amx_without_its_description_is_recognised(level, flags, hidden):
    cpuinfo = CPUINFO.format(level=level, flags=flags)
    assert machine._amx_is_announced_but_hidden(cpuinfo) is hidden


@pytest.mark.parametrize(("before", "after"), [(None, machine.ISA_WITHOUT_AMX), ("AVX2", "AVX2")])
def test_a_limit_is_set_but_never_changed(monkeypatch, before, after):
    monkeypatch.setattr(machine, "_cpuinfo", lambda: CPUINFO.format(level=28, flags="amx_tile"))
    monkeypatch.delenv(machine.ISA_LIMIT, raising=False)
    if before:
        monkeypatch.setenv(machine.ISA_LIMIT, before)
    machine.settle()
    assert os.environ[machine.ISA_LIMIT] == after


def test_no_cpuinfo_is_no_problem(monkeypatch):
    monkeypatch.setattr(machine, "_cpuinfo", lambda: "")
    machine.settle()
    assert machine.facts()["processor"]


def test_what_others_use_is_all_but_our_own(monkeypatch):
    clock: dict[str, float | None] = {"now": 100.0, "all": 50.0, "own": 10.0}
    monkeypatch.setattr(machine.time, "monotonic", lambda: clock["now"])
    monkeypatch.setattr(machine, "_busy_seconds", lambda: clock["all"])
    monkeypatch.setattr(machine, "_own_seconds", lambda: clock["own"])
    neighbours = machine.Neighbours()
    clock.update({"now": 110.0, "all": 70.0, "own": 25.0})
    assert neighbours.busy_cores() == 0.5
    clock["all"] = None
    assert neighbours.busy_cores() is None


def test_elsewhere_than_on_glibc_freed_memory_is_left_alone(monkeypatch):
    monkeypatch.setattr(machine.platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda name: pytest.fail("called"))
    machine.keep_freed_memory()

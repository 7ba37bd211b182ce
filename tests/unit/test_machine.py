import os
import subprocess
import sys

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


@pytest.mark.parametrize(
    ("environment", "in_force"),
    [
        ({}, machine.WAITING),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
        ({"GOMP_SPINCOUNT": "77"}, {"GOMP_SPINCOUNT": "77"}),
        ({"OMP_NUM_THREADS": "1"}, machine.WAITING | {"OMP_NUM_THREADS": "1"}),
    ],
)
def test_waiting_is_settled_unless_the_user_has_chosen(environment, in_force, monkeypatch):
    for name in (*machine.WAITING_CHOICES, machine.NUM_THREADS):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delitem(sys.modules, "torch")
    machine.settle()
    assert machine.waiting() == in_force
    assert machine.facts()["waiting"] == in_force


def test_settling_after_torch_is_loaded_is_refused(monkeypatch):
    for name in machine.WAITING_CHOICES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="comes too late: torch is loaded"):
        machine.settle()


def test_only_the_cores_this_process_may_use_are_watched(monkeypatch):
    stat = "cpu 0 0 0\ncpu0 100 0 0 900 0 0 0 0\ncpu1 300 0 100 600 9 0 0 100\nintr 5\n"
    monkeypatch.setattr(machine.Path, "read_text", lambda path: stat)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: {1})
    assert machine._busy_seconds() == 500 / os.sysconf("SC_CLK_TCK")
    assert machine.num_cores() == 1


@pytest.mark.parametrize(
    ("value", "threads"),
    [(None, None), ("", None), ("3", 3), ("4,2", 4), (" 2 ", 2), ("0", None), ("all", None)],
)
def test_the_users_number_of_threads_is_read_as_openmp_reads_it(value, threads, monkeypatch):
    monkeypatch.delenv(machine.NUM_THREADS, raising=False)
    if value is not None:
        monkeypatch.setenv(machine.NUM_THREADS, value)
    assert machine.chosen_threads() == threads


def test_a_limit_of_the_shell_is_a_limit_of_free_memory():
    limit = 4 * 2**30
    script = (
        "import resource; from mixerloop import machine\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))\n"
        f"assert 0 < machine.free_bytes() < {limit}, machine.free_bytes()"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_limit_of_a_container_is_a_limit_of_free_memory(monkeypatch, tmp_path):
    numbers = {
        **{"memory.max": 1000, "memory.current": 900, "inner/memory.max": 5000},
        **{"inner/memory.current": 100},
    }
    (tmp_path / "inner").mkdir()
    for name, number in numbers.items():
        (tmp_path / name).write_text(f"{number}\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 300\n")
    (tmp_path / "cgroup").write_text("0::/inner\n")
    monkeypatch.setattr(machine, "GROUPS", tmp_path)
    monkeypatch.setattr(machine, "OWN_GROUP", tmp_path / "cgroup")
    assert list(machine._bytes_left_by_groups()) == [4900, 400]
    assert machine.free_bytes() == 400

"""The launcher when ranks fail or it is itself told to stop: all end, nothing is left, and one sentence says why."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers.ranks.faults import eventually
from tests.helpers.ranks.launch import all_gone, command, launched, launcher, pids_printed

# A rank that has started a process of its own, in its group.
WITH_CHILD = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
print("pid", os.getpid(), flush=True)
print("pid", child.pid, flush=True)
"""
STUBBORN = """
import signal
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
"""
SLEEP = "import time; time.sleep(60)\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.py"


def sentence(err: str) -> str:
    """The launcher's own last words."""
    last = err.splitlines()[-1]
    assert last.startswith("choreo: ")
    assert err.count("choreo: ") == 1
    return last.removeprefix("choreo: ")


def test_one_fails_and_all_are_stopped(script: Path) -> None:
    fails = script.with_name("fails")
    script.write_text(
        WITH_CHILD + "if os.environ['RANK'] == '2':\n"
        f"    while not os.path.exists({str(fails)!r}): time.sleep(0.02)\n"
        "    sys.exit(3)\n" + SLEEP
    )
    with launcher("-n", 4, "--grace", 100, script) as process:
        pids = pids_printed(process, 8)
        fails.touch()
        _, err = process.communicate(timeout=60)
        assert process.returncode == 3
    assert all_gone(pids, 0)
    assert (
        sentence(err)
        == f"rank 2 (pid {pids_of_rank(pids, 2, err)}) ended with exit code 3; the other 3 ranks were stopped"
    )


def pids_of_rank(pids: list[tuple[int, int]], rank: int, err: str) -> int:
    """The pid in the sentence, which must be one of those printed."""
    pid = int(re.findall(rf"rank {rank} \(pid (\d+)\)", err)[-1])
    assert pid in {number for number, _ in pids}
    return pid


def test_an_exception(script: Path) -> None:
    script.write_text("import os, time\nif os.environ['RANK'] == '0': raise RuntimeError('oh')\ntime.sleep(60)")
    ran = launched("-n", 2, script)
    assert ran.code == 1
    assert "[rank 0] RuntimeError: oh" in ran.err.splitlines()
    assert re.fullmatch(r"rank 0 \(pid \d+\) ended with exit code 1; the other rank was stopped", sentence(ran.err))


def test_one_is_killed(script: Path) -> None:
    script.write_text("import os, time\nif os.environ['RANK'] == '1': os.kill(os.getpid(), 9)\ntime.sleep(60)")
    ran = launched("-n", 3, script)
    assert ran.code == 128 + 9
    assert re.fullmatch(
        r"rank 1 \(pid \d+\) was killed by SIGKILL \(9\); the other 2 ranks were stopped", sentence(ran.err)
    )


def test_the_last_one_fails_alone(script: Path) -> None:
    script.write_text("import os, sys, time\nif os.environ['RANK'] == '1': time.sleep(0.4); sys.exit(200)")
    ran = launched("-n", 2, script)
    assert ran.code == 200
    assert re.fullmatch(r"rank 1 \(pid \d+\) ended with exit code 200", sentence(ran.err))


def test_one_that_will_not_stop_is_killed(script: Path) -> None:
    script.write_text(
        "import os, sys, time\nif os.environ['RANK'] == '0': time.sleep(0.3); sys.exit(4)\n" + STUBBORN + SLEEP
    )
    ran = launched("-n", 2, "--grace", 0.5, script)
    assert ran.code == 4
    assert ran.seconds > 0.8
    assert sentence(ran.err).endswith("exit code 4; the other rank was stopped, rank 1 by SIGKILL after 0.5 s")


def test_one_that_was_stopped_is_continued_to_end(script: Path) -> None:
    script.write_text(
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('in order', flush=True), sys.exit(0)))\n"
        "if os.environ['RANK'] == '0': time.sleep(0.4); sys.exit(4)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n" + SLEEP
    )
    ran = launched("-n", 2, script)
    assert (ran.code, ran.of(1)) == (4, ["in order"])


def test_what_ranks_leave_behind_is_stopped_and_reaped(script: Path) -> None:
    script.write_text(WITH_CHILD)
    with launcher("-n", 2, script) as process:
        pids = pids_printed(process, 4)
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert all_gone(pids, 0)


def test_a_rank_that_cannot_be_started(script: Path) -> None:
    script.write_text("")
    ran = launched("-n", 3, "-m", "no_such_module_at_all")
    assert ran.code == 1
    assert "No module named no_such_module_at_all" in ran.err


def test_survivors_go_on_where_that_is_asked_for(script: Path) -> None:
    script.write_text(
        "import os, time\nif os.environ['RANK'] == '1': os.kill(os.getpid(), 9)\ntime.sleep(0.5); print('survived')"
    )
    ran = launched("-n", 3, "--keep-going", script)
    assert (ran.code, ran.of(0), ran.of(2)) == (0, ["survived"], ["survived"])
    assert re.fullmatch(r"rank 1 \(pid \d+\) was killed by SIGKILL \(9\); the others go on", sentence(ran.err))


def test_ranks_are_started_again_where_that_is_asked_for(script: Path) -> None:
    script.write_text(
        "import os, sys, time\n"
        "if os.environ.get('CHOREO_JOIN'): print('again', flush=True)\n"
        "elif os.environ['RANK'] == '1': os.kill(os.getpid(), 9)\n"
        "elif os.environ['RANK'] == '2': sys.exit(2)\n"
        "time.sleep(0.8); print('survived')"
    )
    ran = launched("-n", 3, "--restarts", 1, script)
    assert (ran.code, ran.of(0), ran.of(1), ran.of(2)) == (0, ["survived"], ["again", "survived"], [])
    assert re.search(r"rank 1 \(pid \d+\) was killed by SIGKILL \(9\); it is started again", ran.err)
    assert re.search(r"rank 2 \(pid \d+\) ended with exit code 2; the others go on", ran.err)


def test_a_rank_that_comes_back_too_late_is_stopped(script: Path) -> None:
    script.write_text(
        "import os, time\n"
        "if os.environ.get('CHOREO_JOIN'): time.sleep(600)\n"
        "if os.environ['RANK'] == '1': os.kill(os.getpid(), 9)\n"
        "time.sleep(0.5)"
    )
    ran = launched("-n", 2, "--restarts", 1, "--grace", 0.2, script)
    assert ran.code == 0


def test_nobody_survives(script: Path) -> None:
    script.write_text("import os, sys, time; time.sleep(0.2 * int(os.environ['RANK'])); sys.exit(5)")
    ran = launched("-n", 2, "--keep-going", script)
    assert ran.code == 5


# The launcher itself is told to stop


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_passed_on(number: signal.Signals, script: Path) -> None:
    script.write_text(
        "import signal, sys\n"
        f"signal.signal({int(number)}, lambda *_: (print('got it', flush=True), sys.exit(0)))\n" + WITH_CHILD + SLEEP
    )
    with launcher("-n", 2, script) as process:
        pids = pids_printed(process, 4)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 128 + number
    assert sorted(out.splitlines()) == ["[rank 0] got it", "[rank 1] got it"]
    assert sentence(err) == f"{number.name} was passed on to 2 ranks, and all have ended"
    assert all_gone(pids, 0)


def test_a_second_interrupt_does_not_wait(script: Path) -> None:
    script.write_text(STUBBORN + WITH_CHILD + SLEEP)
    with launcher("-n", 2, "--grace", 60, script) as process:
        pids = pids_printed(process, 4)
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
    assert sentence(err).endswith("and all have ended, rank 0, rank 1 by SIGKILL at a second SIGINT")
    assert all_gone(pids, 0)


@contextmanager
def ignoring(*numbers: signal.Signals) -> Iterator[None]:
    """What is started meanwhile ignores these signals at first, as under nohup or in the background of a script."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_the_launcher_ignores_what_it_was_started_to_ignore(number: signal.Signals, script: Path) -> None:
    script.write_text("import os, time; print('pid', os.getpid(), flush=True); time.sleep(0.6); print('done')")
    with ignoring(signal.SIGINT, signal.SIGHUP), launcher("-n", 1, script) as process:
        pids_printed(process, 1)
        process.send_signal(number)
        assert process.communicate(timeout=60)[0] == "[rank 0] done\n"
        assert process.returncode == 0


def test_ranks_hear_signals_that_the_launcher_ignores(script: Path) -> None:
    script.write_text(
        "import os, signal, time\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT); time.sleep(60)\n"
        "except KeyboardInterrupt:\n    print('interrupted', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGHUP)\n" + SLEEP
    )
    with ignoring(signal.SIGINT, signal.SIGHUP):
        ran = launched("-n", 1, script)
    assert (ran.code, ran.of(0)) == (128 + signal.SIGHUP, ["interrupted"])
    assert re.fullmatch(r"rank 0 \(pid \d+\) was killed by SIGHUP \(1\)", sentence(ran.err))


def test_exit_codes_are_known_where_the_ends_of_children_were_ignored(script: Path) -> None:
    script.write_text("import sys; sys.exit(7)")
    with ignoring(signal.SIGCHLD):  # nor is the launcher's own code known then, so its words must do
        ran = launched("-n", 1, script)
    assert sentence(ran.err).endswith("ended with exit code 7")


@pytest.mark.parametrize("stubborn", [False, True])
def test_the_launcher_is_killed(stubborn: bool, script: Path) -> None:
    """Nobody is left, whatever they have started and whether or not they want to go."""
    script.write_text((STUBBORN if stubborn else "") + WITH_CHILD + SLEEP)
    grace_s = f"0.5{os.getpid()}"  # by which its guard can be told from others
    with launcher("-n", 3, "--grace", grace_s, script) as process:
        pids = pids_printed(process, 6)
        assert [line for line in running() if grace_s.rstrip("0") in line and "guard.py" in line]
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert all_gone(pids)
    assert eventually(lambda: not [line for line in running() if grace_s.rstrip("0") in line and "guard.py" in line]), (
        "the guard is left"
    )


def running() -> list[str]:
    return subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True, check=False).stdout.splitlines()


def test_the_launcher_is_killed_as_it_starts(script: Path) -> None:
    """At whatever moment: the ranks that were started end."""
    script.write_text("import os; print('pid', os.getpid(), flush=True)\n" + SLEEP)
    for delay_s in (0.02, 0.1, 0.15, 0.2, 0.25, 0.3):
        with launcher("-n", 4, script) as process:
            time.sleep(delay_s)
            process.kill()
            # Its outputs close when the last rank that has them is gone.
            process.communicate(timeout=60)
    assert eventually(lambda: not [line for line in running() if str(script) in line])


def test_the_guard_is_killed_before_the_launcher(script: Path) -> None:
    """The system tells ranks itself that their launcher has gone."""
    script.write_text("import os; print('pid', os.getpid(), flush=True)\n" + SLEEP)
    with launcher("-n", 2, script) as process:
        pids = pids_printed(process, 2)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        (guard,) = {int(child) for child in children} - {pid for pid, _ in pids}
        os.kill(guard, signal.SIGKILL)
        process.kill()
        process.wait()
        assert all_gone(pids)


def test_no_descriptor_of_the_launcher_reaches_a_rank(script: Path) -> None:
    script.write_text("import os; print(sorted(os.listdir('/proc/self/fd'))[:4], len(os.listdir('/proc/self/fd')))")
    ran = launched("-n", 2, script)
    # Three of its own, and the one that it lists the directory with.
    assert [ran.of(rank) for rank in range(2)] == [["['0', '1', '2', '3'] 4"]] * 2


def test_the_whole_group_of_the_launcher_is_killed(script: Path) -> None:
    """As a scheduler does it: the guard is not among them."""
    script.write_text(STUBBORN + "import os; print('pid', os.getpid(), flush=True)\n" + SLEEP)

    with subprocess.Popen(
        command("-n", 2, "--grace", "0.3", script), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        pids = pids_printed(process, 2)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert all_gone(pids)

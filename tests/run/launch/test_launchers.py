"""One script under every launcher there is: `choreo run`, torchrun and mpirun, with and without a secret."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.helpers.ranks.launchers import LAUNCHERS, find_launcher, launch_command

# It grows by a process that one of its ranks starts, with the environment that the launcher gave to that rank.
SCRIPT = """
import subprocess, sys
import choreo, numpy as np

if sys.argv[1:] == ["join"]:
    comm = choreo.join()
else:
    comm = choreo.init(timeout=40)
    assert (comm.all_reduce(np.ones(1000)) == comm.world_size).all()
    if comm.rank == 0:
        child = subprocess.Popen([sys.executable, __file__, "join"])
    comm = comm.grow()
x = comm.all_gather(np.array([comm.rank]))
sys.stdout.write(f"rank {comm.rank} of {comm.world_size}: {x[:, 0].tolist()}\\n")
sys.stdout.flush()
comm.close()
if comm.rank == 0:
    sys.exit(child.wait())
"""
FAILS = """
import os, sys
import choreo, numpy as np

comm = choreo.init(timeout=40)
comm.barrier()
if comm.rank == 1:
    os._exit(3)
try:
    while True:
        comm.all_reduce(np.ones(10))
except choreo.PeerFailure as error:
    sys.stdout.write(f"{error}\\n")
    sys.stdout.flush()
    smaller = comm.shrink()
    smaller.barrier()
    sys.exit(smaller.world_size)
"""


def command(launcher: str, ranks: int) -> list[str]:
    """What starts so many ranks of a Python script."""
    if find_launcher(launcher) is None:
        pytest.skip(f"there is no {launcher} here")
    return launch_command(launcher, ranks)


@pytest.mark.parametrize("secret", [True, False], ids=["secret", "no-secret"])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_script_runs_and_grows_under_any_launcher(launcher: str, secret: bool, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    given = {"CHOREO_SECRET": "what only this test knows"} if secret else {}
    for _ in range(3):
        ran = subprocess.run(
            [*command(launcher, 2), str(script)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=os.environ | given,
        )
        if "Address already in use" not in ran.stderr:
            break  # or torchrun named a port that another program has taken since
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = re.findall(r"rank \d of 3: .*", ran.stdout)
    assert sorted(lines) == [f"rank {rank} of 3: [0, 1, 2]" for rank in range(3)], ran.stdout


def test_the_others_go_on_under_choreo_run_where_that_is_asked_for(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(FAILS)
    words = [*command("choreo", 3), "--keep-going", str(script)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert ran.stdout.count("rank 1 (host") == 2 and "died" in ran.stdout, ran
    for rank, code in ((0, 2), (1, 3), (2, 2)):
        assert f"rank {rank} (pid" in ran.stderr and f"ended with exit code {code}; the others go on" in ran.stderr, ran

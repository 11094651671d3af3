"""The launcher: what ranks are told, what becomes of what they print, and how it ends when all goes well."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from choreo.errors import UsageError
from choreo.run.transport.addresses import parse_address
from tests.helpers.command import run_choreo
from tests.helpers.ranks.launch import all_gone, command, launched, launcher, pids_printed


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.py"


SAYS_WHO = """
import json, os, sys
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT CHOREO_SECRET".split()
print(json.dumps([*(os.environ[name] for name in names), sys.argv[1:]]))
"""


def test_what_ranks_are_reported(script: Path) -> None:
    script.write_text(SAYS_WHO)
    ran = launched("-n", 3, script, "-n", "7", "--help", "--", "a b")
    assert (ran.code, ran.err) == (0, "")
    told = [json.loads(*ran.of(rank)) for rank in range(3)]
    assert [one[:4] for one in told] == [[str(rank), "3", str(rank), "3"] for rank in range(3)]
    assert {one[4] for one in told} == {"127.0.0.1"}
    assert len({one[5] for one in told}) == 1
    assert len({one[6] for one in told}) == 1 and re.fullmatch("[0-9a-f]{64}", told[0][6])
    assert all(one[7] == ["-n", "7", "--help", "--", "a b"] for one in told)


def test_two_dashes_before_the_script(script: Path) -> None:
    script.write_text(SAYS_WHO)
    ran = launched("-n", 1, "--", script, "--", "-x")
    assert json.loads(*ran.of(0))[7] == ["--", "-x"]


def test_a_module(tmp_path: Path) -> None:
    (tmp_path / "some_module.py").write_text(SAYS_WHO)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    ran = launched("-n", 2, "-m", "some_module", "-m", PYTHONPATH=os.pathsep.join(paths))
    assert [json.loads(*ran.of(rank))[7] for rank in range(2)] == [["-m"]] * 2


def test_what_another_launcher_said_is_forgotten(script: Path) -> None:
    script.write_text("import os; print(os.environ.get('TORCHELASTIC_USE_AGENT_STORE'), os.environ['RANK'])")
    assert launched("-n", 1, script, TORCHELASTIC_USE_AGENT_STORE="True", RANK="7").of(0) == ["None 0"]


def test_ranks_find_each_other(script: Path) -> None:
    script.write_text(
        "from choreo.run.rendezvous.environment import read_environment\n"
        "from choreo.run.rendezvous.rendezvous import rendezvous\n"
        "e = read_environment()\n"
        "with rendezvous(e.rank, e.world_size, e.address, e.port, e.secret, timeout_s=10) as found:\n"
        "    print(found.exchange(b'%d' % e.rank, 5))\n"
    )
    ran = launched("-n", 4, script)
    assert (ran.code, ran.err) == (0, "")
    assert [ran.of(rank) for rank in range(4)] == [["[b'0', b'1', b'2', b'3']"]] * 4


def test_the_port_is_held(script: Path) -> None:
    """Rank 0 can listen on it, twice in a row; nobody is given it by the system meanwhile."""
    script.write_text(
        "import os, socket\n"
        "port = int(os.environ['MASTER_PORT'])\n"
        "for _ in range(2):\n"
        "    with socket.create_server(('127.0.0.1', port)):\n"
        "        pass\n"
        "strict = socket.socket()\n"
        "try:\n"
        "    strict.bind(('127.0.0.1', port))\n"
        "except OSError as error:\n"
        "    print(error.strerror)\n"
        "strict.close()\n"
    )
    ran = launched("-n", 1, script)
    assert (ran.err, ran.of(0)) == ("", ["Address already in use"])


# Output


def test_each_line_says_whose_it_is(script: Path) -> None:
    script.write_text(
        "import os, sys\n"
        "rank = os.environ['RANK']\n"
        "print('one', rank); print(); print('windows\\r'); print('thrée'); sys.stderr.write(f'trouble {rank}\\nlast')\n"
        "sys.stdout.write('no end')\n"
    )
    ran = launched("-n", 2, script)
    assert ran.code == 0
    for rank in range(2):
        assert ran.of(rank) == [f"one {rank}", "", "windows", "thrée", "no end"]
    assert sorted(ran.err.splitlines()) == sorted(
        f"[rank {rank}] {text}" for rank in range(2) for text in (f"trouble {rank}", "last")
    )
    assert ran.out.endswith("\n")


def test_a_line_in_pieces_is_one_line(script: Path) -> None:
    script.write_text(
        "import os, sys, time\n"
        "for word in ['a', 'long', 'line\\n'] * 3:\n"
        "    sys.stdout.write(os.environ['RANK'] + word); sys.stdout.flush(); time.sleep(0.02)\n"
    )
    ran = launched("-n", 3, script)
    assert [ran.of(rank) for rank in range(3)] == [[f"{rank}a{rank}long{rank}line"] * 3 for rank in range(3)]


def test_bytes_that_are_no_text(script: Path) -> None:
    script.write_text("import sys; sys.stdout.buffer.write(b'\\xff\\x00\\n')")
    ran = subprocess.run(command("-n", 1, script), capture_output=True, check=False, stdin=subprocess.DEVNULL)
    assert ran.stdout == b"[rank 0] \xff\x00\n"


def test_very_much_output(script: Path) -> None:
    """Four ranks, thirty thousand lines each of various lengths: all there, each whole, in order, and quickly."""
    script.write_text(
        "import os, sys\n"
        "rank = os.environ['RANK']\n"
        "for block in range(30):\n"
        "    sys.stdout.write(''.join(f'{n} {rank * (n % 90)}\\n' for n in range(block * 1000, block * 1000 + 1000)))\n"
    )
    ran = launched("-n", 4, script)
    assert (ran.code, ran.err) == (0, "")
    for rank in range(4):
        assert ran.of(rank) == [f"{n} {str(rank) * (n % 90)}" for n in range(30_000)]


def test_a_line_without_end_is_not_kept_for_ever(script: Path) -> None:
    script.write_text("import sys\nfor _ in range(50): sys.stdout.write('x' * 100_000)")
    ran = launched("-n", 1, script)
    assert sum(map(len, ran.of(0))) == 5_000_000
    assert len(ran.of(0)) in (4, 5)


def test_a_progress_bar_is_seen_before_it_ends(script: Path) -> None:
    script.write_text(
        "import sys, time\n"
        "for n in range(40):\n"
        "    sys.stderr.write(f'\\r{n} of 40'); sys.stderr.flush(); time.sleep(0.01)\n"
        "sys.stderr.write('\\n')\n"
        "time.sleep(30)\n"
    )
    with launcher("-n", 1, script) as process:
        assert process.stderr is not None
        assert re.fullmatch(r"\[rank 0\] \d+ of 40\n", process.stderr.readline())
        while not (line := process.stderr.readline()).endswith("39 of 40\n"):
            assert line
        process.terminate()


def read_terminal(script: Path, **variables: str) -> str:
    """What somebody at a terminal sees."""
    parent, child = pty.openpty()
    with subprocess.Popen(
        command("-n", 2, script),
        stdin=child,
        stdout=child,
        stderr=child,
        env=os.environ | {"TERM": "xterm"} | variables,
    ) as process:
        os.close(child)
        seen = b""
        while select.select([parent], [], [], 10)[0]:
            try:
                data = os.read(parent, 4096)
            except OSError:
                break
            seen += data
        assert process.wait() == 0
    os.close(parent)
    return seen.decode().replace("\r\n", "\n")


def test_one_colour_a_rank_on_a_terminal(script: Path) -> None:
    script.write_text("import os, sys; print('hello'); print('oh', file=sys.stderr); assert not os.isatty(0)")
    seen = read_terminal(script)
    assert sorted(seen.splitlines()) == sorted(
        f"\033[{color}m[rank {rank}]\033[0m {text}" for rank, color in enumerate((36, 33)) for text in ("hello", "oh")
    )
    assert "\033" not in read_terminal(script, NO_COLOR="1")


def test_ranks_have_groups_of_their_own_in_the_launchers_session(script: Path) -> None:
    script.write_text("import os; print(os.getsid(0), os.getpgid(0) == os.getpid())")
    ran = launched("-n", 2, script)
    assert ran.of(0) == ran.of(1) == [f"{os.getsid(0)} True"]


def test_rank_0_reads_what_is_piped_in(script: Path) -> None:
    script.write_text("import sys; print(len(sys.stdin.read()))")
    ran = launched("-n", 2, script, stdin="x" * 1000)
    assert (ran.of(0), ran.of(1)) == (["1000"], ["0"])


def test_nobody_reads(script: Path) -> None:
    """As in `choreo run ... | head -1`."""
    script.write_text("import time\nwhile True: print('line'); time.sleep(0.001)")
    with launcher("-n", 2, script) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 128 + signal.SIGPIPE
        told = process.stderr.read().splitlines()[-1]
        assert told == "choreo: the output cannot be written: nobody reads it; the ranks were stopped"


def test_a_full_disk(script: Path) -> None:
    script.write_text("print('line'); import time; time.sleep(30)")
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            command("-n", 2, script), stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    assert ran.returncode == 1
    assert ran.stderr == "choreo: the output cannot be written: No space left on device; the ranks were stopped\n"


def test_a_reader_who_waits_does_not_keep_a_failure_from_being_noticed(script: Path) -> None:
    """Nobody reads for now; the ranks print until they must wait, and one fails."""
    script.write_text(
        "import os, sys, time\n"
        "print('pid', os.getpid(), flush=True)\n"
        "if os.environ['RANK'] == '1': time.sleep(0.5); sys.exit(9)\n"
        "while True: print('x' * 10_000)\n"
    )
    with launcher("-n", 2, script) as process:
        pids = pids_printed(process, 2)
        assert all_gone(pids)
        assert process.poll() is None  # it still has output for whoever reads it
        most = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
        assert most is not None
        assert int(most[1]) < 100_000  # but not all that there could be
        out, err = process.communicate(timeout=60)
        assert process.returncode == 9
    assert "rank 1 (pid" in err and "ended with exit code 9; the other rank was stopped" in err
    assert {len(line) for line in out.splitlines()[1:-1]} <= {10_009}


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["script"], "say how many ranks: choreo run -n 4 SCRIPT"),
        (["-n", "2"], "say what to run: a script, or -m and a module"),
        (["-n", "0", "script"], "-n must be at least 1, not 0"),
        (["-n", "x", "script"], "'x' is not a valid integer"),
        (["-n", "2", "nowhere.py"], "nowhere.py: there is no such script; for a module write -m"),
        (["-n", "2", "--nodes", "2", "script"], "2 hosts need the address of rank 0: --master HOST:PORT"),
        (["-n", "2", "--nodes", "2", "--master", "a:1", "script"], "2 hosts need the same secret"),
        (
            ["-n", "2", "--nodes", "2", "--node-rank", "2", "script"],
            "--node-rank 2 is not one of 2 hosts",
        ),
        (["-n", "2", "--master", "a", "script"], "a is not HOST:PORT"),
        (["-n", "2", "--grace", "-1", "script"], "the grace must be a number of seconds, 0 or more, not -1.0"),
        (["-n", "2", "--secret-file", "none", "script"], "none: the secret cannot be read: No such file or directory"),
    ],
)
def test_mistakes(arguments: list[str], message: str, script: Path) -> None:
    script.write_text("print('never')")
    ran = run_choreo("run", *(str(script) if text == "script" else text for text in arguments))
    code, out, err = ran.code, ran.out, ran.err
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("choreo: ")
    assert message in err


@pytest.mark.parametrize("text", ["", ":1", "a:", "a:0", "a:65536", "a:b", "a b:1", "::1:5", "a:1:2", "a:٣", "[]:1"])
def test_not_an_address(text: str) -> None:
    with pytest.raises(UsageError, match="is not HOST:PORT"):
        parse_address(text)


def test_addresses() -> None:
    assert parse_address("node0:29500") == ("node0", 29500)
    assert parse_address("[fe80::1]:1") == ("fe80::1", 1)
    assert parse_address("10.0.0.1:65535") == ("10.0.0.1", 65535)


# Several hosts


def two_launchers(script: Path, tmp_path: Path, before: list[list[str]], master: str) -> list[str]:
    key = tmp_path / "key"
    key.write_text("b" * 40)
    key.chmod(0o600)
    shared = ["-n", 2, "--nodes", 2, "--master", master, "--secret-file", key]
    processes = [
        subprocess.Popen(
            [*before[node], *command(*shared, "--node-rank", node, script)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in range(2)
    ]
    out = []
    for process in processes:
        with process:
            out += process.communicate(timeout=40)[0].splitlines()
        assert process.returncode == 0, out
    return sorted(out)


FINDS_HOSTS = """
import time
from choreo.run.rendezvous.environment import read_environment
from choreo.run.rendezvous.hosts import lowest_rank_per_host
from choreo.run.rendezvous.rendezvous import rendezvous
e = read_environment()
with rendezvous(e.rank, e.world_size, e.address, e.port, e.secret, timeout_s=10) as found:
    print(e.local_rank, lowest_rank_per_host(found, 5), [member.address for member in found.members])
"""


def test_two_launchers_on_one_host(script: Path, tmp_path: Path, port: int) -> None:
    script.write_text(FINDS_HOSTS)
    found = two_launchers(script, tmp_path, [[], []], f"127.0.0.1:{port}")
    assert found == [f"[rank {rank}] {rank % 2} [0, 0, 0, 0] {['127.0.0.1'] * 4}" for rank in range(4)]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
    """Two network namespaces, joined by a cable: as good as two hosts."""
    names = [f"choreo-{os.getpid()}-{side}" for side in "ab"]
    cable = [f"cb{os.getpid() % 100_000}{side}" for side in "ab"]
    made = subprocess.run(["ip", "netns", "add", names[0]], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("this system does not let one make network namespaces")
    try:
        ip("netns", "add", names[1])
        ip("link", "add", cable[0], "netns", names[0], "type", "veth", "peer", "name", cable[1], "netns", names[1])
        for side in range(2):
            ip("-n", names[side], "addr", "add", f"10.99.0.{side + 1}/24", "dev", cable[side])
            ip("-n", names[side], "link", "set", cable[side], "up")
            ip("-n", names[side], "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")
def test_two_hosts(script: Path, tmp_path: Path, namespaces: list[str]) -> None:
    script.write_text(FINDS_HOSTS)
    before = [["ip", "netns", "exec", name] for name in namespaces]
    found = two_launchers(script, tmp_path, before, "10.99.0.1:29500")
    addresses = ["10.99.0.1", "10.99.0.1", "10.99.0.2", "10.99.0.2"]
    assert found == [f"[rank {rank}] {rank % 2} [0, 0, 2, 2] {addresses}" for rank in range(4)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")
def test_two_hosts_cannot_rendezvous_without_a_secret(script: Path, namespaces: list[str]) -> None:
    script.write_text(FINDS_HOSTS)
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.99.0.1", "MASTER_PORT": "29500"}
    command = ["ip", "netns", "exec", namespaces[1], sys.executable, str(script)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | variables, timeout=60)
    assert "MASTER_ADDR 10.99.0.1 is not an address of this host, and without a secret only ranks" in ran.stderr


def test_the_launcher_imports_nothing_that_only_ranks_need() -> None:
    """It would start three times as slowly."""
    code = "import sys, choreo.cli.commands.run; print({'numpy', 'choreo.run.communicator'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"

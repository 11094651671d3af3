"""`pytest --workers`: every test runs once, in whichever process, and is told as it would be without."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path

from tests.helpers.suite import workers

CONFTEST = """
from tests.helpers.suite import workers
from tests.helpers.suite.workers import Workers

def pytest_configure(config):
    workers.HANG_S = 8.0
    config.pluginmanager.register(Workers(3, [("test_b.py",)]))
"""
TESTS = """
import os
import time
import pytest

@pytest.fixture
def broken():
    yield
    raise ValueError("in the end")

@pytest.mark.parametrize("number", range(40))
def test_passes(number):
    with open("ran", "a") as file:
        file.write(f"{number}\\n")

def test_fails(tmp_path):
    print(tmp_path.parent.name[:7])
    assert not tmp_path.exists()

def test_is_killed():
    os.kill(os.getpid(), 9)

def test_ends():
    os._exit(3)

def test_hangs():
    time.sleep(60)

def test_is_skipped():
    pytest.skip("because")

def test_leaves_with_an_error(broken):
    pass
"""


def test_every_test_runs_once_and_is_reported(tmp_path: Path) -> None:
    for name, text in (("conftest", CONFTEST), ("test_a", TESTS), ("test_b", "def test_first(): pass")):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rsfE", "--rootdir", "."]
    path = str(Path(__file__).parent.parent)
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env={"PYTHONPATH": path}, timeout=120
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "4 failed, 42 passed, 1 skipped, 1 error" in ran.stdout
    assert "test_is_killed - The process that ran this ended with SIGKILL." in ran.stdout
    assert "test_ends - The process that ran this ended with 3." in ran.stdout
    assert "test_hangs - The process that ran this ended with SIGABRT." in ran.stdout
    assert "in test_hangs" in ran.stderr
    assert "Captured stdout call -----------------------------\nworker-" in ran.stdout
    assert "ERROR test_a.py::test_leaves_with_an_error - ValueError: in the end" in ran.stdout
    assert sorted(map(int, (tmp_path / "ran").read_text().split())) == list(range(40))


def test_shares() -> None:
    assert doctest.testmod(workers).failed == 0

"""The Makefile, where somebody starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
def test_an_older_python_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "src").mkdir()
    older = tmp_path / "python3.10"
    older.write_text(f"""#!/bin/sh\nexec {sys.executable} -c "import sys; sys.version_info = (3, 10, 13)\n$2"\n""")
    older.chmod(0o755)
    # Without what a make above this test tells those below it.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    call = ["make", "try", f"PYTHON={older}"]
    ran = subprocess.run(call, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2
    told = f"Choreo needs Python 3.11 or newer, and {older} is 3.10; name another, as in make PYTHON=python3.11 try"
    assert ran.stderr.splitlines()[0] == told
    assert not (tmp_path / ".venv").exists()

"""`make` takes any Python that is new enough, and says what is missing where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKE = shutil.which("make")

pytestmark = pytest.mark.skipif(MAKE is None, reason="there is no make")


def python(path: Path, version: tuple[int, int]) -> None:
    """A Python that takes itself for this version, and has no venv, so that nothing is made."""
    path.write_text(f"""#!{sys.executable}
import sys
if sys.argv[1] == "--version":
    print("Python {version[0]}.{version[1]}.0")
    sys.exit()
if "ensurepip" in sys.argv[2]:
    sys.exit(1)
sys.version_info = {(*version, 0, "final", 0)}
exec(sys.argv[2])
""")
    path.chmod(0o755)


def setup(tmp_path: Path, *words: str, **versions: tuple[int, int]) -> tuple[str, str]:
    """What `make setup` says where these are the Pythons: `python3_12=(3, 12)`."""
    path, project = tmp_path / "bin", tmp_path / "project"
    (project / "requirements").mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", project)
    (project / "pyproject.toml").touch()
    (project / "requirements" / "all.txt").touch()
    path.mkdir()
    for tool in ("cat", "awk", "bash"):
        (path / tool).symlink_to(shutil.which(tool) or tool)
    for name, version in versions.items():
        python(path / name.replace("_", "."), version)
    assert MAKE is not None
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "PYTHON"))}
    done = subprocess.run(
        [MAKE, "setup", *words],
        cwd=project,
        env={**kept, "PATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    return done.stdout, done.stderr


@pytest.mark.parametrize("minor", [11, 12, 13, 14, 15])
def test_any_python_from_3_11_on_will_do(tmp_path: Path, minor: int) -> None:
    told, _ = setup(tmp_path, python3=(3, minor))
    assert f"Setting up .venv with Python 3.{minor}.0 ..." in told


def test_one_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    told, _ = setup(tmp_path, python3=(3, 9), python3_13=(3, 13))
    assert "with Python 3.13.0" in told


def test_where_all_are_too_old_it_says_which_they_are(tmp_path: Path) -> None:
    _, told = setup(tmp_path, python3=(3, 10), python=(2, 7))
    assert "Python 3.11 or newer is missing" in told
    assert "python3 is Python 3.10; python is Python 2.7." in told


def test_one_that_is_named_is_taken(tmp_path: Path) -> None:
    named = tmp_path / "mine"
    python(named, (3, 12))
    told, _ = setup(tmp_path, f"PYTHON={named}", python3=(3, 11))
    assert "with Python 3.12.0" in told

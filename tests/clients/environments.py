"""One virtual environment a client: their pins exclude each other."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
REQUIREMENTS = "requirements.txt"
NO_DEPENDENCIES = "requirements-no-deps.txt"
LOCK = "lock.txt"
STAMP = "installed"
# Torch and CUDA would be gigabytes; no client needs either to talk to a server.
FORBIDDEN = ("torch", "nvidia-", "triton")


@dataclass(frozen=True, slots=True)
class Client:
    """A folder beside this file: ``check.py``, what it needs, and the versions of everything that was installed for it."""

    name: str
    folder: Path

    @property
    def script(self) -> Path:
        """The checks."""
        return self.folder / "check.py"

    @property
    def pins(self) -> list[str]:
        """The requirements, those installed without dependencies first; the first names the distribution under test."""
        files = (self.folder / NO_DEPENDENCIES, self.folder / REQUIREMENTS)
        return [line for file in files if file.exists() for line in file.read_text().split("\n") if line.strip()]

    @property
    def package(self) -> str:
        """The distribution under test, as pip lists it."""
        return self.pins[0].split("==")[0].split("[")[0].lower()


def clients() -> list[Client]:
    """All clients there are, by name."""
    return [Client(script.parent.name, script.parent) for script in sorted(HERE.glob("*/check.py"))]


def python_of(client: Client, root: Path) -> Path:
    """The interpreter of a client's environment under ``root``."""
    return root / client.name / "bin" / "python"


def _pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "-qq", *arguments]
    subprocess.run(command, check=True)


def _fingerprint(client: Client) -> str:
    names = (REQUIREMENTS, NO_DEPENDENCIES, LOCK)
    text = "\n".join((client.folder / name).read_text() for name in names if (client.folder / name).exists())
    return hashlib.sha256(f"{sys.version}\n{text}".encode()).hexdigest()


def install(client: Client, root: Path, *, relock: bool = False) -> None:
    """Make the client's environment unless it is there with these very requirements; ``relock`` writes its lock file anew.

    Raises ``subprocess.CalledProcessError`` when an installation fails.
    """
    folder, stamp = root / client.name, root / client.name / STAMP
    lock = client.folder / LOCK
    if not relock and stamp.exists() and stamp.read_text() == _fingerprint(client):
        return
    if folder.exists():
        shutil.rmtree(folder)
    root.mkdir(parents=True, exist_ok=True)
    print(f"installing {client.name}: {', '.join(client.pins)}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = python_of(client, root)
    locked = [] if relock or not lock.exists() else ["--constraint", str(lock)]
    _pip(python, "install", *locked, "--requirement", str(client.folder / REQUIREMENTS))
    if (client.folder / NO_DEPENDENCIES).exists():
        _pip(python, "install", "--no-deps", "--requirement", str(client.folder / NO_DEPENDENCIES))
    found = versions(client, root)
    heavy = [name for name in found if name.startswith(FORBIDDEN)]
    if heavy:
        raise RuntimeError(f"{client.name} pulls in {', '.join(heavy)}")
    if relock:
        lock.write_text("".join(f"{name}=={version}\n" for name, version in found.items()))
    stamp.write_text(_fingerprint(client))


def versions(client: Client, root: Path) -> dict[str, str]:
    """Every distribution in the client's environment but pip and setuptools, by name."""
    command = [str(python_of(client, root)), "-m", "pip", "--disable-pip-version-check", "list", "--format", "json"]
    listed = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {
        item["name"].lower(): item["version"] for item in listed if item["name"] not in ("pip", "setuptools", "wheel")
    }

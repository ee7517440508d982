"""Where a result comes from: the fields that every results file starts with."""

import datetime
import os
import platform
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

__all__ = ["command_line", "provenance"]


def provenance(command: str) -> dict[str, Any]:
    """Command, commit, hardware, software and date, ready for JSON."""
    return {
        "command": command,
        "commit": commit(),
        "hardware": hardware(),
        "software": f"Python {platform.python_version()}, torch {torch.__version__}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def commit() -> str | None:
    """The commit of the source tree, with a plus sign if files differ from it; None outside a checkout."""
    here = Path(__file__).resolve().parent
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=True
        )
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--", "."], cwd=here.parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def hardware() -> str:
    """The processor and how many of its cores are ours, and the GPU if there is one."""
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        processor = names[0] if names else processor
    number = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = f"{processor}, {number} core{'' if number == 1 else 's'}"
    return f"{torch.cuda.get_device_name()}; {cores}" if torch.cuda.is_available() else cores


def command_line(command: str, settings: Any) -> str:
    """The command that has these settings (a dataclass whose defaults are the flags'): only what differs is named."""
    words, usual = [command], asdict(type(settings)())
    for name, value in asdict(settings).items():
        flag = name.replace("_", "-")
        if value == usual[name]:
            continue
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words.append(f"--{flag} {' '.join(map(str, value)) if isinstance(value, list | tuple) else value}")
    return " ".join([*words, "--json"])

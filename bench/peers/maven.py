"""Jars of peers that are written for Java: fetched with Maven, once, into the cache."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

_FETCH_S_MAX = 180


def missing(what: str) -> str:
    """Why nothing can be fetched or run on this machine; empty if it can."""
    for program in ("mvn", "java"):
        if shutil.which(program) is None:
            return f"{what} needs Java and is fetched with Maven: no {program!r} is on the PATH"
    return ""


def fetched(jars: Path, wanted: Sequence[str], *, alone: bool = False) -> bool:
    """Whether the jars are there, or could be fetched; the folder gets its name at the end.

    `wanted`: artifacts, each as group:name:version; `alone` without what they need themselves.
    """
    if jars.exists():
        return True
    work = jars.with_name(f"{jars.name}.{os.getpid()}")
    work.mkdir(parents=True)
    try:
        (work / "pom.xml").write_text(_project(wanted, alone))
        command = ["mvn", "-B", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        subprocess.run(
            [*command, "-DoutputDirectory=jars"],
            cwd=work,
            capture_output=True,
            timeout=_FETCH_S_MAX,
            check=True,
        )
        (work / "jars").rename(jars)
    except (OSError, subprocess.SubprocessError):
        return False
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return True


def _project(wanted: Sequence[str], alone: bool) -> str:
    left_out = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
    exclusions = f"<exclusions>{left_out}</exclusions>" if alone else ""
    dependencies = ""
    for artifact in wanted:
        group, name, version = artifact.split(":")
        dependencies += (
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
            f"<version>{version}</version>{exclusions}</dependency>"
        )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>bench</groupId>"
        "<artifactId>peer</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )

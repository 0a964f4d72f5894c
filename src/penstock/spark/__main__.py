"""For shells: `eval "$(python -m penstock.spark)"` before `spark-submit` or `spark-pipelines`."""

from __future__ import annotations

import os
import shlex
import sys

from penstock.errors import JavaMissing
from penstock.spark.environment import prepare


def main() -> int:
    """Print what `prepare` changes in the environment, as commands of a shell."""
    prepared = dict(os.environ)
    try:
        prepare(prepared)
    except JavaMissing as exc:
        print(f"penstock: {exc} [{exc.code}]", file=sys.stderr)
        return 1
    for name, value in prepared.items():
        if os.environ.get(name) != value:
            print(f"export {name}={shlex.quote(value)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

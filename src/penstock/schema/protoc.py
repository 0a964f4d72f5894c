"""`python -m penstock.schema.protoc FOLDER SECONDS`: compiles `FOLDER/schema.proto`.

A process of its own, because a compiler of strangers' text may take any time and memory: it limits
both for itself before it reads. `FOLDER/known.bin` holds the descriptors of what may be imported;
the result goes to `FOLDER/compiled.bin`.
"""

from __future__ import annotations

import resource
import sys
from importlib.resources import files

from grpc_tools import protoc

_MEMORY_BYTES_MAX = 1 << 30
_FILE_BYTES_MAX = 32 << 20


def main(folder: str, seconds: int) -> int:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES_MAX, _FILE_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
    known = files("grpc_tools") / "_proto"
    status: int = protoc.main(
        [
            "protoc",
            f"--proto_path={folder}",
            f"--proto_path={known}",
            f"--descriptor_set_in={folder}/known.bin",
            f"--descriptor_set_out={folder}/compiled.bin",
            "schema.proto",
        ]
    )
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))

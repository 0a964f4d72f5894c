"""Each kind of error has an exit code, and a sentence for people at a shell."""

from __future__ import annotations

import pytest

from penstock import errors
from penstock.cli.exits import Exit, exit_of, sentence
from penstock.errors import PenstockError

EXPECTED: dict[str, Exit] = {
    "topic_not_found": Exit.NOT_FOUND,
    "group_not_found": Exit.NOT_FOUND,
    "partition_not_found": Exit.NOT_FOUND,
    "key_not_found": Exit.NOT_FOUND,
    "webhook_not_found": Exit.NOT_FOUND,
    "log_not_found": Exit.NOT_FOUND,
    "subject_not_found": Exit.NOT_FOUND,
    "schema_version_not_found": Exit.NOT_FOUND,
    "schema_not_found": Exit.NOT_FOUND,
    "not_found": Exit.NOT_FOUND,
    "offset_out_of_range": Exit.NOT_FOUND,
    "topic_exists": Exit.CONFLICT,
    "key_exists": Exit.CONFLICT,
    "port_in_use": Exit.CONFLICT,
    "data_folder_in_use": Exit.CONFLICT,
    "group_not_empty": Exit.CONFLICT,
    "schema_incompatible": Exit.CONFLICT,
    "schema_referenced": Exit.CONFLICT,
    "subject_not_deleted": Exit.CONFLICT,
    "registry_read_only": Exit.CONFLICT,
    "lease_lost": Exit.CONFLICT,
    "already_settled": Exit.CONFLICT,
    "unauthenticated": Exit.DENIED,
    "forbidden": Exit.DENIED,
    "keys_unreadable": Exit.DENIED,
    "disk_full": Exit.TRY_AGAIN,
    "unavailable": Exit.TRY_AGAIN,
    "too_many_requests": Exit.TRY_AGAIN,
    "invalid_input": Exit.USAGE,
    "invalid_config": Exit.USAGE,
    "invalid_schema": Exit.USAGE,
    "schema_mismatch": Exit.USAGE,
    "message_too_large": Exit.USAGE,
    "missing_driver": Exit.USAGE,
    "missing_extra": Exit.USAGE,
    "log_failed": Exit.FAILED,
    "protocol_error": Exit.FAILED,
}
CLASSES = {
    error.code: error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, PenstockError)
}


@pytest.mark.parametrize("code", sorted(EXPECTED))
def test_an_error_has_its_exit_code(code: str) -> None:
    kind = CLASSES[code]
    assert exit_of(kind.__new__(kind)) == EXPECTED[code]


def test_an_error_that_may_pass_is_worth_another_try_and_none_ends_with_0() -> None:
    for kind in CLASSES.values():
        error = kind.__new__(kind)
        assert exit_of(error) not in (Exit.OK, Exit.NO)
        if kind.retriable:
            assert exit_of(error) == Exit.TRY_AGAIN


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), Exit.INTERRUPTED),
        (BrokenPipeError(), Exit.BROKEN_PIPE),
        (FileNotFoundError(), Exit.NOT_FOUND),
        (FileExistsError(), Exit.CONFLICT),
        (PermissionError(), Exit.DENIED),
        (ConnectionRefusedError(), Exit.TRY_AGAIN),
        (TimeoutError(), Exit.TRY_AGAIN),
        (OSError(), Exit.FAILED),
        (RuntimeError(), Exit.FAILED),
    ],
)
def test_what_python_raises_has_one_too(error: BaseException, code: Exit) -> None:
    assert exit_of(error) == code


def test_sentences_are_for_people_at_a_shell() -> None:
    assert "`penstock topic create` makes one" in sentence(errors.TopicNotFound("x"))
    assert sentence(errors.TopicNotFound("x", "y")).endswith("'x'; did you mean 'y'?")
    assert "`penstock topic alter`" in sentence(errors.TopicExists("x"))
    served = errors.DataFolderInUse("./data", "the server at http://127.0.0.1:8080")
    assert sentence(served).endswith("With --url a command goes to its server.")
    assert "--url" not in sentence(errors.DataFolderInUse("./data", "process 7 on here"))
    assert sentence(FileNotFoundError(2, "No such file", "x.txt")) == "x.txt: No such file"

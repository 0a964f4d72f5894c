"""Every error can be told apart by class and code, and says what to do."""

import re

import pytest

from penstock import errors
from penstock.errors import (
    DataFolderInUse,
    DiskFull,
    FrameCorrupt,
    FrameTooLarge,
    FrameTruncated,
    InvalidInput,
    LogClosed,
    LogError,
    LogFailed,
    MessageTooLarge,
    MissingExtra,
    OffsetOutOfRange,
    PenstockError,
)

EVERY_ERROR = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, PenstockError)
]


@pytest.mark.parametrize("error", EVERY_ERROR, ids=lambda error: error.__name__)
def test_an_error_has_a_sentence_a_code_and_says_whether_to_try_again(
    error: type[PenstockError],
) -> None:
    assert (error.__doc__ or "").strip().endswith(".")
    assert re.fullmatch("[a-z]+(_[a-z]+)*", error.code)
    assert isinstance(error.retriable, bool)


def test_no_two_errors_share_a_code() -> None:
    codes = [error.code for error in EVERY_ERROR]
    assert sorted(codes) == sorted(set(codes))


def test_an_error_without_a_message_says_what_its_class_means() -> None:
    assert str(LogClosed()) == "The log was closed. Open it again to go on."
    assert str(LogClosed("the log ./data is closed")) == "the log ./data is closed"


def test_wrong_input_is_also_a_value_error_for_callers_that_know_no_penstock() -> None:
    with pytest.raises(ValueError, match="too long"):
        raise MessageTooLarge("too long")
    assert issubclass(MessageTooLarge, InvalidInput)


def test_only_what_goes_away_by_itself_is_worth_another_try() -> None:
    assert DiskFull.retriable
    assert not LogFailed.retriable
    assert not MessageTooLarge.retriable


def test_a_bad_frame_says_where_it_is_and_why() -> None:
    error = FrameCorrupt(4096, "the checksum does not match")
    assert (error.position, error.reason) == (4096, "the checksum does not match")
    assert str(error) == "frame at byte 4096: the checksum does not match"
    assert isinstance(FrameTruncated(0, "short"), FrameCorrupt)
    assert not isinstance(FrameTooLarge(0, "long"), FrameCorrupt)


def test_a_missing_offset_says_what_there_is() -> None:
    error = OffsetOutOfRange(5, 10, 20)
    assert (error.offset, error.start, error.end) == (5, 10, 20)
    assert str(error) == "offset 5 is outside this log, which holds 10 up to 20"
    assert isinstance(error, LogError)


def test_a_folder_in_use_says_by_whom_and_what_to_do() -> None:
    text = str(DataFolderInUse("./data", "process 7 on here"))
    assert "./data is in use by process 7 on here" in text
    assert "stop it first, or use another folder" in text
    assert "another process" in str(DataFolderInUse("./data", ""))


def test_a_failed_log_says_what_happened_and_what_to_do() -> None:
    text = str(LogFailed("./data", OSError(5, "Input/output error")))
    assert "./data stopped accepting writes" in text
    assert "Input/output error" in text
    assert "reopen the log" in text


def test_a_missing_extra_names_the_install_command_and_is_an_import_error() -> None:
    with pytest.raises(ImportError, match=r"pip install 'penstock\[spark\]'"):
        raise MissingExtra("spark", "reading from Spark")

"""Configuration from a file, the environment and flags: which wins, and what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.config import ServerConfig
from penstock.configuration import DEFAULT, expected, known_names, load, variable
from penstock.errors import InvalidConfig


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "penstock.yaml"


def test_without_anything_the_defaults_are_in_force() -> None:
    found = load()
    assert found.config == ServerConfig()
    assert {setting.origin for setting in found.settings()} == {DEFAULT}
    assert [setting.name for setting in found.settings()] == list(ServerConfig.__struct_fields__)


def test_the_environment_beats_the_file_and_flags_beat_both(file: Path) -> None:
    file.write_text("host: a.example\nport: 1\n\nlog_level: debug\n")
    found = load(file, {"PENSTOCK_HOST": "b.example", "PENSTOCK_PORT": "2"}, {"port": 3})
    assert (found.config.host, found.config.port, found.config.log_level) == (
        "b.example",
        3,
        "debug",
    )
    assert found.origins == {
        "host": "PENSTOCK_HOST",
        "port": "--port",
        "log_level": f"{file}:4",
    }


def test_an_empty_file_is_no_error(file: Path) -> None:
    file.write_text("# nothing yet\n")
    assert load(file).config == ServerConfig()


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("idle_timeout: 2m", "idle_timeout_ms", 120_000),
        ("idle_timeout: 1.5s", "idle_timeout_ms", 1_500),
        ("idle_timeout_ms: 1500", "idle_timeout_ms", 1_500),
        ("body_bytes_max: 2MB", "body_bytes_max", 2_000_000),
        ("body_bytes_max: 2 MiB", "body_bytes_max", 2 << 20),
        ("body_bytes_max: 4096", "body_bytes_max", 4096),
        ("rate_per_key: 12.5", "rate_per_key", 12.5),
        ("rate_per_key: 12", "rate_per_key", 12.0),
        ("rate_per_key: null", "rate_per_key", None),
        ("auto_create: true", "auto_create", True),
        ("data: 7", "data", None),
    ],
)
def test_values_are_read_as_people_write_them(file: Path, text: str, name: str, value: Any) -> None:
    file.write_text(text)
    if text == "data: 7":  # a number is no folder
        with pytest.raises(InvalidConfig, match="data is 7; it must be text"):
            load(file)
        return
    assert getattr(load(file).config, name) == value
    key, _, written = text.partition(": ")
    by_environment = load(environ={variable(key): written}).config
    by_set = load(flags={"--set": [f"{key}={written}"]}).config
    assert getattr(by_environment, name) == getattr(by_set, name) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot: 80", r"penstock\.yaml:1: unknown setting 'prot'; did you mean port\?"),
        ("port: 80\nhots: x", r":2: unknown setting 'hots'; did you mean host\?"),
        (
            "zzz: 1",
            "unknown setting 'zzz'; known are advertise, allow_public_without_keys,",
        ),
        ("port: x", "port is 'x'; it must be a whole number"),
        ("port: true", "port is True; it must be a whole number"),
        ("port: [80]", r"port is \[80\]; it must be a whole number"),
        ("port: 70000", r"penstock\.yaml:1: port is 70000; it must be from 0 to 65535"),
        ("port: 1\nport: 2", r":2: port is there already, in line 1"),
        ("auto_create: perhaps", "auto_create is 'perhaps'; it must be true or false"),
        ("log_level: loud", "log_level is 'loud'; it must be debug, info, warning or error"),
        ("idle_timeout: soon", "idle_timeout is 'soon'; a duration is"),
        ("idle_timeout: 5", "idle_timeout is 5; say the unit: 5s, or idle_timeout_ms"),
        ("idle_timeout: '5'", "idle_timeout is '5'; say the unit"),
        ("idle_timeout: 5 apples", "idle_timeout is '5 apples'; a duration is"),
        ("body_bytes_max: much", "it must be a number of bytes such as 64MiB"),
        ("rate_per_key: often", "rate_per_key is 'often'; it must be a number or null"),
        ("tls_cert: a.pem", "TLS needs both tls_cert and tls_key"),
        ("- port", "settings are wanted, such as `port: 8080`"),
        ("port: {", r"penstock\.yaml:1 is not YAML"),
        ("a: b: c", r"penstock\.yaml:1 is not YAML"),
        ("data: !!python/object:os.system x", "is not YAML"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line(
    file: Path, text: str, message: str
) -> None:
    file.write_text(text)
    with pytest.raises(InvalidConfig, match=message):
        load(file)


def test_a_file_that_is_not_there_or_not_text_is_an_error(file: Path) -> None:
    with pytest.raises(InvalidConfig, match="there is no configuration file"):
        load(file)
    file.write_bytes(b"port: \xff\xfe")
    with pytest.raises(InvalidConfig, match="cannot be read"):
        load(file)
    with pytest.raises(InvalidConfig, match="cannot be read"):
        load(file.parent)


def test_defaults_of_topics_are_a_mapping_in_a_file_and_json_elsewhere(file: Path) -> None:
    file.write_text("topic_defaults:\n  max_retries: 8\n  retention: 30d\n")
    given = {"max_retries": 8, "retention": "30d"}
    assert load(file).config.topic_defaults == given
    text = msgspec.json.encode(given).decode()
    assert load(environ={"PENSTOCK_TOPIC_DEFAULTS": text}).config.topic_defaults == given
    assert load(flags={"--set": [f"topic_defaults={text}"]}).config.topic_defaults == given


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{max_retires: 5}",
            r"yaml:1: topic_defaults: unknown topic setting 'max_retires'; did you mean 'max_ret",
        ),
        ("{retention: soon}", "topic_defaults: retention is 'soon'; a duration is"),
        ("{max_retries: -1}", "topic_defaults: topic settings: max_retries is -1; it must be"),
        ("{partitions: many}", r"topic_defaults: topic settings: Expected `int`, got `str`"),
        ("{dead_letter_topic: x}", "dead_letter_topic says where the letters of one topic go"),
        ("{1: 2}", r"topic_defaults is \{1: 2\}; it must be settings of topics"),
        ("[fsync]", "it must be settings of topics"),
        ("often", "topic_defaults is 'often'; it must be settings of topics, as JSON"),
        ("null", "it must be settings of topics"),
    ],
)
def test_defaults_of_topics_that_are_wrong_are_named(file: Path, text: str, message: str) -> None:
    file.write_text(f"topic_defaults: {text}")
    with pytest.raises(InvalidConfig, match=message):
        load(file)


def test_an_unknown_variable_is_an_error_and_those_of_others_are_none() -> None:
    with pytest.raises(InvalidConfig, match=r"PENSTOCK_PROT; did you mean PENSTOCK_PORT\?"):
        load(environ={"PENSTOCK_PROT": "80"})
    with pytest.raises(InvalidConfig, match=r"did you mean PENSTOCK_API_KEY\?"):
        load(environ={"PENSTOCK_APIKEY": "x"})
    with pytest.raises(InvalidConfig, match="PENSTOCK_PORT: port is 'x'"):
        load(environ={"PENSTOCK_PORT": "x"})
    others = {"PATH": "/bin", "PENSTOCKS": "1", "PENSTOCK_URL": "http://x", "PENSTOCK_CONFIG": "y"}
    assert load(environ=others).config == ServerConfig()


def test_what_kubernetes_says_about_a_service_is_not_taken_for_settings() -> None:
    environ = {
        "PENSTOCK_SERVICE_HOST": "10.0.0.1",
        "PENSTOCK_SERVICE_PORT": "8080",
        "PENSTOCK_SERVICE_PORT_HTTP": "8080",
        "PENSTOCK_PORT": "tcp://10.0.0.1:8080",
        "PENSTOCK_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "PENSTOCK_PORT_8080_TCP_ADDR": "10.0.0.1",
        "PENSTOCK_WEB_PORT": "tcp://10.0.0.2:80",
        "PENSTOCK_WEB_SERVICE_HOST": "10.0.0.2",
    }
    assert load(environ=environ).origins == {}


def test_set_takes_any_setting_and_says_how_it_is_written() -> None:
    found = load(flags={"--set": ["polls_max=7", "idle_timeout = 9s"], "port": 80})
    assert (found.config.polls_max, found.config.idle_timeout_ms) == (7, 9000)
    assert found.origins["polls_max"] == "--set polls_max"
    with pytest.raises(InvalidConfig, match="give a setting as NAME=VALUE"):
        load(flags={"--set": ["polls_max"]})
    with pytest.raises(InvalidConfig, match=r"--set pols_max: .* did you mean polls_max\?"):
        load(flags={"--set": ["pols_max=1"]})


def test_every_setting_can_be_given_in_every_way(file: Path) -> None:
    for setting in load().settings():
        written = msgspec.json.encode(setting.value).decode()
        if setting.name in ("tls_cert", "tls_key"):
            continue  # only together
        file.write_text(f"{setting.name}: {written}\n")
        assert load(file).config == ServerConfig()
        text = str(setting.value) if isinstance(setting.value, str) else written
        assert load(environ={variable(setting.name): text}).config == ServerConfig()
        assert expected(setting.name)
    assert set(known_names()) > set(ServerConfig.__struct_fields__)

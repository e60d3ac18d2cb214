"""check-config opens what a configuration names, and says what is wrong with it, where, and how to mend it."""

import ssl
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from extproc.cli import check_config

SECRET = "s3cr3t-t0ken"


def check(folder: Path, text: str, *options: str) -> Result:
    (folder / "f.yaml").write_text(text.replace("FOLDER", str(folder)))
    return CliRunner().invoke(check_config.command, [str(folder / "f.yaml"), *options])


def metrics(line: str) -> str:
    return f'pools:\n  - replicas: ["10.0.0.1:8000"]\n    metrics:\n      {line}\n'


def kubernetes(line: str) -> str:
    return (
        "envoy: {eds_dir: FOLDER}\npools:\n  - discovery:\n      kubernetes:\n        service: vllm\n"
        f"        api: https://127.0.0.1:1\n        namespace: a\n        {line}\n"
    )


def inference_pool(line: str) -> str:
    return kubernetes(line).replace("kubernetes:", "inference_pool:").replace("service: vllm", "name: vllm")


def file(name: str = "endpoints.yaml") -> str:
    return f"envoy: {{eds_dir: FOLDER}}\npools:\n  - discovery:\n      file: {{path: FOLDER/{name}}}\n"


ADMIN = 'admin: {report_token_file: FOLDER/token}\npools: [{replicas: ["10.0.0.1:8000"]}]\n'
TOKENS = [
    (metrics("token_file: FOLDER/token"), 4, "pools[0].metrics.token_file"),
    (kubernetes("token_file: FOLDER/token"), 8, "pools[0].discovery.kubernetes.token_file"),
    (inference_pool("token_file: FOLDER/token"), 8, "pools[0].discovery.inference_pool.token_file"),
    (ADMIN, 1, "admin.report_token_file"),
]
CERTIFICATES = [
    (metrics("ca_file: FOLDER/ca.pem"), 4, "pools[0].metrics.ca_file"),
    (kubernetes("ca_file: FOLDER/ca.pem"), 8, "pools[0].discovery.kubernetes.ca_file"),
]


@pytest.mark.parametrize(("text", "line", "setting"), TOKENS)
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "can't be read (No such file or directory); mend the path or its permissions"),
        ("", "is empty; write the bearer token into it, or remove the setting"),
        (f"{SECRET} {SECRET}", "holds no bearer token; it may have letters, digits and -._~+/ only"),
    ],
)
def test_a_token_file_that_can_not_be_used_is_told(
    tmp_path: Path, text: str, line: int, setting: str, content: str | None, says: str
) -> None:
    if content is not None:
        (tmp_path / "token").write_text(content)
    result = check(tmp_path, text)
    assert result.exit_code == 2
    assert f"{tmp_path}/f.yaml:{line}: {setting}: {tmp_path}/token {says}" in result.stderr
    assert SECRET not in result.stderr
    assert check(tmp_path, text, "--no-files").exit_code == 0


@pytest.mark.parametrize(("text", "line", "setting"), TOKENS)
def test_a_good_token_file_is_good_and_not_shown(tmp_path: Path, text: str, line: int, setting: str) -> None:
    (tmp_path / "token").write_text(SECRET + "\n")
    result = check(tmp_path, text)
    assert result.exit_code == 0, (line, setting, result.stderr)
    assert SECRET not in result.output


@pytest.mark.parametrize(("text", "line", "setting"), CERTIFICATES)
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "can't be read (No such file or directory); mend the path or its permissions"),
        ("", "is no PEM file of certificates; give the CA's certificates in PEM"),
        (SECRET, "is no PEM file of certificates; give the CA's certificates in PEM"),
    ],
)
def test_a_file_of_certificates_that_can_not_be_used_is_told(
    tmp_path: Path, text: str, line: int, setting: str, content: str | None, says: str
) -> None:
    if content is not None:
        (tmp_path / "ca.pem").write_text(content)
    result = check(tmp_path, text)
    assert result.exit_code == 2
    assert f"{tmp_path}/f.yaml:{line}: {setting}: {tmp_path}/ca.pem {says}" in result.stderr
    assert SECRET not in result.stderr


@pytest.mark.parametrize(("text", "line", "setting"), CERTIFICATES)
def test_a_good_file_of_certificates_is_good(tmp_path: Path, text: str, line: int, setting: str) -> None:
    system = ssl.get_default_verify_paths().cafile
    if system is None:
        pytest.skip("this machine has no file of CA certificates")
    (tmp_path / "ca.pem").write_bytes(Path(system).read_bytes())
    result = check(tmp_path, text)
    assert result.exit_code == 0, (line, setting, result.stderr)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "can't be read (No such file or directory)"),
        ("", "can't be used: "),
        ("- engine:8000\n", "can't be used: "),
        ("{", "can't be used: "),
    ],
)
def test_a_file_of_endpoints_that_can_not_be_used_is_told(
    tmp_path: Path, content: str | None, says: str
) -> None:
    if content is not None:
        (tmp_path / "endpoints.yaml").write_text(content)
    result = check(tmp_path, file())
    assert result.exit_code == 2
    assert f"f.yaml:4: pools[0].discovery.file.path: {tmp_path}/endpoints.yaml {says}" in result.stderr, (
        result.stderr
    )
    (tmp_path / "endpoints.yaml").write_text("- 10.0.0.1:8000\n")
    assert check(tmp_path, file()).exit_code == 0


def test_a_folder_for_envoy_may_be_made_yet_but_must_be_possible(tmp_path: Path) -> None:
    text = 'envoy: {eds_dir: FOLDER/eds/deeper}\npools: [{replicas: ["10.0.0.1:8000"]}]\n'
    assert check(tmp_path, text).exit_code == 0
    (tmp_path / "eds").write_text("a file")
    result = check(tmp_path, text)
    assert result.exit_code == 2
    assert "f.yaml:1: envoy.eds_dir: " in result.stderr
    assert f"can't be a folder, as {tmp_path}/eds is a file; name another" in result.stderr


def test_a_token_in_the_environment_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENGINE_TOKEN", raising=False)
    result = check(tmp_path, metrics("token: env:ENGINE_TOKEN"))
    assert result.exit_code == 2
    assert (
        "f.yaml:4: pools[0].metrics.token: env:ENGINE_TOKEN is not set in this environment" in result.stderr
    )
    monkeypatch.setenv("ENGINE_TOKEN", SECRET)
    result = check(tmp_path, metrics("token: env:ENGINE_TOKEN"))
    assert (result.exit_code, SECRET in result.output) == (0, False)


def test_every_fault_is_told_in_one_go(tmp_path: Path) -> None:
    text = metrics("token_file: FOLDER/none").replace(
        "      token_file", "      ca_file: FOLDER/no.pem\n      token_file"
    )
    result = check(tmp_path, "grpc: {address: '127.0.0.1:0'}\n" + text)
    assert [line.split(": ")[1] for line in result.stderr.splitlines()] == [
        "pools[0].metrics.token_file",
        "pools[0].metrics.ca_file",
        "grpc.address",
    ]


REDIS = 'redis: {url: "URL", KEY}\npools: [{replicas: ["10.0.0.1:8000"]}]\n'


@pytest.mark.parametrize(
    ("url", "key", "says"),
    [
        ("redis://h", "password_file: FOLDER/none", "redis.password_file: FOLDER/none can't be read"),
        ("redis://h", "password_file: FOLDER/empty", "redis.password_file: FOLDER/empty is empty"),
        ("redis://h", "password: env:NOT_SET_HERE", "redis.password: env:NOT_SET_HERE is not set"),
        ("rediss://h", "ca_file: FOLDER/empty", "redis.ca_file: FOLDER/empty is no PEM file"),
        (
            "rediss://h",
            "cert_file: FOLDER/none, key_file: FOLDER/empty",
            "redis.cert_file: FOLDER/none can't",
        ),
    ],
)
def test_what_redis_needs_is_opened_too(tmp_path: Path, url: str, key: str, says: str) -> None:
    (tmp_path / "empty").touch()
    result = check(tmp_path, REDIS.replace("URL", url).replace("KEY", key))
    assert result.exit_code == 2
    assert says.replace("FOLDER", str(tmp_path)) in result.stderr

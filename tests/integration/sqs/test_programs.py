"""Programs that were written for SQS: a Celery worker, aiobotocore, the command `aws`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.integration.server.running import RunningServer
from tests.integration.sqs.clients import CREDENTIALS

ROOT = Path(__file__).parents[3]
WAIT_S = 60


@pytest.fixture
def jobs(server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the application, with a worker at work."""
    results = tmp_path / "results"
    results.mkdir()
    where = server.url.removeprefix("http://")
    monkeypatch.setenv("PENSTOCK_TEST_BROKER", f"sqs://nobody:nothing@{where}//")
    monkeypatch.setenv("PENSTOCK_TEST_RESULTS", os.fspath(results))
    module = "tests.integration.sqs.celery_jobs"
    sys.modules.pop(module, None)
    from tests.integration.sqs import celery_jobs

    with open(tmp_path / "worker.log", "wb") as log:
        command = [sys.executable, "-m", "celery", "-A", module, "worker", "--concurrency=2"]
        quiet = ["--loglevel=WARNING", "--without-gossip", "--without-mingle"]
        worker = subprocess.Popen(
            [*command, *quiet], cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )
    yield celery_jobs
    worker.terminate()
    try:
        worker.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
    celery_jobs.app.close()
    sys.modules.pop(module, None)


def test_a_celery_worker_works_unmodified(jobs: Any, server: RunningServer, tmp_path: Path) -> None:
    plain = jobs.add.delay(1, 2)
    began = time.time()
    later = jobs.when.apply_async(countdown=2)
    flaky = jobs.flaky.delay(2)
    late = jobs.die_once.delay(os.fspath(tmp_path / "died"))
    together = jobs.chord([jobs.add.s(n, n) for n in range(5)])(jobs.total.s())
    assert plain.get(timeout=WAIT_S) == 3
    assert later.get(timeout=WAIT_S) - began >= 2
    assert flaky.get(timeout=WAIT_S) == 2
    assert together.get(timeout=WAIT_S) == 20
    assert late.get(timeout=WAIT_S) == "second"
    with penstock.connect(server.url) as ps:
        for _ in range(100):
            (group,) = ps.stats("celery-jobs").groups
            if not group.depth:
                break
            time.sleep(0.1)
        assert group.depth == 0


def test_aiobotocore_works_unmodified(server: RunningServer) -> None:
    from aiobotocore.session import get_session

    async def life() -> list[str]:
        session = get_session()
        async with session.create_client(
            "sqs", endpoint_url=server.url, region_name="eu-west-1", **CREDENTIALS
        ) as sqs:
            url = (await sqs.create_queue(QueueName="aio"))["QueueUrl"]
            waiting = asyncio.create_task(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=10))
            await asyncio.gather(
                *(sqs.send_message(QueueUrl=url, MessageBody=str(n)) for n in range(20))
            )
            found = (await waiting)["Messages"]
            while len(found) < 20:
                more = await sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)
                found += more["Messages"]
            for message in found:
                await sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            assert "Messages" not in await sqs.receive_message(QueueUrl=url)
            return [message["Body"] for message in found]

    assert sorted(map(int, asyncio.run(life()))) == list(range(20))


@pytest.mark.skipif(shutil.which("aws") is None, reason="the command `aws` is not installed")
def test_the_aws_command_works_unmodified(server: RunningServer, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_CONFIG_FILE": os.fspath(tmp_path / "none"),
        "AWS_PAGER": "",
    }

    def aws(*words: str) -> Any:
        command = ["aws", "--endpoint-url", server.url, "sqs", *words, "--output", "json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout or "null")

    url = aws("create-queue", "--queue-name", "cli")["QueueUrl"]
    aws("send-message", "--queue-url", url, "--message-body", "from the shell")
    (message,) = aws("receive-message", "--queue-url", url, "--attribute-names", "All")["Messages"]
    assert message["Body"] == "from the shell"
    aws("delete-message", "--queue-url", url, "--receipt-handle", message["ReceiptHandle"])
    dead = aws("create-queue", "--queue-name", "cli-dead")["QueueUrl"]
    arn = aws("get-queue-attributes", "--queue-url", dead, "--attribute-names", "QueueArn")
    policy = {"deadLetterTargetArn": arn["Attributes"]["QueueArn"], "maxReceiveCount": "1"}
    attributes = json.dumps({"RedrivePolicy": json.dumps(policy), "VisibilityTimeout": "0"})
    aws("set-queue-attributes", "--queue-url", url, "--attributes", attributes)
    entries = [{"Id": str(n), "MessageBody": f"of many {n}"} for n in range(3)]
    sent = aws("send-message-batch", "--queue-url", url, "--entries", json.dumps(entries))
    assert len(sent["Successful"]) == 3
    most = ("--max-number-of-messages", "10")
    failing = aws("receive-message", "--queue-url", url, *most)["Messages"]
    assert [each["Body"] for each in failing] == [each["MessageBody"] for each in entries]
    assert aws("receive-message", "--queue-url", url, *most) is None  # they failed once
    letters = aws("receive-message", "--queue-url", dead, "--wait-time-seconds", "5", *most)
    assert len(letters["Messages"]) == 3
    for each in letters["Messages"]:
        handle = ("--receipt-handle", each["ReceiptHandle"])
        aws("change-message-visibility", "--queue-url", dead, *handle, "--visibility-timeout", "0")
    aws("start-message-move-task", "--source-arn", policy["deadLetterTargetArn"])
    back = aws("receive-message", "--queue-url", url, "--wait-time-seconds", "10", *most)
    assert back["Messages"][0]["Body"].startswith("of many")
    assert sorted(aws("list-queues")["QueueUrls"]) == sorted([url, dead])
    aws("purge-queue", "--queue-url", url)
    aws("delete-queue", "--queue-url", url)

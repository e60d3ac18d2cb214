"""Files of endpoints, followed on a real file system: edits, renames, ConfigMap swaps, halves and losses."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from extproc.io.discovery import Failed, FileSource, Found, file
from tests.integration.patience import bar, patient

EVERY = 0.05


class Heard:
    """What a source said, with waiting for more."""

    def __init__(self) -> None:
        self.said: list[Found | Failed] = []

    @property
    def addresses(self) -> list[str]:
        """Of the last set."""
        found = [said for said in self.said if isinstance(said, Found)]
        return [endpoint.address for endpoint in found[-1].endpoints] if found else []

    @property
    def last(self) -> Found | Failed | None:
        return self.said[-1] if self.said else None

    def failed(self, reason: str) -> bool:
        return isinstance(self.last, Failed) and self.last.reason == reason

    async def until(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(patient(10)):
            while not happened():
                await asyncio.sleep(0.005)

    async def more(self, times: int = 4) -> None:
        """Wait for so many further looks."""
        count = len(self.said)
        await self.until(lambda: len(self.said) >= count + times)


@asynccontextmanager
async def following(source: FileSource) -> AsyncIterator[Heard]:
    heard = Heard()

    async def follow() -> None:
        async with aclosing(source.watch()) as answers:
            async for answer in answers:
                heard.said.append(answer)

    task = asyncio.create_task(follow())
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def replace(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    os.replace(fresh, path)


async def test_a_rename_and_a_rewrite_are_both_seen(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text("- 10.0.0.1:80\n")
    async with following(FileSource(path, every=EVERY)) as heard:
        await heard.until(lambda: heard.addresses == ["10.0.0.1:80"])
        replace(path, "- '[fd00::2]:80'\n")
        await heard.until(lambda: heard.addresses == ["[fd00::2]:80"])
        path.write_text("- 10.0.0.3:80\n")
        await heard.until(lambda: heard.addresses == ["10.0.0.3:80"])


async def test_a_rename_is_seen_within_half_a_second_by_default(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text("- 10.0.0.1:80\n")
    async with following(FileSource(path)) as heard:
        await heard.until(lambda: bool(heard.addresses))
        replace(path, "- 10.0.0.2:80\n")
        began = asyncio.get_running_loop().time()
        await heard.until(lambda: heard.addresses == ["10.0.0.2:80"])
        # Two looks 0.2 s apart see it; the rest is for a busy machine.
        assert asyncio.get_running_loop().time() - began < bar(1.5)


async def test_a_rewrite_of_the_same_size_and_time_is_seen_by_its_inode(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text("- 10.0.0.1:80\n")
    async with following(FileSource(path, every=EVERY)) as heard:
        await heard.more()
        stat, fresh = path.stat(), tmp_path / "fresh"
        fresh.write_text("- 10.0.0.2:80\n")
        os.utime(fresh, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        os.replace(fresh, path)
        await heard.until(lambda: heard.addresses == ["10.0.0.2:80"])


async def test_a_swap_of_a_config_maps_symbolic_links_is_seen(tmp_path: Path) -> None:
    """A ConfigMap volume: the file is a link into ..data, which is a link to a folder with a date for a name."""
    for name, address in (("..2026_01", "10.0.0.1:80"), ("..2026_02", "10.0.0.2:80")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "endpoints.yaml").write_text(f"- {address}\n")
    (tmp_path / "..data").symlink_to("..2026_01")
    (tmp_path / "endpoints.yaml").symlink_to("..data/endpoints.yaml")
    async with following(FileSource(tmp_path / "endpoints.yaml", every=EVERY)) as heard:
        await heard.until(lambda: heard.addresses == ["10.0.0.1:80"])
        (tmp_path / "..data_tmp").symlink_to("..2026_02")
        os.replace(tmp_path / "..data_tmp", tmp_path / "..data")
        await heard.until(lambda: heard.addresses == ["10.0.0.2:80"])


async def test_a_half_written_file_is_told_and_the_whole_one_read(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.json"
    path.write_text('["10.0.0.1:80"]')
    async with following(FileSource(path, every=EVERY)) as heard:
        await heard.until(lambda: heard.addresses == ["10.0.0.1:80"])
        with path.open("w") as file:
            file.write('["10.0.0.2:80", "10.0.')
            file.flush()
            await heard.until(lambda: heard.failed("unreadable"))
            assert str(path) in heard.last.detail  # type: ignore[union-attr]
            file.write('0.3:80"]')
        await heard.until(lambda: heard.addresses == ["10.0.0.2:80", "10.0.0.3:80"])


async def test_a_file_that_grows_is_not_read_before_it_rests(tmp_path: Path) -> None:
    """Every prefix of a YAML list is a YAML list: only waiting tells that it is not all yet."""
    path = tmp_path / "endpoints.yaml"
    whole = [f"10.0.0.{n}:80" for n in range(1, 31)]
    path.write_text("".join(f"- {address}\n" for address in whole))
    async with following(FileSource(path, every=0.2)) as heard:
        await heard.until(lambda: heard.addresses == whole)
        with path.open("w") as file:
            for address in whole:
                file.write(f"- {address}\n")
                file.flush()
                await asyncio.sleep(0.02)
        await heard.more(3)
    assert {len(said.endpoints) for said in heard.said if isinstance(said, Found)} == {30}


async def test_a_lost_file_is_told_and_its_return_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    async with following(FileSource(path, every=EVERY)) as heard:
        await heard.until(lambda: heard.failed("missing"))
        path.write_text("- 10.0.0.1:80\n")
        await heard.until(lambda: heard.addresses == ["10.0.0.1:80"])
        path.unlink()
        await heard.until(lambda: heard.failed("missing"))
        path.write_text("- 10.0.0.1:80\n")
        await heard.until(lambda: isinstance(heard.last, Found))


async def test_a_folder_and_a_huge_file_are_failures(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.mkdir()
    async with following(FileSource(path, every=EVERY)) as heard:
        await heard.until(lambda: heard.failed("unreadable"))
        path.rmdir()
        with path.open("wb") as file:
            file.truncate(17 * 2**20)
        await heard.until(lambda: heard.failed("too_large"))


async def test_an_unchanged_file_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text("- 10.0.0.1:80\n")
    async with following(FileSource(path, every=EVERY)) as heard:
        await heard.more(3)  # the very first reading is repeated once
        first = heard.last
        await heard.more(5)
        assert heard.last is first


async def test_a_disk_that_hangs_is_told_and_costs_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, looks = threading.Event(), []

    def hangs(_self: FileSource) -> None:
        looks.append(1)
        answers.wait()
        raise FileNotFoundError(2, "gone")

    monkeypatch.setattr(FileSource, "_stat", hangs)
    monkeypatch.setattr(file, "_DEADLINE", 0.1)
    try:
        async with following(FileSource(tmp_path / "endpoints.yaml", every=EVERY)) as heard:
            await heard.until(lambda: heard.failed("timeout"))
            await heard.more(5)
        assert len(looks) == 1
    finally:
        answers.set()


async def test_a_pipe_in_the_files_place_is_told_and_left_when_a_file_comes(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text("- 10.0.0.1:80\n")
    async with following(FileSource(path, every=EVERY)) as heard:
        await heard.until(lambda: heard.addresses == ["10.0.0.1:80"])
        path.unlink()
        os.mkfifo(path)
        await heard.until(lambda: heard.failed("unreadable"))
        assert isinstance(heard.last, Failed)
        assert "is no regular file" in heard.last.detail
        path.unlink()
        path.write_text("- 10.0.0.2:80\n")
        await heard.until(lambda: heard.addresses == ["10.0.0.2:80"])

"""`fuseprompt app`: the messages of the command, and the page as people use it in a browser.

The latter need the extra app, `pip install playwright` and `apt install chromium`.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fuseprompt.cli.main import main
from tests.tasks.fixtures import save_models, save_pictures

#: The command, with steps long enough for a person to stop a search of tiny models.
SLOWLY = """
import sys, time
import fuseprompt.cli.app, fuseprompt.cli.live as live
from fuseprompt.cli.main import main

on_step = live.View.on_step
live.View.on_step = lambda view, step: (time.sleep(0.5), on_step(view, step))
sys.exit(main(sys.argv[1:]))
"""


def test_without_gradio_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["app"]) == 1
    assert "not installed: pip install 'fuseprompt[app]'" in capsys.readouterr().err


def test_the_space_has_the_gradio_that_is_tested() -> None:
    root = Path(__file__).parents[2]
    space = (root / "examples/space/README.md").read_text()
    (version,) = re.findall(r"^sdk_version: (.*)$", space, re.MULTILINE)
    assert f"\ngradio=={version}\n" in (root / "constraints.txt").read_text()
    assert "app_file: app.py" in space


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("gradio")
    folder = tmp_path_factory.mktemp("models")
    argv = ["app", "--json", "--models", str(save_models(folder))]
    command = [sys.executable, "-c", SLOWLY, *argv]
    uploads = tmp_path_factory.mktemp("uploads")
    environment = {**os.environ, "GRADIO_TEMP_DIR": str(uploads)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as app:
        assert app.stdout is not None
        yield json.loads(app.stdout.readline())["url"]
        app.send_signal(signal.SIGINT)
        assert app.wait(timeout=60) == 0
    assert not [*uploads.rglob("broken.jpg"), *uploads.rglob("photo.png")]  # Nothing is kept.


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no Chromium")
    # Nothing but this machine has an address.
    no_network = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    with driver.sync_playwright() as playing:
        yield playing.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", no_network], timeout=120_000
        )


def visit(browser: Any, url: str, **options: Any) -> Any:
    """Open the page as another person."""
    page = browser.new_context(**options).new_page()
    page.set_default_timeout(120_000)
    page.goto(url)
    page.get_by_role("tab", name="Caption").wait_for()
    return page


def shown(page: Any) -> Any:
    return page.get_by_role("tabpanel").filter(visible=True).locator(".fuse")


def drop(page: Any, file: str | Path) -> None:
    page.locator("input[type=file]").first.set_input_files(file)
    page.get_by_role("button", name="Clear").or_(page.get_by_label("Remove Image")).first.wait_for()


@pytest.mark.slow
def test_a_photo_is_dropped_watched_stopped_and_read(
    browser: Any, url: str, tmp_path: Path
) -> None:
    page, asked = visit(browser, url), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    drop(page, *save_pictures(tmp_path, "photo.png"))
    page.get_by_role("button", name="Caption").click()
    shown(page).get_by_text(re.compile("step [2-9] of 12")).wait_for()
    assert shown(page).locator("h2").inner_text()
    assert shown(page).locator("polyline").count() == 3  # loss, fluency, image
    page.get_by_role("button", name="Stop").click()
    shown(page).get_by_text("stopped: the best so far").wait_for()
    assert shown(page).locator("article h2").inner_text()
    page.get_by_role("button", name="Stop").wait_for(state="hidden")
    page.get_by_role("button", name="Caption").click()  # And once more, to the end.
    shown(page).get_by_text(re.compile("^done")).wait_for()
    assert len(asked) > 50
    assert {each for each in asked if not each.startswith((url, "data:", "blob:"))} == set()


@pytest.mark.slow
def test_an_example_is_one_click_away_and_fits_a_phone(browser: Any, url: str) -> None:
    page = visit(browser, url, viewport={"width": 360, "height": 640}, has_touch=True)
    page.locator(".gallery-item").first.click()
    found = shown(page).get_by_text(re.compile("step [2-9] of 12"))
    found.wait_for()
    assert 0 <= found.bounding_box()["y"] < 640  # What is found comes into view by itself.
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.get_by_role("button", name="Stop").click()
    shown(page).get_by_text("stopped: the best so far").wait_for()


@pytest.mark.slow
def test_a_bad_file_is_a_message(browser: Any, url: str, tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"this is no picture")
    page = visit(browser, url)
    page.get_by_role("button", name="Caption").click()
    shown(page).get_by_text("Which photo? Drop one, or click an example.").wait_for()
    page.locator("input[type=file]").first.set_input_files(tmp_path / "broken.jpg")
    page.get_by_alt_text("").first.wait_for(state="attached")
    time.sleep(1)
    page.get_by_role("button", name="Caption").click()
    message = shown(page).locator(".error", has_text="broken.jpg: ")
    message.wait_for()
    assert "Traceback" not in page.content()
    assert str(tmp_path) not in message.inner_text()
    assert "/gradio/" not in message.inner_text()


@pytest.mark.slow
def test_two_people_at_once_get_their_own_results(browser: Any, url: str) -> None:
    people = [visit(browser, url) for _ in range(2)]
    for person, wanted in zip(people, ("blue", "sat"), strict=True):
        person.get_by_role("tab", name="Elicit").click()
        person.get_by_label("What should follow in each").fill(wanted)
        person.get_by_role("button", name="Elicit").click()
    for person, wanted in zip(people, ("blue", "sat"), strict=True):
        shown(person).get_by_text(re.compile("^done")).wait_for()
        assert shown(person).locator("td").nth(1).inner_text().strip() == wanted

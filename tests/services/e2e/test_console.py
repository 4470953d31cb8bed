"""The console in a real browser, on a real stack with two tenants and more requests than fit."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.api_keys import ApiKey, new_key
from gateway.scope import ScopeLevel
from gateway.tenants import Tenant
from services.state.tenants_file import TenantsFile
from tests.services.e2e.calls import Call
from tests.services.e2e.processes import Processes, Server, eventually
from tests.services.e2e.stack import Stack, make_executor

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

PATIENCE_MS = 20_000
NUM_BLOCKS = 130
OPERATOR_KEY = "the-operators-key-of-this-test"
MARKUP = "<img src=x onerror=document.title='taken'>"
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LONG = {"max_tokens": 400, "ignore_eos": True}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of the tenants; and where their file is, under an empty name."""
    path = tmp_path_factory.mktemp("tenants") / "tenants.json"
    found = {"": str(path)}
    for name in ("acme", "globex"):
        key, key_id, secret_hash = new_key(secrets.randbits)
        tenant = Tenant(name, (ApiKey(key_id, secret_hash, "app", ScopeLevel.TENANT),))
        asyncio.run(TenantsFile(path).change(name, lambda _, tenant=tenant: tenant))
        found[name] = key
    return found


@pytest.fixture(scope="module")
def executor(processes: Processes, model: Path) -> Iterator[Server]:
    executor = make_executor(processes, model, kv_memory=f"{8 * NUM_BLOCKS}KiB", host_memory="1MiB")
    yield executor
    executor.kill()


@pytest.fixture(scope="module")
def stack(
    processes: Processes,
    model: Path,
    executor: Server,
    keys: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    operator = tmp_path_factory.mktemp("operator") / "key"
    operator.write_text(OPERATOR_KEY)
    operator.chmod(0o600)
    stack = Stack(
        processes,
        model,
        executor,
        gateway={"tenants_file": keys[""], "operator_key_file": operator, "drain_seconds": 0},
        kvmanager={"max_batched_tokens": 64, "max_sequences": 16, "preemption": "swap"},
    )
    stack.start()
    yield stack
    stack.close()


@pytest.fixture(scope="module")
def browser(stack: Stack) -> Iterator[Any]:
    """After the stack, which needs this thread's event loop for a moment; Playwright keeps it."""
    program = os.environ.get("OCTAVO_CHROMIUM") or shutil.which("chromium")
    if program is None:
        pytest.skip("no Chromium: neither $OCTAVO_CHROMIUM nor chromium on the path")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


class Look:
    """Somebody who looks at the console, and what went wrong meanwhile."""

    def __init__(self, browser: Any, address: str, **settings: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1440, "height": 1000}, **settings)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.complaints: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("console", lambda message: self._note(message))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))
        self.address = address

    def _note(self, message: Any) -> None:
        """The browser itself says that an answer is no good one; those are looked for."""
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    def open(self, key: str, fragment: str = "") -> None:
        self.page.goto(f"http://{self.address}/console{fragment}")
        self.bring(key)
        self.wait_until_live()

    def bring(self, key: str) -> None:
        self.page.locator("#key-dialog").wait_for()
        self.page.keyboard.type(key)  # the field has the focus
        self.page.keyboard.press("Enter")

    def wait_until_live(self) -> None:
        playwright.expect(self.page.locator("#connection-text")).to_have_text("Live", timeout=PATIENCE_MS)

    def text(self, selector: str) -> str:
        text: str = self.page.locator(selector).text_content()
        return text

    def blocks(self) -> tuple[int, int, int]:
        """Free, cached and used ones of the device, as the map has them."""
        values = self.page.locator("#map-total").evaluate(
            "each => ['free', 'cached', 'used'].map(k => +each.dataset[k])"
        )
        return tuple(values)

    def count(self, state: str) -> int:
        return int(self.text(f"#map-states [data-count={state}]").replace(",", ""))


@pytest.fixture
def look(browser: Any, stack: Stack) -> Iterator[Look]:
    look = Look(browser, stack.gateway.http_address)
    yield look
    look.context.close()
    assert look.complaints == []
    assert look.hosts == {stack.gateway.http_address}


def start(stack: Stack, keys: dict[str, str], tenant: str, prompt: str, **request: Any) -> Call:
    return stack.caller.start(prompt, metadata={"authorization": f"Bearer {keys[tenant]}"}, **request)


@pytest.fixture
def busy(stack: Stack, keys: dict[str, str], executor: Server) -> Iterator[dict[str, Call]]:
    """Requests of both tenants that stand still in the middle of their answers; one is four samples."""
    calls = {
        "four": start(stack, keys, "acme", "a page " * 8, n=4, temperature=1, seed=3, request_id="four", **LONG),
        "one": start(stack, keys, "globex", "another page", request_id=MARKUP, **LONG),
    }
    for call in calls.values():
        call.wait_for_tokens(2)
    with executor.held():
        yield calls
        for call in calls.values():
            call.cancel()
    stack.wait_until_idle()


def test_the_map_shows_what_the_kv_manager_has(look: Look, stack: Stack, busy: dict[str, Call]) -> None:
    look.open(OPERATOR_KEY)

    def alike() -> bool:
        memory = stack.memory_map()
        return look.blocks() == (memory.free_blocks, memory.cached_blocks, memory.referenced_blocks)

    eventually(alike, what="the map's totals are the KV manager's")
    blocks = [block for block in stack.memory_map(include_blocks=True).executors[0].blocks if block.tier == 1]
    assert look.count("shared") == sum(block.reference_count > 1 for block in blocks) > 0
    assert look.count("used") == sum(block.reference_count > 0 for block in blocks)
    assert "Operator" in look.text("#viewer")
    assert set(look.page.locator("#map-tenants .name").all_text_contents()) >= {"acme", "globex"}

    # By keyboard alone, from the map's beginning to the first block that the four samples share.
    shared = next(block for block in blocks if block.reference_count > 1)
    canvas = look.page.locator(".map-canvas").first
    canvas.focus()
    look.page.keyboard.press("Home")
    for _ in range(shared.block_id):
        look.page.keyboard.press("ArrowRight")
    detail = look.text("#map-detail")
    assert f"Block {shared.block_id}" in detail
    assert f"References{shared.reference_count}" in detail
    assert shared.identity_prefix.hex() in detail or not shared.identity_prefix
    assert "acme" in detail
    assert "four in 4 sequences" in detail
    look.page.keyboard.press("-")
    assert look.page.locator("#map-zoom-fit").get_attribute("aria-pressed") == "false"
    look.page.keyboard.press("0")
    assert look.page.locator("#map-zoom-fit").get_attribute("aria-pressed") == "true"


def test_text_of_others_is_never_markup(look: Look, busy: dict[str, Call]) -> None:
    look.open(OPERATOR_KEY)
    link = look.page.locator("#requests-body a", has_text=MARKUP).first
    link.focus()
    look.page.keyboard.press("Enter")
    playwright.expect(look.page.locator("#life-id")).to_have_text(MARKUP)
    playwright.expect(look.page.locator("#life-rows li").first).to_contain_text("Queued")
    assert look.page.locator("main img, main script").count() == 0
    assert look.page.title() == "Octavo console"


def test_a_tenant_sees_only_its_own(look: Look, stack: Stack, keys: dict[str, str], busy: dict[str, Call]) -> None:
    look.page.goto(f"http://{look.address}/console")
    look.bring("not a key")
    look.page.locator("#key-error", has_text="does not know this key").wait_for()
    look.bring(keys["acme"])
    look.wait_until_live()
    playwright.expect(look.page.locator("#viewer")).to_have_text("View of tenant acme")
    playwright.expect(look.page.locator("#requests-body tr", has_text="four").first).to_be_visible()
    mine = {
        block.block_id
        for block in stack.memory_map(include_blocks=True).executors[0].blocks
        if block.owner == "acme" and block.reference_count and block.tier == 1
    }
    eventually(lambda: look.blocks()[2] == len(mine), what="only its own blocks")
    shown = look.page.locator("body").inner_text()
    assert "globex" not in shown
    assert MARKUP not in shown
    look.page.evaluate("id => location.hash = '#request=' + encodeURIComponent(id)", MARKUP)
    look.page.locator("#life-problem", has_text="no such request").wait_for()


def test_a_preempted_request_s_life(look: Look, stack: Stack, keys: dict[str, str]) -> None:
    calls = [start(stack, keys, "acme", f"{i} is the page", request_id=f"life {i}", **LONG) for i in range(8)]
    for call in calls:
        call.result()
    assert stack.memory_map().counters.preemptions > 0
    look.open(OPERATOR_KEY)
    rows = look.page.locator("#requests-body tr")
    playwright.expect(rows.first).to_be_visible()
    look.page.locator("[data-order=preemptions]").click()
    look.page.locator("#requests-filter").fill("life")
    rows.first.locator("a").click()
    life = look.page.locator("#life-rows")
    playwright.expect(life).to_contain_text("Finished")
    texts = life.locator("strong").all_text_contents()
    order = [
        texts.index(text) for text in ("Queued", "Admitted", "Prefill", "First token", "Decode", "Preempted", "Resumed")
    ]
    assert order == sorted(order)
    reasons = life.locator("li", has_text="Preempted").first.inner_text()
    assert "life" in reasons, "for whom"
    address = look.page.evaluate("location.hash")
    look.page.reload()
    playwright.expect(look.page.locator("#life-rows")).to_contain_text("Preempted")
    assert look.page.evaluate("location.hash") == address


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1000, "light"), (1440, "dark")])
def test_it_can_be_read(browser: Any, stack: Stack, busy: dict[str, Call], width: int, scheme: str) -> None:
    look = Look(browser, stack.gateway.http_address, color_scheme=scheme)
    look.page.set_viewport_size({"width": width, "height": 900})
    look.open(OPERATOR_KEY, "#request=four")
    playwright.expect(look.page.locator("#life-rows li").first).to_be_visible()
    playwright.expect(look.page.locator("#map-tenants tr").first).to_be_visible()
    assert look.page.evaluate("document.documentElement.dataset.theme") == scheme
    assert look.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
    assert look.page.evaluate(UNREADABLE) == []
    assert look.page.evaluate(UNNAMED) == []
    if width == 1440:
        look.page.locator("#theme-button").click()
        assert look.page.evaluate("document.documentElement.dataset.theme") != scheme
        assert look.page.evaluate(UNREADABLE) == []
    assert look.complaints == []
    look.context.close()


def test_it_comes_back_with_the_gateway(look: Look, stack: Stack) -> None:
    look.open(OPERATOR_KEY)
    stack.gateway.kill()
    playwright.expect(look.page.locator("#connection-text")).to_have_text("Not connected")
    playwright.expect(look.page.locator("#banner")).to_contain_text("Trying again")
    stack.gateway.start()
    stack.gateway.wait_until_serving()
    look.wait_until_live()
    playwright.expect(look.page.locator("#banner")).to_be_hidden()
    eventually(lambda: sum(look.blocks()) == NUM_BLOCKS, what="the map is there again")


# Text whose contrast with what is behind it is below 4.5:1, as WCAG 2.2 asks for (1.4.3).
UNREADABLE = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const linear = (part) => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = parse(getComputedStyle(each).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest("noscript, script")) continue;
    const colours = [parse(getComputedStyle(element).color), behind(element)];
    const [a, b] = colours.map(luminance).sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) bad.push(element.outerHTML.slice(0, 120));
  }
  return bad;
}"""

# What can be operated and has no name, and ids that there are twice.
UNNAMED = """() => {
  const bad = [];
  const operated = "button, input, a[href], canvas[tabindex], section, [role=tree], table";
  for (const element of document.querySelectorAll(operated)) {
    if (!element.checkVisibility()) continue;
    const by = element.getAttribute("aria-labelledby");
    const pointed = by && document.getElementById(by)?.textContent;
    const label = element.labels?.length || element.getAttribute("aria-label") || pointed;
    if (!label && !element.textContent.trim()) bad.push(element.outerHTML.slice(0, 120));
  }
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  return bad.concat(ids.filter((id, k) => ids.indexOf(id) !== k));
}"""

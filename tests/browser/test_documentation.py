"""The published documentation in a browser: redirects of former addresses, and the layout of all pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml
from playwright.async_api import Browser, ConsoleMessage, Page, Request, expect

from tests.repository.documentation import PAGES, build_documentation, serve, write_build
from tests.support.patience import PATIENCE
from tests.support.stories import NIGHTLY
from tools.environment import ROOT
from tools.reference.llms import SITE
from tools.site import problems as problems_of_site
from tools.versions import assemble, destination_of, read_moves

WIDTHS: Final = (390, 820, 1440)
"""A phone, a tablet and a desktop: the theme has a layout of its own for each."""

MIN_TEXT_PX: Final = 9

RULES: Final = ROOT / "pg_scheduler" / "ops" / "alerts" / "pg_scheduler.rules.yaml"

MOVES: Final = read_moves()
FORMER_ADDRESSES: Final = sorted(PAGES | MOVES.keys())
"""The pages as they were published before there were versions."""

LAYOUT: Final = """
() => {
  const width = window.innerWidth;
  const problems = [];
  const name = (element) => `<${element.tagName.toLowerCase()}> ${element.textContent.trim().slice(0, 40)}`;
  const overflow = document.documentElement.scrollWidth - width;
  if (overflow > 0) problems.push(`the page scrolls by ${overflow} px`);

  const isVisible = (element) => {
    const area = element.getBoundingClientRect();
    return area.width > 0 && area.height > 0 && area.right > 1 && area.left < width - 1
      && element.checkVisibility({visibilityProperty: true});
  };
  const meet = (one, other) => {
    const [a, b] = [one.getBoundingClientRect(), other.getBoundingClientRect()];
    return a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  };
  const parts = [".mobile-header", ".sidebar-drawer", ".content", ".toc-drawer"]
    .map((selector) => document.querySelector(selector)).filter((part) => part && isVisible(part));
  if (parts.length < 2) problems.push("the theme has other parts: adapt the test");
  for (const [place, part] of parts.entries())
    for (const other of parts.slice(place + 1))
      if (meet(part, other)) problems.push(`.${part.className} lies over .${other.className}`);

  for (const selector of [".sidebar-tree a", ".toc-tree a", ".mobile-header :is(a, button, label)"]) {
    const links = [...document.querySelectorAll(selector)].filter(isVisible);
    for (const [place, link] of links.entries()) {
      if (place && meet(links[place - 1], link)) problems.push(`${name(link)} lies over the link before it`);
      const frame = link.closest(".sidebar-drawer, .toc-drawer, .mobile-header").getBoundingClientRect();
      if (link.getBoundingClientRect().right > frame.right + 1)
        problems.push(`${name(link)} leaves the navigation`);
    }
  }

  const article = document.querySelector("article");
  const edge = article.getBoundingClientRect().right + 9;  // the theme lets headings stand out by 8 px
  const scrolls = (element) => {
    for (let part = element.parentElement; part && part !== article; part = part.parentElement)
      if (["auto", "scroll"].includes(getComputedStyle(part).overflowX)) return true;
    return ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
  };
  for (const element of article.querySelectorAll("*"))
    if (element.getBoundingClientRect().right > edge && isVisible(element) && !scrolls(element))
      problems.push(`${name(element)} leaves the article`);

  const pictures = [...document.images].map((image) => ({
    file: image.src.split("/").pop(),
    isLoaded: image.complete && image.naturalWidth > 0,
    isVisible: isVisible(image),
    width: image.getBoundingClientRect().width,
    fullWidth: image.naturalWidth,
    isTooWide: image.getBoundingClientRect().right > edge,
    isLink: image.closest("a")?.href === image.src,
  }));
  return {problems, pictures};
}
"""
"""What a page shows to a reader that is wrong, and its pictures."""


class Text(NamedTuple):
    """The smallest text of a drawing, in the units of its width."""

    size: float
    width: float


def smallest_text(path: Path) -> Text:
    """Return that of a drawing."""
    drawing = path.read_text(encoding="utf-8")
    sizes = re.findall(r"font(?:-size)?[:=]\"?(\d+)", drawing)
    width = re.search(r'viewBox="0 0 ([\d.]+) ', drawing)
    assert sizes, path
    assert width, path
    return Text(min(map(float, sizes)), float(width[1]))


def picture_problems(picture: dict[str, Any], images: Path) -> list[str]:
    """Return why a reader could not see a picture, or not read its text."""
    file = picture["file"]
    if not picture["isLoaded"]:
        return [f"{file} is missing"]
    if not picture["isVisible"]:  # the one for the other colour scheme
        return []
    problems = [f"{file} is wider than the article"] if picture["isTooWide"] else []
    if file.endswith(".svg"):
        text = smallest_text(images / file)
        pixels = text.size * picture["width"] / text.width
        return [*problems, f"{file} has text of {pixels:.1f} px"] if pixels < MIN_TEXT_PX else problems
    if picture["width"] < picture["fullWidth"] and not picture["isLink"]:
        return [*problems, f"{file} is reduced, and no link to its own size"]
    return problems


@pytest.mark.parametrize("has_scripts", [True, False], ids=["scripts", "no-scripts"])
async def test_every_former_address_leads_to_its_page(
    browser: Browser, tmp_path: Path, *, has_scripts: bool
) -> None:
    """A script keeps the section of a link; without scripts, a browser comes to the top of the page."""
    dev, stable = (write_build(tmp_path / name, PAGES, f"of {name}") for name in ("dev", "stable"))
    assemble(tmp_path / "site", dev, stable, MOVES)
    context = await browser.new_context(java_script_enabled=has_scripts)
    context.set_default_timeout(PATIENCE * 1000)
    page = await context.new_page()
    section = "#part" if has_scripts else ""
    with serve(tmp_path / "site") as url:
        # Without scripts it is the same element of each page, so those that moved are enough.
        for page_name in ["", *(FORMER_ADDRESSES if has_scripts else MOVES)]:
            target = destination_of(page_name or "index", PAGES, MOVES)
            address = f"{page_name}.html" if page_name else ""
            await page.goto(f"{url}{address}#part", wait_until="commit")
            await page.wait_for_url(f"{url}stable/{target}.html{section}", wait_until="commit")
        for version in ("stable", "dev"):
            for page_name, target in MOVES.items():
                await page.goto(f"{url}{version}/{page_name}.html?q=1#part", wait_until="commit")
                destination = destination_of(target, PAGES, MOVES)
                query = "?q=1" if has_scripts else ""
                address = f"{url}{version}/{destination}.html{query}{section}"
                await page.wait_for_url(address, wait_until="commit")
        await page.goto(f"{url}dev/guides/steps.html", wait_until="commit")
        await page.get_by_role("link", name="page of the latest release").click()
        await page.wait_for_url(f"{url}stable/guides/steps.html")
        await expect(page.get_by_text("of stable")).to_be_visible()
    await context.close()


FRAME: Final = """
<style>body {{ margin: 0 }} .content {{ margin: 50px 250px }} .mobile-header {{ position: absolute; top: 0 }}
.sidebar-drawer {{ position: absolute; top: 50px; left: 0; width: 200px }}</style>
<header class="mobile-header"><button>menu</button></header>
<aside class="sidebar-drawer"><div class="sidebar-tree">{navigation}</div></aside>
<main class="content"><article>{article}</article></main>
"""


@pytest.mark.parametrize(
    ("navigation", "article", "problem"),
    [
        ("<a href=''>a</a>", "<div style='overflow: auto'><pre style='width: 3000px'>wide</pre></div>", None),
        ("", "<pre style='width: 3000px'>wide</pre>", "the page scrolls by"),
        ("", "<pre style='width: 800px'>wide</pre>", "<pre> wide leaves the article"),
        ("<style>aside { width: 300px !important }</style>-", "text", ".sidebar-drawer lies over .content"),
        ("<a>one</a><a style='margin-left: -20px'>two</a>", "text", "<a> two lies over the link before it"),
        ("<a style='margin-left: 190px'>long</a>", "text", "<a> long leaves the navigation"),
        ("", "<img src='data:image/png,x' style='width: 9px; height: 9px'>", "is missing"),
    ],
)
async def test_check_of_the_layout_finds_what_is_wrong(
    browser: Browser, tmp_path: Path, navigation: str, article: str, problem: str | None
) -> None:
    page = await browser.new_page()
    await page.set_content(FRAME.format(navigation=navigation, article=article))
    problems = await layout_problems(page, 1000, tmp_path)
    await page.close()
    assert problem is None if not problems else problem and problem in "\n".join(problems), problems


async def test_check_of_pictures_finds_small_text_and_a_reduced_screenshot(tmp_path: Path) -> None:
    (tmp_path / "a.svg").write_text(
        '<svg viewBox="0 0 400 10"><text font-size="12">a</text></svg>', encoding="utf-8"
    )
    picture = {"isLoaded": True, "isVisible": True, "isTooWide": False, "isLink": False, "fullWidth": 400}
    drawing, screenshot = {**picture, "file": "a.svg"}, {**picture, "file": "a.png"}
    assert picture_problems({**drawing, "width": 300}, tmp_path) == []
    assert picture_problems({**drawing, "width": 250}, tmp_path) == ["a.svg has text of 7.5 px"]
    assert picture_problems({**screenshot, "width": 400}, tmp_path) == []
    assert picture_problems({**screenshot, "width": 250, "isLink": True}, tmp_path) == []
    assert picture_problems({**screenshot, "width": 250}, tmp_path) == [
        "a.png is reduced, and no link to its own size"
    ]


@NIGHTLY
@pytest.mark.timeout(600)
async def test_every_page_can_be_read_on_a_phone_a_tablet_and_a_desktop(
    browser: Browser, tmp_path: Path
) -> None:
    """The pages of dev have all that those of stable have, and the notice. The build uses no network."""
    build_documentation(tmp_path / "build")
    assert [*problems_of_site(tmp_path / "build")] == []
    site = tmp_path / "site"
    assemble(site, tmp_path / "build", tmp_path / "build", MOVES)
    problems: list[str] = []
    context = await browser.new_context(viewport={"width": WIDTHS[0], "height": 900})
    context.set_default_timeout(PATIENCE * 1000)
    page = await context.new_page()

    def record(message: ConsoleMessage) -> None:
        problems.append(f"{page.url}: {message.type}: {message.text}")

    def check(request: Request) -> None:
        if not request.url.startswith((url, "data:")):
            problems.append(f"{page.url}: loads {request.url}")

    page.on("console", record)
    page.on("pageerror", lambda error: problems.append(f"{page.url}: {error}"))
    page.on("request", check)
    page.on("requestfailed", lambda request: problems.append(f"{page.url}: {request.url} failed"))
    with serve(site) as url:
        files = sorted((tmp_path / "build").rglob("*.html"))
        names = [path.relative_to(tmp_path / "build").as_posix() for path in files]
        for name in names:
            await page.goto(f"{url}dev/{name}", wait_until="load")
            for width in WIDTHS:
                problems += [
                    f"{name}, {width} px: {problem}" for problem in await layout_problems(page, width, site)
                ]
        await check_links_of_rules(page, url)
    await context.close()
    assert len(names) > 100
    assert not problems, "\n".join(problems)


async def layout_problems(page: Page, width: int, site: Path) -> list[str]:
    """Return what is wrong on a page of dev at that width."""
    await page.set_viewport_size({"width": width, "height": 900})
    layout = await page.evaluate(LAYOUT)
    images = site / "dev" / "_images"
    problems: list[str] = layout["problems"]
    return problems + [
        problem for picture in layout["pictures"] for problem in picture_problems(picture, images)
    ]


async def check_links_of_rules(page: Page, url: str) -> None:
    """Follow links of the shipped alert rules, which have no version, to their sections."""
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    links = [rule["annotations"]["runbook_url"] for group in rules["groups"] for rule in group["rules"]]
    for link in links[:: len(links) - 1]:  # another test compares the sections of all with the page
        path, _, section = link.removeprefix(SITE).partition("#")
        await page.goto(f"{url}{path}#{section}", wait_until="commit")
        await page.wait_for_url(f"{url}stable/{path}#{section}")
        await expect(page.locator(f"[id='{section}']")).to_be_in_viewport()

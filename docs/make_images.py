"""Make the picture of a model's page that the documentation shows.

    python docs/make_images.py

Needs Playwright for Python and Chromium. Twelve cars differ in their grip and in how quickly their drivers react, so
that both latent dimensions matter.
"""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from playwright.sync_api import Page, sync_playwright

from lvmogp import LVMOGPRegressor
from lvmogp.page.report import write_report
from lvmogp.simulate import BRAKING_NOISE, SPEEDS, braking_distance

IMAGES = Path(__file__).parent / "images"
FRICTIONS = (0.4, 1.0)
REACTION_TIMES = (0.3, 3.0)  # seconds


def fitted_model() -> LVMOGPRegressor:
    """A model of the distances at which cars stand after a signal."""
    rng = np.random.default_rng(11)
    friction, reaction = rng.uniform(*FRICTIONS, 12), rng.uniform(*REACTION_TIMES, 12)
    car = np.repeat(np.arange(12), 6)
    speed = rng.uniform(*SPEEDS, len(car))
    distance = reaction[car] * speed + braking_distance(speed, friction[car])
    distance += BRAKING_NOISE * rng.standard_normal(len(car))
    names = [f"car-{'ABCDEFGHIJKL'[number]}" for number in car]
    table = pd.DataFrame({"speed": speed, "car": names})
    model = LVMOGPRegressor(2, condition="car", n_restarts=1)
    return model.fit(table, pd.Series(distance, name="distance"))


def explore(page: Page) -> None:
    """Choose a car, drag in the latent space, give an observation of a new one."""
    page.select_option("#condition", label="car-C")
    box = page.locator("#latent").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.6 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.78 * box["height"], steps=4)
    page.mouse.up()
    page.fill("#observations", "12, 31\n")
    page.wait_for_selector("#posterior table")
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")


def main() -> None:
    """Fit, write the page, open it, take its picture."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        target = Path(folder) / "brakes.html"
        write_report(fitted_model(), target)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1230, "height": 985}, device_scale_factor=1.3)
        page.goto(target.as_uri())
        explore(page)
        page.screenshot(path=IMAGES / "page.png")
        browser.close()


if __name__ == "__main__":
    main()

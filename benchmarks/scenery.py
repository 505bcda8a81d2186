"""Drawn landscapes in four seasons: what the page is measured with.

Pictures are of several formats and cases; each has a caption, its season as a class, and JSON.
"""

from __future__ import annotations

import io
import json
import math
import random
from typing import Any

from PIL import Image, ImageDraw, ImageFilter

SEASONS = ("spring", "summer", "autumn", "winter")
_SKIES = {
    "dawn": ((254, 203, 166), (120, 132, 189)),
    "noon": ((214, 236, 250), (84, 158, 220)),
    "dusk": ((250, 170, 112), (86, 62, 120)),
    "night": ((46, 62, 104), (12, 16, 38)),
}
_HILLS = {
    "spring": (104, 170, 92),
    "summer": (72, 140, 70),
    "autumn": (190, 122, 56),
    "winter": (214, 224, 236),
}


def landscape(draw: random.Random, season: str, time: str, width: int, height: int) -> Image.Image:
    """Draw hills under a sky, with a sun or a moon and trees."""
    low, high = _SKIES[time]
    image = Image.new("RGB", (1, height))
    for y in range(height):
        image.putpixel((0, y), _between(high, low, min(y / height * 1.5, 1)))
    image = image.resize((width, height))
    pen = ImageDraw.Draw(image)
    _sun(pen, draw, time, width, height)
    for layer in range(4):
        far = 1 - layer / 4
        colour = _between(_HILLS[season], low, far * 0.75)
        if time in ("night", "dusk"):
            colour = _between(colour, high, 0.45)
        _hill(pen, draw, colour, (width, height), 0.5 + layer * 0.13, season, layer)
    return image.filter(ImageFilter.SMOOTH)


def _between(a: tuple[int, ...], b: tuple[int, ...], share: float) -> tuple[int, ...]:
    return tuple(round(x + (y - x) * share) for x, y in zip(a, b, strict=True))


def _sun(pen: Any, draw: random.Random, time: str, width: int, height: int) -> None:
    x, y, r = draw.uniform(0.15, 0.85) * width, draw.uniform(0.12, 0.4) * height, height * 0.07
    colour = {"night": (238, 240, 250), "dusk": (255, 226, 150)}.get(time, (255, 250, 222))
    if time == "night":
        for _ in range(60):
            star = draw.uniform(0, width), draw.uniform(0, height * 0.55)
            pen.point(star, (220, 226, 250))
    pen.ellipse((x - r, y - r, x + r, y + r), fill=colour)


def _hill(
    pen: Any,
    draw: random.Random,
    colour: tuple[int, ...],
    size: tuple[int, int],
    base: float,
    season: str,
    layer: int,
) -> None:
    width, height = size
    waves = [(draw.uniform(0.6, 2.4), draw.uniform(0, 7), draw.uniform(0.02, 0.08)) for _ in "123"]

    def top(x: float) -> float:
        bumps = sum(a * math.sin(f * x / width * 6 + p) for f, p, a in waves)
        return (base - bumps) * height

    ridge = [(x, top(x)) for x in range(0, width + 8, 8)]
    pen.polygon([(0, height), *ridge, (width + 8, height)], fill=colour)
    if layer < 2:
        return
    leaves = {
        "spring": (244, 178, 200),
        "summer": (44, 100, 52),
        "autumn": (204, 84, 40),
        "winter": (240, 245, 250),
    }[season]
    for _ in range(5 + layer * 3):
        x = draw.uniform(0, width)
        y, r = top(x), height * draw.uniform(0.02, 0.035) * layer
        pen.line((x, y, x, y - r * 1.6), fill=(70, 52, 44), width=max(round(r / 4), 1))
        leaf = _between(leaves, colour, draw.uniform(0, 0.35))
        if season == "winter" or draw.random() < 0.35:
            pen.polygon([(x - r, y - r), (x, y - r * 3.2), (x + r, y - r)], fill=leaf)
        else:
            pen.ellipse((x - r, y - r * 2.8, x + r, y - r * 0.8), fill=leaf)


def sample(number: int, width: int = 480) -> dict[str, bytes]:
    """Return a sample: a picture of one of several formats, a caption, a class and JSON."""
    draw = random.Random(number)
    season, time = draw.choice(SEASONS), draw.choices(tuple(_SKIES), (2, 4, 3, 1))[0]
    height = round(width * draw.choice((0.66, 0.75, 0.75, 1.0)))
    image = landscape(draw, season, time, width, height)
    form, field = draw.choices(
        (("JPEG", ".jpg"), ("JPEG", ".JPG"), ("PNG", ".png"), ("WEBP", ".webp")), (8, 1, 1, 1)
    )[0]
    stream = io.BytesIO()
    image.save(stream, form)
    trees = draw.choice(("a few trees", "tall firs", "an orchard", "a lonely hedge"))
    facts = {
        "width": width,
        "height": height,
        "time": time,
        "score": round(min(max(draw.gauss(5.6, 0.9), 1), 10), 2),
        "place": {"altitude": draw.randrange(180, 2400)},
    }
    return {
        field: stream.getvalue(),
        ".txt": f"Hills in {season} at {time}, with {trees}".encode(),
        ".cls": str(SEASONS.index(season)).encode(),
        ".json": json.dumps(facts).encode(),
    }

"""``wids browse``: show a dataset as a page in the browser of this machine, until Ctrl-C."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wids.cli.shared import (
    add_reading,
    add_spec,
    add_state,
    is_name,
    not_negative,
    opened,
    refuse,
    spec_and_peek,
)
from wids.storage.transport import urls

if TYPE_CHECKING:
    from wids.look.page.server import Browser

_MAX_PORT: Final = 65_535

EXAMPLE: Final = (
    "  wids browse train.json\n"
    "  wids browse https://example.com/train.json   # reads what is shown, no whole shards\n"
    "  wids browse 's3://bucket/train-{000000..000146}.tar'   # without an index, too\n"
    "  wids browse train.json --state sampler.json --batch-size 32 --step 48210"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_spec(parser)
    add_state(parser, required=False)
    parser.add_argument("--step", type=not_negative, help="show the samples of this step")
    parser.add_argument("-p", "--port", type=_port, default=0, help="(default: a free one)")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    add_reading(parser)


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= _MAX_PORT:
        raise argparse.ArgumentTypeError(f"expected 0 to {_MAX_PORT}, found {port}")
    return port


def run(options: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    with ExitStack() as stack:
        browser = _browser(options, stack)
        redirect = ""
        try:
            _announce(browser)
            if options.open:
                import webbrowser

                redirect = _redirect_page(browser.url)
                webbrowser.open(Path(redirect).as_uri())
            browser.serve()
        except KeyboardInterrupt:
            print(file=sys.stderr)  # below the ^C
        finally:
            browser.close()
            if redirect:
                os.unlink(redirect)
    return 0


def _browser(options: argparse.Namespace, stack: ExitStack) -> Browser:
    """Return the page of the shards, or of the samples in a step of training."""
    from wids.look.page.pages import Pages, PeekPages
    from wids.look.page.questions import Questions
    from wids.look.page.server import Browser

    steps: dict[int, list[int]] = {}
    if options.state is None:
        refuse(options, ("step", "batch_size", "epoch"), "expected --state FILE too, found none")
        spec, shards = spec_and_peek(options)
        if shards is not None:
            return Browser(PeekPages(shards, _python_name(options.spec)), options.port)
    else:
        from wids.cli.order_command import asked

        dataset, epoch = asked(options, stack)
        step = epoch.next_step if options.step is None else options.step
        indices = [index for *_, index in epoch.samples(range(step, step + 1))]
        spec, steps[step] = dataset.spec, sorted({int(dataset.positions[i]) for i in indices})
    name = "" if is_name(options.spec) else f"wids.ShardListDataset({_python_name(options.spec)})"
    dataset = stack.enter_context(opened(spec, options, access="range"))
    questions = Questions(dataset, steps=steps)
    browser = Browser(Pages(dataset, python=name, questions=questions), options.port)
    browser.url += "".join(f"#step={number}" for number in steps)
    return browser


def _announce(browser: Browser) -> None:
    """Print the address of the page, and how to reach it from another machine."""
    # Flushed, since a program that started this one waits for the line while the server runs.
    print(browser.url, flush=True)
    port = browser.server_port
    print(
        "Anyone with this address can look at the dataset, from this machine; press Ctrl-C to "
        f"stop.\nFrom another machine: ssh -N -L {port}:127.0.0.1:{port} "
        f"{socket.gethostname()}, then open the same address there.",
        file=sys.stderr,
    )


def _python_name(named: str) -> str:
    """Return what a command was called with as a literal for Python, without secrets."""
    return repr(os.path.abspath(named) if os.path.exists(named) else urls.redact(named))


def _redirect_page(url: str) -> str:
    """Write a page that leads to the URL and return its path.

    The URL has a secret in it. On the browser's command line other users could see it; the file is
    readable by this user only.
    """
    import tempfile

    # Not deleted when it is closed: the browser opens it later, by its name.
    with tempfile.NamedTemporaryFile("w", prefix="wids-", suffix=".html", delete=False) as file:
        file.write(f'<meta http-equiv="refresh" content="0;url={url}">')
        return file.name

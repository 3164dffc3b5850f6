"""What other code prints while a command works."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def hush(aloud: bool) -> Iterator[None]:
    """Keep it out of the result, and off the screen unless `aloud`: sizes that are tried out make PyTorch complain."""
    sink = sys.stderr if aloud else io.StringIO()
    before = logging.root.manager.disable
    logging.disable(before if aloud else logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            yield
    finally:
        logging.disable(before)

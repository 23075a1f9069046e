"""``suffixsvc generate MODEL PROMPT``."""

from __future__ import annotations

from suffixsvc.verb_options import with_options
from suffixsvc_cli.generate.options import Options


@with_options
def generate(options: Options) -> None:
    """Generate text on a model with every drafting layer, and show the origin of each token.

    The text goes to stdout, everything else to stderr. Drafts come from the prompt and the text so far, from
    stored outputs (--data, --service, --preload), and from a draft model (--draft); the model verifies them
    all, so the text is unchanged. The cost of steps is measured on the first run with a model. Ctrl-C ends
    the text, with statistics.
    """
    # imported here so that --help is fast
    from suffixsvc_cli.generate.run import run

    run(options)

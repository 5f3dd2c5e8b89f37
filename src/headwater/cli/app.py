"""The command `headwater` and its groups, and how every command ends.

Exit codes: 0 done; 1 something that was looked for is wrong or missing (damage, a failed check, fewer messages than
asked for); 2 the command could not be carried out, and one sentence on stderr says why; 130 Ctrl-C.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headwater.cli import (
    acl,
    bench,
    channels,
    clients,
    dead,
    demo,
    keeping,
    pipeline,
    pub,
    replay,
    serve,
    sessions,
    sub,
    subs,
    tokens,
    top,
    topics,
    verify,
)
from headwater.cli.output import complain
from headwater.cli.pipeline import dead_letters, run
from headwater.cli.pipeline import replay as replay_again
from headwater.errors import HeadwaterError

INTERRUPTED = 130
EPILOG = (
    "With --json a command prints one object a line. A message has topic, offset, time, payload (payload_base64 if "
    "it is not UTF-8), headers, key, retained, attempt; the other objects are described in the help of their commands. "
    "Exit codes: 0 done; 1 something is damaged or missing; 2 it could not be done, and stderr says why in a sentence."
)


class Commands(TyperGroup):
    """The commands, which end in one sentence rather than a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except HeadwaterError as error:
            complain(str(error))
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # Whoever reads us has enough. What is still buffered has nowhere to go, and Python should not try at exit.
            try:
                sys.stdout.close()
            except OSError:
                pass
            raise typer.Exit(0) from None
        except OSError as error:
            complain(str(error))
            raise typer.Exit(2) from None
        return result


app = typer.Typer(
    cls=Commands,
    help="Headwater: publish, subscribe and replay, on a folder or at a server. Every command has its own --help.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from headwater import __version__
        from headwater.compiled import is_compiled

        print(f"headwater {__version__}{' (compiled)' if is_compiled() else ''}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Headwater: publish, subscribe and replay, on a folder or at a server. Every command has its own --help."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")


app.command()(serve.serve)
app.command()(pub.pub)
app.command()(sub.sub)
app.command()(replay.replay)
app.command()(topics.topics)
app.command()(top.top)
app.add_typer(subs.app, name="subs")
app.add_typer(dead.app, name="dead")
app.add_typer(clients.app, name="clients")
app.add_typer(acl.app, name="acl")
app.add_typer(channels.app, name="channels")
app.add_typer(tokens.app, name="tokens")
app.add_typer(sessions.app, name="sessions")
pipeline.app.command()(replay_again.replay)
pipeline.app.command()(dead_letters.dead_letters)
pipeline.app.command()(run.run)
app.add_typer(pipeline.app, name="pipeline")
app.command()(keeping.purge)
app.command()(keeping.backup)
app.command()(keeping.restore)
app.command()(verify.verify)
app.add_typer(bench.app, name="bench")
app.command()(demo.demo)

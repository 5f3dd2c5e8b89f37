"""The command `headwater` and its groups, and how every command ends.

What a command needs is imported when it is the one that is run: a server that starts again is not to wait for the
others.

Exit codes: 0 done; 1 something that was looked for is wrong or missing (damage, a failed check, fewer messages than
asked for); 2 the command could not be carried out, and one sentence on stderr says why; 71 a server had no memory left
to store with; 130 Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from headwater.cli.advice import at_the_command_line, of_the_system
from headwater.cli.help import Command, Group, paragraphs
from headwater.cli.options import placed
from headwater.cli.output import complain
from headwater.errors import HeadwaterError

INTERRUPTED = 130
EPILOG = (
    "With --json a command prints one object a line. A message has topic, offset, time, payload (payload_base64 if "
    "it is not UTF-8), headers, key, retained, attempt; the other objects are described in the help of their commands. "
    "Exit codes: 0 done; 1 something is damaged or missing; 2 it could not be done, and stderr says why in a sentence."
)


class Commands(Group):
    """The commands, which end in one sentence rather than a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except HeadwaterError as error:
            complain(at_the_command_line(str(error)))
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
            complain(of_the_system(error))
            raise typer.Exit(2) from None
        return result


COMMANDS = {
    "init": "init:init",
    "serve": "serve:serve",
    "pub": "pub:pub",
    "schedule": "schedule:app",
    "schemas": "schemas:app",
    "sub": "sub:sub",
    "work": "work:work",
    "what-if": "what_if:what_if",
    "replay": "replay:replay",
    "search": "search:search",
    "sql": "sql:sql",
    "topics": "topics:topics",
    "top": "top:top",
    "subs": "subs:app",
    "dead": "dead:app",
    "clients": "clients:app",
    "acl": "acl:app",
    "channels": "channels:app",
    "tokens": "tokens:app",
    "sessions": "sessions:app",
    "cluster": "cluster.commands:app",
    "pipeline": "pipeline.commands:app",
    "purge": "maintenance:purge",
    "remove-root": "maintenance:remove_root",
    "backup": "maintenance:backup",
    "restore": "maintenance:restore",
    "verify": "verify:verify",
    "bench": "bench:app",
    "demo": "demo:demo",
}
"""Where each is, below headwater.cli: a function, or a group of several."""


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """The command line with the one command that is asked for; with all of them, if it cannot be told which."""
    wanted = arguments[0] if arguments else ""
    app = typer.Typer(
        cls=Commands,
        help="Headwater: publish, subscribe and replay, on a folder or at a server. Every command has its own --help.",
        epilog=EPILOG,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(options)
    for name in [wanted] if wanted in COMMANDS else COMMANDS:
        module, _, noun = COMMANDS[name].partition(":")
        found = getattr(import_module(f"headwater.cli.{module}"), noun)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name, cls=Command, help=paragraphs(found.__doc__))(placed(found))
    return app


def _version(wanted: bool) -> None:
    if wanted:
        from headwater import __version__
        from headwater.compiled import is_compiled

        print(f"headwater {__version__}{' (compiled)' if is_compiled() else ''}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Headwater: publish, subscribe and replay, on a folder or at a server. Every command has its own --help."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")

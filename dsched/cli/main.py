"""The entry point of `dsched`."""

import signal
import sys

import click

from dsched import __version__
from dsched.cli.db import db
from dsched.cli.demo.command import demo
from dsched.errors import DschedError

__all__ = ["cli", "main"]


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dsched", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Schedule jobs on many machines."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


cli.add_command(demo)
cli.add_command(db)


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong use, 130 interrupted."""
    # What cleans up after Ctrl-C also cleans up after a plain kill.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.ClickException as error:
        click.echo(f"dsched: {error.format_message()}", err=True)
        sys.exit(error.exit_code)
    except DschedError as error:
        click.echo(f"dsched: {error.message}", err=True)
        sys.exit(1)
    except (click.Abort, KeyboardInterrupt):
        click.echo("dsched: interrupted", err=True)
        sys.exit(130)

"""Every command of `headwater pipeline`, in one group."""

from headwater.cli.pipeline import app, dead_letters, erase, infer, replay, run, sql, status

__all__ = ["app"]

app.command()(replay.replay)
app.command()(dead_letters.dead_letters)
app.command()(run.run)
app.command()(infer.infer)
app.command()(sql.sql)
app.command()(sql.serve)
app.command()(erase.erase)
app.command()(status.status)

"""Exactly once into a database: the effect and how far it got are one transaction, and what comes twice is seen."""

import sqlite3

import headwater

database = sqlite3.connect("totals.db", check_same_thread=False)
database.execute("CREATE TABLE IF NOT EXISTS totals (topic TEXT PRIMARY KEY, amount INTEGER)")
database.execute("CREATE TABLE IF NOT EXISTS done (root TEXT PRIMARY KEY, upto INTEGER)")


def add(message):
    """Strict order, so one offset says what is done; root and offset name a message for ever."""
    with database:
        (upto,) = database.execute("SELECT coalesce(max(upto), 0) FROM done WHERE root = ?", (message.root,)).fetchone()
        if message.offset <= upto:
            return
        adding = "INSERT INTO totals VALUES (?, ?) ON CONFLICT DO UPDATE SET amount = amount + excluded.amount"
        database.execute(adding, (message.topic, int(message.text)))
        database.execute("INSERT OR REPLACE INTO done VALUES (?, ?)", (message.root, message.offset))


with headwater.open("var/exactly-once") as bus:
    bus.publish_many([("sales/pears", "3"), ("sales/plums", "5"), ("sales/pears", "4")])
    with bus.subscribe("sales/#", id="totals", start="earliest") as sub:
        for message in sub.batch(10, timeout_s=1):
            add(message)  # and killed here, before the ack
    with bus.subscribe("sales/#", id="totals") as sub:
        for message in sub.batch(10, timeout_s=1):
            add(message)  # they come again
            message.ack()
print(database.execute("SELECT * FROM totals ORDER BY topic").fetchall())
database.close()

"""The transactional outbox: a row and its message are written together, though the database and the bus are two."""

import sqlite3

import headwater

database = sqlite3.connect("shop.db")
database.execute("CREATE TABLE IF NOT EXISTS orders (item TEXT)")
database.execute(
    "CREATE TABLE IF NOT EXISTS outbox (number INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT, payload TEXT)"
)


def order(item):
    """One transaction: the order, and what is to be told about it."""
    with database:
        database.execute("INSERT INTO orders VALUES (?)", (item,))
        database.execute("INSERT INTO outbox (topic, payload) VALUES (?, ?)", ("shop/orders", item))


def relay(bus):
    """Publish what waits; killed anywhere and run again it stores each message once, as its number is its sequence."""
    for number, topic, payload in database.execute("SELECT * FROM outbox ORDER BY number").fetchall():
        bus.publish(topic, payload, producer="shop", sequence=number)
        with database:
            database.execute("DELETE FROM outbox WHERE number = ?", (number,))


order("pears")
order("plums")
with headwater.open("var/outbox") as bus:
    relay(bus)
    bus.publish("shop/orders", "plums", producer="shop", sequence=2)  # as if it had been killed before its DELETE
    print([message.text for message in bus.replay("shop/orders")])
database.close()

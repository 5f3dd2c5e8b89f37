"""Look after a broker: `headwater.admin.connect(url)`, the HTTP API, metrics and the dashboard.

    admin = headwater.admin.connect("headwater://root:secret@127.0.0.1:7411")
    admin.sessions.list()
    admin.channels.add(name="alarms", filter="home/+/alarm", destination_host="127.0.0.1", destination_port=9000)

The HTTP API is a process of its own beside the server: a client of the native protocol, as this is.
"""

from headwater.admin.client import Admin, connect

__all__ = ["Admin", "connect"]

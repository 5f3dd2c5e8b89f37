"""Clients: who may come in, what rules allow them, and the tokens that open this dashboard and the API."""

from __future__ import annotations

from nicegui import ui

from headwater.access.acl import ACTIONS
from headwater.admin.client import Admin
from headwater.admin.dashboard import formatting as shown
from headwater.admin.dashboard.dialogs import confirm, form, show_once, submit
from headwater.admin.dashboard.frame import Empty, Frame, heading, panel
from headwater.admin.dashboard.listing import BADGE, Listing, Row, column, row_button
from headwater.admin.gate import ROLES
from headwater.wire.administration import NewToken, Registration

REMOVE_BUTTON = row_button("remove", "'delete'", "'Remove'", color="negative")
CLIENT_BUTTONS = (
    row_button("rotate", "'autorenew'", "'New secret'")
    + row_button("token", "'vpn_key'", "'New token'")
    + REMOVE_BUTTON
)
ROLE_CHOICES = {
    "reader": "reader: may look",
    "operator": "operator: may publish and look after what is there",
    "admin": "admin: may do everything",
}
ADVICE = "Clients, rules and tokens are for those whose token has the role admin."


class Clients:
    """The page while it is open."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        with heading("Clients", "Who may come in, what they may do, and the tokens that open this page."):
            add = ui.button("New client", icon="add", on_click=self._new_client).props("unelevated no-caps")
            rule = ui.button("New rule", icon="rule", on_click=self._new_rule).props("outline no-caps")
            frame.needs("admin", add, rule)
        if not frame.may("admin"):
            with panel():
                Empty("lock", ADVICE).show(True)
            return
        self._build_listings()
        frame.every(2.0, self.update)

    def _build_listings(self) -> None:
        with panel("Clients"):
            self._clients = Listing(
                "name",
                Empty("key", "No clients yet.", "headwater clients add sensor-7"),
                column("name", "Client", lambda one: one.name, who=True),
                column("created", "Since (UTC)", lambda one: shown.moment(one.created_us), wide=True),
                column(
                    "rotated",
                    "Secret since (UTC)",
                    lambda one: shown.moment(one.rotated_us or one.created_us),
                    wide=True,
                ),
                column("buttons", ""),
                label="Clients",
            )
            self._clients.buttons(
                CLIENT_BUTTONS, rotate=self._rotate, token=self._new_token, remove=self._remove_client
            )
        with panel("Rules"):
            self._rules = Listing(
                "key",
                Empty("rule", "No rules: with authentication on, nobody may do anything."),
                column("user", "Client", lambda rule: rule.user, who=True),
                column("what", "Rule", lambda rule: "allow" if rule.allow else "deny", BADGE),
                column("action", "Action", lambda rule: rule.action, word=True),
                column("filter", "Filter", lambda rule: rule.filter, mono=True),
                column("buttons", ""),
                more=lambda rule: {
                    "key": f"{rule.user} {rule.action} {rule.filter}",
                    "tone": "good" if rule.allow else "bad",
                },
                label="Rules",
            )
            self._rules.buttons(REMOVE_BUTTON, remove=self._remove_rule)
        with panel("Tokens"):
            self._tokens = Listing(
                "id",
                Empty("vpn_key", "No tokens yet.", "headwater tokens add sensor-7 --role reader"),
                column("id", "Token", lambda one: one.id, mono=True),
                column("client", "Client", lambda one: one.client, who=True),
                column("role", "Role", lambda one: one.role, word=True),
                column("created", "Since (UTC)", lambda one: shown.moment(one.created_us), wide=True),
                column("buttons", ""),
                label="Tokens",
            )
            self._tokens.buttons(REMOVE_BUTTON, remove=self._remove_token)

    async def update(self) -> None:
        (await self._frame.visit.look()).check("admin")
        admin = self._frame.admin
        self._clients.show(await admin.clients.list())
        self._rules.show(await admin.acl.list())
        self._tokens.show(await admin.tokens.list())

    def _new_client(self) -> None:
        with form("New client") as dialog:
            name = ui.input("Name", placeholder="sensor-7").props("outlined dense autofocus")

            async def doing(admin: Admin) -> None:
                made: Registration = await admin.clients.add(name.value or "")
                show_once(f"The secret of {shown.plain(made.name)}", made.secret)

            submit(dialog, "Add", lambda: self._frame.do("admin", doing, self.update))

    def _new_rule(self) -> None:
        with form("New rule") as dialog:
            user = ui.input("Client", placeholder="a name, or * for everybody").props("outlined dense autofocus")
            verb = ui.toggle({"allow": "allow", "deny": "deny"}, value="allow").props("dense no-caps unelevated")
            action = ui.select(list(ACTIONS), value="publish", label="Action").props("outlined dense")
            topics = ui.input("Filter", placeholder="home/#").props("outlined dense")

            async def doing(admin: Admin) -> str:
                change = admin.acl.allow if verb.value == "allow" else admin.acl.deny
                await change(user.value or "", action.value, topics.value or "")
                return "The rule is in force."

            submit(dialog, "Add", lambda: self._frame.do("admin", doing, self.update))

    def _new_token(self, row: Row) -> None:
        client = str(row["name"])
        with form(f"New token of {shown.plain(client)}") as dialog:
            role = ui.select(ROLE_CHOICES, value=ROLES[0], label="Role").props("outlined dense")

            async def doing(admin: Admin) -> None:
                made: NewToken = await admin.tokens.add(client, role.value)
                show_once(f"A token of {shown.plain(client)}, {made.role}", made.token)

            submit(dialog, "Make", lambda: self._frame.do("admin", doing, self.update))

    async def _rotate(self, row: Row) -> None:
        name = str(row["name"])
        if not await confirm(f"Give {shown.plain(name)} another secret? The one it has works no more.", "New secret"):
            return

        async def doing(admin: Admin) -> None:
            made: Registration = await admin.clients.rotate(name)
            show_once(f"The new secret of {shown.plain(name)}", made.secret)

        await self._frame.do("admin", doing, self.update)

    async def _remove_client(self, row: Row) -> None:
        name, shown_name = str(row["name"]), shown.plain(str(row["name"]))
        if await confirm(f"Remove {shown_name} and its tokens? It can come in no more.", "Remove"):
            said = f"{shown_name} is removed."
            await self._frame.change("admin", lambda admin: admin.clients.remove(name), said, self.update)

    async def _remove_rule(self, row: Row) -> None:
        rule = (str(row["user"]), str(row["action"]), str(row["filter"]))
        said = f"{row['what']} {rule[0]} {rule[1]} {rule[2]}"
        if not await confirm(f"Remove the rule {shown.plain(said)}? It counts no more.", "Remove"):
            return
        await self._frame.change("admin", lambda admin: admin.acl.remove(*rule), "The rule is removed.", self.update)

    async def _remove_token(self, row: Row) -> None:
        if await confirm(f"Remove token {row['id']}? It opens nothing more.", "Remove"):
            said = "The token opens nothing more."
            await self._frame.change("admin", lambda admin: admin.tokens.remove(str(row["id"])), said, self.update)

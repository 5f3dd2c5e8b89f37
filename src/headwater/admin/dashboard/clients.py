"""Clients: who may come in, what rules allow them, and the tokens that open this dashboard and the API."""

from __future__ import annotations

from nicegui import ui

from headwater.access.acl import ACTIONS
from headwater.admin.client import Admin
from headwater.admin.dashboard import shown
from headwater.admin.dashboard.frame import Empty, Frame, confirm, heading, panel, say
from headwater.admin.dashboard.listing import BADGE, Listing, Row, column
from headwater.admin.gate import ROLES
from headwater.wire.administration import Client, NewToken, Registration, Rule, Token

CLIENT_BUTTONS = """
<q-btn flat dense round icon="autorenew" aria-label="New secret" @click="() => $parent.$emit('rotate', props.row)"><q-tooltip>New secret</q-tooltip></q-btn>
<q-btn flat dense round icon="vpn_key" aria-label="New token" @click="() => $parent.$emit('token', props.row)"><q-tooltip>New token</q-tooltip></q-btn>
<q-btn flat dense round icon="delete" color="negative" aria-label="Remove" @click="() => $parent.$emit('remove', props.row)"><q-tooltip>Remove</q-tooltip></q-btn>
"""
REMOVE_BUTTON = """
<q-btn flat dense round icon="delete" color="negative" aria-label="Remove" @click="() => $parent.$emit('remove', props.row)"><q-tooltip>Remove</q-tooltip></q-btn>
"""
ADVICE = "Changing clients, rules and tokens takes a token of role admin."


def build(frame: Frame) -> None:
    """The page."""
    Clients(frame)


class Clients:
    """The page while it is open."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        with heading("Clients", "Who may come in, what they may do, and the tokens that open this page."):
            add = ui.button("New client", icon="add", on_click=self._new_client).props("unelevated no-caps")
            rule = ui.button("New rule", icon="rule", on_click=self._new_rule).props("outline no-caps")
            frame.needs("admin", add, rule)
        if not frame.may("admin"):
            ui.label(ADVICE).classes("hw-note")
        self._build_listings()
        frame.every(2.0, self.update)

    def _build_listings(self) -> None:
        may = self._frame.may("admin")
        with panel("Clients"):
            self._clients = Listing(
                [
                    column("name", "Client"),
                    column("created", "Since (UTC)", wide=True),
                    column("rotated", "Secret of (UTC)", wide=True),
                    column("buttons", ""),
                ],
                "name",
                Empty("key", "No clients yet.", "headwater clients add sensor-7"),
                label="Clients",
            )
            if may:
                self._clients.buttons(
                    CLIENT_BUTTONS, rotate=self._rotate, token=self._new_token, remove=self._remove_client
                )
        with panel("Rules"):
            self._rules = Listing(
                [
                    column("user", "Client"),
                    column("what", "Rule"),
                    column("action", "Action"),
                    column("filter", "Filter", mono=True),
                    column("buttons", ""),
                ],
                "key",
                Empty("rule", "No rules: with authentication on, nobody may do anything."),
                label="Rules",
            )
            self._rules.cell("what", BADGE)
            if may:
                self._rules.buttons(REMOVE_BUTTON, remove=self._remove_rule)
        with panel("Tokens"):
            self._tokens = Listing(
                [
                    column("id", "Token", mono=True),
                    column("client", "Client"),
                    column("role", "Role"),
                    column("created", "Since (UTC)", wide=True),
                    column("buttons", ""),
                ],
                "id",
                Empty("vpn_key", "No tokens yet.", "headwater tokens add sensor-7 --role reader"),
                label="Tokens",
            )
            if may:
                self._tokens.buttons(REMOVE_BUTTON, remove=self._remove_token)

    async def update(self) -> None:
        """Show them as they are now."""
        admin = self._frame.admin
        clients: list[Client] = await admin.clients.list()
        self._clients.show(
            [
                {
                    "name": one.name,
                    "created": shown.moment(one.created_us),
                    "rotated": shown.moment(one.rotated_us or one.created_us),
                }
                for one in clients
            ]
        )
        rules: list[Rule] = await admin.acl.list()
        self._rules.show([_rule_row(rule) for rule in rules])
        tokens: list[Token] = await admin.tokens.list()
        self._tokens.show(
            [
                {"id": one.id, "client": one.client, "role": one.role, "created": shown.moment(one.created_us)}
                for one in tokens
            ]
        )

    def _new_client(self) -> None:
        with ui.dialog(value=True) as dialog, ui.card().classes("hw-dialog"):
            ui.label("New client").classes("hw-panel-title")
            name = ui.input("Name", placeholder="sensor-7").props("outlined dense autofocus")

            async def doing(admin: Admin) -> None:
                made: Registration = await admin.clients.add(name.value or "")
                dialog.close()
                show_once(f"The secret of {shown.plain(made.name)}", made.secret)

            _buttons(dialog, "Add", self._frame, doing, self)
        dialog.on("hide", dialog.delete)

    def _new_rule(self) -> None:
        with ui.dialog(value=True) as dialog, ui.card().classes("hw-dialog"):
            ui.label("New rule").classes("hw-panel-title")
            user = ui.input("Client", placeholder="a name, or * for everybody").props("outlined dense autofocus")
            verb = ui.toggle({"allow": "allow", "deny": "deny"}, value="allow").props("dense no-caps unelevated")
            action = ui.select(list(ACTIONS), value="publish", label="Action").props("outlined dense")
            filter = ui.input("Filter", placeholder="home/#").props("outlined dense")

            async def doing(admin: Admin) -> str:
                change = admin.acl.allow if verb.value == "allow" else admin.acl.deny
                await change(user.value or "", action.value, filter.value or "")
                dialog.close()
                return "The rule is in force."

            _buttons(dialog, "Add", self._frame, doing, self)
        dialog.on("hide", dialog.delete)

    def _new_token(self, row: Row) -> None:
        client = str(row["name"])
        with ui.dialog(value=True) as dialog, ui.card().classes("hw-dialog"):
            ui.label(f"New token of {shown.plain(client)}").classes("hw-panel-title")
            role = ui.select(
                {"reader": "reader: may look", "operator": "operator: may publish and look after", "admin": "admin: may do everything"},
                value=ROLES[0],
                label="Role",
            ).props("outlined dense")

            async def doing(admin: Admin) -> None:
                made: NewToken = await admin.tokens.add(client, role.value)
                dialog.close()
                show_once(f"A token of {shown.plain(client)}, {made.role}", made.token)

            _buttons(dialog, "Make", self._frame, doing, self)
        dialog.on("hide", dialog.delete)

    async def _rotate(self, row: Row) -> None:
        name = str(row["name"])
        if not await confirm(f"Give {shown.plain(name)} another secret? The one it has works no more.", "New secret"):
            return

        async def doing(admin: Admin) -> None:
            made: Registration = await admin.clients.rotate(name)
            show_once(f"The new secret of {shown.plain(name)}", made.secret)

        await self._frame.do("admin", doing, self.update)

    async def _remove_client(self, row: Row) -> None:
        name = str(row["name"])
        if not await confirm(f"Remove {shown.plain(name)} and its tokens? It can come in no more.", "Remove"):
            return

        async def doing(admin: Admin) -> str:
            await admin.clients.remove(name)
            return f"{shown.plain(name)} is removed."

        await self._frame.do("admin", doing, self.update)

    async def _remove_rule(self, row: Row) -> None:
        async def doing(admin: Admin) -> str:
            await admin.acl.remove(str(row["user"]), str(row["action"]), str(row["filter"]))
            return "The rule is taken back."

        await self._frame.do("admin", doing, self.update)

    async def _remove_token(self, row: Row) -> None:
        if not await confirm(f"Remove token {row['id']}? It opens nothing more.", "Remove"):
            return

        async def doing(admin: Admin) -> str:
            await admin.tokens.remove(str(row["id"]))
            return "The token opens nothing more."

        await self._frame.do("admin", doing, self.update)


def show_once(title: str, secret: str) -> None:
    """A secret that is told this once."""
    with ui.dialog(value=True).props("persistent") as dialog, ui.card().classes("hw-dialog"):
        ui.label(title).classes("hw-panel-title")
        ui.label("It is shown this once; keep it now.").classes("hw-note")
        ui.label(secret).classes("hw-pre hw-secret").props('tabindex="0"')

        def copy() -> None:
            ui.clipboard.write(secret)
            say("Copied.")

        with ui.row().classes("hw-dialog-buttons"):
            ui.button("Copy", icon="content_copy", on_click=copy).props("flat no-caps")
            ui.button("Done", on_click=dialog.close).props("unelevated no-caps")
    dialog.on("hide", dialog.delete)


def _buttons(dialog: ui.dialog, verb: str, frame: Frame, doing: object, page: Clients) -> None:
    with ui.row().classes("hw-dialog-buttons"):
        ui.button("Cancel", on_click=dialog.close).props("flat no-caps")
        ui.button(verb, on_click=lambda: frame.do("admin", doing, page.update)).props("unelevated no-caps")  # type: ignore[arg-type]


def _rule_row(rule: Rule) -> Row:
    return {
        "key": f"{rule.user} {rule.action} {rule.filter}",
        "user": rule.user,
        "what": "allow" if rule.allow else "deny",
        "tone": "good" if rule.allow else "bad",
        "action": rule.action,
        "filter": rule.filter,
    }

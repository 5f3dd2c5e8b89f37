"""Look into a folder that another process owns: reading needs no server, and disturbs nobody."""

import headwater

with headwater.open("var/look-beside") as owner:
    owner.publish("home/kitchen/temp", "21.5")

    with headwater.open("var/look-beside", read_only=True) as looker:  # as another process would
        print([message.text for message in looker.replay("home/#")])
        owner.publish("home/kitchen/temp", "21.6")
        looker.refresh()
        print([message.text for message in looker.replay("home/#")])
        try:
            looker.publish("home/kitchen/temp", "22")
        except headwater.HeadwaterError as error:
            print(type(error).__name__)

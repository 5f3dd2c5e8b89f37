"""Topics: names and filters, the tree that matches them, retained values, and the roots that hold them."""

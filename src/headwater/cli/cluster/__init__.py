"""`headwater cluster`: several nodes for one bus."""

"""What a neighbour can do to you: a served broker, measured alone and beside somebody who takes all he can get.

`rows.py` has one function a figure, `neighbours.py` one function a neighbour. To add a row: write both, and mark them.
"""

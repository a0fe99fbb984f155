"""Time of collectives: closed forms, the algorithms built of them, their constants and the fit."""

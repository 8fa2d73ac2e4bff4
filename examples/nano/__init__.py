"""How the bundled reader was made: its data, its model and its supervised training (docs/nano.md)."""

"""Reading tasks with known answers: needles in real text, clauses in contracts, and their teacher."""

"""Judge and plan answers: quality checks, verdicts, curation, schedules, cost. Plain functions of plain records."""

"""Ray Data jobs. They meet through tables and do not import each other."""

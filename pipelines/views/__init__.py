"""What a person sees of an answer, made once for terminal, files, pages and programs."""

"""What is made with memagent and is no part of it."""

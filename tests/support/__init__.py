"""What tests share: made-up runs and archives, servers, commands, waiting."""

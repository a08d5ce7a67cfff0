"""What commands take: the options they share, help, and completion in a shell."""

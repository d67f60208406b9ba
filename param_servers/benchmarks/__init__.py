"""What an exchange costs, measured."""

"""What is read off trained models and stored results."""

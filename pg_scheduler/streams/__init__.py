"""What jobs show while they run: values and streams."""

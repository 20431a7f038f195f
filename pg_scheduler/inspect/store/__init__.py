"""The statements that only people need: searches, explanations, the doctor's facts, bulk changes, grants."""

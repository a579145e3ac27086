"""Studies of streams, models and papers: what a number can say, and what was said before."""

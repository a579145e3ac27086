"""Known public datasets: the catalogue, downloading and unpacking them, and recognising leaderboard folders."""

"""What every other package may use: errors, settings with bounds, progress, interrupts, memory budget, durable files."""

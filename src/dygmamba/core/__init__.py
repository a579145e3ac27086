"""Shared basics: errors, settings with bounds, progress, interrupts, memory budget, process settings, durable files."""

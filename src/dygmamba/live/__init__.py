"""Runs that go on: a trained run whose events are appended one by one while it is queried."""

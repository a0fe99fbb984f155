"""Readers of results: tables, plots, pages, traces. Nothing computes here."""

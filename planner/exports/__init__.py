"""Plans as other frameworks' configurations, and back; launch scripts; a trace."""

"""What every process needs: its settings, its root, its log lines, its end."""

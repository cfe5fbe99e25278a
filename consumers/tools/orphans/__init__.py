"""Files of tables that no version needs: found, listed and removed."""

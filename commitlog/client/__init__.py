"""What a writer's program uses: `CommitLog`, tickets, and operations on rows."""

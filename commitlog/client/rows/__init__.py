"""Operations on rows, made into Lance's, and the tables that they read."""

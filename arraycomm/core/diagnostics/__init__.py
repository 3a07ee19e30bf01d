"""Operations as they are watched: traces, flight recorders, checks."""

UPDATE _jobs SET line = ? WHERE id = ? AND line IS NULL

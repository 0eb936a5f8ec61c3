-- Every move appends what it did, in its own transaction. The newest entries stay; what goes is counted.
history_dropped = history_dropped + coalesce(json_array_length(history) >= :most, 0),
history = json_insert(
    CASE WHEN json_array_length(history) >= :most THEN json_remove(history, '$[0]')
         ELSE coalesce(history, '[]') END, '$[#]', json(:entry))

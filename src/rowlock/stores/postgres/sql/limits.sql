-- What is stored of limits: see stores/limits.py. Records are few.
SELECT l.epoch, {schema}._jobs_us(clock_timestamp()), l.turns::text,
       ARRAY(SELECT id FROM {schema}._jobs_records WHERE kind = 'limited' ORDER BY id),
       ARRAY(SELECT data::text FROM {schema}._jobs_records WHERE kind = 'limited' ORDER BY id),
       ARRAY(SELECT data::text FROM {schema}._jobs_records WHERE kind = 'limit' ORDER BY id),
       ARRAY(SELECT topic FROM {schema}._jobs_topics
             WHERE paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > (SELECT clock_timestamp())))
FROM {schema}._jobs_limits l

-- Charts: what happened when. Each note says when it was made; enqueues are noted too, and how long each run that ended had
-- waited and ran. `fold_counts` adds them up by minute, hour and day.
-- The first default is the same for all rows that are there, so that none of them is rewritten.
ALTER TABLE {schema}._jobs_counts
    ADD COLUMN at       timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN enqueued integer NOT NULL DEFAULT 0,  -- a note says something of enqueues or of ends, never of both
    ADD COLUMN waits    real[],  -- seconds
    ADD COLUMN runs     real[];
ALTER TABLE {schema}._jobs_counts ALTER COLUMN at SET DEFAULT clock_timestamp();
-- The durations of a batch fit on a page: they need not be compressed, nor kept elsewhere.
ALTER TABLE {schema}._jobs_counts SET (toast_tuple_target = 8160);

-- The topic '' is all of them together. One process at a time writes here, now and then: room on the page for the next
-- versions of a row.
CREATE TABLE {schema}._jobs_rollups (
    span      integer NOT NULL,      -- seconds: a minute, an hour or a day
    topic     text COLLATE "C" NOT NULL,
    at        timestamptz NOT NULL,  -- when it begins, by UTC
    enqueued  bigint NOT NULL,
    completed bigint NOT NULL,
    failed    bigint NOT NULL,
    expired   bigint NOT NULL,
    cancelled bigint NOT NULL,
    retried   bigint NOT NULL,
    lost      bigint NOT NULL,
    waits     bytea,  -- core/sketch.py
    runs      bytea,
    PRIMARY KEY (span, topic, at)
) WITH (fillfactor = 70);
CREATE INDEX _jobs_rollups_old ON {schema}._jobs_rollups (span, at);

-- A worker that is older than this would fold notes into the totals alone, and what they say of the time would be lost. So
-- it finds nothing to fold; whoever knows of rollups says so.
CREATE FUNCTION {schema}._jobs_keep_note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER _jobs_keep_note BEFORE DELETE ON {schema}._jobs_counts FOR EACH ROW
    WHEN (current_setting('application_name') = 'rowlock'
          AND current_setting('rowlock.folds', true) IS DISTINCT FROM 'rollups')
    EXECUTE FUNCTION {schema}._jobs_keep_note();

-- For the application's own connections: whoever may insert jobs need not be allowed to do anything else here. Since anybody
-- may call it, it notes nothing but what can be: jobs of this moment that came or were taken back, of topics that can be.
CREATE FUNCTION {schema}._jobs_note_enqueued(at timestamptz, topics text[], sign integer) RETURNS integer
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS $$
        INSERT INTO {schema}._jobs_counts (at, topic, enqueued)
        SELECT least(greatest($1, now - interval '1 minute'), now + interval '1 minute'), topic, $3 * count(*)
        FROM (SELECT clock_timestamp() AS now) clock, unnest($2) AS topic
        WHERE $3 IN (1, -1) AND length(topic) BETWEEN 1 AND 128
        GROUP BY topic, now;
        SELECT cardinality($2);
    $$;
